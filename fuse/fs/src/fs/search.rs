//! Who may search a directory: which names the kernel may keep, and to whom this program
//! answers from its own cache of names.
//!
//! A name that the kernel keeps is found by every caller whom the kernel lets search the
//! directory, and nobody is asked. So it may keep the names of a directory only if all whom it
//! lets in there are let in by the server as well:
//!
//! * With `permissions=kernel` it checks the mode of the directory, which refuses whom the
//!   server would refuse, except that uid 0 (and who has CAP_DAC_READ_SEARCH) passes. That does
//!   not matter where everybody may search, or where the server does not squash uid 0 ([`squash`]
//!   finds out).
//! * With `permissions=server` it checks nothing: it keeps no names.
//! * Where it lets in one user only, that user differs from itself by supplementary groups. They
//!   do not count where everybody may search, or the user is the owner.
//!
//! Names of other directories are given to the kernel with a time to live of zero. It then
//! sends LOOKUP each time, with the caller's identity, and the answer comes from memory if the
//! server has lately granted that caller LOOKUP: by ACCESS, or by having answered a LOOKUP. With
//! `permissions=kernel` the owner of a directory needs no grant: owners are let in by the mode.

use super::clock::Nanos;
use super::config::Permissions;
use super::error::FsResult;
use super::inode::{Inode, Stamp};
use super::squash::everybody_may_search;
use super::{Fs, inode};
use nfsrdma_nfs3::{Cred, Credential, Nfs3};
use nfsrdma_xdr::nfs3::{Attributes, Status, WccData, access};
use std::sync::Arc;

impl<N: Nfs3> Fs<N> {
    /// Whether everybody whom the kernel lets search `dir` may do so by the server's word.
    pub(super) fn kernel_may_keep_names(&self, dir: &Inode) -> bool {
        let known = dir.state.lock().attributes().copied();
        let Some(dir) = known else { return false };
        let root_may = || self.root_squash.lock().may_search(&dir) == Some(true);
        match self.config.permissions {
            Permissions::Server => false,
            _ if everybody_may_search(&dir) => true,
            Permissions::Kernel | Permissions::ServerForOne(0) => root_may(),
            Permissions::ServerForOne(uid) => dir.uid == uid && dir.mode & 0o100 != 0,
        }
    }

    /// Whether the caller is known to be one who may search `dir`.
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
            // The kernel has checked the mode, and let an owner in by right, not by capability.
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

    /// Whether a LOOKUP in `parent` may be sent without the caller's supplementary groups, which
    /// take a system call to read: where everybody may search it and the kernel keeps its names,
    /// the answer is everybody's. What it says of the directory has to confirm that
    /// ([`Fs::lookup_holds_without_groups`]).
    pub fn looks_up_without_groups(&self, parent: u64) -> bool {
        let Some(dir) = self.table.get(parent) else {
            return false;
        };
        let known = dir.state.lock().attributes().copied();
        known.is_some_and(|known| everybody_may_search(&known)) && self.kernel_may_keep_names(&dir)
    }

    /// Whether the answer to such a LOOKUP is one to the caller with all groups: it is no refusal,
    /// which an ACL may make of everybody but the members of a group, and the directory is still
    /// open to everybody.
    pub fn lookup_holds_without_groups<T>(&self, parent: u64, found: &FsResult<T>) -> bool {
        let status = found.as_ref().err().and_then(|error| error.status());
        !matches!(status, Some(Status::Access | Status::Perm))
            && self.looks_up_without_groups(parent)
    }

    /// Whether uid 0 is the server's superuser where `nodeid` is: its supplementary groups do not
    /// matter.
    pub fn is_superuser(&self, nodeid: u64) -> bool {
        let Some(inode) = self.table.get(nodeid) else {
            return false;
        };
        let state = inode.state.lock();
        let known = state.attributes();
        known.is_some_and(|known| self.superuser.is_known_in(known.fsid))
    }

    /// The server did something in `dir`, in a call that began at `stamp`, which it does only
    /// for who may search. `dir_attributes`: what its reply says of the directory.
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

    /// The same after a call that changed the directory.
    pub(super) fn searched_to_change(&self, cred: &Cred, dir: &Inode, wcc: &WccData) {
        if self.kernel_may_keep_names(dir) {
            return;
        }
        let now = self.now();
        let mut state = dir.state.lock();
        let after = wcc.after.as_ref();
        if !state.is_changing() && after.is_some_and(|after| is_current(&state, after)) {
            let until = now + state.fresh_for(now);
            state.grant_search(cred, now, until);
        }
    }

    /// `found` is what a LOOKUP in `dir` gave. Finds out about root squashing if that is of
    /// use here and not known yet: by this answer, or by an ACCESS (few in the life of a mount).
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
            Ok(_) => Status::Ok,
            Err(error) => match error.status() {
                Some(status) => status,
                None => return,
            },
        };
        let granted = match status {
            // Also if it was granted before: servers change their minds.
            Status::Access if cred.uid == 0 => false,
            _ if is_known => return,
            Status::Ok | Status::NoEnt if cred.uid == 0 => true,
            // The directory may be gone, or the server in trouble.
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
        if self.root_squash.lock().answered(&attributes, granted) {
            tracing::debug!(
                "the server squashes root: names in private directories are looked up each time"
            );
        }
    }
}

/// Whether `heard`, the attributes of a reply, are what is known now: another reply may have shown
/// a change of mode or owner since.
pub(super) fn is_current(state: &inode::State, heard: &Attributes) -> bool {
    let rights = |a: &Attributes| (a.ctime, a.mode, a.uid, a.gid);
    state
        .attributes()
        .is_some_and(|known| rights(known) == rights(heard))
}
