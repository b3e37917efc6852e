//! The bodies of replies, and the values of which they consist.
//!
//! Each function lays out one C structure of include/uapi/linux/fuse.h (`fuse_entry_out`,
//! `fuse_attr_out` and so on) field by field, in the machine's byte order. A body stays on the
//! stack: the longest, that of CREATE, takes 144 bytes. Data is not a body; `Reply` sends it from
//! where it is.

use smallvec::SmallVec;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A body. The longest, that of CREATE, takes 144 bytes.
pub(crate) type Body = SmallVec<[u8; 160]>;

/// The attributes that stat(2) shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attr {
    /// The inode number, which need not be the node id.
    pub fileid: u64,
    pub size: u64,
    /// In units of 512 bytes.
    pub blocks: u64,
    pub atime: SystemTime,
    pub mtime: SystemTime,
    pub ctime: SystemTime,
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
        atime: UNIX_EPOCH,
        mtime: UNIX_EPOCH,
        ctime: UNIX_EPOCH,
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

/// Appends bytes and numbers.
pub(crate) trait Append {
    fn put(&mut self, bytes: &[u8]);

    fn u32(&mut self, value: u32) {
        self.put(&value.to_ne_bytes());
    }

    fn u64(&mut self, value: u64) {
        self.put(&value.to_ne_bytes());
    }
}

impl<const N: usize> Append for SmallVec<[u8; N]>
where
    [u8; N]: smallvec::Array<Item = u8>,
{
    fn put(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}

impl Append for Vec<u8> {
    fn put(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}

/// Signed seconds, and nanoseconds, which count upwards even before 1970.
fn split(at: SystemTime) -> (u64, u32) {
    match at.duration_since(UNIX_EPOCH) {
        Ok(since) => (since.as_secs(), since.subsec_nanos()),
        Err(before) => {
            let before = before.duration();
            let nanos = before.subsec_nanos();
            let whole = before.as_secs() + u64::from(nanos > 0);
            let rest = if nanos > 0 { 1_000_000_000 - nanos } else { 0 };
            (whole.wrapping_neg(), rest)
        }
    }
}

pub(crate) fn put_attr(out: &mut impl Append, attr: &Attr) {
    let (atime, mtime, ctime) = (split(attr.atime), split(attr.mtime), split(attr.ctime));
    for number in [
        attr.fileid,
        attr.size,
        attr.blocks,
        atime.0,
        mtime.0,
        ctime.0,
    ] {
        out.u64(number);
    }
    for number in [
        atime.1,
        mtime.1,
        ctime.1,
        attr.mode,
        attr.nlink,
        attr.uid,
        attr.gid,
        attr.rdev,
        attr.blksize,
        0,
    ] {
        out.u32(number);
    }
}

pub(crate) fn put_entry(out: &mut impl Append, entry: &Entry) {
    out.u64(entry.nodeid);
    out.u64(entry.generation);
    out.u64(entry.entry_valid.as_secs());
    out.u64(entry.attr_valid.as_secs());
    out.u32(entry.entry_valid.subsec_nanos());
    out.u32(entry.attr_valid.subsec_nanos());
    put_attr(out, &entry.attr);
}

pub(crate) fn entry(entry: &Entry) -> Body {
    let mut out = Body::new();
    put_entry(&mut out, entry);
    out
}

pub(crate) fn attr(valid: Duration, attr: &Attr) -> Body {
    let mut out = Body::new();
    out.u64(valid.as_secs());
    out.u32(valid.subsec_nanos());
    out.u32(0);
    put_attr(&mut out, attr);
    out
}

fn put_open(out: &mut Body, handle: u64, flags: u32) {
    out.u64(handle);
    out.u32(flags);
    out.u32(0);
}

pub(crate) fn open(handle: u64, flags: u32) -> Body {
    let mut out = Body::new();
    put_open(&mut out, handle, flags);
    out
}

pub(crate) fn create(entry: &Entry, handle: u64, flags: u32) -> Body {
    let mut out = Body::new();
    put_entry(&mut out, entry);
    put_open(&mut out, handle, flags);
    out
}

/// The body for WRITE, GETXATTR, LISTXATTR and POLL: one number.
pub(crate) fn number(value: u32) -> Body {
    let mut out = Body::new();
    out.u32(value);
    out.u32(0);
    out
}

pub(crate) fn offset(value: u64) -> Body {
    let mut out = Body::new();
    out.u64(value);
    out
}

pub(crate) fn statfs(of: &Statfs) -> Body {
    let mut out = Body::new();
    for number in [of.blocks, of.bfree, of.bavail, of.files, of.ffree] {
        out.u64(number);
    }
    for number in [of.bsize, of.namelen, of.frsize, 0, 0, 0, 0, 0, 0, 0] {
        out.u32(number);
    }
    out
}

pub(crate) fn lock(of: &Lock) -> Body {
    let mut out = Body::new();
    out.u64(of.start);
    out.u64(of.end);
    out.u32(of.kind);
    out.u32(of.pid);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_before_1970_have_nanoseconds_that_count_upwards() {
        let at = UNIX_EPOCH - Duration::new(2, 250_000_000);
        assert_eq!(split(at), ((-3i64) as u64, 750_000_000));
        assert_eq!(
            split(UNIX_EPOCH - Duration::from_secs(2)),
            ((-2i64) as u64, 0)
        );
        assert_eq!(split(UNIX_EPOCH + Duration::new(5, 7)), (5, 7));
    }
}
