//! The kinds of records.

use nfsrdma_xdr::nfs3::FileHandle;
use std::mem::offset_of;
use std::ops::Range;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// A kind of record.
///
/// # Safety
///
/// It is `repr(C)`, begins with its number (a `u64`), and has no pointers. Any bytes are a valid value of it. Its first
/// [`Plain::FIXED`] bytes have no padding and no interior mutability; [`Plain::SUM`] is the offset of a `u32` after
/// them.
pub unsafe trait Plain: Send + Sync + 'static {
    /// How many bytes stay as they are while the record lives.
    const FIXED: usize;
    /// Where their check sum is.
    const SUM: usize;
}

/// An object of the server that the kernel may know: made by `fs/inode_table.rs` of nfsrdma-fs. `unsafe_` is written by
/// `unsafe_files.rs` and `kept_data.rs` there, `errno` by `write_failure.rs`.
#[derive(Debug)]
#[repr(C)]
pub struct Node {
    /// The number by which the kernel names the object, which is that of the record.
    pub nodeid: u64,
    pub fileid: u64,
    /// Its type (ftype3).
    pub kind: u8,
    pub handle: FileHandle,
    /// Programs were told of a success although data may be lost with this process.
    pub unsafe_: AtomicU8,
    /// The error with which data was lost, until it is told; 0: there was none.
    pub errno: AtomicU8,
    sum: u32,
    /// The kernel's references: how often it was given the node, minus those it gave up by FORGET.
    pub lookups: AtomicU64,
}

const _: () = assert!(size_of::<Node>() == 96);

// SAFETY: it consists of integers and bytes. The fixed ones are before `unsafe_`, without padding: their sizes add up.
unsafe impl Plain for Node {
    const FIXED: usize = offset_of!(Node, unsafe_);
    const SUM: usize = offset_of!(Node, sum);
}

const _: () = assert!(Node::FIXED == 8 + 8 + 1 + size_of::<FileHandle>());

impl Node {
    pub fn new(handle: FileHandle, kind: u8, fileid: u64) -> Self {
        Node {
            nodeid: 0,
            fileid,
            kind,
            handle,
            unsafe_: AtomicU8::new(0),
            errno: AtomicU8::new(0),
            sum: 0,
            lookups: AtomicU64::new(0),
        }
    }

    /// Whether data, or an error that no program was told, may be lost with the process.
    pub fn may_have_lost(&self) -> bool {
        let marks = [&self.unsafe_, &self.errno];
        marks.iter().any(|mark| mark.load(Ordering::Relaxed) != 0)
    }
}

/// The groups of a credential that are kept: those that AUTH_SYS sends (RFC 5531, appendix A).
const GROUPS: usize = 16;

/// Who a call is made for. Groups beyond 16 are not kept, nor are they sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct Credential {
    pub uid: u32,
    pub gid: u32,
    number: u32,
    groups: [u32; GROUPS],
}

impl Credential {
    pub fn new(uid: u32, gid: u32, groups: &[u32]) -> Self {
        let number = groups.len().min(GROUPS);
        let mut kept = [0; GROUPS];
        kept[..number].copy_from_slice(&groups[..number]);
        Credential {
            uid,
            gid,
            number: number as u32,
            groups: kept,
        }
    }

    pub fn groups(&self) -> &[u32] {
        &self.groups[..GROUPS.min(self.number as usize)]
    }
}

/// An open file or directory: `fs/records.rs`, the place of an append `fs/write.rs`.
#[derive(Debug)]
#[repr(C)]
pub struct Open {
    /// The number by which the kernel names the open file, which is that of the record.
    pub handle: u64,
    pub nodeid: u64,
    /// The number of the request that opened it.
    pub unique: u64,
    /// Those of open(2).
    pub flags: u32,
    /// 1: a directory, by OPENDIR.
    pub dir: u32,
    pub cred: Credential,
    sum: u32,
    /// The last request that appended through it, and where. The kernel sends one at a time.
    append: AtomicU64,
    append_at: AtomicU64,
}

const _: () = assert!(size_of::<Open>() == 128);

// SAFETY: it consists of integers. The fixed ones are before `sum`, without padding: their sizes add up.
unsafe impl Plain for Open {
    const FIXED: usize = offset_of!(Open, sum);
    const SUM: usize = offset_of!(Open, sum);
}

const _: () = assert!(Open::FIXED == 3 * 8 + 2 * 4 + size_of::<Credential>());

impl Open {
    pub fn new(nodeid: u64, unique: u64, flags: u32, dir: bool, cred: Credential) -> Self {
        Open {
            handle: 0,
            nodeid,
            unique,
            flags,
            dir: u32::from(dir),
            cred,
            sum: 0,
            append: AtomicU64::new(0),
            append_at: AtomicU64::new(0),
        }
    }

    /// The request appends there. To be called before the data is anywhere.
    pub fn appends(&self, request: u64, at: u64) {
        // In this order: whoever finds the request finds the place.
        self.append_at.store(at, Ordering::Relaxed);
        self.append.store(request, Ordering::Release);
    }

    /// Nothing has come of the last append.
    pub fn appends_nowhere(&self) {
        self.append.store(0, Ordering::Release);
    }

    /// Where the request has appended, if it is the last one that has.
    pub fn appended(&self, request: u64) -> Option<u64> {
        let last = self.append.load(Ordering::Acquire);
        (last == request).then(|| self.append_at.load(Ordering::Relaxed))
    }
}

/// The length of a hidden name.
pub const HIDDEN_NAME: usize = 36;

