//! Open files.

use super::err_seq::Told;
use super::inode::Inode;
use crate::cache::ReadAhead;
use crate::sync::Mutex;
use crate::sync::atomic::AtomicBool;
use nfsrdma_nfs3::Cred;
use nfsrdma_record::{Open, Record};
use std::sync::Arc;

/// The reply to an OPEN or OPENDIR.
#[derive(Debug, Clone, Copy)]
pub struct Opened {
    pub handle: u64,
    /// Whether the names that the kernel caches of a directory are still valid. It drops pages of a file
    /// before the reply ([`Fs::behind_open`](super::objects::Objects::behind_open)).
    pub keep_cache: bool,
}

/// A file that a program opened; several descriptors may share it.
#[derive(Debug)]
pub struct OpenFile {
    pub inode: Arc<Inode>,
    pub cred: Cred,
    /// open(2) flags.
    pub flags: i32,
    pub readahead: Mutex<ReadAhead>,
    /// A descriptor of it was closed, so there may be no other.
    pub flushed: AtomicBool,
    /// The errors of writing that it has told.
    pub(super) told: Told,
    /// Freed with the last reference.
    pub(super) record: Record<Open>,
}

impl OpenFile {
    pub fn new(inode: Arc<Inode>, cred: Cred, record: Record<Open>) -> Self {
        let told = Told::new(inode.data().map(|data| &data.errors));
        OpenFile {
            inode,
            cred,
            flags: record.flags as i32,
            readahead: Mutex::default(),
            flushed: AtomicBool::new(false),
            told,
            record,
        }
    }

    /// The number by which the kernel names it.
    pub fn handle(&self) -> u64 {
        self.record.number()
    }

    /// The number of the request that opened it.
    pub(super) fn request(&self) -> u64 {
        self.record.unique
    }

    pub fn can_read(&self) -> bool {
        self.flags & libc::O_ACCMODE != libc::O_WRONLY
    }

    pub fn can_write(&self) -> bool {
        self.flags & libc::O_ACCMODE != libc::O_RDONLY
    }

    /// Whether requests with these flags bypass the cache.
    pub fn is_direct(flags: i32) -> bool {
        flags & libc::O_DIRECT != 0
    }

    /// Whether each write must be on stable storage before it returns.
    pub fn is_sync(&self) -> bool {
        self.flags & (libc::O_SYNC | libc::O_DSYNC) != 0
    }
}
