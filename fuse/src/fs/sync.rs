//! FLUSH, FSYNC, and writing back in general: data is on the server's stable storage when
//! close or fsync returns (RFC 1813 sections 3.3.7, 3.3.21, 4.11).

use super::file::FileData;
use super::write::settle_end;
use super::*;
use crate::cache::Verdict;
use nfsrdma_client::nfs::Cred;
use nfsrdma_xdr::nfs3::Stable;
use std::ops::Range;
use std::sync::atomic::Ordering;

/// Data that could not be written when the file system was shut down.
#[derive(Debug, Clone)]
pub struct Unwritten {
    /// The file's inode number.
    pub fileid: u64,
    /// A name it was last known by, if any.
    pub name: Option<String>,
    /// Bytes of the file.
    pub range: Range<u64>,
    /// Why.
    pub reason: String,
}

/// What a flush has to do next.
enum Next {
    Done,
    Commit(Cred),
}

/// Writers wait while this lives.
struct Flushing<'a>(&'a FileData);

impl<'a> Flushing<'a> {
    fn new(data: &'a FileData) -> Self {
        data.with(|inner| inner.flushing += 1);
        Flushing(data)
    }
}

impl Drop for Flushing<'_> {
    fn drop(&mut self) {
        self.0.with(|inner| inner.flushing -= 1);
        self.0.changed.notify_waiters();
    }
}

impl<N: Nfs3> Fs<N> {
    /// FLUSH with nothing to do, which is most of them.
    pub fn flush_cached(&self, handle: u64) -> Option<FsResult<()>> {
        let file = self.files.read().get(handle as usize).cloned()?;
        if file.has_failed() {
            return None;
        }
        if !file.can_write() {
            return Some(Ok(()));
        }
        let Some(data) = file.inode.data() else {
            return Some(Ok(()));
        };
        let clean = data.with(|inner| {
            let under_way = inner.writes > 0 || inner.committing;
            !under_way && inner.is_safe()
        });
        // An error goes the long way, which finds out whether anybody hears of it. So does a file
        // that still counts as unsafe: after close(2) it must not keep the mount busy.
        let quick = clean && !file.has_failed() && !self.unsafe_files.lock().contains(data.id);
        quick.then_some(Ok(()))
    }

    /// A descriptor is closed: if it may write, everything written to the file, by whatever
    /// descriptor, is on stable storage, or the error is told to those who wrote.
    ///
    /// `tell` hands the result over and says whether a program heard it, which one that is being
    /// killed does not: what is lost without anybody hearing of it is told at the unmount.
    pub async fn flush(self: &Arc<Self>, handle: u64, tell: impl FnOnce(FsResult<()>) -> bool) {
        let file = match self.file(handle) {
            Ok(file) => file,
            Err(error) => {
                tell(Err(error));
                return;
            }
        };
        if file.can_write() {
            self.write_back(&file.inode, true).await;
        }
        let (result, lost) = file.take_failure();
        if !tell(result) {
            self.lost.lock().extend(lost);
        }
    }

    pub async fn fsync(self: &Arc<Self>, handle: u64) -> FsResult<()> {
        let file = self.file(handle)?;
        self.write_back(&file.inode, true).await;
        file.take_error()
    }

