//! Write-back: dirty data goes to the server, and onto its stable storage (RFC 1813 sections 3.3.7, 3.3.21 and 4.11).
//!
//! The file's `WriteBack` keeps the state of each byte and names the next action, which this file carries out: a WRITE is sent as
//! soon as what was written last, one after the other, is `wtmax` bytes long. All files share half of the server's credits, so that
//! READs and LOOKUPs do not queue behind a flush; each may have two. The reply makes the bytes unstable or clean. If the WRITE
//! fails, its data is dropped, and the error is recorded; if its user has no valid ticket, the data is kept ([`super::giving_up`]).
//! `write_back` starts WRITEs, waits for their replies, and sends a COMMIT, until nothing is dirty or unstable. If the COMMIT
//! returns another write verifier than the WRITEs, the server has restarted, and `WriteBack` makes the data dirty again. Programs'
//! writes wait meanwhile, so a flush ends.

use super::error::FsResult;
use super::file::{FileData, FileState};
use super::files::Files;
use super::inode::Inode;
use super::under_way::Doing;
use super::unsafe_files::Hold;
use super::unwritten::Unwritten;
use crate::cache::{Action, Goal, Verdict, WriteCall, WriteJob, WriteLimits};
use futures_util::stream::{self, StreamExt};
use nfsrdma_nfs3::{Cred, Credential, Nfs3, NfsError};
use nfsrdma_rpcrdma::exec;
use nfsrdma_xdr::nfs3::Stable;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How many files [`Files::relieve`] writes back at a time.
const RELIEVED: usize = 16;
/// The most files among which it looks for them.
const LOOKED_AT: usize = 1024;
/// The most files that are written back at the same time.
const FILES_AT_A_TIME: usize = 8;

/// The most WRITEs under way at a time, however many credits the server grants.
const MOST_WRITES: usize = 256;

/// The pause before [`Files::write_back_all`] looks for tickets again.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

impl<N: Nfs3> Files<N> {
    /// The limits for the WRITEs of a file now. Half of the server's credits are left to READs and to
    /// calls on names, which would otherwise wait for the WRITEs of a flush.
    pub(super) fn write_limits(&self) -> WriteLimits {
        let calls = self.shared.calls.load(Ordering::Relaxed);
        let most = (calls / 2).clamp(1, MOST_WRITES);
        let wtmax = self.limits().wtmax.max(1);
        let dirty = self.shared.dirty.load(Ordering::Relaxed);
        WriteLimits {
            wtmax,
            free: most.saturating_sub(self.shared.writes.load(Ordering::Relaxed)),
            most_bytes: (self.config.dirty_bytes as u64 / 4).max(u64::from(wtmax)),
            dirty_file_bytes: self.config.dirty_file_bytes,
            crowded: dirty > self.config.dirty_bytes / 2,
        }
    }

    /// Starts the WRITEs that `goal` asks for, which is [`Goal::Full`] or [`Goal::Started`].
    pub(super) fn start_writes(
        self: &Arc<Self>,
        inode: &Arc<Inode>,
        data: &Arc<FileData>,
        goal: Goal,
    ) {
        let next = |inner: &mut FileState| match self.no_ticket(inner) {
            // Nothing wakes it: the tick, and the next fsync or close of its user, try again.
            Some(_) => Action::Wait,
            None => {
                let limits = self.write_limits();
                inner.write_back().next(goal, &limits)
            }
        };
        while let Action::Write(call) = data.with(next) {
            self.spawn_write(inode, call);
        }
    }

    /// Sends a WRITE without waiting for its reply.
    fn spawn_write(self: &Arc<Self>, inode: &Arc<Inode>, call: WriteCall) {
        let (fs, inode) = (self.clone(), inode.clone());
        let WriteCall { job, cred, stable } = call;
        let write = || async move { fs.run_write(&cred, &inode, job, stable).await };
        exec::spawn_for(None, write);
    }

    /// Starts to write and commit data because memory is short. It takes a few files at a time, and
    /// the next ones when it is called again, or these if they are done.
    pub(super) fn relieve(self: &Arc<Self>) {
        self.limit_ticketless();
        let files: Vec<_> = {
            let files = self.unsafe_files.lock();
            // Where the server answers FILE_SYNC, most of the files may have nothing to do.
            let waits = |inner: &mut FileState| {
                let idle = !inner.is_safe() && !inner.write_back().is_under_way();
                idle && self.no_ticket(inner).is_none()
            };
            let looked_at = files.values().take(LOOKED_AT);
            let waiting =
                looked_at.filter(|inode| inode.data().is_some_and(|data| data.with(waits)));
            waiting.take(RELIEVED).cloned().collect()
        };
        for inode in files {
            if let Some(data) = inode.data() {
                self.start_writes(&inode, data, Goal::Started);
                self.start_commit(&inode, data, 1);
            }
        }
    }

