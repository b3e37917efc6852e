//! Why a lock request fails, and the errno that the program gets for it.

use nfsrdma_nfs3::nlm::Status;

/// Why a request failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LockError {
    /// EAGAIN: somebody else has it.
    WouldBlock,
    Deadlock,
    /// EINTR.
    Interrupted,
    /// EBADF: the file is not open for that.
    BadFile,
    /// ENOLCK.
    NoLocks,
    ReadOnly,
    Stale,
    /// EOVERFLOW: the server cannot lock that far.
    TooBig,
    /// EIO: the server lost the lock, or does not answer a `soft` mount.
    Lost,
    GivenUp,
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

    /// Of a status that is neither a grant nor a reason to wait.
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
}
