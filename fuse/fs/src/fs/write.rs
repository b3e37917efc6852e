//! WRITE: from a program's write(2) into the page cache, and from there to the server.
//!
//! A buffered write is copied into blocks of the cache and answered at once (`write_cached`).
//! `write` waits where that is impossible: the limit of dirty memory is reached, the buffer pool is
//! empty, the file is being flushed, or it has another user's data that is not on stable storage.
//! The file's `WriteBack` keeps the state of each byte and names the next action, which this file
//! carries out: a WRITE (RFC 1813 section 3.3.7) is sent as soon as `wtmax` bytes are dirty,
//! several at a time, but with about half of the server's credits at most, so that READs and
//! LOOKUPs do not queue behind a flush. The reply makes the bytes unstable or clean. If the WRITE
//! fails, its data is dropped, and the error is recorded in the file, to be returned by the next write(2),
//! fsync(2) or close(2) of each open file ([`super::err_seq`]).
//! O_DIRECT writes bypass the cache ([`super::direct_write`]).

use super::changing::not_abandoned;
use super::err_seq::By;
use super::error::{FsError, FsResult};
use super::file::{FileData, FileState};
use super::files::Files;
use super::inode::Inode;
use super::objects::Objects;
use super::open_file::OpenFile;
use super::outdated::size_with;
use super::server::MemoryWait;
use super::write_place::{Origin, Place};
use crate::cache::{
    Accepted, Action, Goal, MAX_PIECE, Turn, Verdict, WriteCall, WriteData, WriteJob, WriteLimits,
};
use nfsrdma_nfs3::{Cred, Nfs3, NfsError, WriteDone};
use nfsrdma_rpcrdma::exec;
use nfsrdma_xdr::nfs3::Stable;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// How many files [`Files::relieve`] writes back at a time.
const RELIEVED: usize = 16;
/// The most files among which it looks for them.
const LOOKED_AT: usize = 1024;
/// After so many pauses in which a flush has made no progress, pages of a mapping become part of it:
/// the kernel waits for them, and with it, uninterruptibly, a program that closes the file. A server
/// that does not answer must not keep that.
const LATE: u32 = 3;

