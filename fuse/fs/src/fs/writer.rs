//! The errors of write-back, kept for each open file that wrote.

use super::error::FsError;
use super::unwritten::Unwritten;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Arc;

/// The most lost ranges that are remembered one by one for each open file. The same range is lost for
/// every open file that wrote, of which a user may have very many.
const MOST_LOST: usize = 128;

/// The most processes that are remembered because a close has reported the failure to them. Others
/// are told again.
const MOST_CLOSERS: usize = 16;

/// The kernel makes several WRITEs of a long write(2). All but the last have at least this many bytes:
/// those of 32 pages, the first of which may be incomplete, or of more if INIT agreed on that.
const LEAST_SPLIT: u64 = 31 * 4096;

/// No WRITE is the rest of a write(2).
const NO_REST: u64 = u64::MAX;

/// What was lost of the data written through an open file, and was not reported by fsync yet.
#[derive(Debug, Default)]
struct Failure {
    /// The first error.
    error: Option<FsError>,
    lost: Vec<Arc<Unwritten>>,
    /// The processes to which a close has reported all of it.
    closers: Vec<u64>,
    /// Some close has reported it.
    closed: bool,
    /// The program got the result of the last close that did.
    heard: bool,
    /// A write(2) has reported all of it, and its program got the result.
    written: bool,
    /// No program has the file open any more.
    released: bool,
}

impl Failure {
    fn take_lost(&mut self) -> Vec<Unwritten> {
        let lost = std::mem::take(&mut self.lost);
        lost.into_iter().map(Arc::unwrap_or_clone).collect()
    }
}

/// The caller of an operation that reports errors of writing.
pub trait WaitingCaller {
    /// Whether the caller still waits for the reply. If so, it waits until the reply is given.
    fn is_waiting(&mut self) -> bool;

    /// Whether the caller will see the result of its system call. A process that is being killed
    /// does not, and a process that is not visible (of another PID namespace) may not.
    fn sees_result(&self) -> bool;
}

/// A caller that waits, whatever happens.
impl WaitingCaller for () {
    fn is_waiting(&mut self) -> bool {
        true
    }

    fn sees_result(&self) -> bool {
        true
    }
}

/// The part of an open file that write-back knows. The next write(2) reports its error, so that a
/// program that writes until the disk is full ends; so does the next fsync(2), and, unless a write(2)
/// did, the next close(2) by each process that has the file open.
///
/// Not every process that has the file open sees the result of a close: a child closes what it
/// inherited, at exec or when it ends, and ignores the result. So the error is reported to each
/// process, and remains for fsync, which alone says that data is safe. Processes are told apart by
/// the lock owner in FLUSH, which the kernel makes of an address. If a later child of a process gets
/// the address of an earlier one, its close(2) does not report the error again.
#[derive(Debug)]
pub struct Writer {
    /// Data was written through the open file since all data was last on stable storage.
    pub wrote: AtomicBool,
    /// The next write(2) has an error to report. Changed under the lock of `failure`.
    refuses: AtomicBool,
    /// Where a WRITE begins that may be the rest of a write(2) of which the kernel has sent a part.
    rest: AtomicU64,
    failure: Mutex<Failure>,
}

impl Default for Writer {
    fn default() -> Self {
        Writer {
            wrote: AtomicBool::new(false),
            refuses: AtomicBool::new(false),
            rest: AtomicU64::new(NO_REST),
            failure: Mutex::default(),
        }
    }
}

impl Writer {
    pub fn fail(&self, error: &FsError, lost: &Arc<Unwritten>) {
        let mut failure = self.failure.lock();
        failure.error.get_or_insert_with(|| error.clone());
        failure.closers.clear();
        (failure.closed, failure.heard, failure.written) = (false, false, false);
        self.refuses.store(true, Ordering::Relaxed);
        let full = failure.lost.len() >= MOST_LOST;
        match failure.lost.last_mut() {
            Some(last) if full => Arc::make_mut(last).add(lost),
            _ => failure.lost.push(lost.clone()),
        }
    }

    pub fn has_failed(&self) -> bool {
        self.failure.lock().error.is_some()
    }

    /// Whether the next write(2) has an error to report.
    pub fn refuses(&self) -> bool {
        self.refuses.load(Ordering::Relaxed)
    }

