//! The errors of write-back, as each open file that wrote gets them.

use super::error::FsError;
use super::unwritten::Unwritten;
use crate::sync::Mutex;
use crate::sync::atomic::AtomicBool;

/// Lost ranges remembered one by one for each open file, at most.
const MOST_LOST: usize = 1024;

/// An open file that data were written through. The next fsync or close of it reports what
/// became of them.
#[derive(Debug, Default)]
pub struct Writer {
    /// Since the data were last written back.
    pub wrote: AtomicBool,
    /// The first error of write-back since the last report, and what was lost since.
    error: Mutex<(Option<FsError>, Vec<Unwritten>)>,
}

impl Writer {
    pub fn fail(&self, error: &FsError, lost: Unwritten) {
        let mut held = self.error.lock();
        held.0.get_or_insert_with(|| error.clone());
        let full = held.1.len() >= MOST_LOST;
        match held.1.last_mut() {
            Some(last) if full => last.add(&lost),
            _ => held.1.push(lost),
        }
    }

    /// Whether there is an error to report.
    pub fn has_failed(&self) -> bool {
        let held = self.error.lock();
        held.0.is_some() || !held.1.is_empty()
    }

    /// The error to report, once.
    pub fn take_error(&self) -> Result<(), FsError> {
        self.take_failure().0
    }

    /// The same, and what was lost, for the case that nobody takes the report.
    pub fn take_failure(&self) -> (Result<(), FsError>, Vec<Unwritten>) {
        let (error, lost) = std::mem::take(&mut *self.error.lock());
        (error.map_or(Ok(()), Err), lost)
    }
}
