//! The files with data that are not on the server's stable storage, and the hold on the mount
//! that such data need.
//!
//! umount(2) of a FUSE mount waits for no reply of the serving process: neither for the RELEASE
//! of the last descriptor nor for data that a killed program or a mapping left behind. What it
//! respects is a reference to the mount. A program's open descriptor is one, and the kernel lets
//! go of it only after FLUSH was answered. So a reference of this process's own is needed for
//! data that outlive that answer only:
//!
//! * written through an open file that was flushed before (by a mapping, or by a descriptor that
//!   was duplicated);
//! * not safe when FLUSH is answered, because writing them failed or because the caller was
//!   killed and is answered early.
//!
//! Then somebody is asked to take one, and to give it back when the set is empty: meanwhile
//! umount(2) fails with EBUSY, whoever calls it.

use super::inode::Inode;
use std::collections::BTreeMap;
use std::collections::btree_map::Values;
use std::fmt;
use std::sync::Arc;

/// Called with true when unsafe data may outlive the descriptors they came by, with false when all
/// are safe.
pub type Hold = Box<dyn Fn(bool) + Send + Sync>;

/// Files by [`FileData::id`](super::file::FileData::id).
#[derive(Default)]
pub(super) struct UnsafeFiles {
    files: BTreeMap<u64, Arc<Inode>>,
    hold: Option<Hold>,
    /// A reference is wanted until the set is empty.
    held: bool,
}

impl fmt::Debug for UnsafeFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.files.keys()).finish()
    }
}

impl UnsafeFiles {
    /// From now on `hold` is called when a reference is wanted, and when it no longer is.
    pub(super) fn set_hold(&mut self, hold: Hold) {
        if self.held {
            hold(true);
        }
        self.hold = Some(hold);
    }

    /// `outlives`: the data may outlive the descriptor they came by.
    pub(super) fn insert(&mut self, id: u64, inode: &Arc<Inode>, outlives: bool) {
        self.files.entry(id).or_insert_with(|| inode.clone());
        if outlives {
            self.keep();
        }
    }

    /// From now on what is unsafe may outlive the descriptors it came by.
    pub(super) fn keep(&mut self) {
        if !self.held && !self.files.is_empty() {
            self.held = true;
            self.tell();
        }
    }

    pub(super) fn remove(&mut self, id: &u64) {
        if self.files.remove(id).is_some() && self.files.is_empty() && self.held {
            self.held = false;
            self.tell();
        }
    }

    fn tell(&self) {
        if let Some(hold) = &self.hold {
            hold(self.held);
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
    fn a_reference_is_held_only_for_data_that_outlive_their_descriptors() {
        let inode = |id| {
            let handle = FileHandle::new(&[1]).unwrap();
            Arc::new(Inode::new(id, handle, FileType::Regular, id))
        };
        let told = Arc::new(Mutex::new(Vec::new()));
        let mut files = UnsafeFiles::default();
        files.keep();
        files.insert(1, &inode(1), true);
        let log = told.clone();
        files.set_hold(Box::new(move |on| log.lock().push(on)));
        assert_eq!(*told.lock(), [true], "one was wanted already");
        files.insert(1, &inode(1), true);
        files.insert(2, &inode(2), false);
        files.remove(&1);
        files.remove(&1);
        assert_eq!(*told.lock(), [true], "it lasts until all are safe");
        assert!(files.contains(2) && !files.contains(1));
        files.remove(&2);
        files.remove(&2);
        assert_eq!(*told.lock(), [true, false]);
        files.insert(3, &inode(3), false);
        assert_eq!(
            *told.lock(),
            [true, false],
            "its descriptor holds the mount"
        );
        files.keep();
        files.keep();
        files.remove(&3);
        assert_eq!(*told.lock(), [true, false, true, false]);
        files.keep();
        assert_eq!(told.lock().len(), 4, "there is nothing to keep");
    }
}
