//! Open objects, and the cache of them by file handle.

use super::attributes;
use super::status::{self, Result};
use lru::LruCache;
use nfsrdma_xdr::nfs3::{FileHandle, FileType};
use parking_lot::Mutex;
use rustix::fs::{Mode, OFlags, Stat};
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The path under which this process finds its own descriptor.
pub(super) fn proc_path(fd: BorrowedFd<'_>) -> String {
    format!("/proc/self/fd/{}", fd.as_raw_fd())
}

/// A file system object held by a descriptor to work from: an `O_PATH` one, which gives no access
/// of its own, or, for a file created here, the one it was created by. Regular files keep what
/// they were opened as for READ and WRITE.
#[derive(Debug)]
pub struct Inode {
    pub(super) export: usize,
    pub(super) handle: FileHandle,
    pub(super) kind: FileType,
    fd: Arc<OwnedFd>,
    key: (u64, u64),
    reader: Mutex<Option<Arc<OwnedFd>>>,
    writer: Mutex<Option<Arc<OwnedFd>>>,
}

impl Inode {
    pub(super) fn new(export: usize, handle: FileHandle, fd: Arc<OwnedFd>, stat: &Stat) -> Self {
        Inode {
            export,
            handle,
            kind: attributes::kind(stat),
            fd,
            key: (stat.st_dev, stat.st_ino),
            reader: Mutex::new(None),
            writer: Mutex::new(None),
        }
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Device and inode number.
    pub(super) fn key(&self) -> (u64, u64) {
        self.key
    }

    pub(super) fn is_directory(&self) -> bool {
        self.kind == FileType::Directory
    }

    pub(super) fn is_regular(&self) -> bool {
        self.kind == FileType::Regular
    }

    /// Opens the object itself anew, as the calling thread's identity.
    pub(super) fn open(&self, flags: OFlags) -> Result<OwnedFd> {
        // Only these can be opened without effects of their own or waiting for somebody.
        if !self.is_regular() && !self.is_directory() {
            return Err(nfsrdma_xdr::nfs3::Status::Inval);
        }
        rustix::fs::open(
            proc_path(self.fd()),
            flags | OFlags::CLOEXEC | OFlags::NOCTTY,
            Mode::empty(),
        )
        .map_err(status::of)
    }

    /// The descriptor for READ, opened on first use by the calling thread's identity.
    pub(super) fn reader(&self) -> Result<Arc<OwnedFd>> {
        kept(&self.reader, || self.open(OFlags::RDONLY))
    }

    /// The descriptor for WRITE, likewise.
    pub(super) fn writer(&self) -> Result<Arc<OwnedFd>> {
        kept(&self.writer, || self.open(OFlags::WRONLY))
    }

    /// Whether READ needs no opening.
    pub(super) fn has_reader(&self) -> bool {
        self.reader.lock().is_some()
    }

    /// Whether WRITE needs no opening.
    pub(super) fn has_writer(&self) -> bool {
        self.writer.lock().is_some()
    }

    /// Keeps a descriptor that is open for writing already.
    pub(super) fn keep_writer(&self, fd: Arc<OwnedFd>) {
        self.writer.lock().get_or_insert(fd);
    }
}

fn kept(
    slot: &Mutex<Option<Arc<OwnedFd>>>,
    open: impl FnOnce() -> Result<OwnedFd>,
) -> Result<Arc<OwnedFd>> {
    let mut slot = slot.lock();
    if let Some(fd) = &*slot {
        return Ok(fd.clone());
    }
    let fd = Arc::new(open()?);
    *slot = Some(fd.clone());
    Ok(fd)
}

struct Entry {
    inode: Arc<Inode>,
    used: Instant,
}

/// Inodes by handle, least recently used first out.
pub(super) struct Cache {
    entries: Mutex<LruCache<FileHandle, Entry>>,
}

impl std::fmt::Debug for Cache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Cache({} objects)", self.entries.lock().len())
    }
}

impl Cache {
    pub(super) fn new(size: usize) -> Self {
        let size = NonZeroUsize::new(size).unwrap_or(NonZeroUsize::MIN);
        Cache {
            entries: Mutex::new(LruCache::new(size)),
        }
    }

    pub(super) fn get(&self, handle: &FileHandle) -> Option<Arc<Inode>> {
        let mut entries = self.entries.lock();
        let entry = entries.get_mut(handle)?;
        entry.used = Instant::now();
        Some(entry.inode.clone())
    }

    /// Adds an inode; if the handle has one already, that one is returned and kept.
    pub(super) fn insert(&self, inode: Arc<Inode>) -> Arc<Inode> {
        let mut entries = self.entries.lock();
        if let Some(entry) = entries.get(&inode.handle) {
            return entry.inode.clone();
        }
        let entry = Entry {
            inode: inode.clone(),
            used: Instant::now(),
        };
        let out = entries.push(inode.handle, entry);
        drop(entries);
        // Closing descriptors may take a while: not under the lock.
        drop(out);
        inode
    }

    pub(super) fn forget(&self, handle: &FileHandle) {
        let out = self.entries.lock().pop(handle);
        drop(out);
    }

    pub(super) fn expire(&self, idle: Duration) {
        let now = Instant::now();
        loop {
            // A few at a time, so that nobody waits long for the lock.
            let mut out = Vec::new();
            let mut entries = self.entries.lock();
            while out.len() < 32 {
                match entries.peek_lru() {
                    Some((_, entry)) if now.duration_since(entry.used) >= idle => {
                        out.extend(entries.pop_lru());
                    }
                    _ => break,
                }
            }
            drop(entries);
            if out.is_empty() {
                return;
            }
        }
    }
}
