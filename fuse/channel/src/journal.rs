//! The requests that were read and not answered, in memory that outlives the process: for kernels
//! that do not give them again ([`Features::resends`](super::Features::resends)).
//!
//! There is no copy. Each reader reads into a slot of a memfd; while a request is not answered, its
//! [`Reply`](super::Reply) holds the slot, and the reader goes on with another one. Nothing is noted when the answer
//! is given: the kernel knows which requests are unanswered ([`Device::awaits`](super::Device::awaits)), and never
//! uses a number twice, so the bytes of an answered request do no harm.
//!
//! A read(2) that a kill finds in the kernel is completed there. So a process may have read a request without
//! having seen it; but its bytes are in the slot then, too. The length, by which they begin, is
//! cleared before each read, so that those of an earlier request are not taken for it.
//!
//! A slot has room for the longest request. Most use one page of it, and the rest takes no memory. Of the free slots few
//! keep their memory.

use super::abi::{IN_HEADER, opcode};
use super::header::Header;
use parking_lot::Mutex;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fstat, ftruncate, memfd_create};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};
use rustix::process::{Resource, getrlimit};
use std::fmt;
use std::io;
use std::ops::{Deref, DerefMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

/// The most requests that are under way at the same time. Each has a thread of a program that waits for it, or is one
/// of the few of the kernel's own.
const MOST: usize = 1 << 15;
/// As many have room although programs wait for locks. Others wait for the server, but these for other programs, which
/// may need as many requests as they like before they unlock.
const SPARE: usize = MOST / 4;
const PAGE: usize = 4096;
/// The free slots that keep the memory of their last request.
const WARM: usize = 64;
/// Another one for each change of what is in the memfd.
const MAGIC: u64 = u64::from_ne_bytes(*b"nfsrdmR\x01");

/// The number of a request that [`Journal::open`] has found, and its slot.
pub(crate) type Found = (u64, u32);

/// The beginning of the memfd, which takes the place of slot 0.
#[repr(C)]
struct Head {
    magic: AtomicU64,
    /// The last slot that was ever used.
    last: AtomicU32,
}

/// The memory that requests are read into.
pub(crate) struct Journal {
    fd: OwnedFd,
    at: NonNull<u8>,
    length: usize,
    /// The bytes of a slot.
    size: usize,
    /// How many use each slot: the reader, and the reply.
    users: Box<[AtomicU8]>,
    free: Mutex<Free>,
}

/// The slots that nobody uses.
#[derive(Default)]
struct Free {
    /// Those that have memory, which are used first.
    warm: Vec<u32>,
    cold: Vec<u32>,
}

// SAFETY: the memory is plain bytes. Those of a slot are accessed by its reader alone, those of the head are atomic.
unsafe impl Send for Journal {}
// SAFETY: as above.
unsafe impl Sync for Journal {}

impl fmt::Debug for Journal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Journal").finish_non_exhaustive()
    }
}