    /// A WRITE at `offset` was answered with the number of bytes accepted.
    pub fn accepted(&self, offset: u64, len: u64) {
        let rest = match len >= LEAST_SPLIT {
            true => offset.saturating_add(len),
            false => NO_REST,
        };
        self.rest.store(rest, Ordering::Relaxed);
    }

    /// Returns the error for the WRITE at `offset` to report to `caller`.
    ///
    /// If that is the rest of a write(2), the program does not get the error, but the number of bytes
    /// before; so the next WRITE, which then begins another write(2), reports it again. fsync reports
    /// it in any case: a program that writes again what was refused has not written what was lost.
    pub fn refuse(&self, offset: u64, caller: &impl WaitingCaller) -> Result<(), FsError> {
        let seen = caller.sees_result();
        let begins = self.rest.swap(NO_REST, Ordering::Relaxed) != offset;
        let mut failure = self.failure.lock();
        let Some(error) = failure.error.clone() else {
            return Ok(());
        };
        if begins {
            self.refuses.store(false, Ordering::Relaxed);
            failure.written = seen;
        }
        Err(error)
    }

    /// Returns the error for fsync to report to `caller`. It is not reported again if the caller sees
    /// it.
    pub fn report(&self, caller: &impl WaitingCaller) -> Result<(), FsError> {
        let error = self.failure.lock().error.clone();
        match error {
            Some(error) if !caller.sees_result() => Err(error),
            Some(_) => self.take_error(),
            None => Ok(()),
        }
    }

    /// Returns the error for fsync to report, once.
    pub fn take_error(&self) -> Result<(), FsError> {
        let mut failure = self.failure.lock();
        self.refuses.store(false, Ordering::Relaxed);
        failure.lost.clear();
        failure.error.take().map_or(Ok(()), Err)
    }

    /// The error for a close by the process `closer` to report, once. [`Writer::unheard`] follows if
    /// nobody takes the report.
    pub fn close(&self, closer: u64) -> Result<(), FsError> {
        let mut failure = self.failure.lock();
        match failure.error.clone() {
            Some(error) if !failure.written && !failure.closers.contains(&closer) => {
                (failure.closed, failure.heard) = (true, true);
                if failure.closers.len() < MOST_CLOSERS {
                    failure.closers.push(closer);
                }
                Err(error)
            }
            _ => Ok(()),
        }
    }

    /// No program got the result of [`Writer::close`]. Returns the lost ranges if no later call
    /// reports them.
    #[must_use]
    pub fn unheard(&self, closer: u64) -> Vec<Unwritten> {
        let mut failure = self.failure.lock();
        failure.closers.retain(|of| *of != closer);
        failure.heard = false;
        match failure.released {
            true => failure.take_lost(),
            false => Vec::new(),
        }
    }

    /// All descriptors are closed. Returns the error if no write and no close has reported it, and the
    /// lost ranges if no program got their result.
    pub fn release(&self) -> (Result<(), FsError>, Vec<Unwritten>) {
        let mut failure = self.failure.lock();
        failure.released = true;
        let result = match failure.error.clone() {
            Some(error) if !failure.closed && !failure.written => Err(error),
            _ => Ok(()),
        };
        let lost = match failure.heard || failure.written {
            true => Vec::new(),
            false => failure.take_lost(),
        };
        (result, lost)
    }

