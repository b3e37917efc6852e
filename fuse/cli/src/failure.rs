//! Failures, as users and mount(8) see them: a sentence and an exit status.

use crate::options::OptionError;
use crate::options::mount_source::MountSourceError;
use nfsrdma_nfs3::mount::{MountError, Step};
use std::fmt;
use std::io;

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

/// Whether to repeat an attempt that failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Retry {
    /// It would fail again in the same way.
    Never,
    /// Only if `bg` or `retry` asks for it: the server's host answers, but not its service.
    IfRequested,
    /// Nobody answered, which may change soon.
    Always,
}

/// A failure of a command: one sentence that names the remedy, and the exit status.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    pub exit: Exit,
    pub message: String,
    /// What follows the message, a line for each, such as the data that are lost.
    pub lines: Vec<String>,
    pub retry: Retry,
}

impl Failure {
    pub fn new(exit: Exit, message: impl Into<String>) -> Self {
        Failure {
            exit,
            message: message.into(),
            lines: Vec::new(),
            retry: Retry::Never,
        }
    }

    /// Wrong usage.
    pub fn usage(message: impl Into<String>) -> Self {
        Self::new(Exit::Usage, message)
    }

    /// The system does not give threads, descriptors or signal handlers.
    pub fn no_threads(error: io::Error) -> Self {
        Self::new(
            Exit::System,
            format!("cannot start the mount's threads: {error}"),
        )
    }

    /// The mount, or a request to one, failed.
    pub fn failed(message: impl Into<String>) -> Self {
        Self::new(Exit::Failed, message)
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
        Failure::usage(error.to_string())
    }
}

impl From<MountSourceError> for Failure {
    fn from(error: MountSourceError) -> Self {
        Failure::usage(error.to_string())
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
            lines: Vec::new(),
            retry: match error.step {
                // Like mount.nfs, this waits for a name service that does not answer yet, as when the
                // machine starts, but not for a name that it does not know.
                _ if error.transient => Retry::Always,
                Step::Name | Step::Rpcbind | Step::Mount | Step::Connect => Retry::IfRequested,
                _ => Retry::Never,
            },
        }
    }
}
