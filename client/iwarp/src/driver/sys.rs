//! Waits for a socket, with an eventfd(2) by which another thread can end the wait, and asks how much it has moved.

use nfsrdma_rdma::{EventFd, Instant};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::io;
use std::mem::MaybeUninit;
use std::net::TcpStream;
use std::os::fd::{AsRawFd, BorrowedFd};
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

/// How many bytes the peer's TCP has acknowledged, and how many have come from it. What waits in this
/// machine's buffers, and keepalive, do not count.
pub(crate) fn moved(socket: &TcpStream) -> u64 {
    let mut info = MaybeUninit::<libc::tcp_info>::zeroed();
    let mut length = size_of::<libc::tcp_info>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes to `info`, which has that many.
    let status = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            info.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    if status != 0 {
        return 0;
    }
    // SAFETY: it consists of integers, which are zero where the kernel has written nothing.
    let info = unsafe { info.assume_init() };
    info.tcpi_bytes_acked + info.tcpi_bytes_received
}
