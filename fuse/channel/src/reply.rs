//! Replies to requests.
//!
//! A [`Reply`] is given exactly once, from any thread, because its methods consume it. If it is
//! dropped, it answers EIO, so that no caller waits for ever. It goes to the descriptor of /dev/fuse
//! from which the request was read, by one write(2) or writev(2). If the kernel refuses a reply, it is
//! followed by EIO. It is no error if the request does not exist any more, as after its caller was killed.

use super::abi::opcode;
use super::device::Device;
use super::header::Header;
use super::out::{self, Attr, CreateBody, Entry, Lock, OpenBody, Statfs};
use rustix::io::Errno;
use std::sync::Arc;
use std::time::Duration;
use zerocopy::{Immutable, IntoBytes};

const EIO: i32 = Errno::IO.raw_os_error();

/// The reply to one request. It is given once, from any thread; if it is dropped, it is EIO.
#[derive(Debug)]
pub struct Reply {
    /// `None` once the reply is given.
    device: Option<Arc<Device>>,
    unique: u64,
    opcode: u32,
    /// Where the request is in the device's journal, which keeps it until it is answered; 0 if it is not.
    slot: u32,
}

impl Reply {
    /// The reply to the request with this header, which was read from `device`.
    pub fn new(device: &Arc<Device>, header: &Header) -> Self {
        Self::to_slot(device, header, 0)
    }

    /// As [`Reply::new`], to a request in this slot of the device's journal.
    pub(crate) fn to_slot(device: &Arc<Device>, header: &Header, slot: u32) -> Self {
        if slot != 0
            && let Some(journal) = device.journal()
        {
            journal.share(slot);
        }
        Reply {
            device: Some(device.clone()),
            unique: header.unique,
            opcode: header.opcode,
            slot,
        }
    }

    /// The number of the request.
    pub fn unique(&self) -> u64 {
        self.unique
    }

    fn send(mut self, code: i32, body: &[&[u8]]) {
        let Some(device) = self.device.take() else {
            return;
        };
        if let Err(error) = device.send(self.unique, code, body) {
            self.refused(&device, error);
        }
        self.answered(&device);
    }

    /// The request need not be kept any more.
    fn answered(&self, device: &Device) {
        if self.slot != 0
            && let Some(journal) = device.journal()
        {
            journal.release(self.slot);
        }
    }

    fn refused(&self, device: &Device, error: Errno) {
        match error {
            // The kernel has ended the request: its caller was killed before the request was read,
            // or the mount is gone.
            Errno::NOENT | Errno::NODEV | Errno::PERM | Errno::CONNABORTED => {
                tracing::debug!(
                    operation = opcode::name(self.opcode),
                    %error,
                    "nobody waits for a reply"
                );
            }
            error => {
                tracing::error!(
                    operation = opcode::name(self.opcode),
                    %error,
                    "the kernel refuses a reply"
                );
                // The caller must not wait for ever. The kernel may have removed the request.
                let _ = device.send(self.unique, -EIO, &[]);
            }
        }
    }

    fn body(self, body: &(impl IntoBytes + Immutable)) {
        self.send(0, &[body.as_bytes()]);
    }

    /// The request failed with this errno.
    pub fn error(self, errno: i32) {
        // The kernel would refuse other values.
        let errno = if (1..512).contains(&errno) {
            errno
        } else {
            EIO
        };
        self.send(-errno, &[]);
    }

    /// The request succeeded; the reply has no body.
    pub fn ok(self) {
        self.send(0, &[]);
    }

    /// LOOKUP, MKNOD, MKDIR, SYMLINK, LINK.
    pub fn entry(self, entry: &Entry) {
        self.body(entry);
    }

    /// GETATTR, SETATTR.
    pub fn attr(self, valid: Duration, attr: &Attr) {
        self.body(&out::attr(valid, attr));
    }

    /// READ, READLINK, READDIR, GETXATTR, LISTXATTR.
    pub fn data(self, data: &[u8]) {
        self.send(0, &[data]);
    }

    /// As [`Reply::data`], for data in several slices.
    pub fn slices(self, data: &[&[u8]]) {
        self.send(0, data);
    }

    /// OPEN, OPENDIR; the flags are those of [`abi::fopen`](super::abi::fopen).
    pub fn opened(self, handle: u64, flags: u32) {
        self.body(&OpenBody(handle, flags, 0));
    }

    /// CREATE.
    pub fn created(self, entry: &Entry, handle: u64, flags: u32) {
        self.body(&CreateBody(*entry, OpenBody(handle, flags, 0)));
    }

    /// WRITE.
    pub fn written(self, bytes: u32) {
        self.body(&[bytes, 0]);
    }

    /// STATFS.
    pub fn statfs(self, of: &Statfs) {
        self.body(of);
    }

    /// GETXATTR and LISTXATTR with size 0: how long the answer would be.
    pub fn xattr_size(self, bytes: u32) {
        self.body(&[bytes, 0]);
    }

    /// GETLK.
    pub fn lock(self, lock: &Lock) {
        self.body(lock);
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        if let Some(device) = self.device.take() {
            tracing::debug!(
                operation = opcode::name(self.opcode),
                "a request ends without a reply"
            );
            let _ = device.send(self.unique, -EIO, &[]);
            self.answered(&device);
        }
    }
}

#[cfg(test)]
#[path = "reply_tests.rs"]
pub(crate) mod tests;
