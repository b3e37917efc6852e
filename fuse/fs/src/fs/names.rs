//! The cache of names: it maps a directory and a name to an inode, or to the knowledge that there is none. An entry has the epoch
//! of its directory's contents and is valid only while the directory has the same, so that a change by somebody else invalidates
//! all names of a directory without a search. The cache is bounded and drops the least recently used names first.
//!
//! An outdated entry stays until the kernel has been notified of its name, because it is the only
//! record that the kernel may have the name ([`Names::take_outdated`]).

use super::inode::{Inode, ROOT};
use crate::sync::Mutex;
use foldhash::fast::RandomState;
use lru::LruCache;
use rustc_hash::FxBuildHasher;
use smallvec::SmallVec;
use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, Hash, Hasher};
use std::num::NonZeroUsize;
use std::sync::Arc;

const SHARDS: usize = 8;
/// The most names of a path, for the case that the server's directories form a circle.
pub(super) const DEEPEST: usize = 64;

/// What a name leads to.
#[derive(Debug, Clone)]
pub(super) enum Child {
    Is(Arc<Inode>),
    /// The directory has no such name.
    Absent,
}

impl Child {
    fn target(&self) -> Option<*const Inode> {
        match self {
            Child::Is(inode) => Some(Arc::as_ptr(inode)),
            Child::Absent => None,
        }
    }
}

/// A directory, and a name in it.
pub(super) type Place = (u64, Box<[u8]>);

/// From an object's node to a name of it.
pub(super) type Index = HashMap<u64, Place>;

/// The path of `node`: `/` and the names below the export's root, or `.../` and the last names if only
/// these are known, or nothing. `place` knows the name of a node.
pub(super) fn path<'a>(mut node: u64, place: impl Fn(u64) -> Option<&'a Place>) -> String {
    let mut names = Vec::new();
    while node != ROOT
        && names.len() < DEEPEST
        && let Some((dir, name)) = place(node)
    {
        names.push(String::from_utf8_lossy(name));
        node = *dir;
    }
    names.reverse();
    match (node == ROOT, names.is_empty()) {
        (true, _) => format!("/{}", names.join("/")),
        (false, true) => String::new(),
        (false, false) => format!(".../{}", names.join("/")),
    }
}

/// From directory and name to the directory's epoch and what the name leads to. A key has its hash.
type Shard = LruCache<Key, (u64, Child), FxBuildHasher>;

/// A shard without entries.
fn empty(most: NonZeroUsize) -> Shard {
    // One with a bound from the beginning has memory for all its entries.
    let mut shard = Shard::unbounded_with_hasher(FxBuildHasher);
    shard.resize(most);
    shard
}

/// The cache of names for all directories, in shards.
#[derive(Debug)]
pub(super) struct Names {
    shards: Vec<Mutex<Shard>>,
    /// Programs choose names, so they are hashed under a random key.
    hasher: RandomState,
}

/// A directory and a name in it, hashed once for all look-ups.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Key {
    hash: u64,
    /// The directory's node.
    dir: u64,
    /// Most names are no longer.
    name: SmallVec<[u8; 24]>,
}

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.hash);
    }
}

impl Names {
    pub(super) fn new(entries: usize) -> Self {
        let each = NonZeroUsize::new(entries / SHARDS).unwrap_or(NonZeroUsize::MIN);
        Names {
            shards: (0..SHARDS).map(|_| Mutex::new(empty(each))).collect(),
            hasher: RandomState::default(),
        }
    }

    fn key(&self, dir: u64, name: &[u8]) -> Key {
        let mut hasher = self.hasher.build_hasher();
        hasher.write_u64(dir);
        hasher.write(name);
        Key {
            hash: hasher.finish(),
            dir,
            name: SmallVec::from_slice(name),
        }
    }

    fn shard(&self, key: &Key) -> &Mutex<Shard> {
        &self.shards[key.hash as usize % SHARDS]
    }

    /// What `name` leads to, if it was cached in `epoch`, the directory's epoch now.
    pub(super) fn get(&self, dir: u64, epoch: u64, name: &[u8]) -> Option<Child> {
        let key = self.key(dir, name);
        let mut shard = self.shard(&key).lock();
        let (of, child) = shard.get(&key)?;
        (*of == epoch).then(|| child.clone())
    }

    pub(super) fn put(&self, dir: u64, epoch: u64, name: &[u8], child: Child) {
        let key = self.key(dir, name);
        let old = {
            let mut shard = self.shard(&key).lock();
            shard.push(key, (epoch, child))
        };
        drop(old);
    }