impl Journal {
    /// For requests of at most `longest` bytes.
    pub(crate) fn create(longest: usize) -> io::Result<Arc<Self>> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let fd = match memfd_create("nfsrdma-requests", flags | MemfdFlags::NOEXEC_SEAL) {
            // Linux before 6.3.
            Err(Errno::INVAL) => memfd_create("nfsrdma-requests", flags),
            made => made,
        }?;
        let size = longest.next_multiple_of(PAGE);
        let length = size.checked_mul(MOST + 1).ok_or(Errno::NOMEM)? as u64;
        // Beyond this the process would be killed by SIGXFSZ.
        if getrlimit(Resource::Fsize)
            .current
            .is_some_and(|limit| length > limit)
        {
            let kind = io::ErrorKind::FileTooLarge;
            let gib = length >> 30;
            let why = format!(
                "before Linux 6.9, restart= needs a limit of file sizes (ulimit -f) above {gib} GiB"
            );
            return Err(io::Error::new(kind, why));
        }
        ftruncate(&fd, length)?;
        fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW)?;
        let journal = Self::mapped(fd, size)?;
        journal.head().magic.store(MAGIC, Ordering::Relaxed);
        Ok(Arc::new(journal))
    }

    /// That of another process, which may still use it.
    pub(crate) fn checked(fd: OwnedFd) -> io::Result<Self> {
        let other = || io::Error::other("the saved requests of the mount are of another version");
        let length = fstat(&fd)?.st_size as usize;
        let size = length / (MOST + 1);
        if size == 0 || !size.is_multiple_of(PAGE) || !length.is_multiple_of(MOST + 1) {
            return Err(other());
        }
        let journal = Self::mapped(fd, size)?;
        let head = journal.head();
        let last = head.last.load(Ordering::Relaxed) as usize;
        if head.magic.load(Ordering::Relaxed) != MAGIC || last > MOST {
            return Err(other());
        }
        Ok(journal)
    }

    /// That of a process that has ended, and the requests in it, which may be answered, in the order in which the
    /// kernel made them. Each has a slot, which is used until it is given back ([`Journal::release`]).
    pub(crate) fn open(fd: OwnedFd) -> io::Result<(Arc<Self>, Vec<Found>)> {
        let journal = Self::checked(fd)?;
        let mut found = Vec::new();
        for number in 1..=journal.head().last.load(Ordering::Relaxed) {
            journal.users[number as usize].store(1, Ordering::Relaxed);
            match journal.request(number) {
                Some(unique) => found.push((unique, number)),
                None => journal.release(number),
            }
        }
        found.sort_unstable();
        Ok((Arc::new(journal), found))
    }

    fn mapped(fd: OwnedFd, size: usize) -> io::Result<Self> {
        let length = size * (MOST + 1);
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a mapping at a place that the kernel chooses changes no other memory.
        let at = unsafe { mmap(ptr::null_mut(), length, prot, MapFlags::SHARED, &fd, 0) }?;
        // SAFETY: only what a dump of the process has is changed.
        let _ = unsafe { madvise(at, length, Advice::LinuxDontDump) };
        Ok(Journal {
            fd,
            at: NonNull::new(at.cast()).ok_or(Errno::NOMEM)?,
            length,
            size,
            users: (0..=MOST).map(|_| AtomicU8::new(0)).collect(),
            free: Mutex::default(),
        })
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    fn head(&self) -> &Head {
        // SAFETY: the mapping is longer, and aligned to a page; all of the head is atomic.
        unsafe { self.at.cast::<Head>().as_ref() }
    }

    fn place(&self, number: u32) -> NonNull<[u8]> {
        assert!((1..=MOST).contains(&(number as usize)));
        // SAFETY: the slot is in the mapping.
        let at = unsafe { self.at.add(number as usize * self.size) };
        NonNull::slice_from_raw_parts(at, self.size)
    }

    /// The number of the request in a slot that nobody else uses; `None` if there is none that has a reply.
    fn request(&self, number: u32) -> Option<u64> {
        // SAFETY: nobody else uses the slot.
        let bytes = unsafe { self.place(number).as_ref() };
        let length = u32::from_ne_bytes(*bytes.first_chunk()?) as usize;
        if length < IN_HEADER {
            return None;
        }
        let (header, _) = Header::parse(bytes.get(..length)?).ok()?;
        opcode::has_reply(header.opcode).then_some(header.unique)
    }

    /// A slot that nobody uses; `None`: there is none.
    fn take(&self) -> Option<u32> {
        let mut free = self.free.lock();
        let number = match free.warm.pop().or_else(|| free.cold.pop()) {
            Some(number) => number,
            None => {
                let last = &self.head().last;
                let next = last.load(Ordering::Relaxed) + 1;
                if next as usize > MOST {
                    return None;
                }
                last.store(next, Ordering::Relaxed);
                next
            }
        };
        self.users[number as usize].store(1, Ordering::Relaxed);
        Some(number)
    }

    /// Whether so few slots are left that no more programs may wait for locks.
    pub(crate) fn is_scarce(&self) -> bool {
        let free = self.free.lock();
        let used = self.head().last.load(Ordering::Relaxed) as usize;
        used - free.warm.len() - free.cold.len() > MOST - SPARE
    }

    /// A reply uses the slot, too.
    pub(crate) fn share(&self, number: u32) {
        self.users[number as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// One less uses the slot.
    pub(crate) fn release(&self, number: u32) {
        if self.users[number as usize].fetch_sub(1, Ordering::AcqRel) != 1 {
            return;
        }
        let mut free = self.free.lock();
        if free.warm.len() < WARM {
            return free.warm.push(number);
        }
        // Nobody uses it, and nobody finds it meanwhile.
        drop(free);
        self.give_back(number);
        self.free.lock().cold.push(number);
    }

    /// Gives the memory of a slot back, which nobody uses.
    fn give_back(&self, number: u32) {
        let place = self.place(number);
        // SAFETY: there are no references to the bytes, which are zero from then on.
        let given = unsafe { madvise(place.as_ptr().cast(), self.size, Advice::LinuxRemove) };
        if let Err(error) = given {
            tracing::debug!("cannot give memory of requests back: {error}");
        }
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        // SAFETY: who uses a slot keeps the journal.
        let _ = unsafe { munmap(self.at.as_ptr().cast(), self.length) };
    }
}

/// The slot of a reader. Others do not access its bytes.
#[derive(Debug)]
pub(crate) struct Slot {
    journal: Arc<Journal>,
    number: u32,
}

impl Slot {
    /// A slot that nobody uses; `None`: there is none.
    pub(crate) fn new(journal: &Arc<Journal>) -> Option<Self> {
        let number = journal.take()?;
        Some(Self::of(journal, number))
    }

    /// The slot of this number, which [`Journal::open`] has found.
    pub(crate) fn of(journal: &Arc<Journal>, number: u32) -> Self {
        let journal = journal.clone();
        Slot { journal, number }
    }

    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    /// Prepares to read into it, or another one if the last request is not answered. Returns whether there is one.
    pub(crate) fn prepare(&mut self) -> bool {
        if self.journal.users[self.number as usize].load(Ordering::Acquire) != 1 {
            match Slot::new(&self.journal) {
                Some(other) => *self = other,
                None => return false,
            }
        }
        self[..size_of::<u32>()].fill(0);
        true
    }
}

impl Deref for Slot {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the slot is this reader's, and the journal keeps the memory.
        unsafe { self.journal.place(self.number).as_ref() }
    }
}

impl DerefMut for Slot {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above; a reply that uses the slot as well does not access its bytes.
        unsafe { self.journal.place(self.number).as_mut() }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.journal.release(self.number);
    }
}

#[cfg(test)]
#[path = "journal_tests.rs"]
mod tests;
