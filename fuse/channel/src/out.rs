//! The bodies of replies, and the values of which they consist.
//!
//! Each is one C structure of include/uapi/linux/fuse.h (`fuse_entry_out`, `fuse_attr_out`
//! and so on), which is sent as it lies in memory: [`IntoBytes`] can only be derived where it has
//! no padding. Data is not a body; `Reply` sends it from where it is.

use std::time::Duration;
use zerocopy::{Immutable, IntoBytes};

/// The attributes that stat(2) shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, IntoBytes, Immutable)]
#[repr(C)]
pub struct Attr {
    /// The inode number, which need not be the node id.
    pub fileid: u64,
    pub size: u64,
    /// In units of 512 bytes.
    pub blocks: u64,
    /// atime, mtime and ctime since 1970, before which NFSv3 has none (RFC 1813 section 2.6, nfstime3).
    pub seconds: [u64; 3],
    pub nanoseconds: [u32; 3],
    /// Type and permissions.
    pub mode: u32,
    pub nlink: u32,
    pub uid: u32,
    pub gid: u32,
    /// In the kernel's 32-bit form.
    pub rdev: u32,
    pub blksize: u32,
    /// None are known.
    pub flags: u32,
}

/// What a name leads to, as in the reply to LOOKUP.
#[derive(Debug, Clone, Copy, PartialEq, Eq, IntoBytes, Immutable)]
#[repr(C)]
pub struct Entry {
    nodeid: u64,
    /// A node id is never used again, so no generation is needed to tell objects apart.
    generation: u64,
    entry_valid: u64,
    attr_valid: u64,
    entry_valid_nanos: u32,
    attr_valid_nanos: u32,
    pub(crate) attr: Attr,
}

impl Entry {
    /// A name that leads to a node. `entry_valid`: how long the name is valid; `attr_valid`: the attributes.
    pub fn new(nodeid: u64, entry_valid: Duration, attr_valid: Duration, attr: Attr) -> Self {
        Entry {
            nodeid,
            generation: 0,
            entry_valid: entry_valid.as_secs(),
            attr_valid: attr_valid.as_secs(),
            entry_valid_nanos: entry_valid.subsec_nanos(),
            attr_valid_nanos: attr_valid.subsec_nanos(),
            attr,
        }
    }

    /// A name that does not exist, which is valid for `entry_valid`; or one that is only listed, with `attr`.
    pub fn absent(entry_valid: Duration, attr: Attr) -> Self {
        Entry::new(0, entry_valid, Duration::ZERO, attr)
    }
}

/// The values that statfs(2) shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, IntoBytes, Immutable)]
#[repr(C)]
pub struct Statfs {
    pub blocks: u64,
    pub bfree: u64,
    pub bavail: u64,
    pub files: u64,
    pub ffree: u64,
    pub bsize: u32,
    pub namelen: u32,
    pub frsize: u32,
    pub unused: [u32; 7],
}

/// A lock on a range of bytes, both ends included. `kind` is F_RDLCK, F_WRLCK or F_UNLCK.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, IntoBytes, Immutable)]
#[repr(C)]
pub struct Lock {
    pub start: u64,
    pub end: u64,
    pub kind: u32,
    pub pid: u32,
}

/// How long attributes are valid, and these.
#[derive(IntoBytes, Immutable)]
#[repr(C)]
pub(crate) struct AttrBody(u64, u32, u32, Attr);

pub(crate) fn attr(valid: Duration, attr: &Attr) -> AttrBody {
    AttrBody(valid.as_secs(), valid.subsec_nanos(), 0, *attr)
}

/// A handle, flags, and nothing.
#[derive(IntoBytes, Immutable)]
#[repr(C)]
pub(crate) struct OpenBody(pub(crate) u64, pub(crate) u32, pub(crate) u32);

#[derive(IntoBytes, Immutable)]
#[repr(C)]
pub(crate) struct CreateBody(pub(crate) Entry, pub(crate) OpenBody);
