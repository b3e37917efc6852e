//! Paths of file handles, for `nfsrdma trace`, as far as the cached names tell them.
//!
//! The cache of names leads from a directory and a name to an object. For the opposite direction
//! there is an index over the whole cache, built when a handle is not found in it. Its entries are
//! checked against the cache when they are used, so that a file that was renamed or replaced does
//! not get an old name. Building the index takes time in proportion to the cache, so at most a
//! twentieth of the time is spent on it.

use super::names::{Index, Place, path};
use super::{Fs, ROOT};
use nfsrdma_nfs3::Nfs3;
use nfsrdma_xdr::nfs3::FileHandle;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// After it was built, the index is not built again for this many times the time that it took.
const SHARE: u32 = 20;

#[derive(Debug)]
pub struct Paths<N> {
    fs: Arc<Fs<N>>,
    index: Index,
    /// The index is not built again before this time.
    rest: Option<Instant>,
}

impl<N: Nfs3> Fs<N> {
    /// Whether `name` in `dir` is on `path`, which begins at the root, as far as the names in memory
    /// tell. After a name that is not in memory, only `name` is compared.
    pub fn is_on_path(&self, dir: u64, name: &[u8], path: &[u8]) -> bool {
        let mut node = Some(ROOT);
        path.split(|&byte| byte == b'/').any(|part| {
            let here = node.is_none_or(|node| node == dir);
            node = node.and_then(|node| self.names.last(node, part));
            here && part == name
        })
    }
}

impl<N: Nfs3> Paths<N> {
    pub fn new(fs: Arc<Fs<N>>) -> Self {
        Paths {
            fs,
            index: Index::new(),
            rest: None,
        }
    }

    /// The path of the object with this handle: `/` and the names below the export's root, or
    /// `.../` and the last names if only these are known. `None` if no name of it is known.
    pub fn find(&mut self, handle: &FileHandle) -> Option<String> {
        let node = self.fs.table.find(handle)?.nodeid;
        let path = self.walk(node);
        if path.starts_with('/') || !self.renew(Instant::now()) {
            return Some(path).filter(|path| !path.is_empty());
        }
        Some(self.walk(node)).filter(|path| !path.is_empty())
    }

    fn walk(&self, node: u64) -> String {
        let holds = |node, (dir, name): &Place| self.fs.names.last(*dir, name) == Some(node);
        path(node, |node| {
            self.index.get(&node).filter(|place| holds(node, place))
        })
    }

    /// Builds the index again. False if it is too soon for that.
    fn renew(&mut self, now: Instant) -> bool {
        if self.rest.is_some_and(|until| now < until) {
            return false;
        }
        self.index.clear();
        let index = &mut self.index;
        self.fs.names.each(|dir, name, inode| {
            index.insert(inode.nodeid, (dir, name.into()));
        });
        let cost = now.elapsed().max(Duration::from_micros(10));
        self.rest = Some(now + cost * SHARE);
        true
    }
}
