//! The files with data that are not on the server's stable storage, and the hold on the mount
//! that such data need.
//!
//! umount(2) of a FUSE mount waits for no reply of the serving process: neither for the RELEASE
//! of the last descriptor nor for data that a killed program or a mapping left behind. What it
//! respects is a reference to the mount. So somebody may be asked to take one whenever the set
//! stops being empty, and to give it back when the set is empty again: meanwhile umount(2) fails
//! with EBUSY, whoever calls it.

use super::inode::Inode;
use std::collections::BTreeMap;
use std::collections::btree_map::Values;
use std::fmt;
use std::sync::Arc;

/// Called with true when data become unsafe, with false when all are safe.
pub type Hold = Box<dyn Fn(bool) + Send + Sync>;

/// Files by [`FileData::id`](super::file::FileData::id).
#[derive(Default)]
pub(super) struct UnsafeFiles {
    files: BTreeMap<u64, Arc<Inode>>,
    hold: Option<Hold>,
}

impl fmt::Debug for UnsafeFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.files.keys()).finish()
    }
}

impl UnsafeFiles {
    /// From now on `hold` is told of the changes between empty and not empty.
    pub(super) fn set_hold(&mut self, hold: Hold) {
        if !self.files.is_empty() {
            hold(true);
        }
        self.hold = Some(hold);
    }

    pub(super) fn insert(&mut self, id: u64, inode: &Arc<Inode>) {
        if self.files.is_empty()
            && let Some(hold) = &self.hold
        {
            hold(true);
        }
        self.files.entry(id).or_insert_with(|| inode.clone());
    }

    pub(super) fn remove(&mut self, id: &u64) {
        let removed = self.files.remove(id);
        if removed.is_some()
            && self.files.is_empty()
            && let Some(hold) = &self.hold
        {
            hold(false);
        }
    }

    pub(super) fn contains(&self, id: u64) -> bool {
        self.files.contains_key(&id)
    }

    /// All, in order of their numbers, beginning with the first that is not below `from`.
    pub(super) fn in_turn(&self, from: u64) -> impl Iterator<Item = (&u64, &Arc<Inode>)> {
        self.files.range(from..).chain(self.files.range(..from))
    }

    pub(super) fn values(&self) -> Values<'_, u64, Arc<Inode>> {
        self.files.values()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::Mutex;
    use nfsrdma_xdr::nfs3::{FileHandle, FileType};

    #[test]
    fn the_hold_lasts_from_the_first_unsafe_file_to_the_last() {
        let inode = |id| {
            let handle = FileHandle::new(&[1]).unwrap();
            Arc::new(Inode::new(id, handle, FileType::Regular, id))
        };
        let told = Arc::new(Mutex::new(Vec::new()));
        let mut files = UnsafeFiles::default();
        files.insert(1, &inode(1));
        let log = told.clone();
        files.set_hold(Box::new(move |on| log.lock().push(on)));
        assert_eq!(*told.lock(), [true], "data were unsafe already");
        files.insert(1, &inode(1));
        files.insert(2, &inode(2));
        files.remove(&1);
        files.remove(&1);
        assert_eq!(*told.lock(), [true]);
        assert!(files.contains(2) && !files.contains(1));
        files.remove(&2);
        files.remove(&2);
        assert_eq!(*told.lock(), [true, false]);
        files.insert(3, &inode(3));
        assert_eq!(*told.lock(), [true, false, true]);
    }
}
