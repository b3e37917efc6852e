//! Whose rights a principal has.

use crate::fs::Identity;
use std::str::FromStr;

/// The identity of a principal: `NAME[@REALM]=UID:GID[:GROUP...]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Principal {
    /// Without a realm it is of any realm.
    name: String,
    identity: Identity,
}

impl FromStr for Principal {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || "NAME=UID:GID is wanted, as alice=1001:1001".to_string();
        let (name, ids) = text.split_once('=').ok_or_else(wrong)?;
        let ids: Vec<u32> = ids
            .split(':')
            .map(|id| id.parse().map_err(|_| wrong()))
            .collect::<Result<_, _>>()?;
        match (name, &ids[..]) {
            ("", _) => Err(wrong()),
            (name, &[uid, gid, ref groups @ ..]) => Ok(Principal {
                name: name.to_string(),
                identity: Identity {
                    uid,
                    gid,
                    groups: groups.to_vec(),
                },
            }),
            _ => Err(wrong()),
        }
    }
}

impl Principal {
    /// Of `all`, the identity of the principal `full`, which has a realm.
    pub(super) fn identity<'a>(all: &'a [Principal], full: &str) -> Option<&'a Identity> {
        let short = full.rsplit_once('@').map_or(full, |(name, _)| name);
        all.iter()
            .find(|principal| principal.name == full || principal.name == short)
            .map(|principal| &principal.identity)
    }
}
