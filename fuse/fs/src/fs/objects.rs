//! Open files: what programs read and write, by handle or by node, with the rights and the locks that go
//! with it. This room knows no name.

use super::error::{FsError, FsResult};
use super::files::Files;
use super::handles::Handles;
use super::inode::Inode;
use super::open_file::OpenFile;
use crate::sync::atomic::{AtomicBool, AtomicU64};
use nfsrdma_nfs3::{Cred, Nfs3};
use std::ops::Deref;
use std::sync::Arc;

#[derive(Debug)]
pub struct Objects<N> {
    below: Arc<Files<N>>,
    pub(super) files: Handles<OpenFile>,
    /// Attributes of open files are being asked for ([`Objects::check_open_files`]), and the handle
    /// at which the next round begins.
    pub(super) checking: AtomicBool,
    pub(super) next_check: AtomicU64,
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
            checking: AtomicBool::new(false),
            next_check: AtomicU64::new(0),
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
        let handle = file.handle();
        self.files.insert(handle, Arc::new(file));
        handle
    }

    /// The open files of `inode` that may be written to, with their numbers.
    pub(super) fn open_for_writing(&self, inode: &Inode) -> Vec<(u64, Arc<OpenFile>)> {
        let of = |file: &OpenFile| file.inode.nodeid == inode.nodeid && file.can_write();
        self.files.select(of)
    }

    /// Some open file of `inode` that may be read.
    pub(super) fn any_open_file(&self, inode: &Arc<Inode>) -> Option<Arc<OpenFile>> {
        let of = |file: &OpenFile| Arc::ptr_eq(&file.inode, inode) && file.can_read();
        self.files.find(of)
    }
}
