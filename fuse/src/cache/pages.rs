//! What is cached of one file.
//!
//! The file is a map of blocks. A block is a power of two of bytes, aligned in the file to its
//! size, overlaps no other, and has one buffer. Five sets of byte ranges say what its bytes
//! are:
//! - *valid*: known. Everything below is also valid.
//! - *dirty*: to be written.
//! - *writing*: in a WRITE that was sent. May be dirty again; then it waits for the reply.
//! - *unstable*: written UNSTABLE, waits for a COMMIT.
//! - *committing*: covered by the COMMIT that was sent.
//!
//! Buffers are shared and constant while a reply or a WRITE uses them: a change then goes to
//! a copy.

use super::RangeSet;
use nfsrdma_rdma::contract::Segs;
use nfsrdma_rdma::{Buf, BufMut};
use nfsrdma_xdr::nfs3::{Stable, Verifier};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// Smallest block, in bytes.
pub const PAGE: u64 = 4096;
/// Largest block, in bytes.
pub const MAX_PIECE: u64 = 1 << 20;

#[derive(Debug)]
struct Block {
    /// `None` only while it is being changed.
    buf: Option<Buf>,
    size: u32,
    valid: RangeSet,
    dirty: RangeSet,
    writing: RangeSet,
    unstable: RangeSet,
    committing: RangeSet,
    /// When the oldest dirty byte was written.
    dirty_since: u64,
    /// Used since the last round of eviction.
    referenced: bool,
}

impl Block {
    fn new(buf: Buf, valid: RangeSet) -> Self {
        Block {
            size: buf.len() as u32,
            buf: Some(buf),
            valid,
            dirty: RangeSet::default(),
            writing: RangeSet::default(),
            unstable: RangeSet::default(),
            committing: RangeSet::default(),
            dirty_since: 0,
            referenced: false,
        }
    }

    fn buf(&self) -> &Buf {
        self.buf.as_ref().expect("a block has its buffer")
    }

    /// Whether the server has all of it on stable storage.
    fn is_clean(&self) -> bool {
        self.dirty.is_empty()
            && self.writing.is_empty()
            && self.unstable.is_empty()
            && self.committing.is_empty()
    }

    /// Bytes dirty, writing, uncommitted.
    fn count(&self) -> [u64; 3] {
        [
            u64::from(self.dirty.bytes()),
            u64::from(self.writing.bytes()),
            u64::from(self.unstable.bytes() + self.committing.bytes()),
        ]
    }

    /// Bytes that must not be dropped.
    fn kept(&self) -> RangeSet {
        let mut kept = self.dirty.clone();
        kept.insert_all(&self.writing);
        kept.insert_all(&self.unstable);
        kept.insert_all(&self.committing);
        kept
    }

    /// Changes the buffer: in place if nobody else uses it, else in a copy from `alloc`.
    fn change(
        &mut self,
        alloc: &mut dyn FnMut(usize) -> Option<BufMut>,
        change: impl FnOnce(&mut [u8]),
    ) -> bool {
        let buf = self.buf.take().expect("a block has its buffer");
        let (mut own, done) = match buf.try_into_mut() {
            Ok(own) => (own, true),
            Err(shared) => match alloc(self.size as usize) {
                Some(mut copy) => {
                    for range in self.valid.iter() {
                        let range = range.start as usize..range.end as usize;
                        copy[range.clone()].copy_from_slice(&shared[range]);
                    }
                    (copy, true)
                }
                None => {
                    self.buf = Some(shared);
                    return false;
                }
            },
        };
        change(&mut own);
        self.buf = Some(own.freeze());
        done
    }

    fn forget(&mut self, range: Range<u32>) {
        self.valid.remove(range.clone());
        self.dirty.remove(range.clone());
        self.writing.remove(range.clone());
        self.unstable.remove(range.clone());
        self.committing.remove(range);
    }
}

/// A part of the file to read into one buffer: offset and bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    pub offset: u64,
    pub len: u32,
}

/// Data to send in one WRITE.
#[derive(Debug)]
pub struct WriteJob {
    pub offset: u64,
    pub len: u32,
    pub data: Segs<Buf>,
}

