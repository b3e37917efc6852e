//! WRITE: into the cache, and from there to the server.

use super::file::{FileData, Inner};
use super::read::join;
use super::*;
use crate::cache::{MAX_PIECE, Verdict, WriteJob};
use nfsrdma_client::exec;
use nfsrdma_client::nfs::Cred;
use nfsrdma_rdma::contract::Segs;
use nfsrdma_xdr::nfs3::Stable;
use std::ops::Range;
use std::sync::atomic::Ordering;

/// What became of a try to put data into the cache.
enum Put {
    Done,
    /// Too much is dirty, or somebody flushes: wait.
    Wait,
    /// Memory is short: wait.
    Short,
    /// Another user's data must be written first.
    Flush,
}

impl<N: Nfs3> Fs<N> {
    /// Writes into the cache if it has room, which is all there is to do now.
    pub fn write_cached(
        self: &Arc<Self>,
        handle: u64,
        offset: u64,
        bytes: &[u8],
        flags: i32,
    ) -> Option<FsResult<u32>> {
        let file = self.files.read().get(handle as usize).cloned()?;
        if OpenFile::is_direct(flags) || file.is_sync() || self.config.sync {
            return None;
        }
        let offset = {
            let state = file.inode.state.lock();
            if flags & libc::O_APPEND != 0 {
                // The kernel goes by the size it was told; others may have appended since.
                offset.max(state.fresh(self.now())?.size)
            } else {
                state.attributes()?;
                offset
            }
        };
        let bytes = match self.below_the_limit(offset, bytes) {
            Ok(bytes) => bytes,
            Err(error) => return Some(Err(error)),
        };
        match self.put(&file, offset, bytes) {
            Ok(Put::Done) => Some(Ok(bytes.len() as u32)),
            Ok(Put::Wait | Put::Short | Put::Flush) => None,
            Err(error) => Some(Err(error)),
        }
    }

    /// The same, waiting for room; or straight to the server where that is asked for.
    pub async fn write(
        self: &Arc<Self>,
        handle: u64,
        offset: u64,
        bytes: &[u8],
        flags: i32,
    ) -> FsResult<u32> {
        let file = self.file(handle)?;
        let inode = &file.inode;
        let size = if flags & libc::O_APPEND != 0 {
            let known = inode.state.lock().fresh(self.now()).copied();
            match known {
                Some(attributes) => attributes.size,
                None => self.fetch(&file.cred, inode).await?.size,
            }
        } else {
            self.known(&file.cred, inode).await?;
            0
        };
        let offset = offset.max(size);
        let given = bytes.len();
        let bytes = self.below_the_limit(offset, bytes)?;
        if OpenFile::is_direct(flags) {
            if bytes.len() < given {
                // The kernel would make EIO of a short count.
                return Err(FsError::TooLarge);
            }
            self.write_direct(&file, offset, bytes).await?;
            return Ok(bytes.len() as u32);
        }
        let data = self.data(inode);
        let mut idle = 0;
        loop {
            let mut changed = std::pin::pin!(data.changed.notified());
            let mut freed = std::pin::pin!(self.shared.freed.notified());
            changed.as_mut().enable();
            freed.as_mut().enable();
            match self.put(&file, offset, bytes)? {
                Put::Done => break,
                Put::Flush => self.write_back(inode, false).await,
                put @ (Put::Wait | Put::Short) => {
                    self.shared.stats.write_waits.add(1);
                    self.start_writes(inode, data, false);
                    self.relieve();
                    if !self.is_busy() && data.with(|inner| inner.flushing == 0) {
                        // All that was in the way is done already; others may be quicker
                        // again. Memory, nobody may ever give back.
                        if let Put::Short = put {
                            idle += 1;
                        }
                        if idle > 3 {
                            return Err(FsError::NoMemory);
                        }
                        continue;
                    }
                    idle = 0;
                    tokio::select! {
                        () = changed => {}
                        () = freed => {}
                    }
                }
            }
        }
        if file.is_sync() || self.config.sync {
            self.write_back(inode, true).await;
            file.take_error()?;
        }
        Ok(bytes.len() as u32)
    }

