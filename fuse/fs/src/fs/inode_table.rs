//! The inodes the kernel knows, by node id and by file handle.
//!
//! The file handle is the identity of an object (RFC 1813, nfs_fh3): objects with the same fileid and different
//! handles are different objects, as in snapshots and subvolumes. The node id is the kernel's name for an object: the
//! number of its record (`nfsrdma_record`), which leads to it without a search. It is never used again, unlike the
//! fileids of servers, so that a request is always about the object that its caller looked up.
//!
//! Records may outlive the process. The references of the kernel are counted there before it is given them,
//! so that the next process has every node that it may name. It makes the inode of such a record when
//! something first leads there, so that it serves at once, however many there are.
//!
//! A handle has one [`Inode`] as long as the kernel, a cached name, an open file or a call refers to it. With two of
//! them, one could be open while the name leads to the other, and UNLINK would remove the file instead of hiding it.

use super::inode::{Inode, ROOT};
use crate::sync::Mutex;
use foldhash::fast::RandomState;
use hashbrown::HashTable;
use nfsrdma_record::{Node, Region};
use nfsrdma_xdr::nfs3::{Attributes, FileHandle, FileType};
use std::collections::HashSet;
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

const SHARDS: usize = 16;
/// A shard has at least this many inodes before dead ones are removed.
const FEW: usize = 32;
/// Inode numbers from here on are computed from fsid and fileid.
const OF_OTHER_FSID: u64 = 1 << 63;

/// The inodes by handle; each handle has one. It is found while anything else keeps it alive.
#[derive(Debug, Default)]
struct Handles {
    entries: HashTable<Weak<Inode>>,
    /// How many of them were alive when dead ones were last removed.
    alive: usize,
}

/// The server chooses handles, so they are hashed under a random key.
#[derive(Debug, Default)]
struct Hasher(RandomState);

impl Hasher {
    fn hash(&self, handle: &FileHandle) -> u64 {
        self.0.hash_one(handle)
    }

    /// The hash of an entry; of a dead one, which nobody looks for, any.
    fn of_entry(&self, entry: &Weak<Inode>) -> u64 {
        let inode = entry.upgrade();
        inode.map_or(0, |inode| self.hash(&inode.handle))
    }
}

impl Handles {
    fn get(&self, hash: u64, handle: &FileHandle) -> Option<Arc<Inode>> {
        let mut found = None;
        self.entries.find(hash, |entry| {
            found = entry.upgrade().filter(|inode| inode.handle == *handle);
            found.is_some()
        });
        found
    }

    /// Makes `inode` the one of its handle.
    fn put(&mut self, hash: u64, inode: &Arc<Inode>, hasher: &Hasher) {
        if let Some(before) = self.get(hash, &inode.handle) {
            self.remove(hash, &before);
        }
        if self.entries.len() >= FEW.max(2 * self.alive) {
            self.tidy(hasher);
        }
        let entry = Arc::downgrade(inode);
        self.entries
            .insert_unique(hash, entry, |entry| hasher.of_entry(entry));
    }

    fn remove(&mut self, hash: u64, inode: &Arc<Inode>) {
        let is = |entry: &Weak<Inode>| std::ptr::eq(entry.as_ptr(), Arc::as_ptr(inode));
        if let Ok(entry) = self.entries.find_entry(hash, is) {
            entry.remove();
        }
    }

    fn tidy(&mut self, hasher: &Hasher) {
        self.entries.retain(|entry| entry.strong_count() > 0);
        self.alive = self.entries.len();
        self.entries
            .shrink_to(2 * self.alive, |entry| hasher.of_entry(entry));
    }
}

/// The inodes that the kernel knows, by the slots of their records.
#[derive(Debug, Default)]
struct Nodes {
    slots: Vec<Option<Arc<Inode>>>,
    known: usize,
}

impl Nodes {
    fn insert(&mut self, slot: usize, inode: Arc<Inode>) {
        if self.slots.len() <= slot {
            self.slots.resize(slot + 1, None);
        }
        self.slots[slot] = Some(inode);
        self.known += 1;
    }
}

/// The records of an earlier process whose inodes are not made yet.
#[derive(Debug, Default)]
struct Left {
    /// The lower halves of the node ids of those that the kernel knows, by handle. Nothing is added.
    by_handle: Mutex<HashTable<u32>>,
    number: AtomicUsize,
}

/// The shard of a node and its slot there.
fn place(nodeid: u64) -> (usize, usize) {
    let slot = (nodeid as u32).wrapping_sub(1) as usize;
    (slot % SHARDS, slot / SHARDS)
}

/// All inodes to which the kernel or anything else refers.
#[derive(Debug)]
pub(super) struct Table {
    records: Arc<Region<Node>>,
    nodes: [Mutex<Nodes>; SHARDS],
    /// Locked before `nodes` where both are.
    handles: [Mutex<Handles>; SHARDS],
    hasher: Hasher,
    /// Its handles are locked after `handles`, and not together with `nodes`.
    left: Left,
    /// The file system of the export's root.
    fsid: AtomicU64,
}

