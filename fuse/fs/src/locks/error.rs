//! Errors of lock requests, and the errno for each.

use nfsrdma_nfs3::nlm::Status;
use nfsrdma_rpcrdma::rpc::plain::PlainError;

/// Why a request failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LockError {
    /// EAGAIN: another owner has a conflicting lock.
    WouldBlock,
    Deadlock,
    Interrupted,
    /// EBADF: the file is not open for reading or writing, as the lock requires.
    BadFile,
    /// ENOLCK: there is no lock manager, or it has no more locks.
    NoLocks,
    ReadOnly,
    Stale,
    /// EOVERFLOW: the server cannot lock that far.
    TooBig,
    /// EIO: the server lost the lock.
    Lost,
    /// EIO: the server does not answer a `soft` mount, or the mount ends.
    GivenUp,
    /// ETIMEDOUT: the server does not answer a `softerr` mount.
    TimedOut,
    /// EACCES: the server does not accept the caller.
    Denied,
}

impl LockError {
    pub fn errno(self) -> i32 {
        match self {
            LockError::WouldBlock => libc::EAGAIN,
            LockError::Deadlock => libc::EDEADLK,
            LockError::Interrupted => libc::EINTR,
            LockError::BadFile => libc::EBADF,
            LockError::NoLocks => libc::ENOLCK,
            LockError::ReadOnly => libc::EROFS,
            LockError::Stale => libc::ESTALE,
            LockError::TooBig => libc::EOVERFLOW,
            LockError::Lost | LockError::GivenUp => libc::EIO,
            LockError::TimedOut => libc::ETIMEDOUT,
            LockError::Denied => libc::EACCES,
        }
    }

    /// The error for a status that is neither a grant nor a reason to wait.
    pub(super) fn of(status: Status) -> Self {
        match status {
            Status::Denied | Status::Blocked => LockError::WouldBlock,
            Status::Deadlock => LockError::Deadlock,
            Status::ReadOnly => LockError::ReadOnly,
            Status::StaleHandle => LockError::Stale,
            Status::TooBig => LockError::TooBig,
            Status::Granted
            | Status::DeniedNoLocks
            | Status::DeniedGracePeriod
            | Status::Failed => LockError::NoLocks,
        }
    }

    /// The error for a call that the server refuses to carry out, and would refuse again.
    pub(super) fn refused(error: &PlainError) -> Option<Self> {
        match error {
            PlainError::Refused(_) => Some(LockError::Denied),
            PlainError::NoProgram => Some(LockError::NoLocks),
            _ => None,
        }
    }
}
