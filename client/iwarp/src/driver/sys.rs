//! Waits for a socket, with an eventfd(2) by which another thread can end the wait.

use nfsrdma_rdma::{EventFd, Instant};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::io;
use std::os::fd::BorrowedFd;
use std::time::Duration;

/// What [`wait`] found.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Ready {
    /// Readable, or closed.
    pub(crate) readable: bool,
    pub(crate) writable: bool,
    pub(crate) event: bool,
}

/// Waits until `socket` is readable (or writable, if `writable`), `event` is notified, or the time
/// `until` is reached (`None` means no limit).
pub(crate) fn wait(
    socket: BorrowedFd<'_>,
    writable: bool,
    event: &EventFd,
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