impl<N: Nfs3> Objects<N> {
    /// Writes into the cache if there is room; `None` if [`Objects::write`] has to be called.
    ///
    /// The kernel's offset of an append is not used. The kernel computes it from the size that it
    /// was last given and from its own writes. But others may have appended or truncated since, own
    /// writes may have been moved for that reason, and one write(2) may be several requests.
    pub fn write_cached<'a>(
        self: &Arc<Self>,
        handle: u64,
        offset: u64,
        data: impl Into<WriteData<'a>>,
        flags: i32,
    ) -> Option<FsResult<u32>> {
        let file = self.files.read().get(handle as usize).cloned()?;
        let waits = OpenFile::is_direct(flags) || file.is_sync() || self.config.sync;
        if waits || file.error(By::Write).is_some() {
            return None;
        }
        self.check_locks(&file, handle).ok()?;
        let place = if flags & libc::O_APPEND != 0 {
            let (end, ended) = self.known_end(&file.inode);
            Place::End(end?, ended)
        } else {
            file.inode.state.lock().attributes()?;
            Place::At(offset)
        };
        let result = self.put_now(&file, place, data.into())?;
        if let Ok(len) = result {
            accepted(&file, offset, len);
        }
        Some(result)
    }

    /// As [`Objects::write_cached`], for pages of a mapping of the only open file.
    pub fn write_mapped_cached<'a>(
        self: &Arc<Self>,
        handle: u64,
        offset: u64,
        data: impl Into<WriteData<'a>>,
    ) -> Option<FsResult<u32>> {
        let file = self.files.read().get(handle as usize).cloned()?;
        let data = data.into();
        let end = offset.saturating_add(data.len() as u64);
        if file.is_sync() || self.config.sync || self.is_beyond(&file.inode, end) {
            return None;
        }
        self.check_locks(&file, handle).ok()?;
        self.put_now(&file, Place::Mapped(offset), data)
    }

    /// Puts data into the cache if there is room now.
    fn put_now(
        self: &Arc<Self>,
        file: &Arc<OpenFile>,
        place: Place,
        data: WriteData<'_>,
    ) -> Option<FsResult<u32>> {
        let data = match self.below_the_limit(place.offset(), data) {
            Ok(data) => data,
            Err(error) => return Some(Err(error)),
        };
        match self.put(file, &[], place, data) {
            Ok(Accepted::All) => Some(Ok(data.len() as u32)),
            Ok(Accepted::Wait | Accepted::Full | Accepted::Short(_) | Accepted::OtherUser) => None,
            Err(error) => Some(Err(error)),
        }
    }

    /// Writes into the cache, waiting for room; or to the server at once, for O_DIRECT and O_SYNC.
    pub async fn write<'a>(
        self: &Arc<Self>,
        handle: u64,
        offset: u64,
        data: impl Into<WriteData<'a>>,
        flags: i32,
    ) -> FsResult<u32> {
        self.write_for(handle, offset, data, flags, || true).await
    }

    /// The same for a caller that may be killed meanwhile. Where a write ends with the data on stable
    /// storage, errors are reported as by [`Objects::fsync_for`]; `gets` is as there.
    pub async fn write_for<'a>(
        self: &Arc<Self>,
        handle: u64,
        offset: u64,
        data: impl Into<WriteData<'a>>,
        flags: i32,
        mut gets: impl FnMut() -> bool,
    ) -> FsResult<u32> {
        let data = data.into();
        let file = self.file(handle)?;
        self.check_locks(&file, handle)?;
        if !OpenFile::is_direct(flags) {
            self.report_to_write(&file, &mut gets).await?;
        }
        let origin = Origin::Call(flags);
        let len = self.write_by(&file, &[], offset, data, origin).await?;
        if !OpenFile::is_direct(flags) && (file.is_sync() || self.config.sync) {
            self.sync_written(&file, gets).await?;
        }
        accepted(&file, offset, len);
        Ok(len)
    }

    /// Writes with the credential of whoever opened `file`. If a WRITE fails, the close of `file` and of
    /// `others` reports the error.
    pub(super) async fn write_by(
        self: &Arc<Self>,
        file: &Arc<OpenFile>,
        others: &[Arc<OpenFile>],
        offset: u64,
        given: WriteData<'_>,
        origin: Origin,
    ) -> FsResult<u32> {
        let inode = &file.inode;
        let has = |flag| matches!(origin, Origin::Call(flags) if flags & flag != 0);
        let appends = has(libc::O_APPEND);
        if !appends {
            self.attributes_or_fetch(&file.cred, inode).await?;
        }
        if has(libc::O_DIRECT) {
            self.write_direct(file, offset, appends, given).await?;
            return Ok(given.len() as u32);
        }
        let data = self.data(inode);
        let mut waited = MemoryWait::default();
        let mut turn: Option<Turn<'_>> = None;
        // What is stored already, because there was not memory for all at once.
        let (mut stored, mut since, mut pauses) = (0, 0, 0);
        let written = loop {
            let mut changed = std::pin::pin!(data.changed.notified());
            let mut freed = std::pin::pin!(self.shared.freed.notified());
            changed.as_mut().enable();
            freed.as_mut().enable();
            // A truncation meanwhile comes before all of the data, not between its parts.
            let ended = data.with(|inner| inner.ended());
            if std::mem::replace(&mut since, ended) != ended {
                stored = 0;
            }
            let (offset, rest) = (offset + stored as u64, given.after(stored));
            // The end may have moved while this waited.
            let place = match self.place_now(inode, origin, offset, rest.len()) {
                Some(Place::At(offset)) if stored > 0 => Place::Rest(offset, ended),
                Some(Place::Mapped(offset)) if pauses >= LATE => Place::MappedLate(offset),
                Some(place) => place,
                None => {
                    turn = None;
                    self.place(&file.cred, inode, origin, offset, rest.len())
                        .await?
                }
            };
            let fits = self.below_the_limit(place.offset(), rest)?;
            let accepted = self.put(file, others, place, fits)?;
            if accepted != Accepted::Full {
                // The next writer may find room, whatever this one waits for.
                turn = None;
            }
            match accepted {
                Accepted::All => break stored + fits.len(),
                Accepted::OtherUser => self.write_back(inode, true).await,
                waits @ (Accepted::Wait | Accepted::Full | Accepted::Short(_)) => {
                    if let Accepted::Short(more) = waits {
                        stored += more;
                    }
                    self.shared.stats.write_waits.add(1);
                    self.start_writes(inode, data, Goal::Started);
                    self.relieve();
                    if !self.is_busy() && !data.with(|inner| inner.keeps_writers()) {
                        // Nothing is left to wait for, so try again: another writer may have taken
                        // the room. But if memory is short, only calls may still give some back.
                        if let Accepted::Short(_) = waits
                            && !self.memory_may_come_back(&mut waited).await
                        {
                            return Err(FsError::NoMemory);
                        }
                        continue;
                    }
                    waited.tries = 0;
                    match (waits, &mut turn) {
                        (Accepted::Full, Some(turn)) => turn.called().await,
                        (Accepted::Full, None) => turn = Some(self.shared.writers.join()),
                        (Accepted::Wait, _) if matches!(origin, Origin::Mapping) => {
                            tokio::select! {
                                () = changed => pauses = 0,
                                () = self.pause() => pauses += 1,
                            }
                        }
                        (Accepted::Wait, _) => changed.await,
                        // The pause: as in `Fs::alloc`.
                        _ => tokio::select! {
                            () = changed => {}
                            () = freed => {}
                            () = self.pause() => {}
                        },
                    }
                }
            }
        };
        Ok(written as u32)
    }

    /// Puts data into the cache, and starts full WRITEs.
    ///
    /// Of pages of a mapping, what lies behind the end of the file is left out. The kernel sends
    /// none, but a truncation (O_TRUNC, for which the kernel does not wait for pages that are being
    /// written) may have been carried out since.
    fn put(
        self: &Arc<Self>,
        file: &Arc<OpenFile>,
        others: &[Arc<OpenFile>],
        place: Place,
        given: WriteData<'_>,
    ) -> FsResult<Accepted> {
        let (len, offset) = (given.len(), place.offset());
        let inode = &file.inode;
        let data = self.data(inode);
        self.shared.budget.make_room(len + 2 * 4096);
        let dirty = self.shared.dirty.load(Ordering::Relaxed);
        if dirty > 0 && dirty + len > self.config.dirty_bytes {
            return Ok(Accepted::Full);
        }
        let result = data.with(|inner| -> FsResult<Option<Accepted>> {
            self.not_ended()?;
            // Checked under the lock, so that a truncation by a later call comes after this data.
            not_abandoned()?;
            let given = match place {
                Place::At(_) => given,
                Place::End(_, ended) | Place::Rest(_, ended) if ended != inner.ended() => {
                    return Ok(Some(Accepted::Wait));
                }
                Place::End(..) | Place::Rest(..) => given,
                Place::Mapped(_) if inner.write_back().is_flushing() => {
                    return Ok(Some(Accepted::Wait));
                }
                // What comes before a SETATTR or after it does not change.
                Place::MappedLate(_) if inner.is_exclusive() => {
                    return Ok(Some(Accepted::Wait));
                }
                Place::Mapped(_) | Place::MappedLate(_) => {
                    let room = size_with(inner, inode).unwrap_or(0).saturating_sub(offset);
                    given.first(usize::try_from(room).unwrap_or(usize::MAX))
                }
            };
            if given.is_empty() {
                return Ok(None);
            }
            let end = offset + given.len() as u64;
            // This data comes later than that of an O_DIRECT write under way, as of a program that was
            // killed, and must overwrite it.
            if inner.is_written_direct(&(offset..end)) {
                return Ok(Some(Accepted::Wait));
            }
            let now = self.now();
            let most = self.config.dirty_file_bytes;
            let mut alloc = |len| self.pool.alloc(len);
            let write_back = inner.write_back();
            let ended_at = write_back.end();
            let cred = &file.cred;
            let accepted = match place {
                Place::MappedLate(_) => {
                    write_back.write_late(cred, offset, given, now, most, &mut alloc)
                }
                _ => write_back.write(cred, offset, given, now, most, &mut alloc),
            };
            if let (Place::End(..), Accepted::Short(_)) = (place, accepted) {
                // The next attempt would begin behind the part that was stored.
                write_back.take_back(offset, ended_at);
                return Ok(Some(Accepted::Short(0)));
            }
            if matches!(accepted, Accepted::All | Accepted::Short(_)) {
                // Under the lock: a WRITE of this data may fail as soon as it is released.
                for file in std::iter::once(file).chain(others) {
                    file.told.wrote(&data.errors);
                }
                inner.void_reads(offset..end);
            }
            Ok(Some(accepted))
        })?;
        let Some(result) = result else {
            return Ok(Accepted::All);
        };
        if matches!(result, Accepted::All | Accepted::Short(_)) {
            // Inserted after the data. If all of it is safe by now, `tick` removes the file.
            let mut files = self.unsafe_files.lock();
            files.insert(data.id, inode, file.flushed.load(Ordering::Relaxed));
        }
        match result {
            Accepted::All => {
                self.shared.stats.write_bytes.add(len as u64);
                self.start_writes(inode, data, Goal::Full);
            }
            // The freed blocks may not be contiguous, so more is dropped than is needed.
            Accepted::Short(_) => {
                self.shared.budget.reclaim(len * 4);
            }
            Accepted::Wait | Accepted::Full | Accepted::OtherUser => {}
        }
        Ok(result)
    }
}