    /// As [`Names::put`], for what the kernel need not be told. If it may have cached something else in
    /// another epoch, that stays, and this returns true: [`Names::take_outdated`] is to be called.
    #[must_use]
    pub(super) fn renew(&self, dir: u64, epoch: u64, name: &[u8], child: Child) -> bool {
        let key = self.key(dir, name);
        let now = child.target();
        let mut shard = self.shard(&key).lock();
        let misleads = shard.peek(&key).is_some_and(|(of, before)| {
            let same = now.is_some() && before.target() == now;
            !same && *of != epoch
        });
        let old = match misleads {
            true => None,
            false => shard.push(key, (epoch, child)),
        };
        drop(shard);
        drop(old);
        misleads
    }

    /// Drops the names for which `holds`, called with directory, epoch and what the name leads to, is
    /// false. It visits every entry, so call it while the mount is idle.
    pub(super) fn retain(&self, holds: impl Fn(u64, u64, &Child) -> bool) {
        for shard in &self.shards {
            let stale: Vec<Key> = {
                let shard = shard.lock();
                let all = shard.iter();
                all.filter(|(key, (epoch, child))| !holds(key.dir, *epoch, child))
                    .map(|(key, _)| key.clone())
                    .collect()
            };
            for part in stale.chunks(1024) {
                let mut shard = shard.lock();
                let mut old = Vec::with_capacity(part.len());
                for key in part {
                    // It may have been cached again meanwhile.
                    let found = shard.peek(key);
                    if found.is_some_and(|(epoch, child)| !holds(key.dir, *epoch, child)) {
                        old.push(shard.pop(key));
                    }
                }
                drop(shard);
                drop(old);
            }
            let mut shard = shard.lock();
            if shard.is_empty() {
                *shard = empty(shard.cap());
            }
        }
    }

    /// Paths of files by their fileids, as far as the names above them are cached, valid or not. It
    /// visits and copies every entry, so it is only for rare use.
    pub(super) fn paths(&self, fileids: impl Iterator<Item = u64>) -> HashMap<u64, String> {
        let files: HashSet<u64> = fileids.collect();
        let (mut index, mut nodes) = (Index::new(), HashMap::new());
        if files.is_empty() {
            return HashMap::new();
        }
        self.each(|dir, name, inode| {
            let place = || (dir, name.into());
            index.entry(inode.nodeid).or_insert_with(place);
            if files.contains(&inode.fileid) {
                nodes.entry(inode.fileid).or_insert(inode.nodeid);
            }
        });
        let known = nodes.into_iter();
        known
            .map(|(fileid, node)| (fileid, path(node, |node| index.get(&node))))
            .collect()
    }

    /// The node that `name` in `dir` led to when it was last looked up.
    pub(super) fn last(&self, dir: u64, name: &[u8]) -> Option<u64> {
        let key = self.key(dir, name);
        let shard = self.shard(&key).lock();
        match shard.peek(&key)? {
            (_, Child::Is(inode)) => Some(inode.nodeid),
            (_, Child::Absent) => None,
        }
    }

    /// All cached names in `dir`, valid or not, including those that lead to nothing.
    pub(super) fn all_in(&self, dir: u64) -> Vec<Box<[u8]>> {
        let mut found = Vec::new();
        for shard in &self.shards {
            let shard = shard.lock();
            let of_dir = shard.iter().filter(|(key, _)| key.dir == dir);
            found.extend(of_dir.map(|(key, _)| Box::from(&key.name[..])));
        }
        found
    }

    /// Removes and returns the names in `dir` that were cached in other epochs than `epoch`.
    pub(super) fn take_outdated(&self, dir: u64, epoch: u64) -> Vec<Box<[u8]>> {
        let mut found = Vec::new();
        for shard in &self.shards {
            let mut shard = shard.lock();
            let outdated = shard.iter().filter(|(_, (of, _))| *of != epoch);
            let keys = outdated.filter(|(key, _)| key.dir == dir);
            let keys: Vec<_> = keys.map(|(key, _)| key.clone()).collect();
            let old: Vec<_> = keys.iter().map(|key| shard.pop(key)).collect();
            drop(shard);
            drop(old);
            found.extend(keys.iter().map(|key| Box::from(&key.name[..])));
        }
        found
    }

