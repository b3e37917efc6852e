//! The operations that the kernel requests, with their arguments.
//!
//! [`Operation`] has one variant for each opcode of include/uapi/linux/fuse.h that NFSv3 has something
//! for, with the fields that this takes. The node concerned is in the request's header. Names and data borrow from
//! the buffer that the request was read into, so an operation lasts as long as the handler's call.

use super::fields::Fields;
use std::ffi::OsStr;
use std::fmt;
use std::time::SystemTime;

/// A time for SETATTR.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TimeOrNow {
    SpecificTime(SystemTime),
    Now,
}

/// The attributes that SETATTR sets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SetAttr {
    pub mode: Option<u32>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    pub size: Option<u64>,
    pub atime: Option<TimeOrNow>,
    pub mtime: Option<TimeOrNow>,
    /// The open file, if the request has one, as for ftruncate(2).
    pub handle: Option<u64>,
}

/// The arguments of WRITE without the data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WriteIn {
    pub handle: u64,
    pub offset: u64,
    /// The data comes from the page cache: the handle is any that may write, not the one that did.
    pub cached: bool,
    pub flags: i32,
}

/// Nodes to forget, each with the number of look-ups.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Forgets<'a>(pub(crate) &'a [u8]);

impl Iterator for Forgets<'_> {
    type Item = (u64, u64);

    fn next(&mut self) -> Option<(u64, u64)> {
        let mut fields = Fields::new(self.0);
        let one = (fields.u64().ok()?, fields.u64().ok()?);
        self.0 = fields.rest();
        Some(one)
    }
}

impl fmt::Debug for Forgets<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(*self).finish()
    }
}

/// An operation. Flags of open(2), modes and masks have the values of the system calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Operation<'a> {
    Lookup {
        name: &'a OsStr,
    },
    /// Has no answer.
    Forget {
        count: u64,
    },
    /// Has no answer.
    BatchForget(Forgets<'a>),
    Getattr {
        handle: Option<u64>,
    },
    Setattr(SetAttr),
    Readlink,
    Symlink {
        name: &'a OsStr,
        target: &'a OsStr,
    },
    Mknod {
        name: &'a OsStr,
        mode: u32,
        rdev: u32,
        umask: u32,
    },
    Mkdir {
        name: &'a OsStr,
        mode: u32,
        umask: u32,
    },
    Unlink {
        name: &'a OsStr,
    },
    Rmdir {
        name: &'a OsStr,
    },
    /// RENAME, with no flags, or RENAME2.
    Rename {
        name: &'a OsStr,
        new_parent: u64,
        new_name: &'a OsStr,
        flags: u32,
    },
    /// The header's node is the new name's directory.
    Link {
        node: u64,
        name: &'a OsStr,
    },
    Open {
        flags: i32,
    },
    Read {
        handle: u64,
        offset: u64,
        size: u32,
        flags: i32,
    },
    Write {
        to: WriteIn,
        data: &'a [u8],
    },
    Statfs,
    Release {
        handle: u64,
        flags: i32,
        flush: bool,
        /// The owner whose flock(2) locks end with the open file.
        flock_owner: Option<u64>,
    },
    Fsync {
        handle: u64,
        datasync: bool,
    },
    Setxattr {
        name: &'a OsStr,
        value: &'a [u8],
        flags: u32,
    },
    /// `size` 0 asks for the value's length.
    Getxattr {
        name: &'a OsStr,
        size: u32,
    },
    Listxattr {
        size: u32,
    },
    Removexattr {
        name: &'a OsStr,
    },
    Flush {
        handle: u64,
        lock_owner: u64,
    },
    /// A further INIT; `fuser` has answered the first.
    Init,
    Opendir {
        flags: i32,
    },
    Readdir {
        handle: u64,
        offset: u64,
        size: u32,
    },
    Readdirplus {
        handle: u64,
        offset: u64,
        size: u32,
    },
    Releasedir {
        handle: u64,
        flags: i32,
    },
    Fsyncdir {
        handle: u64,
        datasync: bool,
    },
    Getlk {
        handle: u64,
        owner: u64,
        lock: super::Lock,
        flock: bool,
    },
    /// SETLK, or SETLKW, which waits for the lock.
    Setlk {
        handle: u64,
        owner: u64,
        lock: super::Lock,
        flock: bool,
        wait: bool,
    },
    Access {
        mask: i32,
    },
    Create {
        name: &'a OsStr,
        mode: u32,
        umask: u32,
        flags: i32,
    },
    /// The caller of the request `unique` got a signal. A reply would make the kernel send this
    /// again.
    Interrupt {
        unique: u64,
    },
    Destroy,
    Ioctl,
    /// An operation that NFSv3 does not have, or that this crate does not know.
    Unknown,
}
