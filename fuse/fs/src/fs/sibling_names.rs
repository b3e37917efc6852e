//! The names in the directory of a locked file.
//!
//! A lock may protect more than its file. SQLite looks for a journal beside its database each time
//! it has locked the database: if there is one, and nobody holds a write lock, a writer has died,
//! and the database must be repaired before it is read. A client that believes for half a minute
//! that there is no such name reads a half-written database. So a lock that is taken invalidates
//! the cached names of the file's directory as well, and from the first lock in a directory on the
//! kernel may not cache its names. The kernel then sends a LOOKUP for each use of a name; until the
//! next lock, that there is none is answered from memory.
//!
//! The directory is the one in which the kernel was last given a name of the file.

use super::files::Files;
use super::inode::Inode;
use super::inode_flags::Flag;
use nfsrdma_nfs3::Nfs3;
use std::sync::Arc;
use std::sync::atomic::Ordering;

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

    /// Makes the kernel look up the names in the directory of a file at each use. At the first call
    /// for a directory, expires the names that the kernel may have cached: `expire` gets directory
    /// and name.
    pub fn expire_names_beside(&self, nodeid: u64, mut expire: impl FnMut(u64, &[u8])) {
        let inode = self.table.get(nodeid);
        let Some(dir) = inode.and_then(|inode| self.dir_of(&inode)) else {
            return;
        };
        if !dir.flags.has(Flag::NamesExpired) {
            dir.flags.set(Flag::NamesAsked);
            for name in self.names.all_in(dir.nodeid) {
                expire(dir.nodeid, &name);
            }
            // A second one who locks at the same time does not go on before.
            dir.flags.set(Flag::NamesExpired);
        }
    }
}
