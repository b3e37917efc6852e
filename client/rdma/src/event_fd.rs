//! An eventfd(2), by which one thread ends another's wait for descriptors.

use rustix::event::{EventfdFlags, eventfd};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// A descriptor that becomes readable when it is notified.
#[derive(Debug)]
pub struct EventFd(OwnedFd);

impl EventFd {
    /// One that was not notified. Fails if the process has too many descriptors.
    pub fn new() -> io::Result<Self> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        Ok(EventFd(eventfd(0, flags)?))
    }

    /// Makes it readable, from any thread.
    pub fn notify(&self) {
        // It fails only when the counter is full, and then it is readable already.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    /// Whether it was notified; it is silent afterwards.
    pub fn clear(&self) -> bool {
        rustix::io::read(&self.0, &mut [0u8; 8]) == Ok(8)
    }
}

impl AsFd for EventFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
