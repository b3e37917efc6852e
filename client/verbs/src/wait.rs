//! Waiting for descriptors, and being woken.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::time::Instant;

/// Sets a descriptor of a library to non-blocking.
pub(crate) fn nonblocking(fd: RawFd) -> io::Result<()> {
    // SAFETY: fcntl with F_GETFL and F_SETFL touches no memory of ours.
    unsafe {
        let flags = libc::fcntl(fd, libc::F_GETFL);
        if flags < 0 || libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK) < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// Waits until one of the descriptors is readable (or broken), or until `until`; which are.
pub(crate) fn readable<const N: usize>(
    fds: [RawFd; N],
    until: Option<Instant>,
) -> io::Result<[bool; N]> {
    let mut polled = fds.map(|fd| libc::pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    });
    loop {
        let left = until.map(|at| at.saturating_duration_since(Instant::now()));
        let timeout = left.map(|left| libc::timespec {
            tv_sec: left.as_secs().try_into().unwrap_or(libc::time_t::MAX),
            tv_nsec: left.subsec_nanos().into(),
        });
        let timeout = timeout.as_ref().map_or(std::ptr::null(), |t| t as *const _);
        // SAFETY: the array and the time live through the call; no signal mask is given.
        let n = unsafe {
            libc::ppoll(
                polled.as_mut_ptr(),
                N as libc::nfds_t,
                timeout,
                std::ptr::null(),
            )
        };
        if n >= 0 {
            return Ok(polled.map(|fd| fd.revents != 0));
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

/// A descriptor that becomes readable when told to.
#[derive(Debug)]
pub(crate) struct Bell(OwnedFd);

impl Bell {
    pub(crate) fn new() -> io::Result<Self> {
        // SAFETY: eventfd touches no memory; a descriptor it returns is ours.
        unsafe {
            let fd = libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK);
            if fd < 0 {
                return Err(io::Error::last_os_error());
            }
            Ok(Bell(OwnedFd::from_raw_fd(fd)))
        }
    }

    pub(crate) fn fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    pub(crate) fn ring(&self) {
        let one = 1u64.to_ne_bytes();
        // SAFETY: eight bytes of ours. A full counter is rung already.
        unsafe { libc::write(self.fd(), one.as_ptr().cast(), one.len()) };
    }

    /// Whether it was rung; it is silent afterwards.
    pub(crate) fn hush(&self) -> bool {
        let mut count = [0u8; 8];
        // SAFETY: eight bytes of ours; the descriptor does not block.
        unsafe { libc::read(self.fd(), count.as_mut_ptr().cast(), count.len()) == 8 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_bell_is_heard_once_and_remembered() {
        let bell = Bell::new().unwrap();
        assert!(!bell.hush());
        bell.ring();
        bell.ring();
        assert_eq!(readable([bell.fd()], None).unwrap(), [true]);
        assert!(bell.hush());
        assert!(!bell.hush());
    }

    #[test]
    fn waiting_ends_at_its_time() {
        let (silent, rung) = (Bell::new().unwrap(), Bell::new().unwrap());
        let until = Instant::now() + Duration::from_millis(20);
        assert_eq!(readable([silent.fd()], Some(until)).unwrap(), [false]);
        assert!(Instant::now() >= until);
        rung.ring();
        let fds = [silent.fd(), rung.fd()];
        assert_eq!(readable(fds, Some(until)).unwrap(), [false, true]);
    }
}
