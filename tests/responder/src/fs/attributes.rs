//! The attributes of an object, by stat(2).

use super::status::{self, Result};
use nfsrdma_xdr::nfs3::{Attributes, FileType, SpecData, Time};
use rustix::fs::Stat;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether FIFOs have a type that NFSv3 does not define, as doors have on illumos.
pub static DOORS: AtomicBool = AtomicBool::new(false);

/// Bits of a mode that NFS carries.
pub(super) const MODE_BITS: u32 = 0o7777;

pub(super) fn stat(fd: BorrowedFd<'_>) -> Result<Stat> {
    rustix::fs::fstat(fd).map_err(status::of)
}

/// The type of an object.
pub(super) fn kind(stat: &Stat) -> FileType {
    match rustix::fs::FileType::from_raw_mode(stat.st_mode) {
        rustix::fs::FileType::Directory => FileType::Directory,
        rustix::fs::FileType::Symlink => FileType::Symlink,
        rustix::fs::FileType::BlockDevice => FileType::Block,
        rustix::fs::FileType::CharacterDevice => FileType::Character,
        rustix::fs::FileType::Fifo => FileType::Fifo,
        rustix::fs::FileType::Socket => FileType::Socket,
        _ => FileType::Regular,
    }
}

/// Converts to nfstime3 (32 bits, unsigned): times out of range become the nearest in it.
fn time(seconds: i64, nanoseconds: u64) -> Time {
    Time {
        seconds: seconds.clamp(0, u32::MAX.into()) as u32,
        nanoseconds: nanoseconds as u32,
    }
}

/// Converts a stat to fattr3.
pub(super) fn from_stat(fsid: u64, stat: &Stat) -> Attributes {
    Attributes {
        kind: match kind(stat) {
            FileType::Fifo if DOORS.load(Ordering::Relaxed) => FileType::Unknown,
            kind => kind,
        },
        mode: stat.st_mode & MODE_BITS,
        nlink: u32::try_from(stat.st_nlink).unwrap_or(u32::MAX),
        uid: stat.st_uid,
        gid: stat.st_gid,
        size: stat.st_size as u64,
        used: stat.st_blocks as u64 * 512,
        rdev: SpecData {
            major: rustix::fs::major(stat.st_rdev),
            minor: rustix::fs::minor(stat.st_rdev),
        },
        fsid,
        fileid: stat.st_ino,
        atime: time(stat.st_atime, stat.st_atime_nsec),
        mtime: time(stat.st_mtime, stat.st_mtime_nsec),
        ctime: time(stat.st_ctime, stat.st_ctime_nsec),
    }
}
