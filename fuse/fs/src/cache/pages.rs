//! The cached contents of one file: a map of [blocks](super::block), which do not overlap.
//!
//! This file has the operations for reading, and `dirty.rs` those that move written data to the
//! server. Both maintain indexes of the blocks by what has to be done with them, so that no call
//! looks at blocks that do not concern it, however many there are.

use super::block::{Block, PAGE, Summary};
use super::{RangeSet, Recorder};
use nfsrdma_rdma::contract::Segs;
use nfsrdma_rdma::{Buf, BufMut};
use nfsrdma_xdr::nfs3::Verifier;
use smallvec::SmallVec;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// Largest block, in bytes.
pub const MAX_PIECE: u64 = 1 << 20;

/// A part of the file to read into one buffer: its offset and its length in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    pub offset: u64,
    pub len: u32,
}

/// The cached part of a file.
#[derive(Debug, Default)]
pub struct Pages {
    /// Boxed, because a node of the map has room for eleven blocks, and most files have one or two.
    pub(super) blocks: BTreeMap<u64, Box<Block>>,
    pub(super) index: Index,
    /// Bytes of the blocks' buffers.
    pub(super) resident: usize,
    pub(super) verifier: Option<Verifier>,
    /// Somebody else may have overwritten data that was not on stable storage.
    pub(super) overtaken: bool,
    /// Where the last write ended; `run_len`: the length of the run of sequential writes up to
    /// there.
    pub(super) run_end: u64,
    pub(super) run_len: u64,
    pub(super) recorder: Option<Recorder>,
    /// Blocks that were dropped since the last [`Pages::take_dropped`].
    dropped: Vec<Block>,
}