fn mixed(number: u64) -> u64 {
    number.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

impl Table {
    /// With the records that were made by an earlier process. Those that the kernel does not know are freed, unless
    /// they are `wanted` ([`Table::forgotten`]).
    pub(super) fn new(records: &Arc<Region<Node>>, wanted: &HashSet<u64>) -> Self {
        let hasher = Hasher::default();
        let (mut known, mut unknown) = (Vec::new(), Vec::new());
        records.each(|node| {
            if node.lookups.load(Ordering::Relaxed) > 0 {
                known.push((hasher.hash(&node.handle), node.nodeid as u32));
            } else if !wanted.contains(&node.nodeid) {
                unknown.push(node.nodeid);
            }
        });
        for nodeid in unknown {
            drop(records.claim(nodeid));
        }
        let mut by_handle = HashTable::with_capacity(known.len());
        let number = AtomicUsize::new(known.len());
        for (hash, low) in known {
            by_handle.insert_unique(hash, low, |_| unreachable!("it has room for all"));
        }
        let by_handle = Mutex::new(by_handle);
        Table {
            records: records.clone(),
            nodes: Default::default(),
            handles: Default::default(),
            hasher,
            left: Left { by_handle, number },
            fsid: AtomicU64::new(u64::MAX),
        }
    }

    /// Sets the fsid of the export's root.
    pub(super) fn set_fsid(&self, fsid: u64) {
        self.fsid.store(fsid, Ordering::Relaxed);
    }

    /// The inode number that stat(2) and readdir(3) show: the fileid, or for file systems other than the root's a
    /// hash of fsid and fileid. A mount has one device number, even if the server has several file systems below the
    /// export, and find(1) would see a loop if a directory had the number of one above it.
    pub(super) fn visible_fileid(&self, of: &Attributes) -> u64 {
        if of.fsid == self.fsid.load(Ordering::Relaxed) {
            return of.fileid;
        }
        let both = mixed(of.fsid ^ of.fsid >> 32).rotate_left(17) ^ of.fileid;
        OF_OTHER_FSID | mixed(both) >> 1
    }

    /// The hash of a handle, and where its inode is.
    fn handle_shard(&self, handle: &FileHandle) -> (u64, &Mutex<Handles>) {
        let hash = self.hasher.hash(handle);
        // A hash table uses the lowest and the highest bits.
        (hash, &self.handles[(hash >> 32) as usize % SHARDS])
    }

    pub(super) fn get(&self, nodeid: u64) -> Option<Arc<Inode>> {
        self.made_before(nodeid).or_else(|| self.left(nodeid))
    }

    fn made_before(&self, nodeid: u64) -> Option<Arc<Inode>> {
        let (shard, slot) = place(nodeid);
        let nodes = self.nodes[shard].lock();
        let inode = nodes.slots.get(slot)?.as_ref()?;
        (inode.nodeid == nodeid).then(|| inode.clone())
    }

    /// The inode of a record of an earlier process that the kernel knows.
    fn left(&self, nodeid: u64) -> Option<Arc<Inode>> {
        let known = |node: &Node| node.lookups.load(Ordering::Relaxed) > 0;
        let handle = |node: &Node| known(node).then_some(node.handle);
        let Some(handle) = self.records.look(nodeid as u32, handle).flatten() else {
            // Another thread may have made it meanwhile.
            return self.made_before(nodeid);
        };
        let (hash, handles) = self.handle_shard(&handle);
        let made = self.restored(nodeid, hash, &mut handles.lock());
        made.or_else(|| self.made_before(nodeid))
    }

    /// The inode of a record of an earlier process that the kernel does not know, once.
    pub(super) fn forgotten(&self, nodeid: u64) -> Option<Arc<Inode>> {
        let inode = Arc::new(Inode::restored(self.records.claim(nodeid)?));
        let (hash, handles) = self.handle_shard(&inode.handle);
        handles.lock().put(hash, &inode, &self.hasher);
        Some(inode)
    }

    /// Makes the inode of a record of an earlier process that the kernel knows. `handles` has the ones with that hash.
    fn restored(&self, nodeid: u64, hash: u64, handles: &mut Handles) -> Option<Arc<Inode>> {
        let (shard, slot) = place(nodeid);
        let inode = {
            // Whoever finds that the record has gone finds the inode.
            let mut nodes = self.nodes[shard].lock();
            let inode = Arc::new(Inode::restored(self.records.claim(nodeid)?));
            nodes.insert(slot, inode.clone());
            inode
        };
        {
            let mut left = self.left.by_handle.lock();
            if let Ok(entry) = left.find_entry(hash, |&low| low == nodeid as u32) {
                entry.remove();
            }
            if left.is_empty() {
                *left = HashTable::new();
            }
            self.left.number.store(left.len(), Ordering::Relaxed);
        }
        if handles.get(hash, &inode.handle).is_none() {
            handles.put(hash, &inode, &self.hasher);
        }
        Some(inode)
    }

    /// The inode of `handle`. `handles` has the ones with that hash.
    fn of_handle(
        &self,
        hash: u64,
        handle: &FileHandle,
        handles: &mut Handles,
    ) -> Option<Arc<Inode>> {
        if let Some(inode) = handles.get(hash, handle) {
            return Some(inode);
        }
        if self.left.number.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let node = |low: u32| self.records.look(low, |node| (node.nodeid, node.handle));
        let is = |&low: &u32| node(low).is_some_and(|(_, of)| of == *handle);
        let low = self.left.by_handle.lock().find(hash, is).copied()?;
        self.restored(node(low)?.0, hash, handles)
    }

    /// The inode of `handle`, if the kernel knows it.
    pub(super) fn find(&self, handle: &FileHandle) -> Option<Arc<Inode>> {
        let (hash, handles) = self.handle_shard(handle);
        let inode = self.of_handle(hash, handle, &mut handles.lock())?;
        (inode.lookups.load(Ordering::Relaxed) > 0).then_some(inode)
    }

    /// Inserts the root, which is never forgotten, unless an earlier process has.
    pub(super) fn insert_root(&self, handle: FileHandle) {
        if self.get(ROOT).is_none() {
            let root = self.made(handle, FileType::Directory, 0);
            root.lookups.store(1, Ordering::Relaxed);
            debug_assert_eq!(root.nodeid, ROOT, "it is the first");
            self.insert(root);
        }
    }

    fn made(&self, handle: FileHandle, kind: FileType, fileid: u64) -> Arc<Inode> {
        let record = Node::new(handle, kind as u8, fileid);
        Arc::new(Inode::new(self.records.alloc(record)))
    }

    /// Inserts an inode that the kernel knows.
    fn insert(&self, inode: Arc<Inode>) {
        let (hash, handles) = self.handle_shard(&inode.handle);
        handles.lock().put(hash, &inode, &self.hasher);
        self.known(inode);
    }

    /// The kernel knows an inode.
    fn known(&self, inode: Arc<Inode>) {
        let (shard, slot) = place(inode.nodeid);
        self.nodes[shard].lock().insert(slot, inode);
    }

    /// The inode of `handle`, new if there is none. The kernel gets no reference ([`Table::adopt`]). One of another type is not that.
    pub(super) fn resolve(&self, handle: &FileHandle, attributes: &Attributes) -> Arc<Inode> {
        let (hash, handles) = self.handle_shard(handle);
        let mut handles = handles.lock();
        let old = self.of_handle(hash, handle, &mut handles);
        if let Some(old) = &old
            && old.kind == attributes.kind
        {
            return old.clone();
        }
        let inode = self.made(*handle, attributes.kind, attributes.fileid);
        if old.is_none() {
            handles.put(hash, &inode, &self.hasher);
        }
        inode
    }

    /// Counts one more reference of the kernel. Returns the inode to give to it, which is the one
    /// of the handle.
    pub(super) fn adopt(&self, inode: &Arc<Inode>) -> Arc<Inode> {
        let (hash, handles) = self.handle_shard(&inode.handle);
        let mut handles = handles.lock();
        let inode = match handles.get(hash, &inode.handle) {
            Some(one) if one.kind == inode.kind => one,
            // A handle must never name another object (RFC 1813, nfs_fh3). If a server gives it to
            // an object of another type nevertheless, that has an inode of its own.
            _ => {
                handles.put(hash, inode, &self.hasher);
                inode.clone()
            }
        };
        // Under the lock of its handle, so that `forget` cannot interfere.
        if inode.lookups.fetch_add(1, Ordering::Relaxed) == 0 {
            self.known(inode.clone());
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
        let (hash, handles) = self.handle_shard(&inode.handle);
        let mut handles = handles.lock();
        let left = inode.lookups.load(Ordering::Relaxed).saturating_sub(count);
        inode.lookups.store(left, Ordering::Relaxed);
        if left > 0 {
            return;
        }
        let (shard, slot) = place(nodeid);
        {
            let mut nodes = self.nodes[shard].lock();
            if nodes.slots[slot].take().is_some() {
                nodes.known -= 1;
            }
        }
        if Arc::strong_count(&inode) == 1 {
            handles.remove(hash, &inode);
        }
    }

    /// The inodes of which an earlier process has left that data or an error may be lost. To be called
    /// before any of its records has an inode.
    pub(super) fn with_errors(&self) -> Vec<Arc<Inode>> {
        let mut left = Vec::new();
        self.records.each(|node| {
            if node.may_have_lost() {
                left.push(node.nodeid);
            }
        });
        left.into_iter()
            .filter_map(|nodeid| self.get(nodeid))
            .collect()
    }

    /// Frees the entries of inodes that nothing refers to any more.
    pub(super) fn tidy(&self) {
        let shards = self.handles.iter();
        shards.for_each(|shard| shard.lock().tidy(&self.hasher));
    }

    /// The number of inodes that the kernel knows.
    pub(super) fn len(&self) -> usize {
        let made = self.nodes.iter().map(|shard| shard.lock().known);
        made.sum::<usize>() + self.left.number.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
#[path = "inode_table_tests.rs"]
mod tests;
