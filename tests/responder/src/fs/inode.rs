//! Open objects, and their cache by file handle.

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

/// The path in /proc of a descriptor of this process.
pub(super) fn proc_path(fd: BorrowedFd<'_>) -> String {
    format!("/proc/self/fd/{}", fd.as_raw_fd())
}

/// An object of the file system, held by a descriptor. That is an `O_PATH` one, which gives no
/// access of its own, or for a file created here the one by which it was created. Regular files
/// also keep the descriptors that READ and WRITE have opened.
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

    /// Opens the object again, with the calling thread's identity.
    pub(super) fn open(&self, flags: OFlags) -> Result<OwnedFd> {
        // Opening other objects may have side effects or block.
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

    /// The descriptor for READ. It is opened on first use, with the calling thread's identity.
    pub(super) fn reader(&self) -> Result<Arc<OwnedFd>> {
        kept(&self.reader, || self.open(OFlags::RDONLY))
    }

    /// The descriptor for WRITE. It is opened on first use, with the calling thread's identity.
    pub(super) fn writer(&self) -> Result<Arc<OwnedFd>> {
        kept(&self.writer, || self.open(OFlags::WRONLY))
    }

    /// Whether there is a descriptor for READ.
    pub(super) fn has_reader(&self) -> bool {
        self.reader.lock().is_some()
    }

    /// Whether there is a descriptor for WRITE.
    pub(super) fn has_writer(&self) -> bool {
        self.writer.lock().is_some()
    }

    /// Keeps a descriptor that is already open for writing.
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

/// Inodes by handle; the least recently used one is evicted first.
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

    /// Adds an inode. If the handle has one already, that one is kept and returned.
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
        // Closing descriptors may take a while, so it is done without the lock.
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
            // Take only a few at a time, so that nobody waits long for the lock.
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
