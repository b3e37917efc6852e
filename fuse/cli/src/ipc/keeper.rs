//! What the holder of a mount keeps for the successor of this process, by name. Without a holder
//! nothing is kept.

use crate::failure::{Exit, Failure};
use crate::holder::client::Held;
use parking_lot::Mutex;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use tracing::warn;

/// The names of the mount's device, of what its memory holds, and of its record.
pub(crate) const FUSE: &str = "fuse";
/// The names of the descriptors from which requests are read begin so.
pub(crate) const DEVICES: &str = "dev";
pub(crate) const TABLE: &str = "table";
pub(crate) const POOL: &str = "pool";
pub(crate) const PLAN: &str = "plan";
/// The name of the memory that requests are in, which only some kernels need.
pub(crate) const REQUESTS: &str = "requests";
/// The names of the journal of locks, and of what holds blocks of numbers for lock owners, before the first one.
pub(crate) const JOURNAL: &str = "journal";
pub(crate) const SVIDS: &str = "svids";

/// The connection to the holder, and what it has kept for this process.
#[derive(Debug, Clone, Default)]
pub(crate) struct Keeper {
    held: Option<Held>,
    kept: Arc<Mutex<Vec<(String, OwnedFd)>>>,
}

impl Keeper {
    /// For the process that makes the mount.
    pub(crate) fn new(held: Option<Held>) -> Self {
        Keeper {
            held,
            ..Keeper::default()
        }
    }

    /// For a successor, which takes what is kept.
    pub(crate) fn of_successor(held: Held) -> io::Result<Self> {
        let kept = held.take()?;
        Ok(Keeper {
            held: Some(held),
            kept: Arc::new(Mutex::new(kept)),
        })
    }

    pub(crate) fn held(&self) -> Option<&Held> {
        self.held.as_ref()
    }

    /// Takes what a predecessor gave to be kept by this name.
    pub(crate) fn take(&self, name: &str) -> Option<OwnedFd> {
        let mut kept = self.kept.lock();
        let at = kept.iter().position(|(own, _)| own == name)?;
        Some(kept.swap_remove(at).1)
    }

    /// Takes what is indispensable.
    pub(crate) fn needed(&self, name: &str) -> Result<OwnedFd, Failure> {
        self.take(name).ok_or_else(|| {
            let message = format!("the mount cannot be gone on with: its holder has no '{name}'");
            Failure::new(Exit::Internal, message)
        })
    }

    /// Takes all whose names begin so.
    pub(crate) fn take_all(&self, prefix: &str) -> Vec<OwnedFd> {
        self.take_named(prefix).map(|(_, fd)| fd).collect()
    }

    /// As [`Keeper::take_all`], with the rest of each name.
    pub(crate) fn take_named(&self, prefix: &str) -> impl Iterator<Item = (String, OwnedFd)> {
        let mut kept = self.kept.lock();
        let taken = kept.extract_if(.., |(name, _)| name.starts_with(prefix));
        let rest = |(name, fd): (String, OwnedFd)| (name[prefix.len()..].to_owned(), fd);
        taken.map(rest).collect::<Vec<_>>().into_iter()
    }

    /// Has it kept: the mount cannot be gone on with without it.
    pub(crate) fn keep(&self, name: &str, fd: BorrowedFd<'_>) -> io::Result<()> {
        match &self.held {
            Some(held) => held.keep(name, fd),
            None => Ok(()),
        }
    }

    /// Has the listener of a socket kept, so that those who connect while this process is replaced wait
    /// for its successor.
    pub(crate) fn keep_listener(&self, name: &str, fd: BorrowedFd<'_>) {
        if let Err(error) = self.keep(name, fd) {
            warn!("the socket '{name}' ends with this process: {error}");
        }
    }
}
