//! An eventfd(2), with which a thread can end another thread's wait for descriptors.

use rustix::event::{EventfdFlags, eventfd};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// A descriptor that is readable after it was notified.
#[derive(Debug)]
pub struct EventFd(OwnedFd);

impl EventFd {
    /// Makes one that is not notified. Fails if the process has too many descriptors.
    pub fn new() -> io::Result<Self> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        Ok(EventFd(eventfd(0, flags)?))
    }

    /// Makes the descriptor readable; may be called by any thread.
    pub fn notify(&self) {
        // This fails only if the counter is full, and then the descriptor is already readable.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    /// Returns whether it was notified, and resets it.
    pub fn clear(&self) -> bool {
        rustix::io::read(&self.0, &mut [0u8; 8]) == Ok(8)
    }
}

impl AsFd for EventFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
