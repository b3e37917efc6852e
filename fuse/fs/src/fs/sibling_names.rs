//! The names beside a file that is locked.
//!
//! What a lock protects is not only its file. SQLite looks for a journal beside its database
//! each time it has locked it: if there is one, and nobody holds a lock for writing, a writer
//! has died, and the database must be repaired before it is read. Who believes for half a
//! minute that there is no such name reads a database that is half written. So a lock that is
//! taken is a boundary for the names in the file's directory, too: what is cached of them here
//! is given up, and the kernel is told to believe none, from the first lock in the directory
//! on. It then sends a LOOKUP for each use of a name; most are answered from memory until the
//! next lock.
//!
//! The directory is the one in which the kernel was last told a name of the file.

use super::Fs;
use super::inode::{Asked, Inode};
use nfsrdma_nfs3::Nfs3;
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl<N: Nfs3> Fs<N> {
    fn dir_of(&self, inode: &Inode) -> Option<Arc<Inode>> {
        self.table.get(inode.named_in.load(Ordering::Relaxed))
    }

    /// Invalidates all names that are cached here of the directory of `inode`.
    pub(super) fn forget_names_beside(&self, inode: &Inode) {
        let Some(dir) = self.dir_of(inode) else {
            return;
        };
        let mut state = dir.state.lock();
        state.renew_epoch();
        state.expire();
    }

    /// Has the kernel, by `expire` (directory and name), ask for each name in the directory of a
    /// file. Waits for it to have been told of all, which it is once.
    pub fn expire_names_beside(&self, nodeid: u64, mut expire: impl FnMut(u64, &[u8])) {
        let inode = self.table.get(nodeid);
        let Some(dir) = inode.and_then(|inode| self.dir_of(&inode)) else {
            return;
        };
        {
            let mut asked = dir.names_asked.lock();
            match *asked {
                Asked::All => return,
                Asked::No | Asked::New => *asked = Asked::New,
            }
        }
        // Another locker may be at it: that one's work is not waited for, but done again.
        for name in self.names.all_in(dir.nodeid) {
            expire(dir.nodeid, &name);
        }
        *dir.names_asked.lock() = Asked::All;
    }
}