    /// Visits every name that leads to an inode: the directory, the name, and the inode.
    pub(super) fn each(&self, mut visit: impl FnMut(u64, &[u8], &Inode)) {
        for shard in &self.shards {
            let shard = shard.lock();
            for (key, (_, child)) in shard.iter() {
                if let Child::Is(inode) = child {
                    visit(key.dir, &key.name[..], inode);
                }
            }
        }
    }

    pub(super) fn remove(&self, dir: u64, name: &[u8]) {
        let key = self.key(dir, name);
        let old = self.shard(&key).lock().pop(&key);
        drop(old);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fs::inode::tests::file;
    use nfsrdma_record::Table;

    #[test]
    fn outdated_names_are_taken_out_once_and_others_stay() {
        let names = Names::new(1 << 10);
        for n in 0..100u64 {
            let name = format!("name-{n}");
            names.put(7, n % 2, name.as_bytes(), Child::Absent);
            names.put(8, 0, name.as_bytes(), Child::Absent);
        }
        let mut taken = names.take_outdated(7, 1);
        assert_eq!(taken.len(), 50);
        assert!(names.take_outdated(7, 1).is_empty());
        taken.sort();
        taken.dedup();
        assert_eq!(taken.len(), 50);
        assert!(names.get(7, 1, b"name-1").is_some() && names.get(7, 0, b"name-2").is_none());
        assert_eq!(names.take_outdated(8, 1).len(), 100);
    }

    #[test]
    fn a_name_that_led_elsewhere_stays_until_it_is_given_out() {
        let records = Table::anonymous();
        let (one, other) = (file(&records, 1), file(&records, 2));
        let is = |inode: &Arc<Inode>| Child::Is(inode.clone());
        let names = Names::new(1 << 10);
        assert!(!names.renew(7, 0, b"new", is(&one)));
        for (name, before, now, expected) in [
            (&b"same"[..], is(&one), is(&one), false),
            (b"other", is(&one), is(&other), true),
            (b"made", Child::Absent, is(&one), true),
            // The kernel may have it all the same (`Fs::name_unknown`).
            (b"absent", Child::Absent, Child::Absent, true),
        ] {
            names.put(7, 0, name, before);
            // What is outdated is not lost when somebody looks for it.
            assert!(names.get(7, 1, name).is_none());
            assert_eq!(names.renew(7, 1, name, now), expected);
            assert_eq!(names.get(7, 1, name).is_some(), !expected);
        }
        assert!(names.take_outdated(8, 1).is_empty());
        let mut taken = names.take_outdated(7, 1);
        taken.sort();
        assert_eq!(
            taken,
            [&b"absent"[..], b"made", b"new", b"other"].map(Box::from)
        );
        assert!(names.take_outdated(7, 1).is_empty());
        assert!(!names.renew(7, 1, b"other", is(&other)));
        assert!(names.get(7, 1, b"other").is_some());
    }

    #[test]
    fn paths_of_many_files() {
        // Its first number is that of the root.
        let records = Table::anonymous();
        let _root = file(&records, 1);
        let names = Names::new(1 << 12);
        let inodes = [2, 3, 4, 5, 6].map(|number| file(&records, 10_000 + number));
        let [a, b, unnamed, five, six] = inodes.each_ref().map(|inode| inode.nodeid);
        let dir = |number: usize| Child::Is(inodes[number - 2].clone());
        names.put(ROOT, 0, b"a", dir(2));
        names.put(a, 0, b"b", dir(3));
        // The name of one directory is not known, and two form a circle.
        names.put(five, 0, b"six", dir(6));
        names.put(six, 0, b"five", dir(5));
        for (dir, first) in [(ROOT, 100), (b, 200), (unnamed, 300), (five, 400)] {
            for number in first..first + 100 {
                let child = Child::Is(file(&records, 10_000 + number));
                names.put(dir, 0, format!("f{number}").as_bytes(), child);
            }
        }
        let paths = names.paths((0..1000).map(|number| 10_000 + number));
        let path = |number: u64| paths.get(&(10_000 + number)).map(|path| &path[..]);
        assert_eq!(path(150), Some("/f150"));
        assert_eq!(path(250), Some("/a/b/f250"));
        assert_eq!(path(350), Some(".../f350"));
        let circle = path(450).unwrap();
        assert!(circle.starts_with(".../five/six/") || circle.starts_with(".../six/five/"));
        assert!(circle.ends_with("/six/f450") || circle.ends_with("/five/f450"));
        assert_eq!(path(3), Some("/a/b"));
        assert_eq!(path(700), None);
        assert!(names.paths(std::iter::empty()).is_empty());
    }
}
