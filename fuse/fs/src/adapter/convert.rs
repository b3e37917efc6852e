//! Conversions between the types of NFS and of FUSE.

use nfsrdma_channel::{Attr, Statfs, TimeOrNow};
use nfsrdma_xdr::nfs3::{Attributes, FileType, FsstatOk, SetTime, SpecData, Time};

/// A block in bytes.
const BLOCK: u32 = 4096;
/// `st_blksize` of a file, in bytes: the size of the buffers by which stdio, Python and others read and
/// write.
///
/// Each write(2) costs a request, so blocks of 4096 bytes would cost most of the throughput. But glibc
/// also fills the buffer after each fseek(3), and gets buffers of 128 KiB and more from the system each
/// time, so the size is not that of a WRITE, as it is with Linux's client.
///
/// Linux before 6.17 also makes it the block size of the inode, with which FUSE aligns nothing: neither
/// O_DIRECT nor `st_blocks` depend on it.
const BLOCK_OF_FILE: u32 = 64 << 10;

/// The file type bits of a mode.
pub(super) fn kind(kind: FileType) -> u32 {
    match kind {
        FileType::Regular => libc::S_IFREG,
        FileType::Directory => libc::S_IFDIR,
        FileType::Block => libc::S_IFBLK,
        FileType::Character => libc::S_IFCHR,
        FileType::Symlink => libc::S_IFLNK,
        // The kernel refuses a node without a type (fuse_valid_type). As a socket, an object of a
        // type that NFSv3 does not define can be looked at, renamed and removed, and not opened:
        // what Linux's client allows, which shows no type.
        FileType::Socket | FileType::Unknown => libc::S_IFSOCK,
        FileType::Fifo => libc::S_IFIFO,
    }
}

/// The kernel's 32-bit device number.
fn device(of: SpecData) -> u32 {
    of.minor & 0xff | (of.major & 0xfff) << 8 | (of.minor & 0xf_ff00) << 12
}

/// The nanoseconds of a time as programs see it. Nothing but "nanoseconds" (RFC 1813 section 2.5, nfstime3)
/// says that there are less than 10^9: more are shown as the last of the second.
fn nanos(of: Time) -> u32 {
    of.nanoseconds.min(999_999_999)
}

/// Attributes in FUSE's form. `fileid` is the inode number that stat(2) shows.
pub(super) fn attributes(of: &Attributes) -> Attr {
    let times = [of.atime, of.mtime, of.ctime];
    Attr {
        fileid: of.fileid,
        // The kernel refuses sizes beyond off_t.
        size: of.size.min(i64::MAX as u64),
        blocks: of.used.div_ceil(512),
        seconds: times.map(|time| time.seconds.into()),
        nanoseconds: times.map(nanos),
        mode: kind(of.kind) | of.mode & 0o7777,
        nlink: of.nlink,
        uid: of.uid,
        gid: of.gid,
        rdev: device(of.rdev),
        blksize: match of.kind {
            FileType::Regular => BLOCK_OF_FILE,
            _ => BLOCK,
        },
        flags: 0,
    }
}

/// The results of statfs(2). Like that of Linux's client, the number of free files is that for the
/// caller, since statfs(2) has no place for both.
pub(super) fn space(of: &FsstatOk, name_max: u32) -> Statfs {
    let unit = u64::from(BLOCK);
    Statfs {
        blocks: of.total_bytes / unit,
        bfree: of.free_bytes / unit,
        bavail: of.available_bytes / unit,
        files: of.total_files,
        ffree: of.available_files,
        bsize: BLOCK,
        namelen: name_max,
        frsize: BLOCK,
        ..Statfs::default()
    }
}

/// A time for SETATTR. NFSv3's times have 32 bits of unsigned seconds (RFC 1813 section 2.6,
/// nfstime3), from 1970 to 2106. Other times become the nearest of these, without a fraction of a
/// second, as with Linux's client (`s_time_min` and `s_time_max` of its NFSv3 super blocks),
/// because programs that copy times do not expect an error.
pub(super) fn set_time(to: Option<TimeOrNow>) -> SetTime {
    const LATEST: Time = Time {
        seconds: u32::MAX,
        nanoseconds: 0,
    };
    match to {
        None => SetTime::Keep,
        Some(TimeOrNow::Now) => SetTime::ToServerTime,
        Some(TimeOrNow::At {
            seconds,
            nanoseconds,
        }) => SetTime::To(match seconds {
            ..0 => Time::default(),
            _ => u32::try_from(seconds).map_or(LATEST, |seconds| Time {
                seconds,
                nanoseconds,
            }),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_told_of_large_blocks_for_files_only() {
        let blocks = |kind| {
            let attributes = Attributes {
                kind,
                mode: 0,
                nlink: 1,
                uid: 0,
                gid: 0,
                size: 5,
                used: 4096,
                rdev: SpecData { major: 0, minor: 0 },
                fsid: 1,
                fileid: 2,
                atime: Time::default(),
                mtime: Time::default(),
                ctime: Time::default(),
            };
            let attr = super::attributes(&attributes);
            (attr.blksize, attr.blocks)
        };
        assert_eq!(blocks(FileType::Regular), (65536, 8));
        assert_eq!(blocks(FileType::Directory), (4096, 8));
    }

    #[test]
    fn free_files_are_those_for_the_caller() {
        let stat = FsstatOk {
            attributes: None,
            total_bytes: 40_960,
            free_bytes: 20_480,
            available_bytes: 8192,
            total_files: 30,
            free_files: 20,
            available_files: 10,
            invarsec: 0,
        };
        let Statfs {
            blocks,
            bfree,
            bavail,
            files,
            ffree,
            namelen,
            ..
        } = space(&stat, 143);
        assert_eq!((blocks, bfree, bavail), (10, 5, 2));
        assert_eq!((files, ffree, namelen), (30, 10, 143));
    }

    #[test]
    fn device_numbers_are_the_kernels() {
        let of = |major, minor| device(SpecData { major, minor });
        assert_eq!(of(8, 1), 0x801);
        assert_eq!(of(0x103, 0x12345), 0x1231_0345);
    }

    #[test]
    fn a_time_has_less_than_a_second_of_nanoseconds() {
        for (nanoseconds, shown) in [
            (999_999_999, 999_999_999),
            (1_000_000_000, 999_999_999),
            (u32::MAX, 999_999_999),
        ] {
            let at = Time {
                seconds: 5,
                nanoseconds,
            };
            assert_eq!(nanos(at), shown);
        }
    }

    #[test]
    fn times_out_of_range_become_the_nearest() {
        let set = |seconds, nanoseconds| {
            let at = TimeOrNow::At {
                seconds,
                nanoseconds,
            };
            match set_time(Some(at)) {
                SetTime::To(time) => (time.seconds, time.nanoseconds),
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(set(5, 7), (5, 7));
        assert_eq!(set(0, 7), (0, 7));
        assert_eq!(set(u32::MAX.into(), 7), (u32::MAX, 7));
        assert_eq!(set(1 << 32, 7), (u32::MAX, 0));
        assert_eq!(set(1 << 40, 0), (u32::MAX, 0));
        assert_eq!(set(-1, 999_999_999), (0, 0));
        assert_eq!(set(-1 << 40, 5), (0, 0));
    }
}
