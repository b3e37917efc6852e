//! What becomes of errors of WRITE and COMMIT.

use super::clock::Nanos;
use super::error::{FsError, FsResult};
use super::failures;
use super::file::{FileData, FileState};
use super::files::Files;
use super::inode::Inode;
use super::open_file::OpenFile;
use super::unwritten::Unwritten;
use super::writer::WaitingCaller;
use nfsrdma_nfs3::{Nfs3, NfsError};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl<N: Nfs3> Files<N> {
    /// Fails if data that was written before through `file` is lost, and no write(2) has reported it:
    /// a program that writes until a disk or a quota is full stops when write(2) fails.
    ///
    /// All data is written first, so that one error tells of all that does not fit. With O_SYNC each
    /// write does that itself.
    pub(super) async fn report_failure(
        self: &Arc<Self>,
        file: &Arc<OpenFile>,
        offset: u64,
        caller: &mut impl WaitingCaller,
    ) -> FsResult<()> {
        if !file.writer.refuses() || file.is_sync() || self.config.sync {
            return Ok(());
        }
        self.write_back(&file.inode, false).await;
        if !caller.is_waiting() {
            return Err(NfsError::Interrupted.into());
        }
        file.writer.refuse(offset, caller)
    }

    /// The error for fsync to report to `caller`, once: of data that was lost since `file` was opened,
    /// whichever program of its user wrote it: one may put on stable storage what others have written.
    /// (The errors of other users are theirs.)
    pub(super) fn report_lost(&self, file: &OpenFile, caller: &impl WaitingCaller) -> FsResult<()> {
        self.report_own(file, caller)?;
        let Some(data) = file.inode.data() else {
            return Ok(());
        };
        let told = file.losses.load(Ordering::Relaxed);
        let lost_since = |inner: &mut FileState| inner.lost_since(file.cred.uid, told);
        let (losses, lost) = data.with(|inner| (inner.losses(), lost_since(inner)));
        if caller.sees_result() {
            file.losses.store(losses, Ordering::Relaxed);
        }
        lost.map_or(Ok(()), Err)
    }

    /// The error for a write with O_SYNC to report, once: of data that was written through `file`.
    pub(super) fn report_own(&self, file: &OpenFile, caller: &impl WaitingCaller) -> FsResult<()> {
        // Read before: what fails meanwhile is told by the next fsync.
        let losses = file.inode.losses();
        let reported = file.writer.report(caller);
        if reported.is_err() && caller.sees_result() {
            file.losses.store(losses, Ordering::Relaxed);
        }
        reported
    }

    /// The lines about data that could not be written, which are to be logged at `now`.
    pub(super) fn failures_due(&self, now: Nanos) -> Vec<String> {
        let paths = |files: &[u64]| self.names.paths(files.iter().copied());
        self.failures.lock().due(now, paths)
    }

    /// Data could not be written: reports the error to each open file that wrote, or keeps it for
    /// the unmount if none is left.
    pub(super) fn write_failed(
        &self,
        inode: &Inode,
        data: &FileData,
        ranges: &[Range<u64>],
        error: &FsError,
    ) {
        self.shared.stats.write_errors.add(ranges.len() as u64);
        let fileid = inode.fileid;
        let first = (self.failures.lock()).note(fileid, ranges, error, self.now());
        if first && let Some(range) = ranges.first() {
            let paths = self.names.paths([fileid].into_iter());
            let line = failures::first_line(paths.get(&fileid), fileid, range, error);
            tracing::error!("{line}");
        }
        self.contents_lost(inode);
        let writers: Vec<_> = data.with(|inner| {
            inner.lose(error);
            inner.write_back().writers().collect()
        });
        let told = !writers.is_empty();
        for range in ranges {
            let lost = Unwritten::new(inode.fileid, range.clone(), error.to_string());
            let lost = Arc::new(lost);
            for writer in &writers {
                writer.fail(error, &lost);
            }
            if !told || self.is_closing() {
                self.lose([Arc::unwrap_or_clone(lost)]);
            }
        }
    }
}
