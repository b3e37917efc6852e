//! Which locks are taken at the server, and how long a program waits for an answer.

use super::error::LockError;
use super::svids::KeepBlock;
use nfsrdma_nfs3::nlm::{Journal, SvidBlock};
use nfsrdma_record::{Lock, Region, Table};
use std::sync::Arc;
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

/// What locks need beyond the life of the process, or have from the process before it.
#[derive(Debug)]
pub struct Lasting {
    pub records: Arc<Region<Lock>>,
    pub journal: Option<Journal>,
    /// The numbers for lock owners, and how more of them are kept.
    pub blocks: Vec<SvidBlock>,
    pub keep: KeepBlock,
}

impl Default for Lasting {
    /// Nothing outlives the process.
    fn default() -> Self {
        Lasting {
            records: Table::anonymous().locks().clone(),
            journal: None,
            blocks: Vec::new(),
            keep: KeepBlock::default(),
        }
    }
}
