//! Paths of file handles, for `nfsrdma trace`, as far as the cached names tell them.
//!
//! The cache of names leads from a directory and a name to an object. For the opposite direction
//! there is an index over the whole cache. It is built again when it is a second old, so for as long a
//! file that was renamed has its old name.

use super::names::{Index, path};
use super::{Fs, ROOT};
use nfsrdma_nfs3::Nfs3;
use nfsrdma_xdr::nfs3::FileHandle;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

const SECOND: Duration = Duration::from_secs(1);

pub struct Paths<N> {
    fs: Arc<Fs<N>>,
    index: Index,
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
            index: Index::new(),
            rest: None,
        }
    }

    /// The path of the object with this handle: `/` and the names below the export's root, or
    /// `.../` and the last names if only these are known. `None` if no name of it is known.
    pub fn find(&mut self, handle: &FileHandle) -> Option<String> {
        let node = self.fs.table.find(handle)?.nodeid;
        let now = Instant::now();
        if self.rest.is_none_or(|until| now >= until) {
            self.index.clear();
            let index = &mut self.index;
            self.fs.names.each(|dir, name, inode| {
                index.insert(inode.nodeid, (dir, name.into()));
            });
            self.rest = Some(Instant::now() + SECOND);
        }
        Some(path(node, |node| self.index.get(&node))).filter(|path| !path.is_empty())
    }
}
