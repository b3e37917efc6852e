//! FLUSH, FSYNC and write-back: data is on the server's stable storage when close(2) or fsync(2)
//! returns (RFC 1813 sections 3.3.7, 3.3.21, 4.11).
//!
//! `write_back` asks the file's `WriteBack` for the next action until nothing is dirty or unstable:
//! it starts WRITEs, waits for their replies, and sends a COMMIT. If the COMMIT returns another
//! write verifier than the WRITEs, the server has restarted, and `WriteBack` makes the data dirty
//! again. An error is recorded in the file ([`super::err_seq`]): the next FSYNC of each open file returns
//! it, and until then each FLUSH of those that wrote. Data that is lost without any program getting the
//! error is reported at the unmount ([`super::unwritten`]). `tick`, about once
//! a second, starts the write-back of files that have been dirty
//! for too long; `shutdown` writes back everything after the last request of the kernel.

use super::err_seq::By;
use super::error::FsResult;
use super::file::FileData;
use super::files::Files;
use super::flushes::Part;
use super::inode::Inode;
use super::objects::Objects;
use super::open_file::OpenFile;
use super::unsafe_files::Hold;
use super::unwritten::Unwritten;
use crate::cache::{Action, Goal, Verdict};
use crate::sync::Mutex;
use futures_util::future::join_all;
use nfsrdma_nfs3::{Cred, Nfs3};
use nfsrdma_xdr::nfs3::Stable;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The most files that are written back at the same time.
const FILES_AT_A_TIME: usize = 8;

/// While this lives, programs' writes to the file wait.
struct Flushing<'a>(&'a FileData);

impl<'a> Flushing<'a> {
    fn new(data: &'a FileData) -> Self {
        data.with(|inner| inner.write_back().begin_flush());
        Flushing(data)
    }
}

impl Drop for Flushing<'_> {
    fn drop(&mut self) {
        self.0.with(|inner| inner.write_back().end_flush());
        self.0.changed.notify_waiters();
    }
}

/// The flush that does the work of all with the same goal, until this is dropped.
struct Leading<'a> {
    data: &'a FileData,
    commit: bool,
    reached: bool,
}

impl<'a> Leading<'a> {
    /// Waits for the flush that leads, if there is one. `None`: it has done the work.
    async fn begin(data: &'a FileData, commit: bool) -> Option<Self> {
        let mut since = None;
        loop {
            let mut ended = pin!(data.flushed.notified());
            ended.as_mut().enable();
            match data.with(|inner| inner.flushes().part(commit, since)) {
                Part::Lead => break,
                Part::Done => return None,
                Part::Wait(number) => since = Some(number),
            }
            ended.await;
        }
        let reached = false;
        Some(Leading {
            data,
            commit,
            reached,
        })
    }
}

impl Drop for Leading<'_> {
    fn drop(&mut self) {
        let (commit, reached) = (self.commit, self.reached);
        self.data.with(|inner| {
            // Pages of a mapping may have come since: whoever waits may have waited for them.
            let has_all = match commit {
                true => inner.is_safe(),
                false => !inner.write_back().is_dirty(),
            };
            let reached = reached && has_all;
            inner.flushes().end(commit, reached);
        });
        self.data.flushed.notify_waiters();
    }
}

impl<N: Nfs3> Objects<N> {
    /// FLUSH, if there is nothing to do, which is the usual case; `None` otherwise.
    pub fn flush_cached(&self, handle: u64) -> Option<FsResult<()>> {
        let file = self.files.read().get(handle as usize).cloned()?;
        file.flushed.store(true, Ordering::Relaxed);
        if !file.can_write() {
            return Some(Ok(()));
        }
        let Some(data) = file.inode.data() else {
            return Some(Ok(()));
        };
        let clean = data.with(|inner| {
            let under_way = inner.write_back().is_under_way();
            !under_way && inner.is_safe()
        });
        // `flush` handles errors, since it knows whether a program gets them; and files that still
        // count as unsafe, because they must not keep the mount busy after close(2).
        let quick =
            clean && file.error(By::Close).is_none() && !self.unsafe_files.lock().contains(data.id);
        quick.then_some(Ok(()))
    }

