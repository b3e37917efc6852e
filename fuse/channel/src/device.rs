//! A descriptor of /dev/fuse that belongs to a mount.

use super::abi::OUT_HEADER;
use super::clone;
use super::journal::Journal;
use rustix::fs::OFlags;
use rustix::io::Errno;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, OnceLock};
use zerocopy::{Immutable, IntoBytes};

/// What one reader reads from. Each has its own queue of requests that wait for their replies,
/// so a reply must go to the device its request was read from.
#[derive(Debug)]
pub struct Device {
    fd: OwnedFd,
    /// Where the requests are that were read from it.
    journal: OnceLock<Arc<Journal>>,
}

impl From<OwnedFd> for Device {
    fn from(fd: OwnedFd) -> Self {
        Device {
            fd,
            journal: OnceLock::new(),
        }
    }
}

impl AsFd for Device {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// What a device gave.
#[derive(Debug, PartialEq, Eq)]
pub enum Received<T> {
    /// The request, or its length.
    Request(T),
    /// There is none at this moment.
    Empty,
    /// The mount is gone.
    Ended,
}

impl<T> Received<T> {
    pub(crate) fn map<U>(self, f: impl FnOnce(T) -> U) -> Received<U> {
        match self {
            Received::Request(request) => Received::Request(f(request)),
            Received::Empty => Received::Empty,
            Received::Ended => Received::Ended,
        }
    }
}

/// `struct fuse_out_header`.
#[derive(IntoBytes, Immutable)]
#[repr(C)]
struct OutHeader {
    len: u32,
    code: i32,
    unique: u64,
}

/// Slices that one writev(2) takes (IOV_MAX of limits.h).
const MAX_SLICES: usize = 1024;
/// A body of up to this many bytes is copied behind the header: the kernel looks up the page of each slice, which
/// takes longer. The longest of fixed size, that of CREATE, has 144.
const COPIED: usize = 240;

impl Device {
    /// Another device of the same mount.
    pub fn try_clone(&self) -> io::Result<Device> {
        clone::clone(self.as_fd()).map(Device::from)
    }

    /// From now on [`Device::receive`] does not wait.
    pub fn set_nonblocking(&self) -> io::Result<()> {
        let flags = rustix::fs::fcntl_getfl(&self.fd)?;
        Ok(rustix::fs::fcntl_setfl(&self.fd, flags | OFlags::NONBLOCK)?)
    }

    /// Takes a request, waiting for it unless the device is non-blocking.
    pub fn receive<'a>(&self, buffer: &'a mut [u8]) -> io::Result<Received<&'a [u8]>> {
        let received = receive(|| rustix::io::read(&self.fd, &mut *buffer))?;
        Ok(received.map(|len| &buffer[..len]))
    }

    /// The same into several buffers, which are filled one after the other.
    pub fn receive_parts(&self, parts: &mut [IoSliceMut<'_>]) -> io::Result<Received<usize>> {
        receive(|| rustix::io::readv(&self.fd, parts))
    }

    /// Requests are read from it into this journal.
    pub(crate) fn set_journal(&self, journal: &Arc<Journal>) {
        // All devices of a mount have the same one.
        let _ = self.journal.set(journal.clone());
    }

    /// The journal that requests are read into, if there is one.
    pub(crate) fn journal(&self) -> Option<&Arc<Journal>> {
        self.journal.get()
    }

    /// Whether a request was read from this device and is not answered. If its caller has got a signal,
    /// INTERRUPT comes again.
    ///
    /// This is the answer to the INTERRUPT of the request, which has its number with the lowest bit set: to send that
    /// again later. The kernel finds the request first (ENOENT), and then whether it had sent one (EINVAL).
    pub(crate) fn awaits(&self, unique: u64) -> bool {
        let again = -Errno::AGAIN.raw_os_error();
        matches!(
            self.send(unique | 1, again, &[]),
            Ok(()) | Err(Errno::INVAL)
        )
    }

    /// Writes a message: a header with `code`, which is an error or a notification, and
    /// `unique`, and the slices of `body`.
    pub(crate) fn send(&self, unique: u64, code: i32, body: &[&[u8]]) -> Result<(), Errno> {
        let len: usize = body.iter().map(|slice| slice.len()).sum();
        let header = OutHeader {
            len: (OUT_HEADER + len) as u32,
            code,
            unique,
        };
        let header = header.as_bytes();
        // The usual replies need no allocation.
        let written = match body {
            _ if len <= COPIED => {
                let mut whole = [0; OUT_HEADER + COPIED];
                whole[..OUT_HEADER].copy_from_slice(header);
                let mut at = OUT_HEADER;
                for slice in body {
                    whole[at..][..slice.len()].copy_from_slice(slice);
                    at += slice.len();
                }
                rustix::io::write(&self.fd, &whole[..at])
            }
            [one] => rustix::io::writev(&self.fd, &[IoSlice::new(header), IoSlice::new(one)]),
            several if several.len() < MAX_SLICES => {
                let mut all = Vec::with_capacity(several.len() + 1);
                all.push(IoSlice::new(header));
                all.extend(several.iter().map(|slice| IoSlice::new(slice)));
                rustix::io::writev(&self.fd, &all)
            }
            many => {
                let all = many.concat();
                rustix::io::writev(&self.fd, &[IoSlice::new(header), IoSlice::new(&all)])
            }
        }?;
        // The kernel takes a message whole or not at all.
        if written == OUT_HEADER + len {
            Ok(())
        } else {
            Err(Errno::IO)
        }
    }
}

fn receive(mut read: impl FnMut() -> Result<usize, Errno>) -> io::Result<Received<usize>> {
    loop {
        match read() {
            Ok(len) => return Ok(Received::Request(len)),
            // ENOENT: the request was interrupted before it was read.
            Err(Errno::INTR | Errno::NOENT) => {}
            Err(Errno::AGAIN) => return Ok(Received::Empty),
            // ECONNABORTED: it ended while a request was being taken.
            Err(Errno::NODEV | Errno::CONNABORTED) => return Ok(Received::Ended),
            Err(error) => return Err(error.into()),
        }
    }
}
