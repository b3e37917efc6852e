//! What becomes of errors of WRITE and COMMIT.

use super::err_seq::By;
use super::error::{FsError, FsResult};
use super::failures;
use super::file::FileData;
use super::files::Files;
use super::inode::Inode;
use super::open_file::OpenFile;
use super::unwritten::Unwritten;
use crate::named;
use nfsrdma_nfs3::Nfs3;
use std::ops::Range;

impl<N: Nfs3> Files<N> {
    /// The error for a call to report. If the program gets it, the unmount need not tell it.
    pub(super) fn report(
        &self,
        file: &OpenFile,
        by: By,
        gets: impl FnOnce() -> bool,
    ) -> FsResult<()> {
        let (Some((number, error)), Some(data)) = (file.error(by), file.inode.data()) else {
            return Ok(());
        };
        if gets() && file.told.tells(by, number) {
            data.errors.saw(number);
            self.lost.lock().forget(data.id, number);
        }
        Err(error)
    }

    /// Data could not be written. The unmount reports it, unless a program gets the error before.
    pub(super) fn write_failed(
        &self,
        inode: &Inode,
        data: &FileData,
        ranges: &[Range<u64>],
        error: &FsError,
    ) {
        let Some(first) = ranges.first() else { return };
        self.shared.stats.write_errors.add(ranges.len() as u64);
        let fileid = inode.fileid;
        if self.failures.lock().note(fileid, ranges) {
            let paths = self.names.paths([fileid].into_iter());
            let file = named::file(paths.get(&fileid), fileid);
            failures::log(&file, first, error);
        }
        self.contents_lost(inode);
        let reason = error.to_string();
        // Locked first, so that whoever gets the error finds the ranges.
        let mut lost = self.lost.lock();
        let number = data.errors.record(error);
        for range in ranges {
            let range = Unwritten::new(fileid, range.clone(), reason.clone());
            lost.add(data.id, number, range);
        }
    }
}

impl OpenFile {
    /// The error that a call has to tell, and its number.
    pub(super) fn error(&self, by: By) -> Option<(u64, FsError)> {
        self.told.due(by, &self.inode.data()?.errors)
    }
}
