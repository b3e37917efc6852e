//! What is logged of locks: few lines, however many locks are concerned.
//!
//! A server that restarts and gives nothing back loses all locks of a mount at once, and a disk that
//! is full fails for each lock. So a recovery logs one line for the first lock that a file has lost
//! and one with the number of the others, and an unwritable journal one line a minute.

use super::range::ByteRange;
use crate::named::file;
use nfsrdma_nfs3::nlm::Status;
use nfsrdma_rpcrdma::throttle::{Throttle, and_more};
use nfsrdma_rpcrdma::words::counted;
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::io;
use std::sync::OnceLock;
use std::time::Instant;

/// The most files with lines of their own in one recovery.
const MOST_FILES: usize = 256;

/// The losses of one recovery.
#[derive(Debug, Default)]
struct Losses {
    /// For each file that was logged, how many other ranges it has lost.
    files: BTreeMap<u64, u64>,
    /// The ranges that other files have lost.
    others: u64,
}

impl Losses {
    /// A range of a file is lost. True if it is to be logged now.
    fn note(&mut self, fileid: u64) -> bool {
        if let Some(more) = self.files.get_mut(&fileid) {
            *more += 1;
            return false;
        }
        let own = self.files.len() < MOST_FILES;
        match own {
            true => drop(self.files.insert(fileid, 0)),
            false => self.others += 1,
        }
        own
    }

    /// The lines that are left to log.
    fn lines(&self, paths: &HashMap<u64, String>) -> Vec<String> {
        let files = self.files.iter().filter(|(_, more)| **more > 0);
        let of_files = files.map(|(fileid, &more)| {
            let locks = counted(more, "more lock");
            format!(
                "{locks} of {} {}",
                file(paths.get(fileid), *fileid),
                lost(more)
            )
        });
        let others = (self.others > 0).then(|| {
            let locks = counted(self.others, "lock");
            format!("{locks} of other files {}", lost(self.others))
        });
        of_files.chain(others).collect()
    }
}

fn lost(locks: u64) -> &'static str {
    match locks {
        1 => "was lost; its holder gets EIO",
        _ => "were lost; their holders get EIO",
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

    fn paths(&self, fileids: &[u64]) -> HashMap<u64, String> {
        (self.paths.get()).map_or_else(HashMap::new, |find| find(fileids))
    }

    /// A file, with its path if that is known.
    fn file(&self, fileid: u64) -> String {
        file(self.paths(&[fileid]).get(&fileid), fileid)
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
        let losses = std::mem::take(&mut *self.losses.lock());
        let fileids: Vec<u64> = losses.files.keys().copied().collect();
        for line in losses.lines(&self.paths(&fileids)) {
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
    fn a_recovery_logs_two_lines_for_a_file() {
        let mut losses = Losses::default();
        let logged = (0..10_000).filter(|n| losses.note(n % 2)).count();
        assert_eq!(logged, 2);
        let paths = HashMap::from([(0, "/a".to_owned()), (1, "/b".to_owned())]);
        let lines = ["/a (file 0)", "/b (file 1)"]
            .map(|file| format!("4999 more locks of {file} were lost; their holders get EIO"));
        assert_eq!(losses.lines(&paths), lines);
    }

    #[test]
    fn one_lock_more_is_one_lock() {
        let mut losses = Losses::default();
        losses.note(3);
        losses.note(3);
        let line = "1 more lock of file 3 (its name is not known) was lost; its holder gets EIO";
        assert_eq!(losses.lines(&HashMap::new()), [line]);
    }

    #[test]
    fn very_many_files_share_one_line() {
        let mut losses = Losses::default();
        let logged = (0..10_000).filter(|&n| losses.note(n)).count();
        assert_eq!(logged, MOST_FILES);
        let others = 10_000 - MOST_FILES;
        let line = format!("{others} locks of other files were lost; their holders get EIO");
        assert_eq!(losses.lines(&HashMap::new()), [line]);
    }
}
