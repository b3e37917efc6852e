//! What becomes of errors of WRITE and COMMIT.

use super::Fs;
use super::error::{FsError, FsResult};
use super::file::FileData;
use super::inode::Inode;
use super::open_file::OpenFile;
use super::unwritten::Unwritten;
use super::writer::WaitingCaller;
use nfsrdma_nfs3::{Nfs3, NfsError};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl<N: Nfs3> Fs<N> {
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
        if self
            .failures
            .lock()
            .note(inode.fileid, ranges, error, self.now())
        {
            let range = ranges.first();
            tracing::error!(fileid = inode.fileid, ?range, %error, "data could not be written");
        }
        self.contents_lost(inode);
        let writers: Vec<_> = data.with(|inner| inner.write_back().writers().collect());
        let told = !writers.is_empty();
        for range in ranges {
            let lost = Unwritten::new(inode.fileid, range.clone(), error.to_string());
            for writer in &writers {
                writer.fail(error, lost.clone());
            }
            if !told || self.closing.load(Ordering::Relaxed) {
                self.lose([lost]);
            }
        }
    }
}
