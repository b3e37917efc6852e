//! A descriptor of /dev/fuse that belongs to a mount.

use super::abi::OUT_HEADER;
use super::clone;
use rustix::fs::OFlags;
use rustix::io::Errno;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// What one reader reads from. Each has its own queue of requests that wait for their replies,
/// so a reply must go to the device its request was read from.
#[derive(Debug)]
pub struct Device(OwnedFd);

impl From<OwnedFd> for Device {
    fn from(fd: OwnedFd) -> Self {
        Device(fd)
    }
}

impl AsFd for Device {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
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

/// Slices that one writev(2) takes (IOV_MAX of limits.h).
const MAX_SLICES: usize = 1024;

impl Device {
    /// Another device of the same mount.
    pub fn try_clone(&self) -> io::Result<Device> {
        clone::clone(self.as_fd()).map(Device)
    }

    /// From now on [`Device::receive`] does not wait.
    pub fn set_nonblocking(&self) -> io::Result<()> {
        let flags = rustix::fs::fcntl_getfl(&self.0)?;
        Ok(rustix::fs::fcntl_setfl(&self.0, flags | OFlags::NONBLOCK)?)
    }

    /// Takes a request, waiting for it unless the device is non-blocking.
    pub fn receive<'a>(&self, buffer: &'a mut [u8]) -> io::Result<Received<&'a [u8]>> {
        let received = receive(|| rustix::io::read(&self.0, &mut *buffer))?;
        Ok(received.map(|len| &buffer[..len]))
    }

    /// The same into several buffers, which are filled one after the other.
    pub fn receive_parts(&self, parts: &mut [IoSliceMut<'_>]) -> io::Result<Received<usize>> {
        receive(|| rustix::io::readv(&self.0, parts))
    }

    /// Writes a message: a header with `code`, which is an error or a notification, and
    /// `unique`, and the slices of `body`.
    pub(crate) fn send(&self, unique: u64, code: i32, body: &[&[u8]]) -> Result<(), Errno> {
        let len: usize = body.iter().map(|slice| slice.len()).sum();
        let header = header(unique, code, len);
        // The usual replies need no allocation.
        let written = match body {
            [] => rustix::io::write(&self.0, &header),
            [one] => rustix::io::writev(&self.0, &[IoSlice::new(&header), IoSlice::new(one)]),
            several if several.len() < MAX_SLICES => {
                let mut all = Vec::with_capacity(several.len() + 1);
                all.push(IoSlice::new(&header));
                all.extend(several.iter().map(|slice| IoSlice::new(slice)));
                rustix::io::writev(&self.0, &all)
            }
            many => {
                let all = many.concat();
                rustix::io::writev(&self.0, &[IoSlice::new(&header), IoSlice::new(&all)])
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

fn header(unique: u64, code: i32, len: usize) -> [u8; OUT_HEADER] {
    let mut header = [0; OUT_HEADER];
    let len = (OUT_HEADER + len) as u32;
    header[..4].copy_from_slice(&len.to_ne_bytes());
    header[4..8].copy_from_slice(&code.to_ne_bytes());
    header[8..].copy_from_slice(&unique.to_ne_bytes());
    header
}
