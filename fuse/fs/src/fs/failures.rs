//! What is logged of data that could not be written: the first failure of a file at once, then one
//! line a minute with counts, so that a full disk at the server does not fill the log here.

use super::clock::Nanos;
use super::error::FsError;
use crate::named::file;
use nfsrdma_nfs3::NfsError;
use nfsrdma_rpcrdma::words::counted;
use nfsrdma_xdr::nfs3::Status;
use std::collections::HashMap;
use std::ops::Range;

/// The time between two lines of one file.
const PAUSE: Nanos = 60_000_000_000;
/// The most files that have an account of their own; the others share one.
const MOST_FILES: usize = 256;

const NOWHERE: (u64, u64) = (u64::MAX, 0);

/// The failures since the last line.
#[derive(Debug)]
struct Account {
    since: Nanos,
    ranges: u64,
    bytes: u64,
    /// The first byte of all ranges, and the end of the last.
    span: (u64, u64),
    error: String,
}

impl Account {
    fn add(&mut self, ranges: &[Range<u64>]) {
        for range in ranges {
            self.ranges += 1;
            self.bytes += range.end - range.start;
            self.span.0 = self.span.0.min(range.start);
            self.span.1 = self.span.1.max(range.end);
        }
    }
}

/// The line for the first range of a file that could not be written.
pub(super) fn first_line(
    path: Option<&String>,
    fileid: u64,
    range: &Range<u64>,
    error: &FsError,
) -> String {
    format!(
        "data could not be written: {} from byte {} on of {}: {}",
        counted(range.end - range.start, "byte"),
        range.start,
        file(path, fileid),
        reason(error)
    )
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

/// Failures by file.
#[derive(Debug, Default)]
pub(super) struct FailureLog {
    files: HashMap<u64, Account>,
    others: Option<Account>,
}

impl FailureLog {
    /// `ranges` of file `fileid` could not be written. Returns true if the caller has to log the
    /// first of them now; [`FailureLog::due`] reports the others.
    pub(super) fn note(
        &mut self,
        fileid: u64,
        ranges: &[Range<u64>],
        error: &FsError,
        now: Nanos,
    ) -> bool {
        let own = self.files.len() < MOST_FILES || self.files.contains_key(&fileid);
        let account = match own {
            true => self.files.get_mut(&fileid),
            false => self.others.as_mut(),
        };
        if let Some(account) = account {
            account.add(ranges);
            return false;
        }
        let mut account = Account {
            since: now,
            ranges: 0,
            bytes: 0,
            span: NOWHERE,
            error: reason(error),
        };
        // The caller logs the first range now.
        account.add(ranges.get(1..).unwrap_or_default());
        match own {
            true => drop(self.files.insert(fileid, account)),
            false => self.others = Some(account),
        }
        true
    }

    /// The lines that are to be logged at `now`. `paths` knows files by their fileids.
    pub(super) fn due(
        &mut self,
        now: Nanos,
        paths: impl FnOnce(&[u64]) -> HashMap<u64, String>,
    ) -> Vec<String> {
        let failed =
            |account: &Account| account.ranges > 0 && now.saturating_sub(account.since) >= PAUSE;
        let files = self.files.iter().filter(|(_, account)| failed(account));
        let files: Vec<u64> = files.map(|(fileid, _)| *fileid).collect();
        let paths = match files.is_empty() {
            true => HashMap::new(),
            false => paths(&files),
        };
        let mut lines = Vec::new();
        let mut look = |of: &str, account: &mut Account| {
            if now.saturating_sub(account.since) < PAUSE {
                return true;
            }
            if account.ranges == 0 {
                return false;
            }
            let Account {
                ranges,
                bytes,
                span,
                error,
                ..
            } = account;
            lines.push(format!(
                "data could not be written, further failures: {}, {} \
                 between {} and {} of {of}: {error}",
                counted(*ranges, "range"),
                counted(*bytes, "byte"),
                span.0,
                span.1
            ));
            account.since = now;
            account.ranges = 0;
            account.bytes = 0;
            account.span = NOWHERE;
            true
        };
        self.files
            .retain(|fileid, account| look(&file(paths.get(fileid), *fileid), account));
        if let Some(account) = &mut self.others
            && !look("other files", account)
        {
            self.others = None;
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Nanos = PAUSE;

    /// Eight bytes at `at` fail.
    fn note(log: &mut FailureLog, fileid: u64, at: u64, now: Nanos) -> bool {
        let range = at..at + 8;
        log.note(
            fileid,
            std::slice::from_ref(&range),
            &FsError::NoMemory,
            now,
        )
    }

    #[test]
    fn a_file_has_one_line_a_minute() {
        let mut log = FailureLog::default();
        assert!(note(&mut log, 1, 0, 5));
        for n in 1..50_000u64 {
            assert!(!note(&mut log, 1, n * 4096, 6));
        }
        let paths = |files: &[u64]| {
            files
                .iter()
                .map(|id| (*id, format!("/name-{id}")))
                .collect()
        };
        assert!(log.due(MINUTE, paths).is_empty());
        let lines = log.due(MINUTE + 5, paths);
        assert_eq!(lines.len(), 1);
        let expected =
            "49999 ranges, 399992 bytes between 4096 and 204795912 of /name-1 (file 1): ";
        assert!(lines[0].contains(expected), "{lines:?}");
        // No failure for a minute: the file is forgotten, and a new failure is logged at once.
        assert!(log.due(3 * MINUTE, paths).is_empty());
        assert!(note(&mut log, 1, 0, 3 * MINUTE));
    }

    #[test]
    fn very_many_files_share_one_line() {
        let mut log = FailureLog::default();
        let logged = (0..10_000).filter(|&n| note(&mut log, n, 0, 0));
        assert_eq!(logged.count(), MOST_FILES + 1);
        let lines = log.due(MINUTE, |_| HashMap::new());
        assert_eq!(lines.len(), 1, "{lines:?}");
        assert!(lines[0].contains("other files"));
        log.due(2 * MINUTE, |_| HashMap::new());
        assert!(log.files.is_empty() && log.others.is_none());
    }
}
