//! READ: answers from the page cache, fetches what is missing, and reads ahead.
//!
//! A request whose data is all here is answered with slices of the blocks (`read_cached`). Otherwise
//! `read` takes buffers from the registered pool and sends a READ (RFC 1813 section 3.3.6) whose
//! Write chunk consists of these buffers, which become the blocks when the reply arrives; so the
//! data needs no copy. A request longer than one READ is split into several that are sent
//! together.
//!
//! Each READ into the cache is registered in the file's state while it is under way ([`Doing::Read`]). Another reader
//! of the same range waits for it instead of sending a second one. A write, a truncation or an
//! invalidation of the range makes it void: its data is not cached, because it may be older. Nor is
//! the data of a reply that cannot be ordered against the known attributes (docs/COHERENCE.md). The
//! READ is then repeated, and after a number of attempts it is made without the cache, as for
//! O_DIRECT.

use super::error::{FsError, FsResult};
use super::file::{Begun, FileState};
use super::files::Files;
use super::inode::{Inode, Stamp};
use super::objects::Objects;
use super::open_file::OpenFile;
use super::outdated::current_size;
use super::under_way::Doing;
use crate::cache::{MAX_PIECE, PAGE, Piece};
use futures_util::future::join_all;
use nfsrdma_nfs3::{Cred, Nfs3, NfsError, ReadDone};
use nfsrdma_rdma::contract::Segs;
use nfsrdma_rdma::{Buf, BufMut};
use nfsrdma_rpcrdma::exec;
use std::ops::Range;
use std::sync::Arc;

/// What to do about missing data.
enum Step {
    Done(Segs<Buf>),
    /// Nobody knows where the file ends.
    Unknown,
    /// Send a READ for these pieces; it is registered under this number.
    Fetch(u64, Segs<Piece>),
}

/// What became of a READ into the cache.
enum Fetched {
    /// All that was read, which the kernel takes: nothing is cached.
    Wanted(Segs<Buf>),
    /// The data is cached, if it may be. With it comes where the file ends, if it ends within the READ and
    /// that is still the same.
    Rest(Option<u64>),
}

impl<N: Nfs3> Objects<N> {
    /// Reads from the cache, if the whole range is there. The slices are consecutive; together they
    /// are shorter than `len` bytes only at the end of the file.
    ///
    /// Locks, each for a moment: the table of open files for reading; those of a mount ([`crate::locks`]) if one was ever
    /// lost; the file's `FileState` with its `State`, and with the list of files of the [`Budget`](crate::cache::Budget)
    /// where the last clean block leaves; the open file's read-ahead.
    pub fn read_cached(
        self: &Arc<Self>,
        handle: u64,
        offset: u64,
        len: u32,
        flags: i32,
    ) -> Option<Segs<Buf>> {
        if OpenFile::is_direct(flags) {
            return None;
        }
        let file = self.files.get(handle)?;
        self.check_locks(&file, handle).ok()?;
        let data = file.inode.data()?;
        let (found, size) = data.with(|inner| {
            let size = current_size(inner, &file.inode)?;
            let end = offset + u64::from(len);
            let writes = |doing| doing == Doing::KernelWrite;
            if inner.under_way().any_in(&(offset..end), writes) {
                return None;
            }
            Some((inner.pages().take(offset..end.min(size))?, size))
        })?;
        self.shared.stats.read_hits.add(1);
        self.read_ahead(&file, offset..offset + u64::from(len), size);
        Some(self.counted(found))
    }