impl<N: Nfs3> Files<N> {
    /// The limits for the WRITEs of a file now. Half of the server's credits are left to READs and to
    /// calls on names, which would otherwise wait for the WRITEs of a flush.
    pub(super) fn write_limits(&self) -> WriteLimits {
        let calls = self.shared.calls.load(Ordering::Relaxed);
        let most = (calls / 2).clamp(1, self.config.write_parallel.max(1));
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
        loop {
            let action = data.with(|inner| {
                let limits = self.write_limits();
                inner.write_back().next(goal, &limits)
            });
            match action {
                Action::Write(call) => self.spawn_write(inode, call),
                Action::Again => {}
                _ => break,
            }
        }
    }

    /// Sends a WRITE without waiting for its reply.
    pub(super) fn spawn_write(self: &Arc<Self>, inode: &Arc<Inode>, call: WriteCall<Cred>) {
        let (fs, inode) = (self.clone(), inode.clone());
        exec::spawn(async move {
            let WriteCall { job, cred, stable } = call;
            fs.run_write(&cred, &inode, job, stable).await;
        });
    }

    /// Starts to write and commit data because memory is short. It takes a few files at a time, and
    /// the next ones when it is called again.
    pub(super) fn relieve(self: &Arc<Self>) {
        let files: Vec<_> = {
            let files = self.unsafe_files.lock();
            let from = self.relieved.load(Ordering::Relaxed);
            let (mut next, mut last) = (Vec::new(), 0);
            for (&id, inode) in files.in_turn(from).take(LOOKED_AT) {
                last = id + 1;
                // Where the server answers FILE_SYNC, most of the files may have nothing to do.
                let busy = |data: &Arc<FileData>| data.with(|inner| !inner.is_safe());
                if inode.data().is_some_and(busy) {
                    next.push(inode.clone());
                }
                if next.len() == RELIEVED {
                    break;
                }
            }
            self.relieved.store(last, Ordering::Relaxed);
            next
        };
        for inode in files {
            if let Some(data) = inode.data() {
                self.start_writes(&inode, data, Goal::Started);
                self.start_commit(&inode, data, 1);
            }
        }
    }