    /// Writes everything dirty, and with `commit` also gets it onto stable storage. Errors go
    /// to the open files that wrote.
    pub(super) async fn write_back(self: &Arc<Self>, inode: &Arc<Inode>, commit: bool) {
        let Some(data) = inode.data() else { return };
        let _flushing = Flushing::new(data);
        let wtmax = self.limits().wtmax.max(1);
        loop {
            // All that is dirty in one WRITE is stable at once: no COMMIT needed.
            let last = data.with(|inner| {
                let alone = commit && inner.writes == 0 && inner.pages.uncommitted() == 0;
                if !alone || inner.pages.dirty() > u64::from(wtmax) {
                    return None;
                }
                let cred = inner.writer.clone()?;
                let job = inner.pages.begin_write(0, wtmax, false)?;
                inner.writes += 1;
                Some((job, cred, inner.pages.dirty() == 0))
            });
            if let Some((job, cred, alone)) = last {
                let stable = if alone {
                    Stable::FileSync
                } else {
                    Stable::Unstable
                };
                self.run_write(&cred, inode, job, stable).await;
                continue;
            }
            self.start_writes(inode, data, false);
            let next = data
                .until(|inner| {
                    if inner.writes > 0 {
                        // More may be started as these end.
                        let room = inner.writes < self.config.write_parallel;
                        let more = inner.pages.dirty() > 0 && inner.pages.has_idle_dirty();
                        return (room && more).then_some(None);
                    }
                    if inner.is_dirty() {
                        return Some(None);
                    }
                    settle_end(inner);
                    // Also one that failed, and is about to be told.
                    if commit && inner.committing {
                        return None;
                    }
                    if !commit || inner.pages.uncommitted() == 0 {
                        return Some(Some(Next::Done));
                    }
                    let cred = inner.writer.clone()?;
                    inner.committing = inner.pages.begin_commit();
                    Some(inner.committing.then_some(Next::Commit(cred)))
                })
                .await;
            match next {
                None => {}
                Some(Next::Done) => break,
                Some(Next::Commit(cred)) => self.run_commit(&cred, inode, data).await,
            }
        }
        if data.with(|inner| inner.is_safe()) {
            // `put` puts it back after the data.
            let mut files = self.unsafe_files.lock();
            let safe = data.with(|inner| {
                let safe = inner.is_safe();
                if safe {
                    // What others lose later is not theirs to be told of.
                    for writer in inner.writers.drain(..).filter_map(|file| file.upgrade()) {
                        writer.wrote.store(false, Ordering::Relaxed);
                    }
                }
                safe
            });
            if safe {
                files.remove(&data.id);
            }
        }
    }

