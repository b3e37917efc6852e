//! Waiting for descriptors.

use nfsrdma_rdma::Instant;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;
use std::io;
use std::os::fd::BorrowedFd;

/// Makes a library's descriptor non-blocking.
pub(crate) fn nonblocking(fd: BorrowedFd<'_>) -> io::Result<()> {
    let flags = fcntl_getfl(fd)?;
    Ok(fcntl_setfl(fd, flags | OFlags::NONBLOCK)?)
}

/// Waits until a descriptor is readable (or broken), or until `until`. Returns which ones are.
pub(crate) fn readable<const N: usize>(
    fds: [BorrowedFd<'_>; N],
    until: Option<Instant>,
) -> io::Result<[bool; N]> {
    let mut polled = fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
    loop {
        let left = until.map(|at| at.saturating_duration_since(Instant::now()));
        let timeout = left.map(|left| Timespec {
            tv_sec: left.as_secs().try_into().unwrap_or(i64::MAX),
            tv_nsec: left.subsec_nanos().into(),
        });
        match poll(&mut polled, timeout.as_ref()) {
            Ok(_) => return Ok(polled.map(|fd| !fd.revents().is_empty())),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nfsrdma_rdma::EventFd;
    use std::os::fd::AsFd;
    use std::time::Duration;

    #[test]
    fn a_bell_is_heard_once_and_remembered() {
        let event = EventFd::new().unwrap();
        assert!(!event.clear());
        event.notify();
        event.notify();
        assert_eq!(readable([event.as_fd()], None).unwrap(), [true]);
        assert!(event.clear());
        assert!(!event.clear());
    }

    #[test]
    fn waiting_ends_at_its_time() {
        let (silent, notified) = (EventFd::new().unwrap(), EventFd::new().unwrap());
        let until = Instant::now() + Duration::from_millis(20);
        assert_eq!(readable([silent.as_fd()], Some(until)).unwrap(), [false]);
        assert!(Instant::now() >= until);
        notified.notify();
        let fds = [silent.as_fd(), notified.as_fd()];
        assert_eq!(readable(fds, Some(until)).unwrap(), [false, true]);
    }
}
