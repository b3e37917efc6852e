//! The errors of writing one file, as Linux counts them (errseq_t, docs.kernel.org/core-api/errseq.html).
//!
//! The file has one sequence of errors, whoever wrote. Each open file keeps the number of the last error
//! that it has told, and so tells each error by itself, whatever other open files have told. An error that
//! nobody has seen is also told by files that are opened later.

use super::error::FsError;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicU64, Ordering};

#[derive(Debug, Default)]
pub(super) struct ErrSeq {
    /// The number of the last error; 0: there was none.
    last: AtomicU64,
    /// The number of the last error that a program has seen.
    seen: AtomicU64,
    error: Mutex<Option<FsError>>,
}

impl ErrSeq {
    /// Data could not be written. Returns the number of the error.
    pub(super) fn record(&self, error: &FsError) -> u64 {
        let mut last_error = self.error.lock();
        *last_error = Some(error.clone());
        self.last.fetch_add(1, Ordering::SeqCst) + 1
    }

    /// The last error and its number, unless that is `told` or less.
    pub(super) fn after(&self, told: u64) -> Option<(u64, FsError)> {
        if self.last.load(Ordering::SeqCst) <= told {
            return None;
        }
        let error = self.error.lock();
        let number = self.last.load(Ordering::SeqCst);
        error.clone().map(|error| (number, error))
    }

    /// Whether a program has seen the last error.
    pub(super) fn are_seen(&self) -> bool {
        self.seen.load(Ordering::SeqCst) >= self.last.load(Ordering::SeqCst)
    }

    pub(super) fn saw(&self, number: u64) {
        self.seen.fetch_max(number, Ordering::SeqCst);
    }
}

/// A call that tells errors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum By {
    /// fsync(2), or write(2) with O_SYNC.
    Fsync,
    Write,
    Close,
}

/// What an open file has told of its file's [`ErrSeq`], by numbers of errors.
///
/// Only fsync(2) takes an error away. write(2) tells it once, so that a program that writes until the disk
/// is full ends; but to write again what was refused does not bring back what was accepted before and is
/// lost. Nor may the program have got it: the kernel makes several WRITEs of one write(2), at the end of a
/// page that is not complete, too, and drops the error of all but the first. close(2) tells what fsync(2)
/// has not, and leaves it: it may be that of a child, which nobody looks at.
#[derive(Debug)]
pub(super) struct Told {
    /// The last error when the file was opened: write(2) and close(2) tell no earlier one.
    opened: u64,
    /// By fsync(2), or somebody had seen it when the file was opened.
    by_fsync: AtomicU64,
    /// By write(2) or fsync(2).
    by_write: AtomicU64,
}

impl Told {
    /// For a file that is opened now.
    pub(super) fn new(errors: Option<&ErrSeq>) -> Self {
        let of = |number: fn(&ErrSeq) -> &AtomicU64| {
            errors.map_or(0, |errors| number(errors).load(Ordering::SeqCst))
        };
        let opened = of(|errors| &errors.last);
        Told {
            opened,
            by_fsync: AtomicU64::new(of(|errors| &errors.seen)),
            by_write: AtomicU64::new(opened),
        }
    }

    /// The error that a call has to tell, and its number.
    pub(super) fn due(&self, by: By, errors: &ErrSeq) -> Option<(u64, FsError)> {
        errors.after(match by {
            By::Fsync => self.by_fsync.load(Ordering::SeqCst),
            By::Write => self.by_write.load(Ordering::SeqCst),
            By::Close => self.by_fsync.load(Ordering::SeqCst).max(self.opened),
        })
    }

    /// The error with this number is told to a program that waits.
    pub(super) fn tells(&self, by: By, number: u64) {
        if by == By::Fsync {
            self.by_fsync.fetch_max(number, Ordering::SeqCst);
        }
        if by != By::Close {
            self.by_write.fetch_max(number, Ordering::SeqCst);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn write_and_close_tell_what_fails_after_the_open_and_fsync_what_nobody_saw() {
        let errors = ErrSeq::default();
        errors.record(&FsError::NoMemory);
        let told = Told::new(Some(&errors));
        let numbers = || {
            let of = [By::Fsync, By::Write, By::Close].map(|by| told.due(by, &errors));
            of.map(|of| of.map_or(0, |of| of.0))
        };
        assert_eq!(numbers(), [1, 0, 0], "it was before");
        errors.record(&FsError::NoMemory);
        assert_eq!(numbers(), [2, 2, 2]);
        told.tells(By::Close, 2);
        assert_eq!(numbers(), [2, 2, 2]);
        // The kernel may have dropped it.
        told.tells(By::Write, 2);
        assert_eq!(numbers(), [2, 0, 2]);
        told.tells(By::Fsync, 2);
        assert_eq!(numbers(), [0, 0, 0]);
        errors.record(&FsError::NoMemory);
        assert_eq!(numbers(), [3, 3, 3]);
    }

    #[test]
    fn each_open_file_has_each_error_once_and_a_later_one_what_nobody_saw() {
        let errors = ErrSeq::default();
        let opened = || Told::new(Some(&errors)).by_fsync.into_inner();
        let first = opened();
        assert!(errors.after(first).is_none());
        errors.record(&FsError::NoMemory);
        let later = opened();
        for told in [first, later] {
            assert_eq!(errors.after(told).unwrap().0, 1);
        }
        errors.saw(1);
        assert!(errors.after(opened()).is_none(), "somebody saw it");
        assert!(errors.after(later).is_some(), "it has told nothing yet");
        // Only the last of several is told.
        errors.record(&FsError::NoMemory);
        errors.record(&FsError::Ended);
        let (number, error) = errors.after(1).unwrap();
        assert!(number == 3 && matches!(error, FsError::Ended));
        assert!(errors.after(number).is_none());
    }
}
