//! What becomes of errors of WRITE and COMMIT.

use super::err_seq::By;
use super::error::{FsError, FsResult};
use super::file::FileData;
use super::files::Files;
use super::inode::Inode;
use super::objects::Objects;
use super::open_file::OpenFile;
use super::unwritten::Unwritten;
use crate::named;
use nfsrdma_nfs3::{Nfs3, NfsError};
use nfsrdma_rpcrdma::throttle::and_more;
use nfsrdma_rpcrdma::words::counted;
use nfsrdma_xdr::nfs3::Status;
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::time::Duration;

impl<N: Nfs3> Objects<N> {
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
        if !gets() {
            return Err(error);
        }
        file.told.tells(by, number);
        if by != By::Write {
            data.errors.saw(number);
            let by_all = || {
                let files = self.open_for_writing(&file.inode);
                let told = |file: &OpenFile| file.error(By::Fsync).is_none();
                data.errors.are_seen() && files.iter().all(|(_, file)| told(file))
            };
            if by == By::Fsync && by_all() {
                // The next process would tell it again, as it does not know to which open files it was told. While it
                // is due to one of them, and after a close(2), which may be a child's, it has to: until the last one.
                file.inode.errno.store(0, Ordering::Relaxed);
            }
            self.lost.lock().forget(file.inode.nodeid, number);
        }
        Err(error)
    }
}

impl<N: Nfs3> Files<N> {
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
        let now = Duration::from_nanos(self.now());
        let due = self.failures.lock().event(now);
        if let Some(more) = due {
            let paths = self.names.paths([fileid].into_iter());
            tracing::error!(
                "data could not be written: {} from byte {} on of {}: {error}; {}{}",
                counted(first.end - first.start, "byte"),
                first.start,
                named::file(paths.get(&fileid), fileid),
                remedy(error),
                and_more(more)
            );
        }
        self.contents_lost(inode);
        let reason = error.to_string();
        // Locked first, so that whoever gets the error finds the ranges.
        let mut lost = self.lost.lock();
        let number = data.errors.record(error);
        inode.errno.store(error.errno() as u8, Ordering::Relaxed);
        for range in ranges {
            let range = Unwritten::new(fileid, range.clone(), reason.clone());
            lost.add(inode.nodeid, number, range);
        }
    }
}

/// What can be done about an error of writing.
fn remedy(error: &FsError) -> &'static str {
    match error {
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
        FsError::Nfs(NfsError::Expired(_) | NfsError::NoCredential(_)) => {
            "its user had no valid ticket: kinit gets one"
        }
        FsError::Nfs(NfsError::Local(_)) | FsError::NoMemory => {
            "free memory, or mount with a smaller cache"
        }
        _ => "see the server's log",
    }
}

impl OpenFile {
    /// The error that a call has to tell, and its number.
    pub(super) fn error(&self, by: By) -> Option<(u64, FsError)> {
        if by != By::Fsync && !self.can_write() {
            return None;
        }
        self.told.due(by, &self.inode.data()?.errors)
    }
}