    /// A COMMIT that [`Pages::begin_commit`] started.
    ///
    /// [`Pages::begin_commit`]: crate::cache::Pages::begin_commit
    pub(super) async fn run_commit(&self, cred: &Cred, inode: &Arc<Inode>, data: &Arc<FileData>) {
        /// A COMMIT that was given up has to be sent again.
        struct End<'a>(&'a FileData, bool);
        impl Drop for End<'_> {
            fn drop(&mut self) {
                self.0.with(|inner| {
                    inner.committing = false;
                    if !self.1 {
                        inner.pages.retry_commit();
                    }
                });
                self.0.changed.notify_waiters();
            }
        }
        let mut end = End(data, false);
        self.shared.stats.commits_sent.add(1);
        match self.commit_call(cred, inode).await {
            Ok((_, verifier)) => {
                let verdict = data.with(|inner| {
                    let verdict = inner.pages.end_commit(verifier);
                    if let Some(behind) = self.behind(inner) {
                        inner.pages.invalidate_range(behind);
                    }
                    verdict
                });
                if verdict == Verdict::Restarted {
                    self.shared.stats.verifier_changes.add(1);
                }
            }
            Err(error) => {
                let error = self.note_error(inode, error);
                let lost = data.with(|inner| inner.pages.fail_commit());
                for range in lost {
                    self.write_failed(inode, data, range, &error);
                }
            }
        }
        data.with(settle_end);
        end.1 = true;
        drop(end);
        self.shared.budget.make_room(0);
        self.shared.freed.notify_waiters();
    }

    /// Starts to write what has been dirty for longer than the configuration allows. To be
    /// called about once a second.
    pub fn tick(self: &Arc<Self>) {
        self.release_expired(false);
        let before = self.now().saturating_sub(nanos(self.config.dirty_age));
        let files: Vec<_> = self.unsafe_files.lock().values().cloned().collect();
        for inode in files {
            let Some(data) = inode.data() else { continue };
            let due = data.with(|inner| {
                inner
                    .pages
                    .dirty_since()
                    .is_some_and(|since| since <= before)
                    || inner.pages.dirty() == 0
                        && inner.writes == 0
                        && inner.pages.uncommitted() > 0
            });
            if due {
                let (fs, inode) = (self.clone(), inode.clone());
                nfsrdma_client::exec::spawn(async move { fs.write_back(&inode, true).await });
            }
        }
    }

    /// The kernel will ask for nothing more. Data that still waits for room in the cache is not
    /// taken: who wrote it was told of failure when the mount went, and after the last flush a
    /// part of it in the middle of nowhere is all the file could get.
    pub fn end_of_requests(&self) {
        self.ended.store(true, Ordering::Relaxed);
    }

    /// Has `hold` keep a reference to the mount while data are not safe at the server.
    pub fn set_hold(&self, hold: Hold) {
        self.unsafe_files.lock().set_hold(hold);
    }

    /// Whether any regular file is open.
    pub fn has_open_files(&self) -> bool {
        !self.files.read().is_empty()
    }

    /// Writes back and commits what is written so far. Programs may go on: their descriptors, and
    /// the hidden files of those that are unlinked, stay as they are.
    pub async fn write_back_all(self: &Arc<Self>) {
        let files: Vec<_> = self.unsafe_files.lock().values().cloned().collect();
        for inode in files {
            self.write_back(&inode, true).await;
        }
    }

    /// What is lost and no descriptor was told of. It stays to be said by [`Fs::shutdown`].
    pub fn lost(&self) -> Vec<Unwritten> {
        let lost = self.lost.lock().clone();
        self.summed_up(lost)
    }

    /// The connection to the kernel has ended, and nobody uses the mount any longer: writes back
    /// and commits everything, removes the hidden files, and tells what could not be written.
    pub async fn shutdown(self: &Arc<Self>) -> Vec<Unwritten> {
        self.closing.store(true, Ordering::Relaxed);
        self.write_back_all().await;
        self.release_expired(true);
        // A mount that was aborted (`umount -f`) leaves files open, and no RELEASE comes for them.
        let open: Vec<_> = self
            .files
            .read()
            .iter()
            .map(|(_, file)| file.clone())
            .collect();
        for file in open {
            let silly = file.inode.state.lock().silly.take();
            if let Some(silly) = silly {
                self.remove_silly(*silly).await;
            }
        }
        self.removals_done().await;
        let lost = std::mem::take(&mut *self.lost.lock());
        self.summed_up(lost)
    }

    /// What is written and not safe at the server, if nobody waits for it any longer.
    pub fn unsaved(&self, reason: &str) -> Vec<Unwritten> {
        let files: Vec<_> = self.unsafe_files.lock().values().cloned().collect();
        let unsaved = files.iter().filter_map(|inode| {
            let ranges = inode.data()?.with(|inner| inner.pages.unsaved());
            Some(ranges.into_iter().map(|range| Unwritten {
                fileid: inode.fileid,
                name: None,
                range,
                reason: reason.to_owned(),
            }))
        });
        let lost = std::mem::take(&mut *self.lost.lock());
        self.summed_up(lost.into_iter().chain(unsaved.flatten()).collect())
    }

    /// By file and place, ranges that touch as one, with names.
    fn summed_up(&self, mut lost: Vec<Unwritten>) -> Vec<Unwritten> {
        lost.sort_by_key(|u| (u.fileid, u.range.start));
        lost.dedup_by(|next, last| {
            let same = (last.fileid, &last.reason) == (next.fileid, &next.reason);
            let touch = same && next.range.start <= last.range.end;
            if touch {
                last.range.end = last.range.end.max(next.range.end);
            }
            touch
        });
        for at in 0..lost.len() {
            lost[at].name = match at.checked_sub(1).map(|before| &lost[before]) {
                Some(before) if before.fileid == lost[at].fileid => before.name.clone(),
                _ => self.names.find(lost[at].fileid),
            };
        }
        lost
    }
}
