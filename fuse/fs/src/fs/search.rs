//! Who may search a directory. This decides which names the kernel may cache, and which callers are
//! answered from the cache of names here.
//!
//! A name in the kernel's cache is found by every caller whom the kernel lets search the directory, without asking this program or
//! the server. So the kernel may cache the names of a directory only if the server lets all these callers search it as well:
//!
//! * With `permissions=kernel` the kernel checks the mode of the directory. That refuses all
//!   callers whom the server would refuse, except uid 0 and holders of CAP_DAC_READ_SEARCH. They do
//!   not matter if everybody may search, or if the server does not squash uid 0 ([`squash`]).
//! * With `permissions=server` the kernel checks nothing, and may cache no names.
//! * Where the kernel admits only one user, processes of that user may still have different
//!   supplementary groups. These do not matter if everybody may search, or the user is the owner.
//!
//! Names of other directories are given to the kernel with a validity of zero. It then sends a LOOKUP each time, with the caller's
//! identity. For a directory, or what does not exist, that is answered from memory if the server has recently granted this caller
//! LOOKUP, in a reply to ACCESS or by answering a LOOKUP. With `permissions=kernel` the owner of a directory needs no grant,
//! because the mode admits owners.

use super::clock::Nanos;
use super::config::Permissions;
use super::error::FsResult;
use super::inode::{Inode, Stamp};
use super::squash::everybody_may_search;
use super::{Fs, inode};
use nfsrdma_nfs3::{Cred, Credential, Nfs3};
use nfsrdma_xdr::nfs3::{Attributes, Status, access};
use std::sync::Arc;

impl<N: Nfs3> Fs<N> {
    /// Whether the server lets everybody search `dir` whom the kernel lets search it.
    pub(super) fn kernel_may_keep_names(&self, dir: &Inode) -> bool {
        let state = dir.state.lock();
        let Some(known) = state.attributes() else {
            return false;
        };
        match self.config.permissions {
            Permissions::Server => return false,
            _ if everybody_may_search(known) => return true,
            Permissions::Kernel | Permissions::ServerForOne(0) => {}
            Permissions::ServerForOne(uid) => return known.uid == uid && known.mode & 0o100 != 0,
        }
        let known = *known;
        drop(state);
        self.root_squash.lock().may_search(&known) == Some(true)
    }

    /// Whether it is known that the caller may search `dir`.
    pub(super) fn may_search_cached(
        &self,
        dir: &Inode,
        now: Nanos,
        uid: u32,
        cred: impl FnOnce() -> Cred,
    ) -> bool {
        if self.kernel_may_keep_names(dir) {
            return true;
        }
        if self.config.permissions == Permissions::Kernel && uid != 0 {
            // The kernel has checked the mode, which admits the owner without a capability.
            let state = dir.state.lock();
            if state
                .attributes()
                .is_some_and(|dir| dir.uid == uid && dir.mode & 0o100 != 0)
            {
                return true;
            }
        }
        let cred = cred();
        let state = dir.state.lock();
        state.granted(&cred, access::LOOKUP, now) == Some(access::LOOKUP)
    }

    /// Whether a LOOKUP in `parent` may be sent without the caller's supplementary groups, which cost a system call: where
    /// everybody may search the directory and the kernel caches its names, all callers get the same answer.
    /// [`Fs::lookup_holds_without_groups`] then checks the reply.
    pub fn looks_up_without_groups(&self, parent: u64) -> bool {
        self.config.permissions != Permissions::Server
            && self.table.get(parent).is_some_and(|dir| {
                let state = dir.state.lock();
                state.attributes().is_some_and(everybody_may_search)
            })
    }

    /// Whether the answer to a LOOKUP without groups is also that to the caller with all groups. It is if everybody may still
    /// search the directory, and if it is no refusal, since an ACL may refuse everybody but the members of a group.
    pub fn lookup_holds_without_groups<T>(&self, parent: u64, found: &FsResult<T>) -> bool {
        let status = found.as_ref().err().and_then(|error| error.status());
        !matches!(status, Some(Status::Access | Status::Perm))
            && self.looks_up_without_groups(parent)
    }

    /// Whether uid 0 is the server's superuser in the file system of `nodeid`, so that supplementary groups of uid 0 do not matter.
    pub fn is_superuser(&self, nodeid: u64) -> bool {
        let Some(inode) = self.table.get(nodeid) else {
            return false;
        };
        let state = inode.state.lock();
        let known = state.attributes();
        known.is_some_and(|known| self.superuser.is_known_in(known.fsid))
    }

    /// Records that `cred` may search `dir`, since the server answered a call that requires it. The
    /// call was sent at `stamp`; `dir_attributes` are those of the directory in its reply.
    pub(super) fn searched(
        &self,
        cred: &Cred,
        dir: &Inode,
        stamp: Stamp,
        dir_attributes: Option<&Attributes>,
    ) {
        if self.kernel_may_keep_names(dir) {
            return;
        }
        let now = self.now();
        let mut state = dir.state.lock();
        let current = match dir_attributes {
            Some(heard) => is_current(&state, heard),
            None => state.unheard_since(stamp) && state.attributes().is_some(),
        };
        if !current || !state.undisturbed(stamp) {
            return;
        }
        let until = now + state.fresh_for(now);
        state.grant_search(cred, now, until);
    }

    /// Finds out whether the server squashes uid 0, if that matters for `dir` and is not known yet:
    /// by `found`, the answer to a LOOKUP in `dir`, or by an ACCESS, of which a mount needs few.
    pub(super) async fn probe_root_squash<T>(
        &self,
        cred: &Cred,
        dir: &Arc<Inode>,
        found: &FsResult<T>,
    ) {
        if !matches!(
            self.config.permissions,
            Permissions::Kernel | Permissions::ServerForOne(0)
        ) {
            return;
        }
        let known = dir.state.lock().attributes().copied();
        let Some(attributes) = known else { return };
        let is_known = self.root_squash.lock().may_search(&attributes).is_some();
        let status = match found {
            Ok(_) => Some(Status::Ok),
            Err(error) => error.status(),
        };
        let granted = match status.unwrap_or(Status::Io) {
            // An export may begin to squash root, so a refusal counts also after grants.
            Status::Access if cred.uid == 0 => false,
            _ if is_known => return,
            Status::Ok | Status::NoEnt if cred.uid == 0 => true,
            Status::Ok | Status::NoEnt => {
                let root = Arc::new(Credential {
                    uid: 0,
                    gid: 0,
                    groups: Vec::new(),
                });
                match Box::pin(self.nfs.access(&root, &dir.handle, access::LOOKUP)).await {
                    Ok((granted, _)) => granted & access::LOOKUP != 0,
                    Err(_) => return,
                }
            }
            _ => return,
        };
        self.root_squash.lock().answered(&attributes, granted);
    }
}

/// Whether `heard`, the attributes of a reply, have the mode, owner, group and ctime that are known
/// now: another reply may have shown a change since.
pub(super) fn is_current(state: &inode::State, heard: &Attributes) -> bool {
    let rights = |a: &Attributes| (a.ctime, a.mode, a.uid, a.gid);
    state
        .attributes()
        .is_some_and(|known| rights(known) == rights(heard))
}
