//! The names in the directory of a locked file.
//!
//! A lock may protect more than its file. SQLite looks for a journal beside its database each time
//! it has locked the database: if there is one, and nobody holds a write lock, a writer has died,
//! and the database must be repaired before it is read. A client that believes for half a minute
//! that there is no such name reads a half-written database. So a lock that is taken invalidates
//! the cached names of the file's directory as well, and until [`ASKED`] after the last lock in a directory the
//! kernel may not cache its names. The kernel then asks for each name that is used; until the next lock, most of that
//! is answered from memory (`lookup.rs`).
//!
//! The directory is the one in which the kernel was last given a name of the file.

use super::clock::Nanos;
use super::files::Files;
use super::inode::Inode;
use super::inode_flags::Flag;
use nfsrdma_nfs3::Nfs3;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// How long the kernel must ask for the names after a lock was taken.
const ASKED: Nanos = 60_000_000_000;

impl<N: Nfs3> Files<N> {
    pub(super) fn dir_of(&self, inode: &Inode) -> Option<Arc<Inode>> {
        self.table.get(inode.named_in.load(Ordering::Relaxed))
    }

    /// Invalidates all names that are cached here for the directory of `inode`.
    pub(super) fn forget_names_beside(&self, inode: &Inode) {
        let Some(dir) = self.dir_of(inode) else {
            return;
        };
        let mut state = dir.state.lock();
        state.renew_epoch();
        state.expire();
    }

    /// Whether a file in `dir` was locked lately.
    pub(super) fn names_are_asked(&self, dir: &Inode) -> bool {
        if !dir.flags.has(Flag::NamesAsked) {
            return false;
        }
        let state = dir.state.lock();
        let last = state.listed().map_or(0, |of| of.locked_beside);
        let asked = self.now().saturating_sub(last) <= ASKED;
        if !asked {
            dir.flags.clear(Flag::NamesExpired);
            dir.flags.clear(Flag::NamesAsked);
        }
        asked
    }

    /// Makes the kernel ask for the names in the directory of a file at each use. If it was permitted to cache
    /// them before, expires those that it may have: `expire` gets directory and name.
    pub fn expire_names_beside(&self, nodeid: u64, mut expire: impl FnMut(u64, &[u8])) {
        let inode = self.table.get(nodeid);
        let Some(dir) = inode.and_then(|inode| self.dir_of(&inode)) else {
            return;
        };
        {
            let mut state = dir.state.lock();
            state.listed_mut().locked_beside = self.now();
            dir.flags.set(Flag::NamesAsked);
        }
        if !dir.flags.has(Flag::NamesExpired) {
            for name in self.names.all_in(dir.nodeid) {
                expire(dir.nodeid, &name);
            }
            // A second one who locks at the same time does not go on before.
            dir.flags.set(Flag::NamesExpired);
        }
    }
}
