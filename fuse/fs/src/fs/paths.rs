//! Paths of file handles, for those who watch: as far as the names in memory tell.
//!
//! The cache of names leads from a directory and a name to an object. The way back is an index
//! over all of it, made when a handle is asked for that is not in it. Its entries are checked
//! against the cache when they are used, so that a file that was renamed or replaced does not get
//! an old name. Making the index costs time in proportion to the cache, which is bounded, so it is
//! made anew at most for a twentieth of the time.

use super::{Fs, ROOT};
use nfsrdma_nfs3::Nfs3;
use nfsrdma_xdr::nfs3::FileHandle;
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Deeper than that, or in a circle that a server made up, the rest is left out.
const DEEPEST: usize = 64;
/// The part of the time in which an index is made.
const SHARE: u32 = 20;

/// Finds paths.
pub struct Paths<N> {
    fs: Arc<Fs<N>>,
    /// From a node to its directory and name.
    index: HashMap<u64, (u64, Box<[u8]>)>,
    /// Not made anew before.
    rest: Option<Instant>,
}

impl<N> fmt::Debug for Paths<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Paths").finish_non_exhaustive()
    }
}

impl<N: Nfs3> Fs<N> {
    /// Whether `name` in `dir` is on `path`, which begins at the root, as far as the names in memory
    /// tell. Behind one that is not there, the name alone counts.
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

    /// The path below the export's root, with `/` in front, of the object with this handle; with
    /// `...` in front if only the last names are known. `None`: no name of it is known.
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

    /// Makes the index anew, if that is not too soon.
    fn renew(&mut self, now: Instant) -> bool {
        if self.rest.is_some_and(|until| now < until) {
            return false;
        }
        self.index.clear();
        let index = &mut self.index;
        self.fs.names.each(|dir, name, node| {
            index.insert(node, (dir, name.into()));
        });
        let cost = now.elapsed().max(Duration::from_micros(10));
        self.rest = Some(now + cost * SHARE);
        true
    }
}