    /// Sends a COMMIT if at least `least` bytes are unstable, which makes them evictable.
    fn start_commit(self: &Arc<Self>, inode: &Arc<Inode>, data: &Arc<FileData>, least: usize) {
        let cred = loop {
            match data.with(|inner| inner.write_back().commit_of(least as u64)) {
                Action::Commit(cred) => break cred,
                Action::Again => {}
                _ => return,
            }
        };
        let (fs, inode) = (self.clone(), inode.clone());
        exec::spawn(async move {
            let data = fs.data(&inode).clone();
            fs.run_commit(&cred, &inode, &data).await;
        });
    }

    /// Sends a WRITE, and does what follows from its reply.
    pub(super) async fn run_write(
        self: &Arc<Self>,
        cred: &Cred,
        inode: &Arc<Inode>,
        job: WriteJob,
        stable: Stable,
    ) {
        /// If the future is dropped, the data of its WRITE is dirty again.
        struct End<'a>(&'a FileData, Range<u64>);
        impl Drop for End<'_> {
            fn drop(&mut self) {
                self.0
                    .with(|inner| inner.write_back().write_ended(self.1.clone()));
                self.0.changed.notify_waiters();
            }
        }
        let data = self.data(inode);
        let sent = job.offset..job.offset + u64::from(job.len);
        let mut end = End(data, sent.clone());
        self.shared.stats.writes_sent.add(1);
        let busy = self.shared.busy();
        let answer = self
            .write_call(cred, inode, job.offset, job.data, stable)
            .await;
        let in_vain = |done: &WriteDone| {
            let weaker = stable == Stable::FileSync && done.committed != Stable::FileSync;
            weaker && data.with(|inner| inner.write_back().restarts_too_often())
        };
        let answer = match answer {
            Ok(done) if in_vain(&done) => {
                let habit = "it does not put on stable storage what it is told to";
                Err(NfsError::PeerMisbehaved(habit.into()))
            }
            answer => answer,
        };
        match answer {
            Ok(done) => {
                let count = done.count.min(job.len);
                let verdict = data.with(|inner| {
                    // A READ that is under way may return the old data, and it must not be cached
                    // even if the block is dropped before.
                    inner.void_reads(sent.clone());
                    inner
                        .write_back()
                        .write_answered(sent, count, done.committed, done.verifier)
                });
                end.1 = 0..0;
                if verdict == Verdict::Restarted {
                    self.suspect_locks();
                }
            }
            Err(error) => {
                let error = self.note_error(inode, error);
                data.with(|inner| inner.write_back().write_failed(sent.clone()));
                end.1 = 0..0;
                self.write_failed(inode, data, &[sent], &error);
            }
        }
        drop(end);
        drop(busy);
        // There is room for another full WRITE now.
        self.start_writes(inode, data, Goal::Full);
        // The clean blocks may be dropped now.
        self.shared.budget.make_room(0);
        let all = self.shared.uncommitted.load(Ordering::Relaxed);
        if all > self.config.cache_bytes / 4 {
            self.start_commit(inode, data, self.config.cache_bytes / 32);
        } else if data.with(|inner| self.behind(inner)).is_some() {
            self.start_commit(inode, data, self.stream_bytes() as usize);
        }
    }

    /// Bytes of a long sequential run of writes that stay cached.
    fn stream_bytes(&self) -> u64 {
        self.config.cache_bytes as u64 / 8
    }

    /// The part of a long sequential run of writes that is dropped once the server has it: all but
    /// its beginning and the block in which it continues. If it were kept, it would evict the
    /// blocks of other files, though it is hardly ever read again.
    pub(super) fn behind(&self, inner: &mut FileState) -> Option<Range<u64>> {
        let run = inner.pages().run();
        let left = run.start + self.stream_bytes()..run.end / MAX_PIECE * MAX_PIECE;
        (left.start < left.end).then_some(left)
    }
}

/// write(2) is told that `len` bytes at the kernel's `offset` are taken.
fn accepted(file: &OpenFile, offset: u64, len: u32) {
    let len = u64::from(len);
    file.inode.gets_pages();
    let mut state = file.inode.state.lock();
    state.kernel_size = state.kernel_size.max(offset.saturating_add(len));
}
