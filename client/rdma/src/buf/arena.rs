//! The memory of a [`Pool`](super::Pool): anonymous, or a memfd.

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::NonNull;

pub(super) struct Arena {
    pub(super) base: NonNull<u8>,
    pub(super) len: usize,
    /// None: it is anonymous memory.
    pub(super) fd: Option<OwnedFd>,
}

// SAFETY: the arena is plain memory; which thread may access a part is decided by the blocks
// allocated, each of which has one owner.
unsafe impl Send for Arena {}
// SAFETY: as above.
unsafe impl Sync for Arena {}

impl Drop for Arena {
    fn drop(&mut self) {
        // SAFETY: `base` and `len` are what mmap returned and was asked for; every block holds the
        // `Inner` that owns this arena, so no block is left.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

impl Arena {
    pub(super) fn new(len: usize, fd: Option<OwnedFd>) -> io::Result<Self> {
        let (kind, file) = match &fd {
            Some(fd) => (libc::MAP_SHARED, fd.as_raw_fd()),
            None => (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1),
        };
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        let flags = kind | libc::MAP_NORESERVE;
        // SAFETY: a mapping at a place that the kernel chooses; no argument refers to existing memory.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), len, prot, flags, file, 0) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let huge = match fd {
            // With huge pages, the first touch clears 2 MiB in one fault instead of 4 KiB.
            None => libc::MADV_HUGEPAGE,
            // A part of a huge page that a device of a dead process still has cannot be taken from it: the system clears
            // it, says that it was released, and leaves it to both.
            Some(_) => libc::MADV_NOHUGEPAGE,
        };
        // SAFETY: the range is the mapping made above. After a failure the default holds.
        unsafe {
            libc::madvise(base, len, libc::MADV_DONTDUMP);
            libc::madvise(base, len, libc::MADV_DONTFORK);
            libc::madvise(base, len, huge);
        }
        let base = NonNull::new(base.cast()).expect("mmap does not map address zero");
        Ok(Arena { base, len, fd })
    }

    /// Returns the memory of a range to the system. Whether it could.
    ///
    /// # Safety
    ///
    /// The range is inside, and nobody has access to its bytes. They read as zeros afterwards, which is as good as any contents.
    pub(super) unsafe fn release(&self, from: usize, len: usize) -> bool {
        let how = match self.fd {
            // MADV_DONTNEED would leave it to the memfd.
            Some(_) => libc::MADV_REMOVE,
            None => libc::MADV_DONTNEED,
        };
        // SAFETY: as the caller promises.
        unsafe { libc::madvise(self.base.add(from).as_ptr().cast(), len, how) == 0 }
    }
}

/// A memfd of this size, which stays.
pub(super) fn memfd(len: usize) -> io::Result<OwnedFd> {
    // Beyond this the process would be killed by SIGXFSZ.
    let limit = getrlimit(Resource::Fsize).current;
    if limit.is_some_and(|limit| len as u64 > limit) {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let fd = match memfd_create("nfsrdma-pool", flags | MemfdFlags::NOEXEC_SEAL) {
        // Linux before 6.3.
        Err(Errno::INVAL) => memfd_create("nfsrdma-pool", flags),
        made => made,
    }?;
    ftruncate(&fd, len as u64)?;
    fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW)?;
    Ok(fd)
}