    /// FLUSH: a descriptor is closed. If it may write, all data written to the file, through any
    /// descriptor, is put on stable storage, or the error is recorded.
    ///
    /// `gets`: whether a program gets the result; asked if that is an error of writing. One that is
    /// being killed does not.
    pub async fn flush(self: &Arc<Self>, handle: u64, gets: impl FnOnce() -> bool) -> FsResult<()> {
        self.flush_and_unlock(handle, 0, false, gets).await
    }

    /// As [`Objects::flush`], by the process `closer`. If it has POSIX locks on the file, `locked` is
    /// their owner, and the locks are released.
    pub async fn flush_and_unlock(
        self: &Arc<Self>,
        handle: u64,
        closer: u64,
        locked: bool,
        gets: impl FnOnce() -> bool,
    ) -> FsResult<()> {
        let file = self.file(handle)?;
        // Set before the data is looked at, so that later writes see it.
        file.flushed.store(true, Ordering::Relaxed);
        if file.can_write() {
            self.write_back(&file.inode, true).await;
            let data = file.inode.data();
            if data.is_some_and(|data| self.unsafe_files.lock().contains(data.id)) {
                self.hold_unsafe();
            }
        }
        let unlocked = match locked {
            true => self.close_locks(&file.inode, handle, closer).await,
            false => Ok(()),
        };
        self.report(&file, By::Close, gets).and(unlocked)
    }

    pub async fn fsync(self: &Arc<Self>, handle: u64) -> FsResult<()> {
        self.fsync_for(handle, || true).await
    }

    /// The same for a caller that may be killed meanwhile. `gets`: as for [`Objects::flush`]; the next fsync
    /// reports an error that no program got.
    pub async fn fsync_for(
        self: &Arc<Self>,
        handle: u64,
        gets: impl FnOnce() -> bool,
    ) -> FsResult<()> {
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
        let since = file.told.syncs();
        self.write_back(&file.inode, true).await;
        let result = self.report(file, By::Fsync, gets);
        if result.is_err() {
            file.told.not_synced(since);
        }
        result
    }
}

impl<N: Nfs3> Files<N> {
    /// Writes all dirty data, and with `commit` puts it on stable storage. Errors are recorded in the
    /// file.
    pub(super) async fn write_back(self: &Arc<Self>, inode: &Arc<Inode>, commit: bool) {
        let Some(data) = inode.data() else { return };
        let _flushing = Flushing::new(data);
        let Some(mut leading) = Leading::begin(data, commit).await else {
            return;
        };
        let goal = match commit {
            true => Goal::Committed,
            false => Goal::Written,
        };
        loop {
            let action = data.until(|inner| {
                let limits = self.write_limits();
                match inner.write_back().next(goal, &limits) {
                    Action::Wait => None,
                    action => Some(action),
                }
            });
            match action.await {
                // FILE_SYNC: mostly this WRITE is the last one, and there will be no COMMIT.
                Action::Write(call) if call.stable == Stable::FileSync => {
                    self.run_write(&call.cred, inode, call.job, call.stable)
                        .await;
                }
                Action::Write(call) => self.spawn_write(inode, call),
                Action::Commit(cred) => self.run_commit(&cred, inode, data).await,
                Action::Again | Action::Wait => {}
                Action::Done => break,
            }
        }
        leading.reached = true;
        self.note_safe(data);
    }

    /// Removes a file from the unsafe ones if all of its data is on stable storage.
    pub(super) fn note_safe(&self, data: &FileData) {
        if data.with(|inner| inner.is_safe()) {
            // `put` adds the file to this set after it has added the data.
            let mut files = self.unsafe_files.lock();
            if data.with(|inner| inner.is_safe()) {
                files.remove(&data.id);
            }
        }
    }