    /// As much of `bytes` as the server's largest file takes at `offset` (FSINFO, RFC 1813
    /// section 3.3.19); an error if that is nothing (write(2), EFBIG).
    fn below_the_limit<'a>(&self, offset: u64, bytes: &'a [u8]) -> FsResult<&'a [u8]> {
        let room = self.limits().max_file_size.saturating_sub(offset);
        if room == 0 && !bytes.is_empty() {
            return Err(FsError::TooLarge);
        }
        let fits = usize::try_from(room).map_or(bytes.len(), |room| bytes.len().min(room));
        Ok(&bytes[..fits])
    }

    /// Puts data into the cache, and starts to write what makes full WRITEs.
    fn put(self: &Arc<Self>, file: &Arc<OpenFile>, offset: u64, bytes: &[u8]) -> FsResult<Put> {
        let inode = &file.inode;
        let data = self.data(inode);
        self.shared.budget.make_room(bytes.len() + 2 * 4096);
        let dirty = self.shared.dirty.load(Ordering::Relaxed);
        if dirty > 0 && dirty + bytes.len() > self.config.dirty_bytes {
            return Ok(Put::Wait);
        }
        let result = data.with(|inner| {
            if self.ended.load(Ordering::Relaxed) {
                return Err(FsError::Ended);
            }
            if inner.flushing > 0 {
                return Ok(Put::Wait);
            }
            let own = (inner.pages.dirty() + inner.pages.writing()) as usize;
            if own > 0 && own + bytes.len() > self.config.dirty_file_bytes {
                return Ok(Put::Wait);
            }
            match &inner.writer {
                Some(writer) if inner.is_dirty() && *writer != file.cred => return Ok(Put::Flush),
                Some(writer) if *writer == file.cred => {}
                _ => inner.writer = Some(file.cred.clone()),
            }
            // At once: a WRITE of this data may fail before this thread goes on.
            if !file.wrote.swap(true, Ordering::Relaxed) {
                inner.writers.retain(|writer| writer.strong_count() > 0);
                inner.writers.push(Arc::downgrade(file));
            }
            let now = self.now();
            let taken = inner
                .pages
                .write(offset, bytes, now, &mut |len| self.pool.alloc(len));
            inner.end = inner.end.max(offset + taken as u64);
            inner.void_reads(offset..offset + taken as u64);
            Ok(if taken < bytes.len() {
                Put::Short
            } else {
                Put::Done
            })
        })?;
        if !matches!(result, Put::Flush) {
            // Behind the data: who finds the file safe before takes it out.
            let mut files = self.unsafe_files.lock();
            files.insert(data.id, inode);
        }
        if let Put::Done = result {
            self.shared.stats.write_bytes.add(bytes.len() as u64);
            self.start_writes(inode, data, true);
        } else if data.with(|inner| inner.flushing == 0) {
            self.shared.budget.reclaim(bytes.len() * 4);
        }
        Ok(result)
    }

    /// Starts WRITEs: with `full`, only of full size, or of anything once half of what may be
    /// dirty is.
    pub(super) fn start_writes(
        self: &Arc<Self>,
        inode: &Arc<Inode>,
        data: &Arc<FileData>,
        full: bool,
    ) {
        let wtmax = self.limits().wtmax.max(1);
        let crowded = self.shared.dirty.load(Ordering::Relaxed) > self.config.dirty_bytes / 2;
        loop {
            let job = data.with(|inner| {
                if inner.writes >= self.config.write_parallel {
                    return None;
                }
                let crowded =
                    crowded || inner.pages.dirty() as usize > self.config.dirty_file_bytes / 2;
                let job = if full && !crowded {
                    let run = inner.pages.run();
                    if run.end - run.start < u64::from(wtmax) {
                        return None;
                    }
                    inner.pages.begin_write(run.start, wtmax, true)?
                } else {
                    let next = inner.pages.begin_write(inner.cursor, wtmax, false);
                    next.or_else(|| inner.pages.begin_write(0, wtmax, false))?
                };
                inner.cursor = job.offset + u64::from(job.len);
                inner.writes += 1;
                Some((job, inner.writer.clone()))
            });
            let Some((job, Some(cred))) = job else { return };
            let (fs, inode) = (self.clone(), inode.clone());
            exec::spawn(async move { fs.run_write(&cred, &inode, job, Stable::Unstable).await });
        }
    }

    /// Whether anything is under way that gives memory back.
    pub(super) fn is_busy(&self) -> bool {
        let shared = &self.shared;
        [&shared.busy, &shared.dirty, &shared.uncommitted]
            .iter()
            .any(|count| count.load(Ordering::Relaxed) > 0)
    }

    /// Memory is short: writes what is dirty and commits what is written, of all files.
    pub(super) fn relieve(self: &Arc<Self>) {
        let files: Vec<_> = self.unsafe_files.lock().values().cloned().collect();
        for inode in files {
            if let Some(data) = inode.data() {
                self.start_writes(&inode, data, false);
                self.start_commit(&inode, data, 1);
            }
        }
    }

    /// Commits if at least `least` bytes wait for that: only then may they be dropped.
    fn start_commit(self: &Arc<Self>, inode: &Arc<Inode>, data: &Arc<FileData>, least: usize) {
        let cred = data.with(|inner| {
            if inner.committing || (inner.pages.uncommitted() as usize) < least {
                return None;
            }
            let cred = inner.writer.clone()?;
            inner.committing = inner.pages.begin_commit();
            inner.committing.then_some(cred)
        });
        if let Some(cred) = cred {
            let (fs, inode) = (self.clone(), inode.clone());
            exec::spawn(async move {
                let data = fs.data(&inode).clone();
                fs.run_commit(&cred, &inode, &data).await;
            });
        }
    }

    /// One WRITE, and what follows from its reply.
    pub(super) async fn run_write(
        self: &Arc<Self>,
        cred: &Cred,
        inode: &Arc<Inode>,
        job: WriteJob,
        stable: Stable,
    ) {
        /// Data whose WRITE was given up is dirty again.
        struct End<'a>(&'a FileData, Range<u64>);
        impl Drop for End<'_> {
            fn drop(&mut self) {
                self.0.with(|inner| {
                    if !self.1.is_empty() {
                        inner.pages.retry_write(self.1.clone());
                    }
                    inner.writes -= 1;
                    settle_end(inner);
                });
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
        match answer {
            Ok(done) => {
                let count = done.count.min(job.len);
                let verdict = data.with(|inner| {
                    // A READ from before may bring what was there before, and the block may
                    // be dropped before it comes.
                    inner.void_reads(sent.clone());
                    inner
                        .pages
                        .end_write(sent, count, done.committed, done.verifier)
                });
                end.1 = 0..0;
                if verdict == Verdict::Restarted {
                    self.shared.stats.verifier_changes.add(1);
                }
            }
            Err(error) => {
                let error = self.note_error(inode, error);
                data.with(|inner| inner.pages.fail_write(sent.clone()));
                end.1 = 0..0;
                self.write_failed(inode, data, sent, &error);
            }
        }
        drop(end);
        drop(busy);
        // The next full WRITE takes this one's place.
        self.start_writes(inode, data, true);
        // What is clean now may be dropped.
        self.shared.budget.make_room(0);
        let all = self.shared.uncommitted.load(Ordering::Relaxed);
        if all > self.config.cache_bytes / 4 {
            self.start_commit(inode, data, self.config.cache_bytes / 32);
        } else if data.with(|inner| self.behind(inner)).is_some() {
            self.start_commit(inode, data, self.stream_bytes() as usize);
        }
    }

    /// What a file keeps of a long run of writes in order, in bytes.
    fn stream_bytes(&self) -> u64 {
        self.config.cache_bytes as u64 / 8
    }

    /// What a long run of writes in order need not leave behind once the server has it: all
    /// but its beginning, and the block it goes on in. To keep it would push out what others
    /// use, and fill ever more memory where little does.
    pub(super) fn behind(&self, inner: &Inner) -> Option<Range<u64>> {
        let run = inner.pages.run();
        let left = run.start + self.stream_bytes()..run.end / MAX_PIECE * MAX_PIECE;
        (left.start < left.end).then_some(left)
    }

    /// Data is lost: tells those who wrote, or remembers it if nobody is left.
    pub(super) fn write_failed(
        &self,
        inode: &Inode,
        data: &FileData,
        range: Range<u64>,
        error: &FsError,
    ) {
        self.shared.stats.write_errors.add(1);
        tracing::error!(fileid = inode.fileid, ?range, %error, "data could not be written");
        let lost = Unwritten {
            fileid: inode.fileid,
            name: None,
            range,
            reason: error.to_string(),
        };
        let writers = data.with(|inner| inner.writers.clone());
        let mut told = false;
        for writer in writers.iter().filter_map(std::sync::Weak::upgrade) {
            writer.fail(error, lost.clone());
            told = true;
        }
        if !told || self.closing.load(Ordering::Relaxed) {
            self.lost.lock().push(lost);
        }
    }

    /// O_DIRECT: on stable storage when it returns, nothing of it cached.
    async fn write_direct(
        self: &Arc<Self>,
        file: &Arc<OpenFile>,
        offset: u64,
        bytes: &[u8],
    ) -> FsResult<()> {
        let inode = &file.inode;
        let range = offset..offset + bytes.len() as u64;
        let data = self.data(inode);
        // Older data must not be written again over this after a restart of the server: so it
        // is committed, not only written.
        if data.with(|inner| inner.pages.is_unsaved(range.clone())) {
            self.write_back(inode, true).await;
        }
        let void = |inner: &mut Inner| {
            inner.pages.invalidate_range(range.clone());
            inner.void_reads(range.clone());
        };
        data.with(void);
        // As many WRITEs as it takes, all at once.
        let wtmax = self.limits().wtmax.max(1) as usize;
        let parts = bytes.chunks(wtmax).zip((offset..).step_by(wtmax));
        let parts = parts.map(|(part, at)| self.write_part(file, at, part));
        let results = join(parts.collect()).await;
        // What was read meanwhile may be the old data.
        data.with(void);
        results.into_iter().collect::<FsResult<()>>()?;
        self.shared.stats.write_bytes.add(bytes.len() as u64);
        Ok(())
    }

    /// At most one WRITE of it; several if the server takes less at a time.
    async fn write_part(
        self: &Arc<Self>,
        file: &OpenFile,
        offset: u64,
        bytes: &[u8],
    ) -> FsResult<()> {
        let inode = &file.inode;
        let mut at = 0;
        while at < bytes.len() {
            let n = bytes.len() - at;
            let mut buf = self.alloc(n).await?;
            buf.copy_from_slice(&bytes[at..at + n]);
            let piece = Segs::from_iter([buf.freeze()]);
            let busy = self.shared.busy();
            self.shared.stats.writes_sent.add(1);
            let place = offset + at as u64;
            let call = self.write_call(&file.cred, inode, place, piece, Stable::FileSync);
            match call.await {
                Ok(done) => {
                    if done.count == 0 {
                        return Err(NfsError::PeerMisbehaved("WRITE took nothing".into()).into());
                    }
                    at += (done.count as usize).min(n);
                    if done.committed != Stable::FileSync {
                        // RFC 1813 section 3.3.7 forbids it; make it true.
                        let commit = self.nfs.commit(&file.cred, &inode.handle, 0, 0).await?;
                        if commit.1 != done.verifier {
                            return Err(NfsError::Status(Status::Io).into());
                        }
                    }
                }
                Err(error) => {
                    return Err(self.note_error(inode, error));
                }
            }
            drop(busy);
        }
        Ok(())
    }
}

/// Once everything is safe at the server the attributes know the size. Not before: a server
/// that restarts forgets what was not committed, its size included.
pub(super) fn settle_end(inner: &mut Inner) {
    if inner.writes == 0 && inner.is_safe() {
        inner.end = 0;
    }
}
