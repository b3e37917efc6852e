//! Open files.

use super::inode::Inode;
use super::writer::Writer;
use crate::cache::ReadAhead;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering};
use nfsrdma_nfs3::Cred;
use std::sync::Arc;

/// The reply to an OPEN or OPENDIR.
#[derive(Debug, Clone, Copy)]
pub struct Opened {
    pub handle: u64,
    /// Whether the data or names that the kernel caches are still valid.
    pub keep_cache: bool,
    /// Whether the attributes that the kernel has, including the size, are out of date.
    pub attributes_changed: bool,
}

/// A file that a program opened; several descriptors may share it.
#[derive(Debug)]
pub struct OpenFile {
    pub inode: Arc<Inode>,
    pub cred: Cred,
    /// open(2) flags.
    pub flags: i32,
    pub readahead: Mutex<ReadAhead>,
    pub writer: Arc<Writer>,
    /// A descriptor of it was closed, so there may be no other.
    pub flushed: AtomicBool,
    /// The [losses](super::file::FileState::losses) of which fsync need not tell: those before the file
    /// was opened, or that it has told.
    pub(super) losses: AtomicU64,
    /// See [`Inode::open_handled`].
    drops: AtomicU16,
}

impl Inode {
    /// How often written data of the file was lost.
    pub(super) fn losses(&self) -> u64 {
        let data = self.data();
        data.map_or(0, |data| data.with(|inner| inner.losses()))
    }

    /// A request by an open file shows that the kernel has handled the reply to its open. `drops`: what
    /// that was to make it drop ([`PromisedDrops::number`](super::promised_drops::PromisedDrops)), set to
    /// 0.
    pub(super) fn open_handled(&self, drops: &AtomicU16) {
        // Mostly it is 0, and that is cheaper to see.
        if drops.load(Ordering::Relaxed) != 0 {
            let number = drops.swap(0, Ordering::Relaxed);
            let _state = self.state.lock();
            self.promised.dropped(number);
        }
    }
}

impl OpenFile {
    pub fn new(inode: Arc<Inode>, cred: Cred, flags: i32, drops: u16) -> Self {
        let losses = AtomicU64::new(inode.losses());
        OpenFile {
            inode,
            cred,
            flags,
            readahead: Mutex::default(),
            writer: Arc::default(),
            flushed: AtomicBool::new(false),
            losses,
            drops: AtomicU16::new(drops),
        }
    }

    /// A request by this file has arrived, other than RELEASE or pages of a mapping.
    pub fn used(&self) {
        self.inode.open_handled(&self.drops);
    }

    pub fn can_write(&self) -> bool {
        self.flags & libc::O_ACCMODE != libc::O_RDONLY
    }

    /// Whether requests with these flags bypass the cache.
    pub fn is_direct(flags: i32) -> bool {
        flags & libc::O_DIRECT != 0
    }

    /// Whether writes with these flags bypass the cache and append.
    pub fn is_direct_append(flags: i32) -> bool {
        let writes = flags & libc::O_ACCMODE != libc::O_RDONLY;
        Self::is_direct(flags) && writes && flags & libc::O_APPEND != 0
    }

    /// Whether each write must be on stable storage before it returns.
    pub fn is_sync(&self) -> bool {
        self.flags & (libc::O_SYNC | libc::O_DSYNC) != 0
    }
}
