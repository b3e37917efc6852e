//! Errors of the file system, and the errno for each.
//!
//! Errors of calls are kept as [`NfsError`], so that operations can look at the NFS status. The
//! errno is chosen in one place, when the request is answered ([`FsError::errno`]). The adapter
//! chooses the errno of requests that it answers without an operation.

use crate::locks::LockError;
use nfsrdma_nfs3::NfsError;
use nfsrdma_xdr::nfs3::Status;
use thiserror::Error;

/// Why an operation failed.
#[derive(Debug, Clone, Error)]
pub enum FsError {
    #[error(transparent)]
    Nfs(#[from] NfsError),
    /// The kernel named an inode this file system does not know.
    #[error("unknown inode")]
    UnknownInode,
    /// The kernel named an open file this file system does not know.
    #[error("unknown open file")]
    UnknownHandle,
    #[error("not allowed")]
    AccessDenied,
    /// NFSv3 has no such operation.
    #[error("not supported by NFS version 3")]
    NotSupported,
    /// An argument or a flag that this file system does not support.
    #[error("invalid argument")]
    Invalid,
    #[error("already exists")]
    Exists,
    /// The hidden name of a removed file that is open here.
    #[error("removed, and still open")]
    Busy,
    #[error("no such attribute")]
    NoData,
    #[error("file too large")]
    TooLarge,
    /// There is no buffer memory, and none will be given back.
    #[error("out of buffer memory")]
    NoMemory,
    /// The name of the object leads to another object now.
    #[error("stale file handle")]
    Stale,
    /// No data is accepted any more ([`Fs::end_of_requests`](super::server::Server::end_of_requests)).
    #[error("the mount is at its end")]
    Ended,
    #[error("lock: {0:?}")]
    Lock(LockError),
    /// The errno of an error of writing in a process that served the mount before, or EIO if data was lost
    /// with it.
    #[error("an earlier error of writing: {}", std::io::Error::from_raw_os_error(*.0))]
    Before(i32),
}

impl From<LockError> for FsError {
    fn from(error: LockError) -> Self {
        FsError::Lock(error)
    }
}

pub type FsResult<T> = Result<T, FsError>;

impl FsError {
    /// The NFS status, if the server answered with one.
    pub fn status(&self) -> Option<Status> {
        match self {
            FsError::Nfs(NfsError::Status(status)) => Some(*status),
            _ => None,
        }
    }

    /// Whether what the call was about is there no longer. Other errors may concern its caller
    /// alone.
    pub fn says_gone(&self) -> bool {
        let status = self.status();
        matches!(self, FsError::UnknownInode | FsError::Stale)
            || matches!(
                status,
                Some(Status::NoEnt | Status::NotDir | Status::Stale | Status::BadHandle)
            )
    }

    /// The errno that the system call returns.
    pub fn errno(&self) -> i32 {
        match self {
            FsError::Nfs(error) => errno_of_call(error),
            FsError::UnknownInode | FsError::Stale => libc::ESTALE,
            FsError::UnknownHandle => libc::EBADF,
            FsError::AccessDenied => libc::EACCES,
            FsError::NotSupported => libc::EOPNOTSUPP,
            FsError::Invalid => libc::EINVAL,
            FsError::Exists => libc::EEXIST,
            FsError::Busy => libc::EBUSY,
            FsError::NoData => libc::ENODATA,
            FsError::TooLarge => libc::EFBIG,
            FsError::NoMemory => libc::ENOMEM,
            FsError::Ended => libc::EIO,
            FsError::Lock(error) => error.errno(),
            FsError::Before(errno) => *errno,
        }
    }
}

/// Fails if data is kept because its user has no valid ticket.
pub(super) fn is_written(kept: Option<NfsError>) -> FsResult<()> {
    kept.map_or(Ok(()), |why| Err(why.into()))
}

fn errno_of_call(error: &NfsError) -> i32 {
    match error {
        NfsError::Status(status) | NfsError::Unfinished(status) => errno_of_status(*status),
        NfsError::Denied(_) | NfsError::NoCredential(_) => libc::EACCES,
        NfsError::Expired(_) => libc::EKEYEXPIRED,
        // The program did nothing wrong: client, server or network did.
        NfsError::Refused(_) => libc::EIO,
        NfsError::TimedOut => libc::ETIMEDOUT,
        NfsError::GivenUp => libc::EIO,
        NfsError::PeerMisbehaved(_) | NfsError::Disconnects(_) => libc::EIO,
        NfsError::Local(_) => libc::EIO,
        NfsError::Interrupted => libc::EINTR,
    }
}

/// RFC 1813 section 2.6: most statuses are the errno of that name.
fn errno_of_status(status: Status) -> i32 {
    match status {
        // A failed reply never has this status.
        Status::Ok => libc::EIO,
        Status::Perm => libc::EPERM,
        Status::NoEnt => libc::ENOENT,
        Status::Io => libc::EIO,
        Status::NxIo => libc::ENXIO,
        Status::Access => libc::EACCES,
        Status::Exist => libc::EEXIST,
        Status::XDev => libc::EXDEV,
        Status::NoDev => libc::ENODEV,
        Status::NotDir => libc::ENOTDIR,
        Status::IsDir => libc::EISDIR,
        Status::Inval => libc::EINVAL,
        Status::FBig => libc::EFBIG,
        Status::NoSpc => libc::ENOSPC,
        Status::RoFs => libc::EROFS,
        Status::MLink => libc::EMLINK,
        Status::NameTooLong => libc::ENAMETOOLONG,
        Status::NotEmpty => libc::ENOTEMPTY,
        Status::DQuot => libc::EDQUOT,
        Status::Stale => libc::ESTALE,
        Status::Remote => libc::EREMOTE,
        Status::BadHandle => libc::ESTALE,
        Status::NotSync => libc::EAGAIN,
        Status::BadCookie => libc::EINVAL,
        Status::NotSupp => libc::EOPNOTSUPP,
        Status::TooSmall => libc::EIO,
        Status::ServerFault => libc::EIO,
        Status::BadType => libc::EINVAL,
        Status::JukeBox => libc::EAGAIN,
    }
}
