//! The identity under which the kernel does file system work of the calling thread.

use crate::sys;
use nfsrdma_xdr::nfs3::Status;
use std::cell::RefCell;

/// Most supplementary groups taken from a credential (RFC 5531 appendix A).
pub const GROUPS_MAX: usize = 16;

/// A user, as the file system sees it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Identity {
    pub uid: u32,
    pub gid: u32,
    pub groups: Vec<u32>,
}

impl Identity {
    /// The superuser, whose identity the server uses for its own work.
    pub const SERVER: Identity = Identity {
        uid: 0,
        gid: 0,
        groups: Vec::new(),
    };
}

/// How credentials of calls are mapped to identities.
#[derive(Debug, Clone)]
pub struct Mapping {
    /// Whether this process may take other identities at all.
    pub privileged: bool,
    /// Whether uid 0 and gid 0 become the anonymous ones.
    pub root_squash: bool,
    pub anonymous: (u32, u32),
}

impl Mapping {
    /// The identity for an AUTH_SYS credential, or for AUTH_NONE without one.
    pub fn identity(&self, credential: Option<(u32, u32, &[u32])>) -> Identity {
        let (anonymous_uid, anonymous_gid) = self.anonymous;
        let Some((uid, gid, groups)) = credential else {
            return Identity {
                uid: anonymous_uid,
                gid: anonymous_gid,
                groups: Vec::new(),
            };
        };
        let squash = |id: u32, to: u32| match id {
            0 if self.root_squash => to,
            id => id,
        };
        Identity {
            uid: squash(uid, anonymous_uid),
            gid: squash(gid, anonymous_gid),
            groups: groups
                .iter()
                .take(GROUPS_MAX)
                .map(|&g| squash(g, anonymous_gid))
                .collect(),
        }
    }

    /// Gives the calling thread the identity `identity`. A server without privileges does
    /// everything as the user who runs it.
    pub fn assume(&self, identity: &Identity) -> Result<(), Status> {
        if !self.privileged {
            return Ok(());
        }
        CURRENT.with_borrow_mut(|current| {
            if current.as_ref() == Some(identity) {
                return Ok(());
            }
            // The identity is unknown until all parts of it are set.
            *current = None;
            sys::set_thread_identity(identity.uid, identity.gid, &identity.groups)
                .map_err(|_| Status::Access)?;
            *current = Some(identity.clone());
            Ok(())
        })
    }
}

thread_local! {
    /// The identity that this thread took last; a new thread inherits its parent's.
    static CURRENT: RefCell<Option<Identity>> = const { RefCell::new(None) };
}
