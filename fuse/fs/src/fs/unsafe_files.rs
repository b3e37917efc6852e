//! The files with data that is not on the server's stable storage, and the reference to the mount
//! that such data needs.
//!
//! umount(2) of a FUSE mount does not wait for the serving process, neither for the reply to the
//! last RELEASE nor for data that a killed program or a mapping left behind. But it fails with
//! EBUSY while there is a reference to the mount. A program's open descriptor is one until FLUSH is
//! answered. So this process needs a reference of its own only for data that outlives the answer:
//!
//! * data written through an open file that was flushed before (by a mapping or a duplicated
//!   descriptor);
//! * data that is not safe when FLUSH is answered, because writing it failed, or because the caller
//!   was killed and is answered early.
//!
//! The record of a file says that it is in the set, unless all of its data outlives this process: its
//! programs are told of the loss if this process dies. It does so before their WRITE is answered.
//!
//! A function that the caller sets ([`Hold`]) takes the reference, and gives it back when the set
//! is empty.

use super::inode::Inode;
use std::collections::BTreeMap;
use std::collections::btree_map::{Entry, Values};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Called with true when unsafe data may outlive the descriptors through which it was written, and
/// with false when all data is safe.
pub type Hold = Box<dyn Fn(bool) + Send + Sync>;

/// Files by their nodes.
#[derive(Default)]
pub(super) struct UnsafeFiles {
    files: BTreeMap<u64, Arc<Inode>>,
    hold: Option<Hold>,
    /// A reference is needed until the set is empty.
    held: bool,
}

impl fmt::Debug for UnsafeFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.files.keys()).finish()
    }
}

impl UnsafeFiles {
    /// Sets the function that takes and gives back the reference.
    pub(super) fn set_hold(&mut self, hold: Hold) {
        if self.held {
            hold(true);
        }
        self.hold = Some(hold);
    }

    /// `recorded`: all of its data outlives this process. `outlives`: it may outlive the descriptor through
    /// which it was written.
    pub(super) fn insert(&mut self, inode: &Arc<Inode>, recorded: bool, outlives: bool) {
        if !recorded {
            inode.unsafe_.store(1, Ordering::Relaxed);
        }
        if let Entry::Vacant(new) = self.files.entry(inode.nodeid) {
            new.insert(inode.clone());
        }
        if outlives {
            self.keep();
        }
    }

    /// Unsafe data may outlive its descriptors: takes a reference until the set is empty.
    pub(super) fn keep(&mut self) {
        if !self.held && !self.files.is_empty() {
            self.held = true;
            self.tell();
        }
    }

    pub(super) fn remove(&mut self, node: &u64) {
        let Some(inode) = self.files.remove(node) else {
            return;
        };
        inode.unsafe_.store(0, Ordering::Relaxed);
        if self.files.is_empty() && self.held {
            self.held = false;
            self.tell();
        }
    }

    fn tell(&self) {
        if let Some(hold) = &self.hold {
            hold(self.held);
        }
    }

    pub(super) fn contains(&self, node: u64) -> bool {
        self.files.contains_key(&node)
    }

    pub(super) fn values(&self) -> Values<'_, u64, Arc<Inode>> {
        self.files.values()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fs::inode::tests::file;
    use crate::sync::Mutex;

    #[test]
    fn a_reference_is_held_only_for_data_that_outlive_their_descriptors() {
        let records = nfsrdma_record::Table::anonymous();
        let inodes = [1, 2, 3].map(|fileid| file(&records, fileid));
        let nodes = inodes.each_ref().map(|inode| inode.nodeid);
        let told = Arc::new(Mutex::new(Vec::new()));
        let mut files = UnsafeFiles::default();
        files.keep();
        files.insert(&inodes[0], false, true);
        let log = told.clone();
        files.set_hold(Box::new(move |on| log.lock().push(on)));
        assert_eq!(*told.lock(), [true], "one was wanted already");
        files.insert(&inodes[0], false, true);
        files.insert(&inodes[1], false, false);
        files.remove(&nodes[0]);
        files.remove(&nodes[0]);
        assert_eq!(*told.lock(), [true], "it lasts until all are safe");
        assert!(files.contains(nodes[1]) && !files.contains(nodes[0]));
        files.remove(&nodes[1]);
        files.remove(&nodes[1]);
        assert_eq!(*told.lock(), [true, false]);
        files.insert(&inodes[2], false, false);
        assert_eq!(
            *told.lock(),
            [true, false],
            "its descriptor holds the mount"
        );
        files.keep();
        files.keep();
        files.remove(&nodes[2]);
        assert_eq!(*told.lock(), [true, false, true, false]);
        files.keep();
        assert_eq!(told.lock().len(), 4, "there is nothing to keep");
    }
}
