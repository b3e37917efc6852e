//! Paths of file handles, for `nfsrdma trace`, as far as the cached names tell them.
//!
//! The cache of names leads from a directory and a name to an object. For the opposite direction
//! there is an index over the whole cache, built when a handle is not found in it. Its entries are
//! checked against the cache when they are used, so that a file that was renamed or replaced does
//! not get an old name. Building the index takes time in proportion to the cache, so at most a
//! twentieth of the time is spent on it.

use super::{Fs, ROOT};
use nfsrdma_nfs3::Nfs3;
use nfsrdma_xdr::nfs3::FileHandle;
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The most names of a path, also for the case that the server's directories form a circle.
const DEEPEST: usize = 64;
/// After it was built, the index is not built again for this many times the time that it took.
const SHARE: u32 = 20;

pub struct Paths<N> {
    fs: Arc<Fs<N>>,
    /// From a node to its directory and name.
    index: HashMap<u64, (u64, Box<[u8]>)>,
    /// The index is not built again before this time.
    rest: Option<Instant>,
}

impl<N> fmt::Debug for Paths<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Paths").finish_non_exhaustive()
    }
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
            index: HashMap::new(),
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

    fn walk(&self, mut node: u64) -> String {
        let mut names = Vec::new();
        while node != ROOT && names.len() < DEEPEST {
            let known = self.index.get(&node);
            let Some((dir, name)) =
                known.filter(|(dir, name)| self.fs.names.leads_to(*dir, name, node))
            else {
                break;
            };
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