/// What a reply said of the write verifier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The server is the one that took the earlier WRITEs.
    Same,
    /// It restarted: what was not committed is dirty again (RFC 1813 section 3.3.7).
    Restarted,
}

/// The cached part of a file.
#[derive(Debug, Default)]
pub struct Pages {
    blocks: BTreeMap<u64, Block>,
    /// The blocks that are not clean.
    unclean: BTreeSet<u64>,
    /// Bytes of the blocks' buffers.
    resident: usize,
    dirty: u64,
    writing: u64,
    /// Unstable or committing.
    uncommitted: u64,
    verifier: Option<Verifier>,
    /// Where the last write ended, and how long the run of sequential writes is.
    run_end: u64,
    run_len: u64,
    /// Blocks made since [`Pages::take_fresh`].
    fresh: Vec<u64>,
    /// Blocks dropped since [`Pages::take_gone`].
    gone: Vec<u64>,
}

fn fit(at: u64, limit: u64, most: u64) -> u64 {
    let room = limit - at;
    let aligned = if at == 0 {
        most
    } else {
        1 << at.trailing_zeros().min(40)
    };
    let mut size = most.min(aligned).max(PAGE);
    while size > room && size > PAGE {
        size /= 2;
    }
    size
}

impl Pages {
    /// Bytes of memory held.
    pub fn resident(&self) -> usize {
        self.resident
    }

    /// Bytes to write.
    pub fn dirty(&self) -> u64 {
        self.dirty
    }

    /// Bytes in WRITEs under way.
    pub fn writing(&self) -> u64 {
        self.writing
    }

    /// Bytes written but not committed.
    pub fn uncommitted(&self) -> u64 {
        self.uncommitted
    }

