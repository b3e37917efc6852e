//! Open files: what programs read and write, by handle or by node, with the rights and the locks that go
//! with it. This room knows no name.

use super::error::{FsError, FsResult};
use super::files::Files;
use super::handles::Handles;
use super::inode::Inode;
use super::open_file::{OpenFile, Opened};
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, AtomicU32};
use nfsrdma_nfs3::{Cred, Nfs3};
use rustc_hash::FxHashMap;
use std::collections::BTreeSet;
use std::collections::hash_map::Entry;
use std::ops::Deref;
use std::sync::Arc;

#[derive(Debug)]
pub struct Objects<N> {
    below: Arc<Files<N>>,
    pub(super) files: Handles<OpenFile>,
    /// The numbers of the files that are open for writing, by node.
    pub(super) writable: Mutex<FxHashMap<u64, BTreeSet<u64>>>,
    /// Attributes of open files are being asked for ([`Objects::check_open_files`]), and the slot at
    /// which the next round begins.
    pub(super) checking: AtomicBool,
    pub(super) next_check: AtomicU32,
}

impl<N> Deref for Objects<N> {
    type Target = Arc<Files<N>>;

    fn deref(&self) -> &Arc<Files<N>> {
        &self.below
    }
}

impl<N: Nfs3> Objects<N> {
    pub(super) fn new(below: Files<N>) -> Self {
        Objects {
            below: Arc::new(below),
            files: Handles::default(),
            writable: Mutex::default(),
            checking: AtomicBool::new(false),
            next_check: AtomicU32::new(0),
        }
    }

    pub fn has_open_files(&self) -> bool {
        !self.files.is_empty()
    }

    /// The credential of whoever opened a file. Requests use it, because a descriptor that is
    /// passed to another process keeps the rights with which it was opened.
    pub fn opener(&self, handle: u64) -> Option<Cred> {
        self.file(handle).ok().map(|file| file.cred.clone())
    }

    pub(super) fn file(&self, handle: u64) -> FsResult<Arc<OpenFile>> {
        self.files.get(handle).ok_or(FsError::UnknownHandle)
    }

    /// Gives an open file its handle.
    pub(super) fn add(&self, file: OpenFile) -> u64 {
        let (handle, file) = (file.handle(), Arc::new(file));
        self.files.insert(handle, file.clone());
        if file.can_write() {
            let mut writable = self.writable.lock();
            let of = writable.entry(file.inode.nodeid).or_default();
            of.insert(handle);
        }
        handle
    }

    /// The open files of `inode` that may be written to, with their numbers.
    pub(super) fn open_for_writing(&self, inode: &Inode) -> Vec<(u64, Arc<OpenFile>)> {
        let handles = self.writable.lock().get(&inode.nodeid).cloned();
        let file = |handle: u64| Some((handle, self.files.get(handle)?));
        let handles = handles.unwrap_or_default();
        handles.into_iter().filter_map(file).collect()
    }

    /// An open file that may be written to is closed.
    pub(super) fn not_writable(&self, file: &OpenFile, handle: u64) {
        if file.can_write()
            && let Entry::Occupied(mut handles) = self.writable.lock().entry(file.inode.nodeid)
        {
            handles.get_mut().remove(&handle);
            if handles.get().is_empty() {
                handles.remove();
            }
        }
    }

    /// Some open file of `inode` that may be read.
    pub(super) fn any_open_file(&self, inode: &Arc<Inode>) -> Option<Arc<OpenFile>> {
        let of = |file: &OpenFile| Arc::ptr_eq(&file.inode, inode) && file.can_read();
        self.files.find(of)
    }

    /// The kernel did not get the reply to an OPEN, because the caller was killed. Unlike the server,
    /// it has truncated nothing.
    pub fn open_unheard(&self, opened: &Opened) {
        let Ok(file) = self.file(opened.handle) else {
            return;
        };
        if file.flags & libc::O_TRUNC != 0 {
            self.unheard(&file.inode);
        }
    }
}
