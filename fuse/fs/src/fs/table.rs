//! The inodes the kernel knows, by node id and by file handle.
//!
//! The file handle is the identity of an object (RFC 1813, nfs_fh3): objects with equal
//! fileids and other handles are other objects, as in snapshots and subvolumes. The node id is
//! what the kernel calls an object. It comes from a counter and is never used again, so that
//! a request can never be about another object than the one its caller looked up; fileids are
//! used again by servers.

use super::inode::{Inode, ROOT};
use crate::sync::Mutex;
use nfsrdma_xdr::nfs3::{Attributes, FileHandle};
use std::borrow::Borrow;
use std::collections::{HashMap, HashSet};
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const SHARDS: usize = 16;
/// Inode numbers from here on are made of fsid and fileid.
const OF_OTHER_FSID: u64 = 1 << 63;

/// An inode that is found by its handle.
#[derive(Debug)]
struct ByHandle(Arc<Inode>);

impl Borrow<FileHandle> for ByHandle {
    fn borrow(&self) -> &FileHandle {
        &self.0.handle
    }
}

impl Hash for ByHandle {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.handle.hash(state);
    }
}

impl PartialEq for ByHandle {
    fn eq(&self, other: &Self) -> bool {
        self.0.handle == other.0.handle
    }
}

impl Eq for ByHandle {}

/// All inodes to which the kernel has references.
#[derive(Debug)]
pub(super) struct Table {
    nodes: [Mutex<HashMap<u64, Arc<Inode>>>; SHARDS],
    /// The inodes of `nodes`, but for those whose handle went to an object of another type.
    /// Where both are locked, this one is first.
    handles: [Mutex<HashSet<ByHandle>>; SHARDS],
    /// The next node id.
    next: AtomicU64,
    /// The file system of the export's root.
    fsid: AtomicU64,
}