    pub async fn read(
        self: &Arc<Self>,
        handle: u64,
        offset: u64,
        len: u32,
        flags: i32,
    ) -> FsResult<Segs<Buf>> {
        let file = self.file(handle)?;
        self.check_locks(&file, handle)?;
        let inode = &file.inode;
        // Boxed, because its state is large, and most reads are cached.
        let direct = || Box::pin(self.read_direct(&file, offset, len));
        if OpenFile::is_direct(flags) || u64::from(self.limits().rtmax) < PAGE {
            return direct().await;
        }
        self.shared.stats.read_misses.add(1);
        let size = self.attributes_or_fetch(&file.cred, inode).await?.size;
        let data = self.data(inode);
        self.read_ahead(&file, offset..offset + u64::from(len), size);
        let mut end = offset + u64::from(len);
        let unit = self.read_unit();
        if u64::from(len) > unit {
            // All READs but the first, which is sent below, are started here.
            let rest = (offset / unit + 1) * unit..end.min(size);
            self.start_reads(&file, rest);
        }
        // If the data is invalidated before it arrives at so many attempts, the cache is bypassed.
        for _ in 0..16 + u64::from(len) / unit {
            let step = data
                .until(|inner| match current_size(inner, inode) {
                    Some(size) => self.next_step(inner, offset..end.min(size)),
                    None => Some(Step::Unknown),
                })
                .await;
            match step {
                Step::Done(found) => return Ok(self.counted(found)),
                Step::Unknown => break,
                Step::Fetch(id, pieces) => {
                    let wanted = offset..end;
                    match self.fetch_pieces(&file, id, pieces, wanted).await? {
                        Fetched::Wanted(found) => return Ok(self.counted(found)),
                        Fetched::Rest(eof) => end = eof.map_or(end, |eof| end.min(eof.max(offset))),
                    }
                }
            }
        }
        direct().await
    }
}

impl<N: Nfs3> Files<N> {
    /// `found`, which is counted as read by the kernel.
    fn counted(&self, found: Segs<Buf>) -> Segs<Buf> {
        let bytes = found.iter().map(|buf| buf.len() as u64).sum();
        self.shared.stats.read_bytes.add(bytes);
        found
    }

    /// The size of blocks to read, in bytes, and the most that is read ahead by one READ.
    fn read_unit(&self) -> u64 {
        prev_power_of_two(u64::from(self.limits().rtmax)).clamp(PAGE, MAX_PIECE)
    }

    /// `None`: a READ under way has to end before.
    fn next_step(&self, inner: &mut FileState, range: Range<u64>) -> Option<Step> {
        if let Some(found) = inner.pages().take(range.clone()) {
            return Some(Step::Done(found));
        }
        let (number, pieces) = self.begin_fetch(inner, range)?;
        Some(Step::Fetch(number, pieces))
    }

    /// Registers a READ of the first part of `range` that is missing; `None` if that is under way.
    fn begin_fetch(&self, inner: &mut FileState, range: Range<u64>) -> Option<(u64, Segs<Piece>)> {
        let missing = inner.pages().missing(range)?;
        let most = u64::from(self.limits().rtmax).max(PAGE);
        let end = missing.end.min(missing.start / PAGE * PAGE + most);
        let mut pieces = inner.pages().plan(missing.start..end, self.read_unit());
        // Rounded to blocks, the range must not exceed one READ.
        let mut total = 0;
        pieces.retain(|piece| {
            total += u64::from(piece.len);
            total <= most
        });
        let whole = span(&pieces);
        let free = !inner.is_reading(&whole);
        free.then(|| (inner.begin_read(whole), pieces))
    }

