//! Failures as people and mount(8) see them: a sentence and an exit status.

use super::mount_source::MountSourceError;
use super::options::OptionError;
use nfsrdma_nfs3::mount::{MountError, Step};
use std::fmt;

/// Exit statuses of mount(8).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// Wrong usage, or not permitted.
    Usage = 1,
    /// This system lacks something.
    System = 2,
    /// A fault of this program.
    Internal = 4,
    /// Ended by the user.
    Interrupted = 8,
    /// The mount failed.
    Failed = 32,
}

/// Whether a failure may go away by waiting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Patience {
    /// No.
    Useless,
    /// Perhaps, where `bg` or `retry` say so: the server's machine is there, its service not.
    IfAsked,
    /// Probably: nobody answered.
    Useful,
}

/// One sentence that names the remedy, and the exit status.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    pub exit: Exit,
    pub message: String,
    pub patience: Patience,
}

impl Failure {
    pub fn new(exit: Exit, message: impl Into<String>) -> Self {
        Failure {
            exit,
            message: message.into(),
            patience: Patience::Useless,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Failure {}

impl From<OptionError> for Failure {
    fn from(error: OptionError) -> Self {
        Failure::new(Exit::Usage, error.to_string())
    }
}

impl From<MountSourceError> for Failure {
    fn from(error: MountSourceError) -> Self {
        Failure::new(Exit::Usage, error.to_string())
    }
}

impl From<MountError> for Failure {
    fn from(error: MountError) -> Self {
        Failure {
            exit: match error.step {
                Step::Options => Exit::Usage,
                _ => Exit::Failed,
            },
            message: error.message,
            patience: match error.step {
                // mount.nfs does not wait for a name, either.
                Step::Resolve if error.transient => Patience::IfAsked,
                _ if error.transient => Patience::Useful,
                Step::Rpcbind | Step::Mount | Step::Connect => Patience::IfAsked,
                _ => Patience::Useless,
            },
        }
    }
}