fn mixed(number: u64) -> u64 {
    number.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

impl Table {
    pub(super) fn new() -> Self {
        Table {
            nodes: Default::default(),
            handles: Default::default(),
            next: AtomicU64::new(ROOT + 1),
            fsid: AtomicU64::new(u64::MAX),
        }
    }

    /// The root's file system, once it is known.
    pub(super) fn set_fsid(&self, fsid: u64) {
        self.fsid.store(fsid, Ordering::Relaxed);
    }

    /// The inode number that stat(2) and readdir(3) show: the fileid. A mount has one device
    /// number, though its server may have several file systems below one export; find(1) would
    /// see a loop where a directory of one has the fileid of a directory of another above it.
    /// So the numbers of other file systems than the root's are made of both fsid and fileid.
    pub(super) fn visible_fileid(&self, of: &Attributes) -> u64 {
        if of.fsid == self.fsid.load(Ordering::Relaxed) {
            return of.fileid;
        }
        let both = mixed(of.fsid ^ of.fsid >> 32).rotate_left(17) ^ of.fileid;
        OF_OTHER_FSID | mixed(both) >> 1
    }

    fn node_shard(&self, nodeid: u64) -> &Mutex<HashMap<u64, Arc<Inode>>> {
        &self.nodes[(mixed(nodeid) >> 60) as usize]
    }

    fn handle_shard(&self, handle: &FileHandle) -> &Mutex<HashSet<ByHandle>> {
        let hash = handle
            .as_bytes()
            .iter()
            .fold(0, |hash: u64, &byte| mixed(hash ^ u64::from(byte)));
        &self.handles[(hash >> 60) as usize]
    }

    pub(super) fn get(&self, nodeid: u64) -> Option<Arc<Inode>> {
        self.node_shard(nodeid).lock().get(&nodeid).cloned()
    }

    /// The inode of `handle`, if the kernel knows it.
    pub(super) fn find(&self, handle: &FileHandle) -> Option<Arc<Inode>> {
        let handles = self.handle_shard(handle).lock();
        handles.get(handle).map(|known| known.0.clone())
    }

    /// Puts the root in, never to be forgotten.
    pub(super) fn insert_root(&self, root: Arc<Inode>) {
        root.lookups.store(1, Ordering::Relaxed);
        let mut handles = self.handle_shard(&root.handle).lock();
        handles.insert(ByHandle(root.clone()));
        self.node_shard(ROOT).lock().insert(ROOT, root);
    }

    /// The inode of `handle`; a new one is not in the table yet ([`Table::adopt`]).
    pub(super) fn resolve(&self, handle: &FileHandle, attributes: &Attributes) -> Arc<Inode> {
        {
            let handles = self.handle_shard(handle).lock();
            if let Some(ByHandle(known)) = handles.get(handle)
                && known.kind == attributes.kind
            {
                return known.clone();
            }
        }
        Arc::new(Inode::new(
            self.next.fetch_add(1, Ordering::Relaxed),
            *handle,
            attributes.kind,
            attributes.fileid,
        ))
    }

    /// The kernel gets one more reference to `inode`. Returns the inode to give to it: the table's,
    /// if it has the same handle.
    pub(super) fn adopt(&self, inode: &Arc<Inode>) -> Arc<Inode> {
        let mut handles = self.handle_shard(&inode.handle).lock();
        let known = handles.get(&inode.handle).map(|known| known.0.clone());
        let inode = match known {
            Some(known) if known.kind == inode.kind => known,
            // A handle is for ever (RFC 1813, nfs_fh3), but this server gives it to an
            // object of another type: that is another object.
            _ => {
                handles.replace(ByHandle(inode.clone()));
                inode.clone()
            }
        };
        // Under the lock of its handle, so that it is not being forgotten.
        if inode.lookups.fetch_add(1, Ordering::Relaxed) == 0 {
            let mut nodes = self.node_shard(inode.nodeid).lock();
            nodes.insert(inode.nodeid, inode.clone());
        }
        inode
    }

    /// The kernel gives up `count` of its references.
    pub(super) fn forget(&self, nodeid: u64, count: u64) {
        if nodeid == ROOT {
            return;
        }
        let Some(inode) = self.get(nodeid) else {
            return;
        };
        let mut handles = self.handle_shard(&inode.handle).lock();
        let left = inode.lookups.load(Ordering::Relaxed).saturating_sub(count);
        inode.lookups.store(left, Ordering::Relaxed);
        if left == 0 {
            if let Some(ByHandle(known)) = handles.get(&inode.handle)
                && Arc::ptr_eq(known, &inode)
            {
                handles.remove(&inode.handle);
            }
            self.node_shard(nodeid).lock().remove(&nodeid);
        }
    }

    /// Inodes in the table.
    pub(super) fn len(&self) -> usize {
        self.nodes.iter().map(|shard| shard.lock().len()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fs::attribute_cache::model::attributes;
    use nfsrdma_xdr::nfs3::FileType;

    fn handle(number: u8) -> FileHandle {
        FileHandle::new(&[number; 8]).unwrap()
    }

    #[test]
    fn a_node_id_stands_for_one_handle_and_is_not_used_again() {
        let table = Table::new();
        let of = attributes(1, 1);
        let mut seen = HashSet::new();
        for round in 0..100u8 {
            // All have the same fileid.
            let inode = table.adopt(&table.resolve(&handle(round), &of));
            assert!(seen.insert(inode.nodeid));
            assert!(inode.nodeid > ROOT);
            let again = table.adopt(&table.resolve(&handle(round), &of));
            assert!(Arc::ptr_eq(&inode, &again));
            assert!(table.get(inode.nodeid).is_some());
            if round % 2 == 0 {
                table.forget(inode.nodeid, 1);
                assert!(table.get(inode.nodeid).is_some());
                table.forget(inode.nodeid, 1);
                assert!(table.get(inode.nodeid).is_none());
            }
        }
        assert_eq!(table.len(), 50);
        let back = table.adopt(&table.resolve(&handle(0), &of));
        assert!(seen.insert(back.nodeid));
    }

    #[test]
    fn of_two_inodes_made_for_one_handle_the_first_is_told() {
        let table = Table::new();
        let of = attributes(1, 1);
        let (a, b) = (
            table.resolve(&handle(1), &of),
            table.resolve(&handle(1), &of),
        );
        assert_ne!(a.nodeid, b.nodeid);
        assert!(Arc::ptr_eq(&table.adopt(&a), &a));
        assert!(Arc::ptr_eq(&table.adopt(&b), &a));
        assert!(table.get(b.nodeid).is_none());
        assert_eq!(a.lookups.load(Ordering::Relaxed), 2);
        // A name that is still cached leads to the one the kernel forgot: it is told of again.
        table.forget(a.nodeid, 2);
        assert!(Arc::ptr_eq(&table.adopt(&a), &a));
        assert!(table.get(a.nodeid).is_some());
    }

    #[test]
    fn a_handle_that_changes_its_type_is_another_object() {
        let table = Table::new();
        let of = attributes(1, 1);
        let file = table.adopt(&table.resolve(&handle(1), &of));
        let kind = FileType::Directory;
        let dir = table.adopt(&table.resolve(&handle(1), &Attributes { kind, ..of }));
        assert_ne!(file.nodeid, dir.nodeid);
        assert!(Arc::ptr_eq(&table.get(file.nodeid).unwrap(), &file));
        table.forget(file.nodeid, 1);
        let again = table.resolve(&handle(1), &Attributes { kind, ..of });
        assert!(Arc::ptr_eq(&again, &dir), "not lost with the other");
    }

    #[test]
    fn fileids_of_other_file_systems_are_told_apart() {
        let table = Table::new();
        let of = attributes(1, 1);
        table.set_fsid(of.fsid);
        assert_eq!(table.visible_fileid(&of), of.fileid);
        let of = |fsid, fileid| table.visible_fileid(&Attributes { fsid, fileid, ..of });
        let numbers: HashSet<_> = (5..9)
            .flat_map(|fsid| (0..50).map(move |fileid| (fsid, fileid)))
            .map(|(fsid, fileid)| of(fsid, fileid))
            .collect();
        assert_eq!(numbers.len(), 200);
        assert!(numbers.iter().all(|&number| number >= OF_OTHER_FSID));
        assert_eq!(of(5, 7), of(5, 7));
    }
}
