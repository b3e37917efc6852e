//! Threads that share no descriptors with the rest of their process. What such a thread has open is
//! closed when it ends, and not only when the whole process has ended.

use rustix::io::Errno;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// The first descriptor behind the standard ones.
const FIRST: libc::c_uint = 3;

/// Gives this thread a table of descriptors of its own, with the standard ones and this one, which
/// then belongs to the thread. Must be called on a thread that uses no others.
pub fn with_only(kept: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let raw = kept.as_raw_fd();
    let kept = libc::c_uint::try_from(raw).map_err(|_| Errno::BADF)?;
    close_range(kept + 1, libc::c_uint::MAX, libc::CLOSE_RANGE_UNSHARE)?;
    if kept > FIRST {
        // What stays open if this fails is used by nobody.
        let _ = close_range(FIRST, kept - 1, 0);
    }
    // SAFETY: the table is this thread's alone, so nobody else closes this descriptor in it.
    Ok(unsafe { OwnedFd::from_raw_fd(raw) })
}

/// close_range(2), since Linux 5.9.
fn close_range(first: libc::c_uint, last: libc::c_uint, flags: libc::c_uint) -> io::Result<()> {
    // SAFETY: the call accesses no memory. It closes descriptors that others own, but only in the
    // table of this thread: with_only makes that first, and ends if it cannot.
    match unsafe { libc::syscall(libc::SYS_close_range, first, last, flags) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
