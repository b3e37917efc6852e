//! What is logged of locks: few lines, however many locks are concerned.
//!
//! A server that restarts and gives nothing back loses all locks of a mount at once, and a disk that
//! is full fails for each lock. So each of these has one line a minute.

use super::range::ByteRange;
use crate::named::file;
use nfsrdma_nfs3::nlm::Status;
use nfsrdma_rpcrdma::throttle::{Throttle, and_more};
use nfsrdma_rpcrdma::words::counted;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::io;
use std::sync::OnceLock;
use std::time::Instant;

/// Finds the paths of files by their fileids, as far as they are known.
pub(crate) type FindPaths = Box<dyn Fn(&[u64]) -> HashMap<u64, String> + Send + Sync>;

#[derive(Default)]
pub(crate) struct LockLog {
    paths: OnceLock<FindPaths>,
    lost: Mutex<Throttle<Instant>>,
    journal: Mutex<Throttle<Instant>>,
    refused: Mutex<Throttle<Instant>>,
}

impl LockLog {
    /// Sets how lines find the paths of files.
    pub(crate) fn find_paths(&self, paths: FindPaths) {
        let _ = self.paths.set(paths);
    }

    /// A file, with its path if that is known.
    fn file(&self, fileid: u64) -> String {
        let paths = self.paths.get().map(|find| find(&[fileid]));
        file(paths.unwrap_or_default().get(&fileid), fileid)
    }

    /// A lock of the process `pid` on a file is lost.
    pub(super) fn lost(&self, fileid: u64, pid: u32, range: ByteRange) {
        if let Some(more) = self.lost.lock().event(Instant::now()) {
            let (offset, length) = range.to_wire();
            let bytes = match length {
                0 => format!("all bytes from {offset} on"),
                length => format!("{} from {offset} on", counted(length, "byte")),
            };
            tracing::error!(
                "a lock was lost ({bytes} of {}, process {pid}): the server has restarted, or this \
                 machine has another address now, and it was not given back; its holder gets EIO and has to lock again{}",
                self.file(fileid),
                and_more(more)
            );
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
