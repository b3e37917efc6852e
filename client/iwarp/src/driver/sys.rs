//! System calls that no safe crate we use wraps: poll(2) and eventfd(2).

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd};
use std::time::{Duration, Instant};

/// An eventfd: wakes a thread in [`wait`].
#[derive(Debug)]
pub(crate) struct Event(File);

impl Event {
    pub(crate) fn new() -> io::Result<Self> {
        // SAFETY: no argument refers to memory.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor was just made and nobody else has it.
        Ok(Event(unsafe { File::from_raw_fd(fd) }))
    }

    pub(crate) fn set(&self) {
        // It fails only when the counter is full, and then it is set.
        let _ = (&self.0).write(&1u64.to_ne_bytes());
    }

    pub(crate) fn clear(&self) {
        let _ = (&self.0).read(&mut [0; 8]);
    }
}

impl AsFd for Event {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// What [`wait`] found.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Ready {
    /// Readable, or ended.
    pub(crate) readable: bool,
    pub(crate) writable: bool,
    pub(crate) event: bool,
}

/// Waits until `socket` is readable (or writable, if asked), `event` is set, or `until` has
/// come (`None`: for ever).
pub(crate) fn wait(
    socket: BorrowedFd<'_>,
    writable: bool,
    event: &Event,
    until: Option<Instant>,
) -> io::Result<Ready> {
    let mut fds = [
        libc::pollfd {
            fd: socket.as_raw_fd(),
            events: libc::POLLIN | if writable { libc::POLLOUT } else { 0 },
            revents: 0,
        },
        libc::pollfd {
            fd: event.as_fd().as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        },
    ];
    let timeout = until.map(|at| {
        let left = at.saturating_duration_since(Instant::now());
        let left = left.min(Duration::from_secs(i32::MAX as u64));
        libc::timespec {
            tv_sec: left.as_secs() as libc::time_t,
            tv_nsec: left.subsec_nanos().into(),
        }
    });
    let timeout = timeout
        .as_ref()
        .map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: `fds` is an array of two; `timeout` is null or points to a timespec that
    // outlives the call; the signal mask may be null.
    let n = unsafe { libc::ppoll(fds.as_mut_ptr(), 2, timeout, std::ptr::null()) };
    if n < 0 {
        let error = io::Error::last_os_error();
        if error.kind() == io::ErrorKind::Interrupted {
            return Ok(Ready::default());
        }
        return Err(error);
    }
    let ended = libc::POLLHUP | libc::POLLERR | libc::POLLNVAL;
    Ok(Ready {
        readable: fds[0].revents & (libc::POLLIN | ended) != 0,
        writable: fds[0].revents & (libc::POLLOUT | libc::POLLERR) != 0,
        event: fds[1].revents != 0,
    })
}
