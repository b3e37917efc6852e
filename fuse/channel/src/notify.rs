//! Notifications: messages to the kernel that are no replies.
//!
//! They take locks of the directory or the inode in the kernel, so they must not be sent by a
//! thread that the operation holding such a lock waits for.

use super::abi::notify;
use super::device::Device;
use super::out::{Append, Body};
use std::io;
use std::sync::Arc;

/// Sends notifications. ENOENT in answer to one means that the kernel remembers no such thing.
#[derive(Debug, Clone)]
pub struct Notifier {
    device: Arc<Device>,
    expire: bool,
}

impl Notifier {
    /// By way of `device`; `expire`: whether the kernel knows FUSE_EXPIRE_ONLY.
    pub fn new(device: Arc<Device>, expire: bool) -> Self {
        Notifier { device, expire }
    }

    fn send(&self, code: i32, body: &[&[u8]]) -> io::Result<()> {
        self.device.send(0, code, body).map_err(Into::into)
    }

    /// Drops an inode's attributes and the pages of its data from `offset` on, `len` bytes or,
    /// if that is not above 0, all. With a negative offset only the attributes.
    pub fn inval_inode(&self, nodeid: u64, offset: i64, len: i64) -> io::Result<()> {
        let mut body = Body::new();
        body.u64(nodeid);
        body.put(&offset.to_ne_bytes());
        body.put(&len.to_ne_bytes());
        self.send(notify::INVAL_INODE, &[&body])
    }

    /// Drops what is known of a name.
    pub fn inval_entry(&self, parent: u64, name: &[u8]) -> io::Result<()> {
        self.entry(parent, name, 0)
    }

    /// Whether the kernel can look a name up again without dropping it, and with it what is mounted
    /// there.
    pub fn can_expire(&self) -> bool {
        self.expire
    }

    /// Has a name looked up again before it is used. Kernels before 6.2 do not know that: they
    /// drop it.
    pub fn expire_entry(&self, parent: u64, name: &[u8]) -> io::Result<()> {
        let flags = if self.expire { notify::EXPIRE_ONLY } else { 0 };
        self.entry(parent, name, flags)
    }

    fn entry(&self, parent: u64, name: &[u8], flags: u32) -> io::Result<()> {
        let mut body = Body::new();
        body.u64(parent);
        body.u32(name.len() as u32);
        body.u32(flags);
        self.send(notify::INVAL_ENTRY, &[&body, name, &[0]])
    }

    /// A name of the node `child` is removed, which inotify(7) tells.
    pub fn delete(&self, parent: u64, child: u64, name: &[u8]) -> io::Result<()> {
        let mut body = Body::new();
        body.u64(parent);
        body.u64(child);
        body.u32(name.len() as u32);
        body.u32(0);
        self.send(notify::DELETE, &[&body, name, &[0]])
    }
}

#[cfg(test)]
#[path = "notify_tests.rs"]
mod tests;
