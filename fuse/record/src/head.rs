//! The beginning of a table, and how it grows.

use crate::chunk::{CHUNK, Mapping};
use parking_lot::Mutex;
use rustix::fs::{FallocateFlags, SeekFrom, fallocate, seek};
use rustix::io::{Errno, retry_on_intr};
use rustix::process::{Resource, getrlimit};
use std::alloc::{Layout, handle_alloc_error};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

/// The bytes before the first chunk.
pub(crate) const HEAD: usize = 1 << 16;
/// Kinds of records.
pub(crate) const KINDS: usize = 5;
/// The most chunks in a memfd.
const CHUNKS: usize = HEAD - 4096;

pub(crate) const MAGIC: [u8; 8] = *b"nfsrdma\n";
/// Another one for each change of what is in a table.
pub(crate) const VERSION: u32 = 3;

#[repr(C)]
pub(crate) struct Head {
    pub(crate) magic: [u8; 8],
    pub(crate) version: u32,
    /// The bytes of a record of each kind.
    pub(crate) sizes: [u32; KINDS],
    pub(crate) key: [u8; 16],
    pub(crate) features: [AtomicU64; 4],
    /// How many processes have had the table.
    pub(crate) generation: AtomicU32,
    /// How many records of each kind were made.
    pub(crate) made: [AtomicU32; KINDS],
    /// The file system of the export's root; u64::MAX while it is not known.
    pub(crate) fsid: AtomicU64,
    /// How many processes have taken it over from one that was alive.
    pub(crate) upgrades: AtomicU32,
    spare: [u8; 4096 - 116],
    /// The kind of records in each chunk, plus one; 0 after the last chunk.
    pub(crate) chunks: [AtomicU8; CHUNKS],
}

const _: () = assert!(size_of::<Head>() == HEAD);

/// Where a chunk lies in the memfd.
pub(crate) fn offset(chunk: usize) -> u64 {
    (HEAD + chunk * CHUNK) as u64
}

/// What all regions of a table share.
#[derive(Debug)]
pub(crate) struct Shared {
    mapping: Mapping,
    /// None: the table is in anonymous memory.
    pub(crate) fd: Option<OwnedFd>,
    /// The number of chunks in the memfd; None: it can have no more.
    chunks: Mutex<Option<usize>>,
}

impl Shared {
    /// `chunks`: what the memfd has.
    pub(crate) fn new(mapping: Mapping, fd: Option<OwnedFd>, chunks: usize) -> Self {
        Shared {
            mapping,
            chunks: Mutex::new(fd.is_some().then_some(chunks)),
            fd,
        }
    }

    pub(crate) fn head(&self) -> &Head {
        // SAFETY: the mapping is that of a head, all of whose bytes are valid whatever they are, and what changes
        // while the table is shared is atomic.
        unsafe { self.mapping.place::<Head>(0).as_ref() }
    }

    /// The memfd has so many chunks.
    pub(crate) fn has(&mut self, chunks: usize) {
        *self.chunks.get_mut() = Some(chunks);
    }

    /// Whether there is a memfd that has had memory for all records.
    pub(crate) fn has_all(&self) -> bool {
        self.chunks.lock().is_some()
    }

    /// A chunk that the memfd has, and whether that has memory there.
    pub(crate) fn chunk(&self, chunk: usize) -> io::Result<(Mapping, bool)> {
        let Some(fd) = &self.fd else {
            return Err(io::ErrorKind::NotFound.into());
        };
        let at = offset(chunk);
        // Nothing else uses the position of the memfd.
        let held = match seek(fd, SeekFrom::Data(at)) {
            Ok(data) => data < at + CHUNK as u64,
            Err(error) => error != Errno::NXIO,
        };
        Ok((Mapping::of_file(fd.as_fd(), at, CHUNK, held)?, held))
    }

    /// Gives the memory of a chunk back, which has no records. The next process sees that by the hole in the memfd.
    pub(crate) fn release(&self, chunk: &Mapping) -> io::Result<()> {
        // SAFETY: only records are used, and it has none.
        unsafe { chunk.release() }
    }

    /// Gives a chunk memory again.
    pub(crate) fn refill(&self, chunk: &Mapping) -> io::Result<()> {
        match (&self.fd, chunk.offset()) {
            (Some(fd), Some(at)) => allocate(fd, at, CHUNK as u64),
            _ => Ok(()),
        }
    }

    /// A new chunk for records of a kind.
    pub(crate) fn grow(&self, kind: usize) -> Mapping {
        let mut chunks = self.chunks.lock();
        if let Some(chunk) = *chunks {
            match self.add(chunk, kind) {
                Ok(mapping) => {
                    *chunks = Some(chunk + 1);
                    return mapping;
                }
                // From now on none is, so that those of a kind in the memfd are its first ones.
                Err(error) => {
                    *chunks = None;
                    tracing::warn!(%error, "no more shared memory for the state of the mount: what is opened from now on would not survive a crash of this program");
                }
            }
        }
        Mapping::anonymous(CHUNK).unwrap_or_else(|_| {
            let layout = Layout::from_size_align(CHUNK, 4096).expect("a size of memory");
            handle_alloc_error(layout)
        })
    }

    fn add(&self, chunk: usize, kind: usize) -> io::Result<Mapping> {
        let full = || io::Error::from(io::ErrorKind::StorageFull);
        let entry = self.head().chunks.get(chunk).ok_or_else(full)?;
        let fd = self.fd.as_ref().ok_or_else(full)?;
        let (at, length) = (offset(chunk), CHUNK as u64);
        allocate(fd, at, length)?;
        let mapping = Mapping::of_file(fd.as_fd(), at, CHUNK, true)?;
        entry.store(kind as u8 + 1, Ordering::Release);
        Ok(mapping)
    }
}

/// Gives the memfd memory.
pub(crate) fn allocate(fd: &OwnedFd, at: u64, length: u64) -> io::Result<()> {
    // Beyond this the process would be killed by SIGXFSZ.
    let limit = getrlimit(Resource::Fsize).current;
    if limit.is_some_and(|limit| at + length > limit) {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    retry_on_intr(|| fallocate(fd, FallocateFlags::empty(), at, length))?;
    Ok(())
}