/// Blocks that were removed from a file, and whose memory is freed when this is dropped.
#[derive(Debug, Default)]
pub struct Dropped(#[expect(dead_code, reason = "kept to be dropped")] Vec<Block>);

/// The blocks that are not clean, by what has to be done with them, and the sums over them.
#[derive(Debug, Default)]
pub(super) struct Index {
    pub(super) unclean: BTreeSet<u64>,
    /// Blocks with dirty data that is not in a WRITE under way.
    pub(super) idle: BTreeSet<u64>,
    pub(super) unstable: BTreeSet<u64>,
    pub(super) committing: BTreeSet<u64>,
    /// Bytes.
    pub(super) dirty: u64,
    pub(super) writing: u64,
    /// Unstable or committing.
    pub(super) uncommitted: u64,
    /// Bytes of the buffers of blocks that are dirty or in a WRITE; `uncommitted_held`: of those
    /// that only wait for a COMMIT.
    pub(super) dirty_held: u64,
    pub(super) uncommitted_held: u64,
}

impl Index {
    /// Updates index and sums for the block at `start`, of `size` bytes.
    fn update(&mut self, start: u64, size: u64, before: Summary, after: Summary) {
        if before == after {
            return;
        }
        let mut place = |set: fn(&mut Self) -> &mut BTreeSet<u64>, was: bool, is: bool| {
            match (was, is) {
                (false, true) => set(self).insert(start),
                (true, false) => set(self).remove(&start),
                _ => false,
            };
        };
        place(|i| &mut i.unclean, !before.is_clean(), !after.is_clean());
        place(|i| &mut i.idle, before.idle, after.idle);
        place(|i| &mut i.unstable, before.unstable > 0, after.unstable > 0);
        place(
            |i| &mut i.committing,
            before.committing > 0,
            after.committing > 0,
        );
        let held = |summary: &Summary| {
            let waits = !summary.is_clean() && !summary.is_dirty();
            (
                if summary.is_dirty() { size } else { 0 },
                if waits { size } else { 0 },
            )
        };
        let ((dirty_before, waits_before), (dirty_after, waits_after)) =
            (held(&before), held(&after));
        let uncommitted = |summary: &Summary| summary.unstable + summary.committing;
        for (count, was, is) in [
            (&mut self.dirty, before.dirty, after.dirty),
            (&mut self.writing, before.writing, after.writing),
            (
                &mut self.uncommitted,
                uncommitted(&before),
                uncommitted(&after),
            ),
            (&mut self.dirty_held, dirty_before, dirty_after),
            (&mut self.uncommitted_held, waits_before, waits_after),
        ] {
            *count = *count + is - was;
        }
    }
}

/// The size for a block at `at`: at most `most` bytes, and not beyond `limit`, but at least a page.
pub(super) fn fit(at: u64, limit: u64, most: u64) -> u64 {
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
    /// Bytes of memory of all blocks.
    pub fn resident(&self) -> usize {
        self.resident
    }

    pub fn dirty(&self) -> u64 {
        self.index.dirty
    }

    /// Bytes in WRITEs under way.
    pub fn writing(&self) -> u64 {
        self.index.writing
    }

    /// Bytes written but not committed.
    pub fn uncommitted(&self) -> u64 {
        self.index.uncommitted
    }

    /// Bytes of memory of blocks that hold dirty data or data in a WRITE.
    pub fn dirty_held(&self) -> u64 {
        self.index.dirty_held
    }

    /// Bytes of memory of the blocks that only wait for a COMMIT.
    pub fn uncommitted_held(&self) -> u64 {
        self.index.uncommitted_held
    }

    /// Whether there are blocks that can be dropped.
    pub fn has_clean(&self) -> bool {
        self.blocks.len() > self.index.unclean.len()
    }

    /// The blocks that were dropped since the last call. Drop them without holding a lock.
    pub fn take_dropped(&mut self) -> Dropped {
        Dropped(std::mem::take(&mut self.dropped))
    }

    pub(super) fn block_at(&self, at: u64) -> Option<(u64, &Block)> {
        let (&start, block) = self.blocks.range(..=at).next_back()?;
        (at < start + u64::from(block.size)).then_some((start, block))
    }

    /// Applies `f` to the block at `start`, and updates the index. A block without valid data is dropped.
    pub(super) fn touch<R>(&mut self, start: u64, f: impl FnOnce(&mut Block) -> R) -> R {
        let block = self
            .blocks
            .get_mut(&start)
            .expect("the caller found the block");
        let before = block.summary();
        let result = f(block);
        if let Some(recorder) = &mut self.recorder {
            let (kept, place) = (block.kept(), block.buf().place());
            recorder.record(start, place, &kept, &mut block.records);
        }
        block.replaced = None;
        let (after, size, empty) = (block.summary(), block.size, block.valid.is_empty());
        self.index.update(start, u64::from(size), before, after);
        if let Some(recorder) = &mut self.recorder
            && self.index.unclean.is_empty()
        {
            recorder.all_safe();
        }
        if empty {
            self.resident -= size as usize;
            self.dropped
                .extend(self.blocks.remove(&start).map(|block| *block));
        }
        result
    }

    /// Applies `f` to each block that overlaps `range`, and to the part of `range` in the block.
    pub(super) fn each(&mut self, range: Range<u64>, mut f: impl FnMut(&mut Block, Range<u32>)) {
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

    /// The bytes of `range` for the kernel, if all are valid. It has them from now on, so those that the
    /// server has are dropped.
    pub fn take(&mut self, range: Range<u64>) -> Option<Segs<Buf>> {
        let data = self.get(range.clone())?;
        self.invalidate_range(range);
        Some(data)
    }

    pub(super) fn get(&self, range: Range<u64>) -> Option<Segs<Buf>> {
        let mut data = Segs::new();
        let mut at = range.start;
        while at < range.end {
            let (start, block) = self.block_at(at)?;
            let end = range.end.min(start + u64::from(block.size));
            let inside = (at - start) as u32..(end - start) as u32;
            if !block.valid.covers(inside.clone()) {
                return None;
            }
            let inside = inside.start as usize..inside.end as usize;
            data.push(block.buf().slice(inside));
            at = end;
        }
        Some(data)
    }

    /// Whether there are blocks that overlap `range`.
    pub fn has_any(&self, range: Range<u64>) -> bool {
        self.block_at(range.start).is_some() || self.blocks.range(range).next().is_some()
    }

    /// The first part of `range` that is not valid, up to the next valid byte.
    pub fn missing(&self, range: Range<u64>) -> Option<Range<u64>> {
        let mut at = range.start;
        let mut found: Option<Range<u64>> = None;
        while at < range.end {
            let (end, gaps): (u64, SmallVec<[Range<u64>; 2]>) = match self.block_at(at) {
                Some((start, block)) => {
                    let end = range.end.min(start + u64::from(block.size));
                    let inside = (at - start) as u32..(end - start) as u32;
                    let gaps = block.valid.gaps(inside).into_iter();
                    let in_file =
                        |gap: Range<u32>| start + u64::from(gap.start)..start + u64::from(gap.end);
                    (end, gaps.map(in_file).collect())
                }
                None => {
                    let next = self.blocks.range(at..range.end).next();
                    let end = next.map_or(range.end, |(&start, _)| start);
                    (end, std::iter::once(at..end).collect())
                }
            };
            for gap in gaps {
                match &mut found {
                    None => found = Some(gap),
                    Some(first) if first.end == gap.start => first.end = gap.end,
                    Some(_) => return found,
                }
            }
            at = end;
        }
        found
    }

    /// Divides `range`, extended to whole pages, into consecutive pieces to read: at most `most`
    /// bytes each (a power of two), and none across the border of a block.
    pub fn plan(&self, range: Range<u64>, most: u64) -> Segs<Piece> {
        let mut pieces = Segs::new();
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

    /// Stores the data read for a [`Piece`]. `buf` has the length of the piece; its first `known`
    /// bytes are contents of the file. Bytes that are already valid are newer and stay.
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
                at = self.touch(start, |block| {
                    let stop = end.min(start + u64::from(block.size));
                    let inside = (at - start) as u32..(stop.min(known_end) - start) as u32;
                    let gaps = block.valid.gaps(inside);
                    let done = gaps.is_empty()
                        || block.change(alloc, |to| {
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
                    stop
                });
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
            let block = Block::new(part, RangeSet::of(0..valid));
            self.blocks.insert(at, Box::new(block));
            at += len;
        }
    }

    /// Drops all data that the server has on stable storage, because somebody else may have changed it.
    pub fn invalidate(&mut self) {
        self.invalidate_range(0..u64::MAX);
        self.overtaken = self.index.writing + self.index.uncommitted > 0;
    }

    /// Whether data that waits for a COMMIT, or for the reply to a WRITE, may have been overwritten
    /// by somebody else.
    pub fn has_overtaken(&mut self) -> bool {
        self.overtaken &= !self.index.unclean.is_empty();
        self.overtaken
    }

    /// Drops the clean data in `range`.
    pub fn invalidate_range(&mut self, range: Range<u64>) {
        self.each(range, |block, inside| {
            block.drop_safe(RangeSet::of(inside));
        });
    }

    /// The file ends at `size` now: drops all data after it, dirty data as well.
    pub fn truncate(&mut self, size: u64) {
        self.each(size..u64::MAX, |block, inside| block.forget(inside));
    }

    /// Whether all data that the server may not have on stable storage outlives this process.
    pub fn outlives(&self) -> bool {
        self.recorder.as_ref().is_some_and(Recorder::is_complete)
    }

    /// The range of the latest run of sequential writes.
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

    /// The ranges that are not on the server's stable storage, in order.
    pub fn unsaved(&self) -> Vec<Range<u64>> {
        let mut ranges: Vec<Range<u64>> = Vec::new();
        for &start in &self.index.unclean {
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
