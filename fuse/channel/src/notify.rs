//! Notifications: messages to the kernel that are not replies.
//!
//! The kernel takes locks of the directory or the inode for them. So a thread must not send one if
//! an operation that holds such a lock waits for this thread.

use super::abi::notify;
use super::device::Device;
use std::io;
use std::sync::Arc;
use zerocopy::{Immutable, IntoBytes};

/// `fuse_notify_store_out`.
#[derive(IntoBytes, Immutable)]
#[repr(C)]
struct Store {
    nodeid: u64,
    offset: u64,
    size: u32,
    unused: u32,
}

/// `fuse_notify_inval_entry_out`.
#[derive(IntoBytes, Immutable)]
#[repr(C)]
struct InvalEntry {
    parent: u64,
    name_len: u32,
    flags: u32,
}

/// `fuse_notify_delete_out`.
#[derive(IntoBytes, Immutable)]
#[repr(C)]
struct Delete {
    parent: u64,
    child: u64,
    name_len: u32,
    unused: u32,
}

/// Sends notifications. The error ENOENT means that the kernel does not know the inode or name.
#[derive(Debug, Clone)]
pub struct Notifier {
    device: Arc<Device>,
    expire: bool,
}

impl Notifier {
    /// A sender that uses `device`. `expire`: whether the kernel knows FUSE_EXPIRE_ONLY.
    pub fn new(device: Arc<Device>, expire: bool) -> Self {
        Notifier { device, expire }
    }

    fn send(&self, code: i32, body: &[&[u8]]) -> io::Result<()> {
        self.device.send(0, code, body).map_err(Into::into)
    }

    /// Makes the kernel drop an inode's attributes, and the pages of its data from `offset` on:
    /// `len` bytes, or all if `len` is not positive. With a negative offset, only the attributes.
    pub fn inval_inode(&self, nodeid: u64, offset: i64, len: i64) -> io::Result<()> {
        // `fuse_notify_inval_inode_out`.
        let body = [nodeid, offset as u64, len as u64];
        self.send(notify::INVAL_INODE, &[body.as_bytes()])
    }

    /// Somebody else has changed a file: makes the kernel drop its pages and attributes. `end`, the
    /// file's last byte with its offset, also makes it know that the file is that long. sendfile(2),
    /// splice(2), copy_file_range(2) and mappings go by the size that the kernel has and never ask for
    /// it, and nothing but a reply with attributes or stored data makes it larger. Not for a size that
    /// the kernel knows: what a mapping has written to this byte would be lost. The page is dropped
    /// again, because the kernel may take bytes that it has not for zeros. Waits for locks of pages.
    pub fn changed(&self, nodeid: u64, end: Option<(u64, u8)>) -> io::Result<()> {
        self.inval_inode(nodeid, 0, 0)?;
        let Some((last, byte)) = end.filter(|&(last, _)| last < i64::MAX as u64) else {
            return Ok(());
        };
        let body = Store {
            nodeid,
            offset: last,
            size: 1,
            unused: 0,
        };
        self.send(notify::STORE, &[body.as_bytes(), &[byte]])?;
        self.inval_inode(nodeid, last as i64, 1)
    }

    /// Makes the kernel drop a name.
    pub fn inval_entry(&self, parent: u64, name: &[u8]) -> io::Result<()> {
        self.entry(parent, name, 0)
    }

    /// Whether the kernel can expire a name without dropping it, which would unmount what is
    /// mounted there.
    pub fn can_expire(&self) -> bool {
        self.expire
    }

    /// Makes the kernel look a name up again before it is used. Kernels before 6.2 drop it instead.
    pub fn expire_entry(&self, parent: u64, name: &[u8]) -> io::Result<()> {
        let flags = if self.expire { notify::EXPIRE_ONLY } else { 0 };
        self.entry(parent, name, flags)
    }

    fn entry(&self, parent: u64, name: &[u8], flags: u32) -> io::Result<()> {
        let body = InvalEntry {
            parent,
            name_len: name.len() as u32,
            flags,
        };
        self.send(notify::INVAL_ENTRY, &[body.as_bytes(), name, &[0]])
    }

    /// Tells the kernel that a name of the node `child` was removed, which it reports by
    /// inotify(7).
    pub fn delete(&self, parent: u64, child: u64, name: &[u8]) -> io::Result<()> {
        let body = Delete {
            parent,
            child,
            name_len: name.len() as u32,
            unused: 0,
        };
        self.send(notify::DELETE, &[body.as_bytes(), name, &[0]])
    }
}

#[cfg(test)]
#[path = "notify_tests.rs"]
mod tests;
