//! What is logged of data that could not be written: a line a minute for each file, and one for all that
//! fails besides, so that a full disk at the server does not fill the log here.

use super::clock::Nanos;
use super::error::FsError;
use nfsrdma_nfs3::NfsError;
use nfsrdma_rpcrdma::words::counted;
use nfsrdma_xdr::nfs3::Status;
use std::collections::HashSet;
use std::ops::Range;

/// The time between two lines of one file.
const PAUSE: Nanos = 60_000_000_000;
/// The most files that have a line of their own in that time.
const MOST_FILES: usize = 256;

/// Logs the first range of a file that could not be written.
pub(super) fn log(file: &str, range: &Range<u64>, error: &FsError) {
    tracing::error!(
        "data could not be written: {} from byte {} on of {file}: {}",
        counted(range.end - range.start, "byte"),
        range.start,
        reason(error)
    );
}

/// The error, and what can be done about it.
fn reason(error: &FsError) -> String {
    let remedy = match error {
        FsError::Nfs(NfsError::Status(status)) => match status {
            Status::NoSpc => "make room at the server",
            Status::DQuot => "raise the quota at the server, or remove files",
            Status::RoFs => "export it for writing again",
            Status::Access | Status::Perm => "give the user the right to write there",
            Status::Stale => "the file was removed at the server: write it anew",
            Status::FBig => "the server takes no file as large as this",
            _ => "see the server's log",
        },
        FsError::Nfs(NfsError::TimedOut | NfsError::GivenUp) => {
            "see whether the server works; a mount without soft and softerr waits for it"
        }
        FsError::Nfs(NfsError::Interrupted) | FsError::Ended => {
            "the mount was taken away by force before the server had them"
        }
        FsError::Nfs(NfsError::Local(_)) | FsError::NoMemory => {
            "free memory, or mount with a smaller cache"
        }
        _ => "see the server's log",
    };
    format!("{error}; {remedy}")
}

/// The failures of a minute.
#[derive(Debug, Default)]
pub(super) struct FailureLog {
    since: Nanos,
    /// The files that have a line.
    files: HashSet<u64>,
    /// What failed besides and is not logged yet.
    ranges: u64,
    bytes: u64,
}

impl FailureLog {
    /// `ranges` of file `fileid` could not be written. Returns true if the caller has to log the first of
    /// them now.
    pub(super) fn note(&mut self, fileid: u64, ranges: &[Range<u64>]) -> bool {
        let first = self.files.len() < MOST_FILES && self.files.insert(fileid);
        for range in &ranges[usize::from(first)..] {
            self.ranges += 1;
            self.bytes += range.end - range.start;
        }
        first
    }

    /// The line that is due at `now`, if any.
    pub(super) fn due(&mut self, now: Nanos) -> Option<String> {
        if now.saturating_sub(self.since) < PAUSE {
            return None;
        }
        self.since = now;
        self.files.clear();
        self.rest()
    }

    /// The line for what is not logged yet.
    pub(super) fn rest(&mut self) -> Option<String> {
        let ranges = std::mem::take(&mut self.ranges);
        let bytes = std::mem::take(&mut self.bytes);
        (ranges > 0).then(|| {
            format!(
                "data could not be written, further failures: {}, {}",
                counted(ranges, "range"),
                counted(bytes, "byte")
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Nanos = PAUSE;

    /// Eight bytes at `at` fail.
    fn note(log: &mut FailureLog, fileid: u64, at: u64) -> bool {
        let range = at..at + 8;
        log.note(fileid, std::slice::from_ref(&range))
    }

    #[test]
    fn a_file_has_one_line_a_minute() {
        let mut log = FailureLog::default();
        assert!(note(&mut log, 1, 0));
        for n in 1..50_000u64 {
            assert!(!note(&mut log, 1, n * 4096));
        }
        assert!(log.due(MINUTE - 1).is_none());
        let line = log.due(MINUTE).unwrap();
        assert!(line.ends_with("49999 ranges, 399992 bytes"), "{line}");
        assert!(log.due(2 * MINUTE).is_none());
        assert!(note(&mut log, 1, 0));
        assert!(log.rest().is_none());
    }

    #[test]
    fn very_many_files_share_one_line() {
        let mut log = FailureLog::default();
        let logged = (0..10_000).filter(|&n| note(&mut log, n, 0));
        assert_eq!(logged.count(), MOST_FILES);
        assert!(log.rest().unwrap().contains("9744 ranges"));
        log.due(MINUTE);
        assert!(log.files.is_empty());
    }
}
