//! The bodies of replies, and the values of which they consist.
//!
//! Each body is one C structure of include/uapi/linux/fuse.h (`fuse_entry_out`, `fuse_attr_out`
//! and so on), which is sent as it lies in memory: [`IntoBytes`] can only be derived where it has
//! no padding. Data is not a body; `Reply` sends it from where it is.

use std::time::Duration;
use zerocopy::{Immutable, IntoBytes};

/// The attributes that stat(2) shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attr {
    /// The inode number, which need not be the node id.
    pub fileid: u64,
    pub size: u64,
    /// In units of 512 bytes.
    pub blocks: u64,
    /// Times are since 1970, before which NFSv3 has none (RFC 1813 section 2.6, nfstime3).
    pub atime: Duration,
    pub mtime: Duration,
    pub ctime: Duration,
    /// Type and permissions.
    pub mode: u32,
    pub nlink: u32,
    pub uid: u32,
    pub gid: u32,
    /// In the kernel's 32-bit form.
    pub rdev: u32,
    pub blksize: u32,
}

impl Attr {
    /// All zeros, for entries without attributes.
    pub const NONE: Attr = Attr {
        fileid: 0,
        size: 0,
        blocks: 0,
        atime: Duration::ZERO,
        mtime: Duration::ZERO,
        ctime: Duration::ZERO,
        mode: 0,
        nlink: 0,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: 0,
    };
}

/// What a name leads to, as in the reply to LOOKUP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// 0: the name does not exist, which is valid for `entry_valid`.
    pub nodeid: u64,
    pub generation: u64,
    /// How long the name is valid.
    pub entry_valid: Duration,
    /// How long the attributes are valid.
    pub attr_valid: Duration,
    pub attr: Attr,
}

impl Entry {
    /// A name that does not exist.
    pub fn absent(entry_valid: Duration) -> Self {
        Entry {
            nodeid: 0,
            generation: 0,
            entry_valid,
            attr_valid: Duration::ZERO,
            attr: Attr::NONE,
        }
    }
}

/// The values that statfs(2) shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Statfs {
    pub blocks: u64,
    pub bfree: u64,
    pub bavail: u64,
    pub files: u64,
    pub ffree: u64,
    pub bsize: u32,
    pub namelen: u32,
    pub frsize: u32,
}

/// A lock on a range of bytes, both ends included. `kind` is F_RDLCK, F_WRLCK or F_UNLCK.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Lock {
    pub start: u64,
    pub end: u64,
    pub kind: u32,
    pub pid: u32,
}

#[derive(IntoBytes, Immutable)]
#[repr(C)]
struct AttrFields {
    fileid: u64,
    size: u64,
    blocks: u64,
    atime: u64,
    mtime: u64,
    ctime: u64,
    atime_nanos: u32,
    mtime_nanos: u32,
    ctime_nanos: u32,
    mode: u32,
    nlink: u32,
    uid: u32,
    gid: u32,
    rdev: u32,
    blksize: u32,
    flags: u32,
}

impl From<&Attr> for AttrFields {
    fn from(attr: &Attr) -> Self {
        AttrFields {
            fileid: attr.fileid,
            size: attr.size,
            blocks: attr.blocks,
            atime: attr.atime.as_secs(),
            mtime: attr.mtime.as_secs(),
            ctime: attr.ctime.as_secs(),
            atime_nanos: attr.atime.subsec_nanos(),
            mtime_nanos: attr.mtime.subsec_nanos(),
            ctime_nanos: attr.ctime.subsec_nanos(),
            mode: attr.mode,
            nlink: attr.nlink,
            uid: attr.uid,
            gid: attr.gid,
            rdev: attr.rdev,
            blksize: attr.blksize,
            flags: 0,
        }
    }
}

/// The body for LOOKUP, and a part of those for CREATE and READDIRPLUS.
#[derive(IntoBytes, Immutable)]
#[repr(C)]
pub(crate) struct EntryBody {
    nodeid: u64,
    generation: u64,
    entry_valid: u64,
    attr_valid: u64,
    entry_valid_nanos: u32,
    attr_valid_nanos: u32,
    attr: AttrFields,
}

impl From<&Entry> for EntryBody {
    fn from(entry: &Entry) -> Self {
        EntryBody {
            nodeid: entry.nodeid,
            generation: entry.generation,
            entry_valid: entry.entry_valid.as_secs(),
            attr_valid: entry.attr_valid.as_secs(),
            entry_valid_nanos: entry.entry_valid.subsec_nanos(),
            attr_valid_nanos: entry.attr_valid.subsec_nanos(),
            attr: (&entry.attr).into(),
        }
    }
}

#[derive(IntoBytes, Immutable)]
#[repr(C)]
pub(crate) struct AttrBody {
    valid: u64,
    valid_nanos: u32,
    unused: u32,
    attr: AttrFields,
}

pub(crate) fn attr(valid: Duration, attr: &Attr) -> AttrBody {
    AttrBody {
        valid: valid.as_secs(),
        valid_nanos: valid.subsec_nanos(),
        unused: 0,
        attr: attr.into(),
    }
}

#[derive(IntoBytes, Immutable)]
#[repr(C)]
pub(crate) struct OpenBody {
    handle: u64,
    flags: u32,
    unused: u32,
}

pub(crate) fn open(handle: u64, flags: u32) -> OpenBody {
    let unused = 0;
    OpenBody {
        handle,
        flags,
        unused,
    }
}

#[derive(IntoBytes, Immutable)]
#[repr(C)]
pub(crate) struct CreateBody {
    entry: EntryBody,
    open: OpenBody,
}

pub(crate) fn create(entry: &Entry, handle: u64, flags: u32) -> CreateBody {
    CreateBody {
        entry: entry.into(),
        open: open(handle, flags),
    }
}

/// The body for WRITE, GETXATTR, LISTXATTR and POLL: one number.
pub(crate) fn number(value: u32) -> [u32; 2] {
    [value, 0]
}

#[derive(IntoBytes, Immutable)]
#[repr(C)]
pub(crate) struct StatfsBody {
    counts: [u64; 5],
    sizes: [u32; 10],
}

pub(crate) fn statfs(of: &Statfs) -> StatfsBody {
    StatfsBody {
        counts: [of.blocks, of.bfree, of.bavail, of.files, of.ffree],
        sizes: [of.bsize, of.namelen, of.frsize, 0, 0, 0, 0, 0, 0, 0],
    }
}

#[derive(IntoBytes, Immutable)]
#[repr(C)]
pub(crate) struct LockBody {
    range: [u64; 2],
    kind: u32,
    pid: u32,
}

pub(crate) fn lock(of: &Lock) -> LockBody {
    LockBody {
        range: [of.start, of.end],
        kind: of.kind,
        pid: of.pid,
    }
}
