//! The inodes the kernel knows, by node id and by file handle.
//!
//! The file handle is the identity of an object (RFC 1813, nfs_fh3): objects with the same fileid
//! and different handles are different objects, as in snapshots and subvolumes. The node id is the
//! kernel's name for an object. It comes from a counter and is never used again, unlike the fileids
//! of servers, so that a request is always about the object that its caller looked up.
//!
//! A handle has one [`Inode`] as long as the kernel, a cached name, an open file or a call refers
//! to it. With two of them, one could be open while the name leads to the other, and UNLINK would
//! remove the file instead of hiding it.

use super::inode::{Inode, ROOT};
use crate::sync::Mutex;
use foldhash::fast::RandomState;
use nfsrdma_xdr::nfs3::{Attributes, FileHandle};
use rustc_hash::FxBuildHasher;
use std::borrow::Borrow;
use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, Hash, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

const SHARDS: usize = 16;
/// A shard has at least this many inodes that the kernel does not know before dead ones are
/// removed.
const FEW: usize = 32;
/// Inode numbers from here on are computed from fsid and fileid.
const OF_OTHER_FSID: u64 = 1 << 63;

/// An inode whose hash and equality are those of its handle.
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

/// An inode whose hash and equality are those of its node id.
#[derive(Debug)]
struct ByNode(Arc<Inode>);

impl Borrow<u64> for ByNode {
    fn borrow(&self) -> &u64 {
        &self.0.nodeid
    }
}

impl Hash for ByNode {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.nodeid.hash(state);
    }
}

impl PartialEq for ByNode {
    fn eq(&self, other: &Self) -> bool {
        self.0.nodeid == other.0.nodeid
    }
}

impl Eq for ByNode {}

/// The inodes by handle; each handle has one. The server chooses handles, so they are hashed under a
/// random key.
#[derive(Debug, Default)]
struct Handles {
    /// The inodes that the kernel knows, except those whose handle was later given to an object of
    /// another type.
    known: HashSet<ByHandle, RandomState>,
    /// Inodes that the kernel does not know, while they live: it was not given them yet, or has
    /// forgotten them, while names or open files refer to them.
    others: HashMap<FileHandle, Weak<Inode>, RandomState>,
    /// How many `others` were alive when dead ones were last removed.
    alive: usize,
}

impl Handles {
    fn get(&self, handle: &FileHandle) -> Option<Arc<Inode>> {
        match self.known.get(handle) {
            Some(known) => Some(known.0.clone()),
            None => self.others.get(handle)?.upgrade(),
        }
    }

    /// Remembers an inode that the kernel does not know, without keeping it alive.
    fn keep(&mut self, inode: &Arc<Inode>) {
        if self.others.len() >= FEW.max(2 * self.alive) {
            self.tidy();
        }
        self.others.insert(inode.handle, Arc::downgrade(inode));
    }

    fn tidy(&mut self) {
        self.others.retain(|_, other| other.strong_count() > 0);
        self.alive = self.others.len();
        self.others.shrink_to(2 * self.alive);
    }
}

type Nodes = HashSet<ByNode, FxBuildHasher>;