    /// Sends a COMMIT if at least `least` bytes are unstable, which lets them go.
    fn start_commit(self: &Arc<Self>, inode: &Arc<Inode>, data: &Arc<FileData>, least: usize) {
        let commit = data.with(|inner| match self.no_ticket(inner) {
            Some(_) => Action::Done,
            None => inner.write_back().commit_of(least as u64),
        });
        if let Action::Commit(cred) = commit {
            self.spawn_commit(inode, cred);
        }
    }

    fn spawn_commit(self: &Arc<Self>, inode: &Arc<Inode>, cred: Cred) {
        let (fs, inode) = (self.clone(), inode.clone());
        exec::spawn(async move { fs.run_commit(&cred, &inode).await });
    }

    /// Sends a WRITE, and does what follows from its reply.
    async fn run_write(
        self: &Arc<Self>,
        cred: &Cred,
        inode: &Arc<Inode>,
        job: WriteJob,
        stable: Stable,
    ) {
        let data = self.data(inode);
        let sent = job.offset..job.offset + u64::from(job.len);
        self.shared.stats.writes_sent.add(1);
        let busy = self.shared.busy();
        let answer = self
            .write_call(cred, inode, job.offset, job.data, stable)
            .await;
        let unsent = match answer {
            Ok(done) => {
                self.shared.ticketless.remove(cred);
                let count = done.count.min(job.len);
                let verdict = data.with(|inner| {
                    // A READ that is under way may return the old data, and it must not be cached
                    // even if the block is dropped before.
                    inner.void_reads(sent.clone());
                    inner
                        .write_back()
                        .write_answered(sent, count, done.committed, done.verifier)
                });
                if verdict == Verdict::Restarted {
                    self.suspect_locks();
                }
                0..0
            }
            // The data is dirty again.
            Err(error) if self.waits_for_ticket(&error) => {
                self.lacks_ticket(cred, data, error);
                sent
            }
            Err(error) => {
                let error = self.note_error(inode, error);
                data.with(|inner| inner.write_back().write_failed(sent.clone()));
                self.write_failed(inode, data, &[sent], &error);
                0..0
            }
        };
        data.with(|inner| inner.write_back().write_ended(unsent));
        data.changed.notify_waiters();
        drop(busy);
        // There is room for another full WRITE now.
        self.start_writes(inode, data, Goal::Full);
        let all = self.shared.uncommitted.load(Ordering::Relaxed);
        if all > self.config.cache_bytes / 4 {
            self.start_commit(inode, data, self.config.cache_bytes / 32);
        }
    }

    /// Writes all dirty data, and with `commit` puts it on stable storage. Errors are recorded in the
    /// file, but for the one that is returned: a user whose data that is has no valid ticket. The data is
    /// kept then as if the server were silent, but nobody waits for it.
    pub(super) async fn write_back(
        self: &Arc<Self>,
        inode: &Arc<Inode>,
        commit: bool,
    ) -> Option<NfsError> {
        let data = inode.data()?;
        let _flushing = data.keep_writers(Doing::Flush);
        let _turn = data.flush_turn[usize::from(commit)].lock().await;
        let before = data.with(|inner| inner.no_tickets);
        let goal = match commit {
            true => Goal::Committed,
            false => Goal::Written,
        };
        loop {
            let action = data.until(|inner| {
                if inner.no_tickets > before {
                    return Some(Action::Done);
                }
                let limits = self.write_limits();
                match inner.write_back().next(goal, &limits) {
                    Action::Wait => None,
                    action => Some(action),
                }
            });
            match action.await {
                Action::Write(call) => self.spawn_write(inode, call),
                Action::Commit(cred) => self.spawn_commit(inode, cred),
                Action::Wait => {}
                Action::Done => break,
            }
        }
        self.note_safe(inode);
        data.with(|inner| {
            let lacked = inner.no_tickets > before;
            inner.no_ticket.clone().filter(|_| lacked)
        })
    }

    /// Puts all data on stable storage that was written before an operation of the user of `cred`. If there is no ticket for it,
    /// that is the error of who wrote it. For others who may write the file it is given up, and who may not goes on without it.
    pub(super) async fn write_back_for(
        self: &Arc<Self>,
        cred: &Credential,
        inode: &Arc<Inode>,
        may_write: bool,
    ) -> FsResult<()> {
        while let Some(why) = self.write_back(inode, true).await {
            if self.has_written(cred, inode) {
                return Err(why.into());
            }
            if !may_write {
                break;
            }
            self.give_up(inode);
        }
        Ok(())
    }

