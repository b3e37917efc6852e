//! Notifications: messages to the kernel that are not replies.
//!
//! The kernel takes locks of the directory or the inode for them. So a thread must not send one if
//! an operation that holds such a lock waits for this thread.
//!
//! FUSE_NOTIFY_INVAL_INODE for data waits for page locks, and FUSE_NOTIFY_INVAL_ENTRY for the lock
//! of a directory. Requests hold these locks until this process answers them. If it is killed
//! meanwhile, its requests would end when /dev/fuse is closed; but the threads of a process share
//! their descriptors, which stay open until the last thread has ended, and that one waits for the
//! requests: a process that nobody can kill, with a mount that hangs for ever. So a thread that sends such a
//! notification shares no descriptors ([`Notifier::apart`]). It has only a device that nobody reads requests
//! from. When the other threads have ended, the devices that they read from are closed, the requests
//! fail, and it ends as well.

use super::abi::{ROOT_ID, SHOWN_ROOT_ID, notify};
use super::device::Device;
use super::own_table;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::thread::{self, Builder};
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

    /// Sends what waits for locks, on a thread that shares no descriptors with others. The caller waits, too, and can be
    /// killed. `send` may need no other descriptor, neither directly nor by waking a thread.
    pub fn apart(&self, send: impl Fn(&Notifier) + Sync) {
        let own = || {
            let own = own_table::with_only(self.device.as_fd())?;
            send(&Notifier::new(Arc::new(own.into()), self.expire));
            io::Result::Ok(())
        };
        let sent = thread::scope(|scope| {
            let thread = Builder::new().name("notify".into());
            let ended = thread.spawn_scoped(scope, own)?.join();
            ended.unwrap_or_else(|_| Err(io::Error::other("the thread has panicked")))
        });
        if let Err(error) = sent {
            // There is no thread to be had, or the kernel, or a filter of system calls, gives it no table of its own.
            tracing::debug!("a notification keeps the other descriptors open: {error}");
            send(self);
        }
    }

    fn send(&self, code: i32, body: &[&[u8]]) -> io::Result<()> {
        self.device.send(0, code, body).map_err(Into::into)
    }

    /// Makes the kernel drop an inode's attributes, and the pages of its data from `offset` on:
    /// `len` bytes, or all if `len` is not positive. With a negative offset, only the attributes.
    pub fn inval_inode(&self, nodeid: u64, offset: i64, len: i64) -> io::Result<()> {
        if nodeid == ROOT_ID {
            // The kernel may not know it by this number.
            let _ = self.inval_inode(SHOWN_ROOT_ID, offset, len);
        }
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

    /// Whether the kernel can expire a name without dropping it, which would unmount what is
    /// mounted there.
    pub fn can_expire(&self) -> bool {
        self.expire
    }

    /// Makes the kernel look a name up again before it is used. Kernels before 6.2 drop it instead.
    pub fn expire_entry(&self, parent: u64, name: &[u8]) -> io::Result<()> {
        // Where the root is shown by another number, a name in the kernel's own root node leads to it.
        if parent == ROOT_ID && self.inval_inode(SHOWN_ROOT_ID, -1, 0).is_ok() {
            return self.expire_entry(SHOWN_ROOT_ID, name);
        }
        let body = InvalEntry {
            parent,
            name_len: name.len() as u32,
            flags: if self.expire { notify::EXPIRE_ONLY } else { 0 },
        };
        self.send(notify::INVAL_ENTRY, &[body.as_bytes(), name, &[0]])
    }
}

#[cfg(test)]
#[path = "notify_tests.rs"]
mod tests;
