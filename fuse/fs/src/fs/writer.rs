//! The errors of write-back, kept for each open file that wrote.

use super::error::FsError;
use super::unwritten::Unwritten;
use crate::sync::Mutex;
use crate::sync::atomic::AtomicBool;

/// The most lost ranges that are remembered one by one for each open file.
const MOST_LOST: usize = 1024;

/// The part of an open file that write-back knows. The next fsync(2) or close(2) of the open file
/// reports its error.
#[derive(Debug, Default)]
pub struct Writer {
    /// Data was written through the open file since all data was last on stable storage.
    pub wrote: AtomicBool,
    /// The first error of write-back since the last report, and the data lost since.
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

    pub fn has_failed(&self) -> bool {
        let held = self.error.lock();
        held.0.is_some() || !held.1.is_empty()
    }

    /// Returns the error to report, once.
    pub fn take_error(&self) -> Result<(), FsError> {
        self.take_failure().0
    }

    /// As [`Writer::take_error`], with the lost data, for the case that no program gets the error.
    pub fn take_failure(&self) -> (Result<(), FsError>, Vec<Unwritten>) {
        let (error, lost) = std::mem::take(&mut *self.error.lock());
        (error.map_or(Ok(()), Err), lost)
    }
}