/// The hidden name of a file that was removed while it was open (`fs/remove.rs`). It is made before the call that gives the
/// name, so whoever finds it has to find out whether there is such a name.
#[derive(Debug)]
#[repr(C)]
pub struct Hidden {
    number: u64,
    pub nodeid: u64,
    pub dir_node: u64,
    /// The credential that removes it.
    pub cred: Credential,
    pub name: [u8; HIDDEN_NAME],
    pub dir: FileHandle,
    spare: [u8; 3],
    sum: u32,
}

const _: () = assert!(size_of::<Hidden>() == 208);

// SAFETY: it consists of integers and bytes. The fixed ones are before `sum`, without padding: their sizes add up.
unsafe impl Plain for Hidden {
    const FIXED: usize = offset_of!(Hidden, sum);
    const SUM: usize = offset_of!(Hidden, sum);
}

const _: () = assert!(
    Hidden::FIXED == 3 * 8 + size_of::<Credential>() + HIDDEN_NAME + size_of::<FileHandle>() + 3
);

impl Hidden {
    pub fn new(
        nodeid: u64,
        dir_node: u64,
        dir: FileHandle,
        name: [u8; HIDDEN_NAME],
        cred: Credential,
    ) -> Self {
        Hidden {
            number: 0,
            nodeid,
            dir_node,
            cred,
            name,
            dir,
            spare: [0; 3],
            sum: 0,
        }
    }
}

/// A range of a file that an owner has locked at the server, or may have: `locks/holding.rs`.
#[derive(Debug, Clone)]
#[repr(C)]
pub struct Lock {
    number: u64,
    pub nodeid: u64,
    pub fileid: u64,
    /// The kernel's number of the owner.
    pub owner: u64,
    /// The open file through which it was asked for.
    pub open: u64,
    /// The first byte and the last.
    pub start: u64,
    pub end: u64,
    /// The number of the owner at the server.
    pub svid: u32,
    pub pid: u32,
    /// The state number of this machine that the server was told.
    pub machine_state: u32,
    pub cred: Credential,
    pub handle: FileHandle,
    /// 1: the owner is one of flock(2).
    pub flock: u8,
    /// 1: the lock is exclusive.
    pub exclusive: u8,
    /// Whether the owner has it; one of the constants.
    pub standing: u8,
    sum: u32,
}

const _: () = assert!(size_of::<Lock>() == 216);

// SAFETY: it consists of integers and bytes. The fixed ones are before `sum`, without padding: their sizes add up.
unsafe impl Plain for Lock {
    const FIXED: usize = offset_of!(Lock, sum);
    const SUM: usize = offset_of!(Lock, sum);
}

const _: () =
    assert!(Lock::FIXED == 7 * 8 + 3 * 4 + size_of::<Credential>() + size_of::<FileHandle>() + 3);

impl Lock {
    /// The server has granted it.
    pub const HELD: u8 = 0;
    /// It is being asked for or unlocked, so that nobody knows whether the server has it.
    pub const UNSURE: u8 = 1;
    /// As [`Lock::UNSURE`], and the server may have the request in its queue.
    pub const QUEUED: u8 = 2;
    /// The server has lost a lock of the owner, which is still to be told.
    pub const LOST: u8 = 3;

    /// The fields that are not arguments are 0.
    pub fn new(handle: FileHandle, cred: Credential) -> Self {
        Lock {
            number: 0,
            nodeid: 0,
            fileid: 0,
            owner: 0,
            open: 0,
            start: 0,
            end: 0,
            svid: 0,
            pid: 0,
            machine_state: 0,
            cred,
            handle,
            flock: 0,
            exclusive: 0,
            standing: Lock::HELD,
            sum: 0,
        }
    }
}

/// Data of a file that the server may not have on stable storage, in a buffer that outlives the process:
/// `cache/records.rs`.
#[derive(Debug)]
#[repr(C)]
pub struct Extent {
    number: u64,
    pub nodeid: u64,
    /// Where the first byte of the buffer is in the file.
    pub offset: u64,
    /// Where the buffer is in its pool: the block and the size of that, and the part of it.
    pub at: u32,
    pub order: u32,
    pub start: u32,
    pub len: u32,
    /// The credential that writes it.
    pub cred: Credential,
    sum: u32,
    /// Which bytes of the buffer these are: the first one, and in the upper half the one after the last.
    range: AtomicU64,
}

const _: () = assert!(size_of::<Extent>() == 128);

// SAFETY: it consists of integers. The fixed ones are before `sum`, without padding: their sizes add up.
unsafe impl Plain for Extent {
    const FIXED: usize = offset_of!(Extent, sum);
    const SUM: usize = offset_of!(Extent, sum);
}

const _: () = assert!(Extent::FIXED == 3 * 8 + 4 * 4 + size_of::<Credential>());

impl Extent {
    /// None of the bytes of a buffer at `[at, order, start, len]`.
    pub fn new(nodeid: u64, offset: u64, place: [u32; 4], cred: Credential) -> Self {
        let [at, order, start, len] = place;
        Extent {
            number: 0,
            nodeid,
            offset,
            at,
            order,
            start,
            len,
            cred,
            sum: 0,
            range: AtomicU64::new(0),
        }
    }

    pub fn range(&self) -> Range<u32> {
        let range = self.range.load(Ordering::Acquire);
        range as u32..(range >> 32) as u32
    }

    /// Changes it at once: whoever reads the record finds the old range or the new one.
    pub fn set_range(&self, range: Range<u32>) {
        let range = u64::from(range.start) | u64::from(range.end) << 32;
        self.range.store(range, Ordering::Release);
    }
}