    /// A WRITE or COMMIT was not made because its user has no valid ticket: its data is kept.
    fn lacks_ticket(&self, cred: &Cred, data: &FileData, why: NfsError) {
        self.shared.ticketless.insert(cred, why.clone());
        data.with(|inner| {
            inner.no_tickets += 1;
            inner.no_ticket = Some(why);
        });
    }

    /// The files with data that may not be on stable storage.
    pub(super) fn unsafe_inodes(&self) -> Vec<Arc<Inode>> {
        self.unsafe_files.lock().values().cloned().collect()
    }

    /// Removes a file from the unsafe ones if all of its data is on stable storage.
    pub(super) fn note_safe(&self, inode: &Inode) {
        let Some(data) = inode.data() else { return };
        if data.with(|inner| inner.is_safe()) {
            // `put` adds the file to this set after it has added the data.
            let mut files = self.unsafe_files.lock();
            if data.with(|inner| inner.is_safe()) {
                files.remove(&inode.nodeid);
            }
        }
    }

    /// Sends a COMMIT, and does what follows from its reply.
    async fn run_commit(&self, cred: &Cred, inode: &Arc<Inode>) {
        let data = self.data(inode);
        self.shared.stats.commits_sent.add(1);
        match self.commit_call(cred, inode).await {
            Ok((_, verifier)) => {
                let verdict = data.with(|inner| inner.write_back().commit_answered(verifier));
                self.shared.ticketless.remove(cred);
                if verdict == Verdict::Restarted {
                    self.suspect_locks();
                }
            }
            // It waits for another COMMIT.
            Err(error) if self.waits_for_ticket(&error) => self.lacks_ticket(cred, data, error),
            Err(error) => {
                let error = self.note_error(inode, error);
                let lost = data.with(|inner| inner.write_back().commit_failed());
                self.write_failed(inode, data, &lost, &error);
            }
        }
        data.with(|inner| inner.write_back().commit_ended());
        data.changed.notify_waiters();
        self.shared.freed.notify_waiters();
        self.shared.room.notify_one();
    }

    /// Sets the function that keeps a reference to the mount while data is not safe at the server and no descriptor keeps one.
    pub fn set_hold(&self, hold: Hold) {
        self.unsafe_files.lock().set_hold(hold);
    }

    /// FLUSH will be answered although data is not safe: a reference to the mount is needed.
    pub fn hold_unsafe(&self) {
        self.unsafe_files.lock().keep();
    }

    /// Writes back and commits all data written so far. Programs can go on: open files stay open,
    /// and hidden files stay. Data without a ticket is waited for, but not at the end of the mount.
    pub async fn write_back_all(self: &Arc<Self>) {
        self.write_back_files(|_| true).await;
    }

    /// The same for the files with data that would be lost with this process.
    pub async fn write_back_unkept(self: &Arc<Self>) {
        self.write_back_files(|inode| inode.unsafe_.load(Ordering::Relaxed) != 0)
            .await;
    }

    async fn write_back_files(self: &Arc<Self>, wanted: impl Fn(&Inode) -> bool) {
        loop {
            let kept = AtomicBool::new(false);
            let mut files = self.unsafe_inodes();
            files.retain(|inode| wanted(inode));
            let write_back = async |inode| {
                if self.write_back(&inode, true).await.is_some() {
                    kept.store(true, Ordering::Relaxed);
                }
            };
            stream::iter(files)
                .for_each_concurrent(FILES_AT_A_TIME, write_back)
                .await;
            if !kept.into_inner() {
                return;
            }
            self.nfs.sleep(LOOK_AGAIN).await;
        }
    }

    /// The lost data of which no program got the error. [`Fs::shutdown`](super::Fs::shutdown) returns it as well.
    pub fn lost(&self) -> Vec<Unwritten> {
        let lost = self.lost.lock().all();
        self.with_names(lost)
    }

    /// The lost data, and all data that is not safe at the server, for when it is given up.
    pub fn unsaved(&self, reason: &str) -> Vec<Unwritten> {
        let files = self.unsafe_inodes();
        let mut lost = std::mem::take(&mut *self.lost.lock());
        for inode in &files {
            let Some(data) = inode.data() else { continue };
            for range in data.with(|inner| inner.pages().unsaved()) {
                let range = Unwritten::new(inode.fileid, range, reason.to_owned());
                lost.add(inode.nodeid, u64::MAX, range);
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