    /// READs `pieces`, which are consecutive, into the cache; or for the kernel alone, if these are the bytes
    /// that it wants.
    async fn fetch_pieces(
        self: &Arc<Self>,
        file: &OpenFile,
        id: u64,
        pieces: Segs<Piece>,
        wanted: Range<u64>,
    ) -> FsResult<Fetched> {
        let inode = &file.inode;
        let data = self.data(inode);
        let _pending = Begun {
            data: &**data,
            number: id,
        };
        let range = span(&pieces);
        let total = range.end - range.start;
        self.shared.budget.make_room(total as usize);
        let mut sink: Segs<BufMut> = Segs::new();
        for piece in &pieces {
            sink.push(self.alloc(piece.len as usize).await?);
        }
        let sent = Stamp::now();
        let answer = self.read_call(&file.cred, inode, range.start, sink).await?;
        let ambiguous = self.apply_post_op_attr(inode, sent, answer.attributes.as_ref());
        let got = u64::from(answer.count).min(total);
        if !answer.eof && got == 0 {
            return Err(nothing_before_the_end());
        }
        let read_to = range.start + got;
        Ok(data.with(|inner| {
            // A WRITE after this end may have been run since.
            let overtaken = {
                let state = inode.state.lock();
                let longer = state.attributes().is_some_and(|known| known.size > read_to);
                longer && !state.undisturbed(sent)
            };
            let ends = answer.eof && got < total && !overtaken && !ambiguous;
            // Zeros up to the data that this client has written beyond the server's end of the file.
            let valid_to = match ends {
                true => inner.end().max(read_to),
                false => read_to,
            };
            let eof = ends.then_some(valid_to);
            let size = current_size(inner, inode).unwrap_or(0);
            if !inner.end_read(id) || ambiguous {
                return Fetched::Rest(eof);
            }
            let parts = answer
                .data
                .into_iter()
                .zip(&pieces)
                .map(|(mut buf, piece)| {
                    let within = |end: u64| end.saturating_sub(piece.offset).min(piece.len.into());
                    let (read, known) = (within(read_to), within(valid_to));
                    if read < known {
                        buf[read as usize..known as usize].fill(0);
                    }
                    (piece.offset, buf.freeze(), known)
                });
            let end = wanted.end.min(size).min(eof.unwrap_or(u64::MAX));
            let all = wanted.start == range.start && end == valid_to.min(range.end);
            if all && !inner.pages().has_any(range) {
                let found = parts.map(|(_, buf, known)| buf.slice(..known as usize));
                return Fetched::Wanted(found.filter(|part| !part.is_empty()).collect());
            }
            let mut alloc = |len| self.pool.alloc(len);
            for (at, buf, known) in parts.filter(|(.., known)| *known > 0) {
                inner.pages().fill(at, buf, known as u32, &mut alloc);
            }
            Fetched::Rest(eof)
        }))
    }

    /// Sends READ into `sink`. If this machine could not send it, repeats it with new buffers.
    async fn read_call(
        self: &Arc<Self>,
        cred: &Cred,
        inode: &Arc<Inode>,
        offset: u64,
        sink: Segs<BufMut>,
    ) -> FsResult<ReadDone> {
        self.shared.stats.reads_sent.add(1);
        let _busy = self.shared.busy();
        let sizes: Segs<usize> = sink.iter().map(|buf| buf.len()).collect();
        let (mut sink, mut tries) = (sink, 0);
        loop {
            let error = match self.nfs.read(cred, &inode.handle, offset, sink).await {
                Ok(done) => return Ok(done),
                Err(error) => error,
            };
            if !self.again(&error, &mut tries).await {
                return Err(self.note_error(inode, error));
            }
            sink = Segs::new();
            for &size in &sizes {
                let mut buf = self.alloc(size).await?;
                buf.resize(size);
                sink.push(buf);
            }
        }
    }

    /// Reads without the cache. The kernel gets the data from the registered buffers: less than was asked
    /// for only at the end of the file, since its page cache takes a short reply for the end.
    pub(super) async fn read_direct(
        self: &Arc<Self>,
        file: &OpenFile,
        offset: u64,
        len: u32,
    ) -> FsResult<Segs<Buf>> {
        let inode = &file.inode;
        let wanted = offset..offset + u64::from(len);
        // If the server has restarted, it has lost uncommitted data and the size that resulted from
        // it, which the reply to READ does not show.
        if let Some(data) = inode.data()
            && data.with(|inner| !inner.is_safe())
        {
            self.write_back_for(&file.cred, inode, file.can_write())
                .await?;
        }
        let most = u64::from(self.limits().rtmax.max(1));
        let starts = (offset..wanted.end).step_by(most as usize);
        let parts = starts.map(|at| self.direct_part(file, at..wanted.end.min(at + most)));
        let mut found = Segs::new();
        let mut expected = offset;
        for part in join_all(parts).await {
            let (range, data) = part?;
            if range.start != expected {
                // The part before met the end of the file.
                break;
            }
            found.extend(data);
            expected = range.end;
        }
        Ok(found)
    }