/// All inodes to which the kernel or anything else refers.
#[derive(Debug)]
pub(super) struct Table {
    /// The inodes that the kernel knows, by node id, which comes from a counter of our own.
    nodes: [Mutex<Nodes>; SHARDS],
    /// Locked before `nodes` where both are.
    handles: [Mutex<Handles>; SHARDS],
    /// Chooses the shard of a handle.
    shards: RandomState,
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
            shards: RandomState::default(),
            next: AtomicU64::new(ROOT + 1),
            fsid: AtomicU64::new(u64::MAX),
        }
    }

    /// Sets the fsid of the export's root.
    pub(super) fn set_fsid(&self, fsid: u64) {
        self.fsid.store(fsid, Ordering::Relaxed);
    }

    /// The inode number that stat(2) and readdir(3) show: the fileid, or for file systems other
    /// than the root's a hash of fsid and fileid. A mount has one device number, even if the server
    /// has several file systems below the export, and find(1) would see a loop if a directory had
    /// the number of one above it.
    pub(super) fn visible_fileid(&self, of: &Attributes) -> u64 {
        if of.fsid == self.fsid.load(Ordering::Relaxed) {
            return of.fileid;
        }
        let both = mixed(of.fsid ^ of.fsid >> 32).rotate_left(17) ^ of.fileid;
        OF_OTHER_FSID | mixed(both) >> 1
    }

    fn node_shard(&self, nodeid: u64) -> &Mutex<Nodes> {
        &self.nodes[(mixed(nodeid) >> 60) as usize]
    }

    fn handle_shard(&self, handle: &FileHandle) -> &Mutex<Handles> {
        &self.handles[self.shards.hash_one(handle) as usize % SHARDS]
    }

    pub(super) fn get(&self, nodeid: u64) -> Option<Arc<Inode>> {
        let nodes = self.node_shard(nodeid).lock();
        nodes.get(&nodeid).map(|known| known.0.clone())
    }

    /// The inode of `handle`, if the kernel knows it.
    pub(super) fn find(&self, handle: &FileHandle) -> Option<Arc<Inode>> {
        let handles = self.handle_shard(handle).lock();
        handles.known.get(handle).map(|known| known.0.clone())
    }

    /// Inserts the root, which is never forgotten.
    pub(super) fn insert_root(&self, root: Arc<Inode>) {
        root.lookups.store(1, Ordering::Relaxed);
        let mut handles = self.handle_shard(&root.handle).lock();
        handles.known.insert(ByHandle(root.clone()));
        self.node_shard(ROOT).lock().insert(ByNode(root));
    }

    /// The inode of `handle`, new if there is none. The kernel gets no reference
    /// ([`Table::adopt`]). With it comes one of the same handle whose type is another one.
    pub(super) fn resolve(
        &self,
        handle: &FileHandle,
        attributes: &Attributes,
    ) -> (Arc<Inode>, Option<Arc<Inode>>) {
        let mut handles = self.handle_shard(handle).lock();
        let old = handles.get(handle);
        if let Some(old) = &old
            && old.kind == attributes.kind
        {
            return (old.clone(), None);
        }
        let inode = Arc::new(Inode::new(
            self.next.fetch_add(1, Ordering::Relaxed),
            *handle,
            attributes.kind,
            attributes.fileid,
        ));
        if old.is_none() {
            handles.keep(&inode);
        }
        (inode, old)
    }

    /// Counts one more reference of the kernel. Returns the inode to give to it, which is the one
    /// of the handle.
    pub(super) fn adopt(&self, inode: &Arc<Inode>) -> Arc<Inode> {
        let mut handles = self.handle_shard(&inode.handle).lock();
        let inode = match handles.get(&inode.handle) {
            Some(one) if one.kind == inode.kind => one,
            // A handle must never name another object (RFC 1813, nfs_fh3). If a server gives it to
            // an object of another type nevertheless, that has an inode of its own.
            _ => inode.clone(),
        };
        // Under the lock of its handle, so that `forget` cannot interfere.
        if inode.lookups.fetch_add(1, Ordering::Relaxed) == 0 {
            handles.others.remove(&inode.handle);
            handles.known.replace(ByHandle(inode.clone()));
            let mut nodes = self.node_shard(inode.nodeid).lock();
            nodes.insert(ByNode(inode.clone()));
        }
        inode
    }

    /// Takes back `count` references of the kernel.
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
        if left > 0 {
            return;
        }
        self.node_shard(nodeid).lock().remove(&nodeid);
        let known = handles.known.get(&inode.handle);
        if known.is_some_and(|known| Arc::ptr_eq(&known.0, &inode)) {
            handles.known.remove(&inode.handle);
            if Arc::strong_count(&inode) > 1 {
                handles.keep(&inode);
            }
        }
    }

    /// Frees the entries of inodes that nothing refers to any more.
    pub(super) fn tidy(&self) {
        self.handles.iter().for_each(|shard| shard.lock().tidy());
    }

    /// The number of inodes that the kernel knows.
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

    fn resolve(table: &Table, handle: &FileHandle, attributes: &Attributes) -> Arc<Inode> {
        table.resolve(handle, attributes).0
    }

    #[test]
    fn a_node_id_stands_for_one_handle_and_is_not_used_again() {
        let table = Table::new();
        let of = attributes(1, 1);
        let mut seen = HashSet::new();
        for round in 0..100u8 {
            // All have the same fileid.
            let inode = table.adopt(&resolve(&table, &handle(round), &of));
            assert!(seen.insert(inode.nodeid));
            assert!(inode.nodeid > ROOT);
            let again = table.adopt(&resolve(&table, &handle(round), &of));
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
        let back = table.adopt(&resolve(&table, &handle(0), &of));
        assert!(seen.insert(back.nodeid));
    }

    #[test]
    fn a_handle_has_one_inode_while_anything_leads_to_it() {
        let table = Table::new();
        let of = attributes(1, 1);
        // Two look-ups at the same time.
        let (a, b) = (
            resolve(&table, &handle(1), &of),
            resolve(&table, &handle(1), &of),
        );
        assert!(Arc::ptr_eq(&a, &b));
        assert!(Arc::ptr_eq(&table.adopt(&a), &a));
        assert!(Arc::ptr_eq(&table.adopt(&b), &a));
        assert_eq!(a.lookups.load(Ordering::Relaxed), 2);
        // The kernel forgets it, but a name or an open file refers to it.
        table.forget(a.nodeid, 2);
        assert!(table.get(a.nodeid).is_none() && table.find(&handle(1)).is_none());
        assert!(Arc::ptr_eq(&resolve(&table, &handle(1), &of), &a));
        table.tidy();
        assert!(Arc::ptr_eq(&resolve(&table, &handle(1), &of), &a));
        assert!(Arc::ptr_eq(&table.adopt(&a), &a));
        assert!(table.get(a.nodeid).is_some());
        // Nothing refers to it.
        let node = a.nodeid;
        table.forget(node, 1);
        drop((a, b));
        assert_ne!(resolve(&table, &handle(1), &of).nodeid, node);
    }

    #[test]
    fn inodes_that_nothing_leads_to_take_no_memory() {
        let table = Table::new();
        let of = attributes(1, 1);
        let named: Vec<_> = (0..2000u64)
            .map(|number| {
                let handle = FileHandle::new(&number.to_ne_bytes()).unwrap();
                let inode = table.adopt(&resolve(&table, &handle, &of));
                table.forget(inode.nodeid, 1);
                // This one is only looked up.
                resolve(
                    &table,
                    &FileHandle::new(&(!number).to_ne_bytes()).unwrap(),
                    &of,
                );
                inode
            })
            .collect();
        let kept = || -> usize {
            let shards = table.handles.iter();
            shards.map(|shard| shard.lock().others.len()).sum()
        };
        assert!(kept() <= 2 * named.len() + SHARDS * FEW, "{}", kept());
        table.tidy();
        assert_eq!(kept(), named.len());
        drop(named);
        table.tidy();
        assert_eq!(kept(), 0);
        assert_eq!(table.len(), 0);
    }

    #[test]
    fn a_handle_that_changes_its_type_is_another_object() {
        let table = Table::new();
        let of = attributes(1, 1);
        let file = table.adopt(&resolve(&table, &handle(1), &of));
        let kind = FileType::Directory;
        let dir = table.adopt(&resolve(&table, &handle(1), &Attributes { kind, ..of }));
        assert_ne!(file.nodeid, dir.nodeid);
        assert!(Arc::ptr_eq(&table.get(file.nodeid).unwrap(), &file));
        table.forget(file.nodeid, 1);
        let again = resolve(&table, &handle(1), &Attributes { kind, ..of });
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