    /// The mount is gone, and the file is still open. Returns the lost ranges that fsync has not
    /// reported.
    pub fn abandon(&self) -> Vec<Unwritten> {
        let mut failure = self.failure.lock();
        failure.released = true;
        failure.take_lost()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARENT: u64 = 1;
    const CHILD: u64 = 2;

    fn fail(writer: &Writer) {
        let lost = Unwritten::new(1, 0..10, "full".into());
        writer.fail(&FsError::NoMemory, &Arc::new(lost));
    }

    #[test]
    fn open_files_share_what_is_lost_for_all_of_them() {
        let writers = [Writer::default(), Writer::default()];
        let ranges = 10_000;
        let lose = |at: u64| {
            let lost = Arc::new(Unwritten::new(1, at..at + 10, "full".into()));
            for writer in &writers {
                writer.fail(&FsError::NoMemory, &lost);
            }
            Arc::strong_count(&lost)
        };
        assert_eq!(lose(0), 1 + writers.len());
        for n in 1..ranges {
            lose(n * 100);
        }
        for writer in writers {
            let kept = writer.failure.lock().lost.capacity();
            assert!(kept <= 2 * MOST_LOST, "{kept}");
            let lost = writer.abandon();
            let sum = lost.iter().fold((0, 0), |(count, bytes), of| {
                (count + of.ranges, bytes + of.bytes)
            });
            assert_eq!(sum, (ranges, 10 * ranges));
            assert_eq!(lost.last().unwrap().range.end, (ranges - 1) * 100 + 10);
        }
    }

    fn failed() -> Writer {
        let writer = Writer::default();
        fail(&writer);
        writer
    }

    #[test]
    fn a_close_tells_each_process_once_and_leaves_the_error_to_fsync() {
        let writer = failed();
        for closer in [CHILD, PARENT] {
            assert!(writer.close(closer).is_err());
            assert!(writer.close(closer).is_ok());
        }
        assert!(writer.take_error().is_err());
        assert!(writer.take_error().is_ok());
        assert!(!writer.has_failed());
        // What fails later is told again.
        fail(&writer);
        assert!(writer.close(PARENT).is_err());
        let (last, lost) = writer.release();
        assert!(last.is_ok() && lost.is_empty(), "it was told");
    }

    #[test]
    fn what_fsync_has_told_no_close_tells() {
        let writer = failed();
        assert!(writer.take_error().is_err());
        assert!(writer.close(PARENT).is_ok());
        assert!(writer.release().0.is_ok());
    }

    #[test]
    fn a_write_tells_once_and_leaves_the_error_to_fsync() {
        let writer = failed();
        assert!(writer.refuses());
        assert!(writer.refuse(0, &()).is_err());
        assert!(!writer.refuses());
        assert!(writer.close(PARENT).is_ok());
        assert!(writer.take_error().is_err() && writer.take_error().is_ok());
        // What fails later is told again.
        fail(&writer);
        assert!(writer.refuses());
        assert!(writer.take_error().is_err());
        assert!(!writer.refuses(), "fsync told it");
        fail(&writer);
        assert!(writer.refuse(0, &()).is_err());
        fail(&writer);
        assert!(writer.close(PARENT).is_err());
        let writer = failed();
        assert!(writer.refuse(0, &()).is_err());
        let (last, lost) = writer.release();
        assert!(last.is_ok() && lost.is_empty(), "it was told");
    }

    #[test]
    fn an_error_amid_a_long_write_is_told_by_the_next_one() {
        let writer = Writer::default();
        let part = 32 * 4096;
        writer.accepted(part, part);
        fail(&writer);
        assert!(writer.refuse(2 * part, &()).is_err());
        assert!(
            writer.refuses(),
            "the program got the length of the first part"
        );
        assert!(writer.refuse(2 * part, &()).is_err());
        assert!(!writer.refuses());
        assert!(writer.close(PARENT).is_ok());
        // A close tells what only the middle of a write was told.
        writer.accepted(part, part);
        fail(&writer);
        assert!(writer.refuse(2 * part, &()).is_err());
        assert!(writer.close(PARENT).is_err());
        // Short WRITEs, and those elsewhere, are the beginning of a write.
        for (offset, len, next) in [(0, 4096, 4096), (0, part, 0)] {
            writer.accepted(offset, len);
            fail(&writer);
            assert!(writer.refuse(next, &()).is_err());
            assert!(!writer.refuses());
        }
    }

    #[test]
    fn a_write_whose_caller_is_killed_leaves_the_error_to_close() {
        struct Killed;
        impl WaitingCaller for Killed {
            fn is_waiting(&mut self) -> bool {
                true
            }

            fn sees_result(&self) -> bool {
                false
            }
        }
        let writer = failed();
        assert!(writer.refuse(0, &Killed).is_err());
        assert!(!writer.refuses());
        assert!(writer.close(PARENT).is_err());
    }

    #[test]
    fn what_nobody_heard_at_last_is_lost() {
        let writer = failed();
        assert!(writer.close(CHILD).is_err());
        assert!(writer.close(PARENT).is_err());
        assert!(writer.unheard(PARENT).is_empty());
        assert!(writer.close(PARENT).is_err(), "it is told again");
        assert!(writer.unheard(PARENT).is_empty());
        assert_eq!(writer.release().1.len(), 1);
        let (last, lost) = failed().release();
        assert!(last.is_err() && lost.len() == 1, "no close came");
        let writer = failed();
        assert!(writer.close(PARENT).is_err());
        assert!(writer.release().0.is_ok());
        assert_eq!(writer.unheard(PARENT).len(), 1, "its release came first");
    }
}