    /// Reads one part of a direct read, of at most `rtmax` bytes: by one READ, or by several if the
    /// server returns less at a time. Returns the range that it got.
    async fn direct_part(
        self: &Arc<Self>,
        file: &OpenFile,
        wanted: Range<u64>,
    ) -> FsResult<(Range<u64>, Segs<Buf>)> {
        let inode = &file.inode;
        let (mut at, mut found) = (wanted.start, Segs::new());
        let mut most = (wanted.end - at) as usize;
        while at < wanted.end {
            let n = most.min((wanted.end - at) as usize);
            let sink = Segs::from_iter([self.alloc(n).await?]);
            let stamp = Stamp::now();
            let answer = self.read_call(&file.cred, inode, at, sink).await?;
            self.apply_post_op_attr(inode, stamp, answer.attributes.as_ref());
            let count = (answer.count as usize).min(n);
            if count > 0 {
                let bytes = |buf: BufMut| buf.freeze().slice(..count);
                found.extend(answer.data.into_iter().map(bytes));
            } else if !answer.eof {
                return Err(nothing_before_the_end());
            }
            at += count as u64;
            if answer.eof {
                break;
            }
            // So the buffers are at most some two times as large as what is in them.
            most = count.max(n / 2);
        }
        Ok((wanted.start..at, found))
    }

    /// Reads ahead for a program that reads sequentially. The kernel also does, 128 KiB: more would slow programs that read by
    /// mappings, for which it reads as much around each page that is touched.
    fn read_ahead(self: &Arc<Self>, file: &Arc<OpenFile>, range: Range<u64>, size: u64) {
        if u64::from(self.limits().rtmax) < PAGE {
            return;
        }
        let most = self.config.readahead_bytes.min(self.config.cache_bytes / 4) as u64;
        let ahead = file
            .readahead
            .lock()
            .note(range, size, self.read_unit(), most);
        if let Some(ahead) = ahead {
            self.start_reads(file, ahead);
        }
    }

    /// Starts READs for the missing parts of `range`. None crosses a multiple of their size.
    fn start_reads(self: &Arc<Self>, file: &Arc<OpenFile>, range: Range<u64>) {
        let unit = self.read_unit();
        let mut at = range.start / PAGE * PAGE;
        while at < range.end {
            let stop = ((at / unit + 1) * unit).min(range.end);
            let data = self.data(&file.inode);
            let fetch = data.with(|inner| self.begin_fetch(inner, at..stop));
            if let Some((id, pieces)) = fetch {
                let range = span(&pieces);
                self.shared
                    .stats
                    .readahead_bytes
                    .add(range.end - range.start);
                let (fs, file) = (self.clone(), file.clone());
                exec::spawn(async move {
                    // A program that needs the data reads it again and gets the error.
                    let _ = fs.fetch_pieces(&file, id, pieces, 0..0).await;
                });
            }
            at = stop;
        }
    }
}

/// The error for a reply to READ that has no data, and does not say that the file ends.
fn nothing_before_the_end() -> FsError {
    NfsError::misbehaved("READ returned nothing before the end").into()
}

fn span(pieces: &[Piece]) -> Range<u64> {
    match (pieces.first(), pieces.last()) {
        (Some(first), Some(last)) => first.offset..last.offset + u64::from(last.len),
        _ => 0..0,
    }
}

pub(super) fn prev_power_of_two(n: u64) -> u64 {
    if n.is_power_of_two() {
        n
    } else {
        n.next_power_of_two() / 2
    }
}
