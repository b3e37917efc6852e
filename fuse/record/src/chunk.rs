//! Memory that records are in.

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};
use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::{self, NonNull};

/// By how many bytes a table grows.
pub(crate) const CHUNK: usize = 1 << 20;

/// A mapping of zeros, or of a part of a memfd.
pub(crate) struct Mapping {
    at: NonNull<u8>,
    length: usize,
    /// Where it is in a memfd.
    offset: Option<u64>,
}

// SAFETY: it is plain memory; which thread may access a part is decided by the owners of the records.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl fmt::Debug for Mapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Mapping({})", self.length)
    }
}

impl Mapping {
    /// Bytes of a memfd. `held`: each page was allocated.
    pub(crate) fn of_file(
        fd: BorrowedFd<'_>,
        offset: u64,
        length: usize,
        held: bool,
    ) -> io::Result<Self> {
        let mut flags = MapFlags::SHARED;
        flags.set(MapFlags::POPULATE, held);
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a mapping at a place that the kernel chooses changes no other memory.
        let at = unsafe { mmap(ptr::null_mut(), length, prot, flags, fd, offset) }?;
        Ok(Self::new(at.cast(), length, Some(offset)))
    }

    pub(crate) fn anonymous(length: usize) -> io::Result<Self> {
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: as above.
        let at = unsafe { mmap_anonymous(ptr::null_mut(), length, prot, MapFlags::PRIVATE) }?;
        Ok(Self::new(at.cast(), length, None))
    }

    fn new(at: *mut u8, length: usize, offset: Option<u64>) -> Self {
        let at =
            NonNull::new(at).expect("the kernel maps nothing at address 0 that was not asked for");
        Mapping { at, length, offset }
    }

    /// Where it is in a memfd.
    pub(crate) fn offset(&self) -> Option<u64> {
        self.offset
    }

    /// Gives its memory back. What is in it is lost.
    ///
    /// # Safety
    ///
    /// Nobody uses what is in it.
    pub(crate) unsafe fn release(&self) -> io::Result<()> {
        let advice = match self.offset {
            Some(_) => Advice::LinuxRemove,
            None => Advice::LinuxDontNeed,
        };
        // SAFETY: the caller says so.
        unsafe { madvise(self.at.as_ptr().cast(), self.length, advice) }?;
        Ok(())
    }

    /// The place of a value, which is inside.
    pub(crate) fn place<T>(&self, offset: usize) -> NonNull<T> {
        assert!(offset + size_of::<T>() <= self.length && offset.is_multiple_of(align_of::<T>()));
        // SAFETY: the place is inside of the mapping.
        unsafe { self.at.add(offset) }.cast()
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: who has a place in the mapping keeps its owner.
        let _ = unsafe { munmap(self.at.as_ptr().cast(), self.length) };
    }
}
