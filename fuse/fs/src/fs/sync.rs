//! FLUSH and FSYNC: data is on the server's stable storage when close(2) or fsync(2) returns (RFC 1813
//! sections 3.3.7, 3.3.21, 4.11).
//!
//! `flush.rs` writes it back. An error is recorded in the file ([`super::err_seq`]): the next FSYNC of each
//! open file returns it, and until then each FLUSH of those that may write. Data that is lost without any
//! program getting the error is reported at the unmount ([`super::unwritten`]).
//!
//! The kernel's pages stay, unless data was lost, or a reply shows that somebody else has changed the file.

use super::err_seq::By;
use super::error::{FsResult, is_written};
use super::objects::Objects;
use super::open_file::OpenFile;
use nfsrdma_nfs3::Nfs3;
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl<N: Nfs3> Objects<N> {
    /// FLUSH, if there is nothing to do, which is the usual case; `None` otherwise.
    pub fn flush_cached(&self, handle: u64) -> Option<FsResult<()>> {
        let file = self.files.get(handle)?;
        file.flushed.store(true, Ordering::Relaxed);
        if !file.can_write() {
            return Some(Ok(()));
        }
        let Some(data) = file.inode.data() else {
            return Some(Ok(()));
        };
        let clean = data.with(|inner| inner.is_at_rest());
        // `flush` handles errors, since it knows whether a program gets them; and files that still
        // count as unsafe, because they must not keep the mount busy after close(2).
        let quick = clean
            && file.error(By::Close).is_none()
            && !self.unsafe_files.lock().contains(file.inode.nodeid);
        quick.then_some(Ok(()))
    }

    /// FLUSH: the process `closer` closes a descriptor. If that may write, all data written to the file,
    /// through any descriptor, is put on stable storage, or the error is recorded. If the process has
    /// POSIX locks on the file (`locked`), they are released.
    ///
    /// `gets`: whether a program gets the result; asked if that is an error of writing. One that is
    /// being killed does not.
    pub async fn flush(
        self: &Arc<Self>,
        handle: u64,
        closer: u64,
        locked: bool,
        gets: impl FnOnce() -> bool,
    ) -> FsResult<()> {
        let file = self.file(handle)?;
        // Set before the data is looked at, so that later writes see it.
        file.flushed.store(true, Ordering::Relaxed);
        let mut kept = None;
        if file.can_write() {
            kept = self.write_back(&file.inode, true).await;
            // Who has written nothing is not told of data of others that is kept.
            kept = kept.filter(|_| self.has_written(&file.cred, &file.inode));
            if locked && kept.is_some() {
                // As in `give_up_with_lock`.
                self.give_up(&file.inode);
            }
            if self.unsafe_files.lock().contains(file.inode.nodeid) {
                self.hold_unsafe();
            }
        }
        let unlocked = match locked {
            true => self.close_locks(&file.inode, handle, closer).await,
            false => Ok(()),
        };
        self.report(&file, By::Close, gets).and(unlocked)?;
        is_written(kept)
    }

    /// Fails if data that is written through `file` would be kept for lack of a ticket. If it is so with other data
    /// of the user, a call shows whether there is one now.
    pub(super) async fn has_ticket(&self, file: &OpenFile) -> FsResult<()> {
        if self.shared.ticketless.why(&file.cred).is_some() {
            self.nfs.getattr(&file.cred, &file.inode.handle).await?;
            self.shared.ticketless.remove(&file.cred);
        }
        Ok(())
    }

    /// Fails if data that was written before through `file` is lost, and no write(2) has told it.
    ///
    /// All data is written first, so that one error tells of all that does not fit. With O_SYNC each
    /// write does that itself. `gets`: whether the program gets the result.
    pub(super) async fn report_to_write(
        self: &Arc<Self>,
        file: &OpenFile,
        gets: impl FnOnce() -> bool,
    ) -> FsResult<()> {
        let has_failed = file.error(By::Write).is_some();
        if !has_failed || file.is_sync() || self.config.sync {
            return Ok(());
        }
        self.write_back(&file.inode, false).await;
        self.report(file, By::Write, gets)
    }

    /// FSYNC. `gets`: as for [`Objects::flush`]; the next fsync reports an error that no program got.
    pub async fn fsync(self: &Arc<Self>, handle: u64, gets: impl FnOnce() -> bool) -> FsResult<()> {
        let file = self.file(handle)?;
        self.sync_written(&file, gets).await?;
        self.check_locks(&file, handle)
    }

    /// fsync(2), and the end of a write with O_SYNC.
    pub(super) async fn sync_written(
        self: &Arc<Self>,
        file: &OpenFile,
        gets: impl FnOnce() -> bool,
    ) -> FsResult<()> {
        let may_write = file.can_write();
        let written = self.write_back_for(&file.cred, &file.inode, may_write);
        let written = written.await;
        self.report(file, By::Fsync, gets)?;
        written
    }
}
