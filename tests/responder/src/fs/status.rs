//! Maps errnos to nfsstat3 (RFC 1813 section 2.6).

use nfsrdma_xdr::nfs3::Status;
use std::io;

/// Result of file system work.
pub type Result<T> = std::result::Result<T, Status>;

/// The status for a raw errno. An errno without a counterpart becomes an I/O error.
pub fn of_errno(errno: i32) -> Status {
    match errno {
        libc::EPERM => Status::Perm,
        libc::ENOENT => Status::NoEnt,
        libc::EIO => Status::Io,
        libc::ENXIO => Status::NxIo,
        libc::EACCES => Status::Access,
        libc::EEXIST => Status::Exist,
        // A mount point below the export: what is mounted there is not exported.
        libc::EXDEV => Status::XDev,
        libc::ENODEV => Status::NoDev,
        libc::ENOTDIR => Status::NotDir,
        libc::EISDIR => Status::IsDir,
        libc::EINVAL => Status::Inval,
        libc::EFBIG => Status::FBig,
        libc::ENOSPC => Status::NoSpc,
        libc::EROFS => Status::RoFs,
        libc::EMLINK => Status::MLink,
        libc::ENAMETOOLONG => Status::NameTooLong,
        libc::ENOTEMPTY => Status::NotEmpty,
        libc::EDQUOT => Status::DQuot,
        libc::ESTALE => Status::Stale,
        libc::EOPNOTSUPP | libc::ENOSYS => Status::NotSupp,
        // O_NOFOLLOW found a symbolic link instead of a file or directory.
        libc::ELOOP => Status::Inval,
        libc::ETXTBSY | libc::EBUSY => Status::Access,
        // A resource is short for the moment, so the client has to try again.
        libc::EAGAIN | libc::ENOMEM | libc::EMFILE | libc::ENFILE | libc::EINTR => Status::JukeBox,
        _ => Status::Io,
    }
}

/// The status for an error of the standard library.
pub fn of_io(error: io::Error) -> Status {
    of_errno(error.raw_os_error().unwrap_or(libc::EIO))
}

pub fn of(error: rustix::io::Errno) -> Status {
    of_errno(error.raw_os_error())
}
