//! What is logged of locks: few lines, however many locks are concerned.
//!
//! A server that restarts and gives nothing back loses all locks of a mount at once, and a disk that
//! is full fails for each lock. So a recovery logs one line for the first lock that a file has lost
//! and one with the number of all others, and an unwritable journal one line a minute.

use super::range::ByteRange;
use crate::named::file;
use nfsrdma_nfs3::nlm::Status;
use nfsrdma_rpcrdma::throttle::{Throttle, and_more};
use nfsrdma_rpcrdma::words::counted;
use parking_lot::Mutex;
use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::io;
use std::sync::OnceLock;
use std::time::Instant;

/// The most files with lines of their own in one recovery.
const MOST_FILES: usize = 256;

/// The losses of one recovery.
#[derive(Debug, Default)]
struct Losses {
    /// The files that were logged.
    files: BTreeSet<u64>,
    /// How many ranges were lost besides those.
    others: u64,
}

impl Losses {
    /// A range of a file is lost. True if it is to be logged now.
    fn note(&mut self, fileid: u64) -> bool {
        let first = self.files.len() < MOST_FILES && self.files.insert(fileid);
        self.others += u64::from(!first);
        first
    }

    /// The line that is left to log.
    fn line(&self) -> Option<String> {
        let verb = match self.others {
            0 => return None,
            1 => "was lost; its holder gets EIO",
            _ => "were lost; their holders get EIO",
        };
        Some(format!("{} {verb}", counted(self.others, "more lock")))
    }
}

/// Finds the paths of files by their fileids, as far as they are known.
pub(crate) type FindPaths = Box<dyn Fn(&[u64]) -> HashMap<u64, String> + Send + Sync>;

#[derive(Default)]
pub(super) struct LockLog {
    paths: OnceLock<FindPaths>,
    losses: Mutex<Losses>,
    journal: Mutex<Throttle<Instant>>,
    refused: Mutex<Throttle<Instant>>,
}

impl fmt::Debug for LockLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockLog").finish_non_exhaustive()
    }
}

impl LockLog {
    pub(super) fn find_paths(&self, paths: FindPaths) {
        let _ = self.paths.set(paths);
    }

    /// A file, with its path if that is known.
    fn file(&self, fileid: u64) -> String {
        let paths = self.paths.get().map(|find| find(&[fileid]));
        file(paths.unwrap_or_default().get(&fileid), fileid)
    }

    /// A lock of the process `pid` on a file is lost.
    pub(super) fn lost(&self, fileid: u64, pid: u32, range: ByteRange) {
        if self.losses.lock().note(fileid) {
            let (offset, length) = range.to_wire();
            let bytes = match length {
                0 => format!("all bytes from {offset} on"),
                length => format!("{} from {offset} on", counted(length, "byte")),
            };
            tracing::error!(
                "a lock was lost ({bytes} of {}, process {pid}): the server restarted and did not \
                 give it back; its holder gets EIO and has to lock again",
                self.file(fileid)
            );
        }
    }

    /// A recovery has ended: logs how many locks were lost besides those that were logged.
    pub(super) fn recovered(&self) {
        if let Some(line) = std::mem::take(&mut *self.losses.lock()).line() {
            tracing::error!("{line}");
        }
    }

    /// The server has refused an UNLOCK.
    pub(super) fn unlock_refused(&self, fileid: u64, status: Status) {
        if let Some(more) = self.refused.lock().event(Instant::now()) {
            let (status, more) = (status as u32, and_more(more));
            tracing::error!(
                "the server refused to unlock {} (NLM status {status}) and may keep the \
                 lock: see its log{more}",
                self.file(fileid)
            );
        }
    }

    /// The journal could not be written.
    pub(super) fn journal_failed(&self, error: &io::Error) {
        if let Some(more) = self.journal.lock().event(Instant::now()) {
            tracing::warn!(
                %error,
                more,
                "the journal of locks could not be written: if this process is killed, the server \
                 may keep its locks; make room in its directory"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recovery_logs_a_line_for_a_file_and_one_for_all_others() {
        let mut losses = Losses::default();
        let logged = (0..10_000).filter(|n| losses.note(n % 2)).count();
        assert_eq!(logged, 2);
        let line = "9998 more locks were lost; their holders get EIO";
        assert_eq!(losses.line().unwrap(), line);
    }

    #[test]
    fn one_lock_more_is_one_lock() {
        let mut losses = Losses::default();
        losses.note(3);
        assert_eq!(losses.line(), None);
        losses.note(3);
        let line = "1 more lock was lost; its holder gets EIO";
        assert_eq!(losses.line().unwrap(), line);
    }

    #[test]
    fn very_many_files_share_one_line() {
        let mut losses = Losses::default();
        let logged = (0..10_000).filter(|&n| losses.note(n)).count();
        assert_eq!(logged, MOST_FILES);
        let others = 10_000 - MOST_FILES;
        let line = format!("{others} more locks were lost; their holders get EIO");
        assert_eq!(losses.line().unwrap(), line);
    }
}