    /// Sends a COMMIT for which [`WriteBack::next`] asked.
    ///
    /// [`WriteBack::next`]: crate::cache::WriteBack::next
    pub(super) async fn run_commit(&self, cred: &Cred, inode: &Arc<Inode>, data: &Arc<FileData>) {
        /// If the future is dropped, another COMMIT is needed.
        struct End<'a>(&'a FileData);
        impl Drop for End<'_> {
            fn drop(&mut self) {
                self.0.with(|inner| inner.write_back().commit_ended());
                self.0.changed.notify_waiters();
            }
        }
        let end = End(data);
        self.shared.stats.commits_sent.add(1);
        match self.commit_call(cred, inode).await {
            Ok((_, verifier)) => {
                let verdict = data.with(|inner| inner.write_back().commit_answered(verifier));
                while !data.with(|inner| inner.write_back().end_commit()) {}
                data.with(|inner| {
                    if let Some(behind) = self.behind(inner) {
                        inner.pages().invalidate_range(behind);
                    }
                });
                if verdict == Verdict::Restarted {
                    self.suspect_locks();
                }
            }
            Err(error) => {
                let error = self.note_error(inode, error);
                loop {
                    let (lost, all) = data.with(|inner| inner.write_back().commit_failed());
                    self.write_failed(inode, data, &lost, &error);
                    if all {
                        break;
                    }
                }
            }
        }
        drop(end);
        self.shared.budget.make_room(0);
        self.shared.freed.notify_waiters();
        self.shared.writers.call();
    }

    /// Writes back and commits those `files` for which `start` returns true, some at the same time,
    /// and calls `finish` after each.
    pub(super) async fn write_back_files(
        self: &Arc<Self>,
        files: Vec<Arc<Inode>>,
        start: impl Fn(&Inode) -> bool,
        finish: impl Fn(&Inode),
    ) {
        let workers = files.len().min(FILES_AT_A_TIME);
        let files = Mutex::new(files);
        let next = || files.lock().pop();
        let worker = || async {
            while let Some(inode) = next() {
                if start(&inode) {
                    self.write_back(&inode, true).await;
                    finish(&inode);
                }
            }
        };
        join_all((0..workers).map(|_| worker())).await;
    }

    /// Sets the function that keeps a reference to the mount while data is not safe at the server
    /// and no descriptor keeps one.
    pub fn set_hold(&self, hold: Hold) {
        self.unsafe_files.lock().set_hold(hold);
    }

    /// FLUSH will be answered although data is not safe: a reference to the mount is needed.
    pub fn hold_unsafe(&self) {
        self.unsafe_files.lock().keep();
    }

    /// Writes back and commits all data written so far. Programs can go on: open files stay open,
    /// and hidden files stay.
    pub async fn write_back_all(self: &Arc<Self>) {
        let files: Vec<_> = self.unsafe_files.lock().values().cloned().collect();
        self.write_back_files(files, |_| true, |_| {}).await;
        let failures = self.failures.lock().rest();
        if let Some(line) = failures {
            tracing::error!("{line}");
        }
    }

    /// The lost data of which no program got the error. [`Fs::shutdown`](super::Fs::shutdown) returns it as well.
    pub fn lost(&self) -> Vec<Unwritten> {
        let lost = self.lost.lock().all();
        self.with_names(lost)
    }

    /// The lost data, and all data that is not safe at the server, for when it is given up.
    pub fn unsaved(&self, reason: &str) -> Vec<Unwritten> {
        let files: Vec<_> = self.unsafe_files.lock().values().cloned().collect();
        let mut lost = std::mem::take(&mut *self.lost.lock());
        for inode in &files {
            let Some(data) = inode.data() else { continue };
            for range in data.with(|inner| inner.pages().unsaved()) {
                let range = Unwritten::new(inode.fileid, range, reason.to_owned());
                lost.add(data.id, u64::MAX, range);
            }
        }
        self.with_names(lost.all())
    }

    pub(super) fn with_names(&self, mut lost: Vec<Unwritten>) -> Vec<Unwritten> {
        let names = self.names.paths(lost.iter().map(|of| of.fileid));
        for of in &mut lost {
            of.name = names.get(&of.fileid).cloned();
        }
        lost
    }
}
