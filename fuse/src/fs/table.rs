//! The inodes the kernel knows, by number.

use super::inode::{Inode, ROOT};
use crate::sync::Mutex;
use nfsrdma_xdr::nfs3::{Attributes, FileHandle};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const SHARDS: usize = 16;
/// Numbers from here on are made up: the fileid was taken, reserved, or of another file system
/// of the server.
const MADE_UP: u64 = 1 << 63;

/// All inodes the kernel has been told of and not forgotten.
#[derive(Debug)]
pub(super) struct Table {
    shards: [Mutex<HashMap<u64, Arc<Inode>>>; SHARDS],
    /// Numbers made up, by handle.
    others: Mutex<HashMap<FileHandle, u64>>,
    next: AtomicU64,
    generation: AtomicU64,
    /// The file system of the export's root.
    fsid: AtomicU64,
}

/// What the table makes of a handle.
#[derive(Debug)]
pub(super) enum Resolved {
    Is(Arc<Inode>),
    /// The number belongs to an inode with another handle: gone, or the same object named
    /// otherwise.
    Taken(Arc<Inode>),
}

impl Table {
    pub(super) fn new() -> Self {
        Table {
            shards: Default::default(),
            others: Mutex::default(),
            next: AtomicU64::new(MADE_UP),
            generation: AtomicU64::new(1),
            fsid: AtomicU64::new(u64::MAX),
        }
    }

    /// The root's file system, once it is known.
    pub(super) fn set_fsid(&self, fsid: u64) {
        self.fsid.store(fsid, Ordering::Relaxed);
    }

    fn shard(&self, nodeid: u64) -> &Mutex<HashMap<u64, Arc<Inode>>> {
        let mixed = nodeid.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        &self.shards[(mixed >> 60) as usize]
    }

    pub(super) fn get(&self, nodeid: u64) -> Option<Arc<Inode>> {
        self.shard(nodeid).lock().get(&nodeid).cloned()
    }

    /// Puts the root in, never to be forgotten.
    pub(super) fn insert_root(&self, root: Arc<Inode>) {
        root.lookups.store(1, Ordering::Relaxed);
        self.shard(ROOT).lock().insert(ROOT, root);
    }

    fn number(&self, handle: &FileHandle, attributes: &Attributes) -> u64 {
        let fileid = attributes.fileid;
        if fileid > ROOT && fileid < MADE_UP && attributes.fsid == self.fsid.load(Ordering::Relaxed)
        {
            return fileid;
        }
        let mut others = self.others.lock();
        *others
            .entry(*handle)
            .or_insert_with(|| self.next.fetch_add(1, Ordering::Relaxed))
    }

    fn make(&self, nodeid: u64, handle: &FileHandle, attributes: &Attributes) -> Arc<Inode> {
        Arc::new(Inode::new(
            nodeid,
            self.generation.fetch_add(1, Ordering::Relaxed),
            *handle,
            attributes.kind,
            attributes.fileid,
        ))
    }

    /// The inode of `handle`; a new one is not in the table yet ([`Table::adopt`]).
    pub(super) fn resolve(&self, handle: &FileHandle, attributes: &Attributes) -> Resolved {
        let nodeid = self.number(handle, attributes);
        match self.get(nodeid) {
            Some(known) if known.handle == *handle && known.kind == attributes.kind => {
                Resolved::Is(known)
            }
            Some(known) => Resolved::Taken(known),
            None => Resolved::Is(self.make(nodeid, handle, attributes)),
        }
    }

    /// An inode of `handle` to take the number over from one that is gone.
    pub(super) fn succeed(
        &self,
        gone: &Inode,
        handle: &FileHandle,
        attributes: &Attributes,
    ) -> Arc<Inode> {
        self.make(gone.nodeid, handle, attributes)
    }

    /// The kernel is told of `inode` once more. Returns the one to tell it of: the table's,
    /// if it has the same handle. `None` if the number went to another object meanwhile.
    pub(super) fn adopt(&self, inode: &Arc<Inode>) -> Option<Arc<Inode>> {
        let mut shard = self.shard(inode.nodeid).lock();
        match shard.get(&inode.nodeid) {
            Some(known) if known.handle == inode.handle => {
                known.lookups.fetch_add(1, Ordering::Relaxed);
                Some(known.clone())
            }
            Some(_) => None,
            None => {
                inode.lookups.store(1, Ordering::Relaxed);
                shard.insert(inode.nodeid, inode.clone());
                Some(inode.clone())
            }
        }
    }

    /// Puts `inode` in the place of `gone`, whose count it takes over: the kernel counts by
    /// number.
    pub(super) fn replace(&self, gone: &Arc<Inode>, inode: &Arc<Inode>) -> Option<Arc<Inode>> {
        let mut shard = self.shard(gone.nodeid).lock();
        if let Some(known) = shard.get(&gone.nodeid) {
            if known.handle == inode.handle {
                known.lookups.fetch_add(1, Ordering::Relaxed);
                return Some(known.clone());
            }
            if !Arc::ptr_eq(known, gone) {
                return None;
            }
            inode
                .lookups
                .store(known.lookups.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        inode.lookups.fetch_add(1, Ordering::Relaxed);
        shard.insert(inode.nodeid, inode.clone());
        Some(inode.clone())
    }

    /// The kernel forgets `count` of the times it was told.
    pub(super) fn forget(&self, nodeid: u64, count: u64) {
        if nodeid == ROOT {
            return;
        }
        let mut shard = self.shard(nodeid).lock();
        let Some(inode) = shard.get(&nodeid) else {
            return;
        };
        let left = inode.lookups.load(Ordering::Relaxed).saturating_sub(count);
        inode.lookups.store(left, Ordering::Relaxed);
        if left == 0 {
            let gone = shard.remove(&nodeid);
            drop(shard);
            if let Some(gone) = gone
                && gone.nodeid >= MADE_UP
            {
                self.others.lock().remove(&gone.handle);
            }
        }
    }

    /// Inodes in the table.
    pub(super) fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().len()).sum()
    }
}
