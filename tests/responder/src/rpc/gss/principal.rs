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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_principal_is_found_with_and_without_its_realm() {
        let all: Vec<Principal> = ["alice=1:2:3:4", "bob@ONE=5:6"]
            .iter()
            .map(|text| text.parse().unwrap())
            .collect();
        let alice = Principal::identity(&all, "alice@ANY").unwrap();
        assert_eq!(
            (alice.uid, alice.gid, &alice.groups[..]),
            (1, 2, &[3, 4][..])
        );
        assert_eq!(Principal::identity(&all, "bob@ONE").unwrap().uid, 5);
        assert_eq!(Principal::identity(&all, "bob@TWO"), None);
        assert_eq!(Principal::identity(&all, "alice/admin@ANY"), None);
    }

    #[test]
    fn what_cannot_be_meant_is_refused() {
        for wrong in ["", "alice", "alice=", "alice=1", "=1:2", "alice=1:x"] {
            assert!(wrong.parse::<Principal>().is_err(), "{wrong}");
        }
    }
}