    /// Blocks made since the last call, by offset.
    pub fn take_fresh(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.fresh)
    }

    /// Blocks dropped since the last call, other than by [`Pages::evict`].
    pub fn take_gone(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.gone)
    }

    /// All blocks, by offset.
    pub fn offsets(&self) -> impl Iterator<Item = u64> + '_ {
        self.blocks.keys().copied()
    }

    fn block_at(&self, at: u64) -> Option<(u64, &Block)> {
        let (&start, block) = self.blocks.range(..=at).next_back()?;
        (at < start + u64::from(block.size)).then_some((start, block))
    }

    /// Applies `f` to the block at `start`, and keeps the counts.
    fn touch<R>(&mut self, start: u64, f: impl FnOnce(&mut Block) -> R) -> R {
        let block = self
            .blocks
            .get_mut(&start)
            .expect("the caller found the block");
        let before = block.count();
        let result = f(block);
        let after = block.count();
        let counts = [&mut self.dirty, &mut self.writing, &mut self.uncommitted];
        for (count, (before, after)) in counts.into_iter().zip(before.into_iter().zip(after)) {
            *count = *count + after - before;
        }
        if after == [0; 3] {
            if before != after {
                self.unclean.remove(&start);
            }
        } else if before == [0; 3] {
            self.unclean.insert(start);
        }
        result
    }

    /// Applies `f` to the blocks that touch `range`, with the part of it inside the block.
    fn each(&mut self, range: Range<u64>, mut f: impl FnMut(&mut Block, Range<u32>)) {
        if range.is_empty() {
            return;
        }
        let from = self.block_at(range.start).map_or(range.start, |b| b.0);
        let starts: Vec<u64> = self.blocks.range(from..range.end).map(|b| *b.0).collect();
        for start in starts {
            self.touch(start, |block| {
                let inside = range.start.max(start) - start
                    ..range.end.min(start + u64::from(block.size)) - start;
                f(block, inside.start as u32..inside.end as u32);
            });
        }
    }

    /// Applies `f` to the blocks that are not clean.
    fn each_unclean(&mut self, mut f: impl FnMut(&mut Block)) {
        let starts: Vec<u64> = self.unclean.iter().copied().collect();
        for start in starts {
            self.touch(start, &mut f);
        }
    }

    /// The bytes of `range`, if all are valid.
    pub fn get(&mut self, range: Range<u64>) -> Option<Segs<Buf>> {
        let mut data = Segs::new();
        let mut at = range.start;
        while at < range.end {
            let (&start, block) = self.blocks.range_mut(..=at).next_back()?;
            let end = range.end.min(start + u64::from(block.size));
            if at >= end
                || !block
                    .valid
                    .covers((at - start) as u32..(end - start) as u32)
            {
                return None;
            }
            block.referenced = true;
            data.push(
                block
                    .buf()
                    .slice((at - start) as usize..(end - start) as usize),
            );
            at = end;
        }
        Some(data)
    }

    /// The first part of `range` that is not valid, up to the next valid byte.
    pub fn missing(&self, range: Range<u64>) -> Option<Range<u64>> {
        let mut at = range.start;
        let mut first = None;
        while at < range.end {
            match self.block_at(at) {
                Some((start, block)) => {
                    let end = range.end.min(start + u64::from(block.size));
                    let inside = (at - start) as u32..(end - start) as u32;
                    let gaps = block.valid.gaps(inside.clone());
                    match (first, gaps.first()) {
                        (None, None) => {}
                        (None, Some(gap)) => {
                            first = Some(start + u64::from(gap.start));
                            if gap.end < inside.end {
                                return first.map(|f| f..start + u64::from(gap.end));
                            }
                        }
                        (Some(f), None) => return Some(f..at),
                        (Some(f), Some(gap)) => {
                            if gap.start > inside.start {
                                return Some(f..at);
                            }
                            if gap.end < inside.end {
                                return Some(f..start + u64::from(gap.end));
                            }
                        }
                    }
                    at = end;
                }
                None => {
                    first.get_or_insert(at);
                    at = self
                        .blocks
                        .range(at..range.end)
                        .next()
                        .map_or(range.end, |(&start, _)| start);
                }
            }
        }
        first.map(|f| f..range.end)
    }

    /// How to read `range`, rounded out to pages: consecutive pieces of at most `most` bytes
    /// (a power of two) that fit the blocks there are.
    pub fn plan(&self, range: Range<u64>, most: u64) -> Vec<Piece> {
        let mut pieces = Vec::new();
        let end = range.end.next_multiple_of(PAGE);
        let mut at = range.start / PAGE * PAGE;
        while at < end {
            let limit = match self.block_at(at) {
                Some((start, block)) => start + u64::from(block.size),
                None => self
                    .blocks
                    .range(at..end)
                    .next()
                    .map_or(end, |(&start, _)| start),
            };
            let len = fit(at, limit.min(end), most);
            pieces.push(Piece {
                offset: at,
                len: len as u32,
            });
            at += len;
        }
        pieces
    }

    /// Takes in what was read for a [`Piece`]: `buf` has the piece's length, the first
    /// `known` bytes are the file's. What is valid already is newer and stays.
    pub fn fill(
        &mut self,
        offset: u64,
        buf: Buf,
        known: u32,
        alloc: &mut dyn FnMut(usize) -> Option<BufMut>,
    ) {
        let mut at = offset;
        let end = offset + buf.len() as u64;
        let known_end = offset + u64::from(known);
        while at < end && at < known_end {
            if let Some((start, _)) = self.block_at(at) {
                let block = self.blocks.get_mut(&start).expect("block_at names a block");
                let stop = end.min(start + u64::from(block.size));
                let inside = (at - start) as u32..(stop.min(known_end) - start) as u32;
                let gaps = block.valid.gaps(inside);
                if !gaps.is_empty() {
                    let done = block.change(alloc, |to| {
                        for gap in &gaps {
                            let from = (start + u64::from(gap.start) - offset) as usize;
                            let len = (gap.end - gap.start) as usize;
                            to[gap.start as usize..gap.end as usize]
                                .copy_from_slice(&buf[from..from + len]);
                        }
                    });
                    if done {
                        gaps.into_iter().for_each(|gap| block.valid.insert(gap));
                    }
                }
                at = stop;
                continue;
            }
            let limit = self
                .blocks
                .range(at..end)
                .next()
                .map_or(end, |(&start, _)| start);
            let len = fit(at, limit, MAX_PIECE);
            let from = (at - offset) as usize;
            let part = if len as usize == buf.len() {
                buf.clone()
            } else {
                buf.slice(from..from + len as usize)
            };
            let valid = (known_end - at).min(len) as u32;
            self.resident += len as usize;
            self.fresh.push(at);
            self.blocks
                .insert(at, Block::new(part, RangeSet::of(0..valid)));
            at += len;
        }
    }

    /// Takes in data a program wrote. Returns how many bytes: fewer than all if `alloc` gave
    /// no memory.
    pub fn write(
        &mut self,
        offset: u64,
        data: &[u8],
        now: u64,
        alloc: &mut dyn FnMut(usize) -> Option<BufMut>,
    ) -> usize {
        if offset == self.run_end {
            self.run_len += data.len() as u64;
        } else {
            self.run_len = data.len() as u64;
        }
        self.run_end = offset + data.len() as u64;
        // A long run of writes in order makes blocks ahead of what they hold.
        let most = (self.run_len.next_power_of_two() / 2).clamp(PAGE, MAX_PIECE);
        let end = offset + data.len() as u64;
        let mut at = offset;
        while at < end {
            let start = match self.block_at(at) {
                Some((start, _)) => start,
                None => match self.new_block(at, end, most, alloc) {
                    Some(start) => start,
                    None => break,
                },
            };
            let size = u64::from(self.blocks[&start].size);
            let stop = end.min(start + size);
            let inside = (at - start) as u32..(stop - start) as u32;
            let from = &data[(at - offset) as usize..(stop - offset) as usize];
            let done = self.touch(start, |block| {
                let done = block.change(alloc, |to| {
                    to[inside.start as usize..inside.end as usize].copy_from_slice(from);
                });
                if done {
                    if block.dirty.is_empty() {
                        block.dirty_since = now;
                    }
                    block.referenced = true;
                    block.valid.insert(inside.clone());
                    block.dirty.insert(inside.clone());
                    block.unstable.remove(inside.clone());
                    block.committing.remove(inside);
                }
                done
            });
            if !done {
                break;
            }
            at = stop;
        }
        (at - offset) as usize
    }

    fn new_block(
        &mut self,
        at: u64,
        end: u64,
        most: u64,
        alloc: &mut dyn FnMut(usize) -> Option<BufMut>,
    ) -> Option<u64> {
        let page = at / PAGE * PAGE;
        let next = self
            .blocks
            .range(page..)
            .next()
            .map_or(u64::MAX, |(&s, _)| s);
        let wanted = end.next_multiple_of(PAGE).max(page + most);
        let mut size = fit(page, next.min(wanted), MAX_PIECE);
        loop {
            if let Some(buf) = alloc(size as usize) {
                self.resident += size as usize;
                self.fresh.push(page);
                self.blocks
                    .insert(page, Block::new(buf.freeze(), RangeSet::default()));
                return Some(page);
            }
            if size == PAGE {
                return None;
            }
            size /= 2;
        }
    }

    /// Takes the next dirty data at or after `from` for one WRITE of at most `most` bytes.
    /// With `full`, only if there are that many in a row, or the run is followed by data that
    /// is not going to be written with it.
    pub fn begin_write(&mut self, from: u64, most: u32, full: bool) -> Option<WriteJob> {
        let mut job: Option<WriteJob> = None;
        let first = self.block_at(from).map_or(from, |b| b.0);
        let mut touched: Vec<(u64, Range<u32>)> = Vec::new();
        'blocks: for &start in self.unclean.range(first..) {
            let block = &self.blocks[&start];
            if block.dirty.is_empty() {
                if job.is_some() {
                    break;
                }
                continue;
            }
            let skip = from.saturating_sub(start).min(u64::from(block.size)) as u32;
            for dirty in block.dirty.within(skip..block.size) {
                // Data in a WRITE under way must not be overtaken by newer data.
                for range in block.writing.gaps(dirty) {
                    let offset = start + u64::from(range.start);
                    let job_now = job.get_or_insert_with(|| WriteJob {
                        offset,
                        len: 0,
                        data: Segs::new(),
                    });
                    if job_now.offset + u64::from(job_now.len) != offset {
                        if full && job_now.len < most {
                            // A shorter run: look for a full one behind it.
                            touched.clear();
                            *job_now = WriteJob {
                                offset,
                                len: 0,
                                data: Segs::new(),
                            };
                        } else {
                            break 'blocks;
                        }
                    }
                    let len = (range.end - range.start).min(most - job_now.len);
                    let range = range.start..range.start + len;
                    job_now
                        .data
                        .push(block.buf().slice(range.start as usize..range.end as usize));
                    job_now.len += len;
                    touched.push((start, range));
                    if job_now.len == most {
                        break 'blocks;
                    }
                }
            }
        }
        let job = job?;
        if full && job.len < most {
            return None;
        }
        for (start, range) in touched {
            self.touch(start, |block| {
                block.dirty.remove(range.clone());
                block.writing.insert(range);
            });
        }
        Some(job)
    }

    /// The reply to a WRITE of `sent`: the server took the first `count` bytes. The rest is
    /// dirty again.
    pub fn end_write(
        &mut self,
        sent: Range<u64>,
        count: u32,
        committed: Stable,
        verifier: Verifier,
    ) -> Verdict {
        let taken = sent.start..(sent.start + u64::from(count)).min(sent.end);
        let verdict = self.check(verifier);
        let unstable = committed != Stable::FileSync;
        self.each(taken.clone(), |block, range| {
            let parts: Vec<_> = block.writing.within(range).collect();
            for part in parts {
                block.writing.remove(part.clone());
                if unstable {
                    block.unstable.insert(part);
                }
            }
            let dirty = block.dirty.clone();
            block.unstable.remove_all(&dirty);
        });
        self.retry_write(taken.end..sent.end);
        verdict
    }

    /// A WRITE of `sent` failed for good: its data is gone, unless written again meanwhile.
    pub fn fail_write(&mut self, sent: Range<u64>) {
        self.each(sent, |block, range| {
            let parts: Vec<_> = block.writing.within(range).collect();
            for part in parts {
                block.writing.remove(part.clone());
                for lost in block.dirty.gaps(part) {
                    block.valid.remove(lost);
                }
            }
        });
    }

    /// A WRITE of `sent` was given up without an answer: its data is dirty again.
    pub fn retry_write(&mut self, sent: Range<u64>) {
        self.each(sent, |block, range| {
            let parts: Vec<_> = block.writing.within(range).collect();
            for part in parts {
                block.writing.remove(part.clone());
                block.dirty.insert(part);
            }
        });
    }

    /// A COMMIT was given up without an answer.
    pub fn retry_commit(&mut self) {
        self.each_unclean(|block| {
            let again = std::mem::take(&mut block.committing);
            block.unstable.insert_all(&again);
        });
    }

    /// Whether there is dirty data that does not wait for a WRITE under way.
    pub fn has_idle_dirty(&self) -> bool {
        self.unclean.iter().any(|start| {
            let block = &self.blocks[start];
            let mut dirty = block.dirty.iter();
            dirty.any(|range| !block.writing.gaps(range).is_empty())
        })
    }

    fn check(&mut self, verifier: Verifier) -> Verdict {
        match self.verifier {
            Some(known) if known != verifier && self.uncommitted > 0 => {
                self.verifier = Some(verifier);
                self.redo(true);
                Verdict::Restarted
            }
            _ => {
                self.verifier = Some(verifier);
                Verdict::Same
            }
        }
    }

    /// Makes uncommitted data dirty again.
    fn redo(&mut self, committing: bool) {
        self.each_unclean(|block| {
            let mut again = std::mem::take(&mut block.unstable);
            if committing {
                again.insert_all(&std::mem::take(&mut block.committing));
            }
            // In a WRITE under way already: its reply decides.
            again.remove_all(&block.writing.clone());
            block.dirty.insert_all(&again);
        });
    }

    /// Starts a COMMIT of everything unstable. False if there is nothing.
    pub fn begin_commit(&mut self) -> bool {
        let mut any = false;
        self.each_unclean(|block| {
            if !block.unstable.is_empty() {
                let unstable = std::mem::take(&mut block.unstable);
                block.committing.insert_all(&unstable);
            }
            any |= !block.committing.is_empty();
        });
        any
    }

    /// The reply to the COMMIT.
    pub fn end_commit(&mut self, verifier: Verifier) -> Verdict {
        let verdict = self.check(verifier);
        self.each_unclean(|block| block.committing = RangeSet::default());
        verdict
    }

    /// The COMMIT failed for good: what it covered may be lost at the server.
    /// Returns that.
    pub fn fail_commit(&mut self) -> Vec<Range<u64>> {
        let mut all = Vec::new();
        let starts: Vec<u64> = self.unclean.iter().copied().collect();
        for start in starts {
            self.touch(start, |block| {
                let lost = std::mem::take(&mut block.committing);
                for range in lost.iter() {
                    all.push(start + u64::from(range.start)..start + u64::from(range.end));
                    let mut keep = block.dirty.clone();
                    keep.insert_all(&block.writing);
                    for gap in keep.gaps(range) {
                        block.valid.remove(gap);
                    }
                }
            });
        }
        all
    }

    /// Drops everything the server has; what it has not stays.
    pub fn invalidate(&mut self) {
        for block in self.blocks.values_mut() {
            block.valid = block.kept();
        }
        self.drop_empty();
    }

    /// Drops what is clean in `range`.
    pub fn invalidate_range(&mut self, range: Range<u64>) {
        self.each(range, |block, inside| {
            let kept = block.kept();
            for gap in kept.gaps(inside) {
                block.valid.remove(gap);
            }
        });
        self.drop_empty();
    }

    /// The file ends at `size` now: nothing behind it is known or to be written.
    pub fn truncate(&mut self, size: u64) {
        self.each(size..u64::MAX, |block, inside| block.forget(inside));
        self.drop_empty();
    }

    fn drop_empty(&mut self) {
        let (mut freed, gone) = (0, &mut self.gone);
        self.blocks.retain(|&start, block| {
            let keep = !block.valid.is_empty();
            if !keep {
                freed += block.size as usize;
                gone.push(start);
            }
            keep
        });
        self.resident -= freed;
    }

    /// Drops the block at `offset` if it is clean and was used (`used`) or not used since it
    /// was last asked about. `None`: there is no such block; `Some(0)`: it stays.
    pub fn evict(&mut self, offset: u64, used: bool) -> Option<usize> {
        let block = self.blocks.get_mut(&offset)?;
        if std::mem::take(&mut block.referenced) != used || !block.is_clean() {
            return Some(0);
        }
        let size = block.size as usize;
        self.blocks.remove(&offset);
        self.resident -= size;
        Some(size)
    }

    /// When the oldest dirty data was written.
    pub fn dirty_since(&self) -> Option<u64> {
        let blocks = self.unclean.iter().map(|start| &self.blocks[start]);
        blocks
            .filter(|block| !block.dirty.is_empty())
            .map(|block| block.dirty_since)
            .min()
    }

    /// Where the newest writes in order began and ended.
    pub fn run(&self) -> Range<u64> {
        self.run_end - self.run_len.min(self.run_end)..self.run_end
    }

    /// Whether any of `range` is not yet on the server's stable storage.
    pub fn is_unsaved(&mut self, range: Range<u64>) -> bool {
        let mut any = false;
        self.each(range, |block, inside| {
            any |= block.kept().within(inside).next().is_some();
        });
        any
    }

    /// The ranges that are not safe at the server, in order.
    pub fn unsaved(&self) -> Vec<Range<u64>> {
        let mut ranges: Vec<Range<u64>> = Vec::new();
        for &start in &self.unclean {
            for range in self.blocks[&start].kept().iter() {
                let range = start + u64::from(range.start)..start + u64::from(range.end);
                match ranges.last_mut() {
                    Some(last) if last.end == range.start => last.end = range.end,
                    _ => ranges.push(range),
                }
            }
        }
        ranges
    }
}
