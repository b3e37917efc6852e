//! Waiting for a socket, with an eventfd(2) by which another thread ends the wait.

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// An eventfd: wakes a thread in [`wait`].
#[derive(Debug)]
pub(crate) struct Event(OwnedFd);

impl Event {
    pub(crate) fn new() -> io::Result<Self> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        Ok(Event(eventfd(0, flags)?))
    }

    pub(crate) fn set(&self) {
        // It fails only when the counter is full, and then it is set.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    pub(crate) fn clear(&self) {
        let _ = rustix::io::read(&self.0, &mut [0u8; 8]);
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
    let wanted = match writable {
        true => PollFlags::IN | PollFlags::OUT,
        false => PollFlags::IN,
    };
    let mut fds = [
        PollFd::from_borrowed_fd(socket, wanted),
        PollFd::new(event, PollFlags::IN),
    ];
    let timeout = until.map(|at| {
        let left = at.saturating_duration_since(Instant::now());
        let left = left.min(Duration::from_secs(i32::MAX as u64));
        Timespec {
            tv_sec: left.as_secs() as i64,
            tv_nsec: left.subsec_nanos().into(),
        }
    });
    match poll(&mut fds, timeout.as_ref()) {
        Ok(_) => {}
        Err(Errno::INTR) => return Ok(Ready::default()),
        Err(error) => return Err(error.into()),
    }
    let found = fds[0].revents();
    let ended = PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL;
    Ok(Ready {
        readable: found.intersects(PollFlags::IN | ended),
        writable: found.intersects(PollFlags::OUT | PollFlags::ERR),
        event: !fds[1].revents().is_empty(),
    })
}
