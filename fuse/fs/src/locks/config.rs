//! Which locks are taken at the server, and how long a program waits for an answer.

use super::error::LockError;
use std::time::Duration;

/// Which locks are taken at the server (`local_lock=` excludes some).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kinds {
    pub posix: bool,
    pub flock: bool,
}

#[derive(Debug, Clone, Copy)]
pub struct LockConfig {
    pub kinds: Kinds,
    /// How long a call is repeated for a process (`soft`, `softerr`), and whether it then fails
    /// with ETIMEDOUT instead of EIO; `None`: for ever (`hard`).
    pub patience: Option<(Duration, bool)>,
}

impl LockConfig {
    /// The error for a call that is not repeated any longer.
    pub(super) fn given_up(&self) -> LockError {
        match self.patience {
            Some((_, true)) => LockError::TimedOut,
            _ => LockError::GivenUp,
        }
    }
}
