//! The part of [`Pages`] that moves written data to the server: it takes bytes from dirty over
//! writing, unstable and committing to the end ([`block`](super::block) explains the states).
//!
//! A WRITE contains bytes that programs wrote, and no others: what lies between two of them may have been
//! written by another client since it was read. Dirty ranges that touch become one WRITE.

use super::block::{Block, PAGE};
use super::pages::{Pages, fit};
use super::{MAX_PIECE, RangeSet, WriteData};
use nfsrdma_rdma::contract::Segs;
use nfsrdma_rdma::{Buf, BufMut};
use nfsrdma_record::{Extent, Record};
use nfsrdma_xdr::nfs3::{Stable, Verifier};
use smallvec::SmallVec;
use std::collections::BTreeSet;
use std::ops::Range;

/// Data to send in one WRITE.
#[derive(Debug)]
pub struct WriteJob {
    pub offset: u64,
    pub len: u32,
    pub data: Segs<Buf>,
}

/// What the write verifier in a reply says of the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The server has not restarted since the earlier WRITEs.
    Same,
    /// The server has restarted: uncommitted data is dirty again (RFC 1813 section 3.3.7).
    Restarted,
}

/// Parts of blocks: the offset of the block, and a range of its bytes.
type Parts = SmallVec<[(u64, Range<u32>); 4]>;

impl Pages {
    /// Stores data that a program wrote, and marks it dirty. Returns how many bytes it stored:
    /// fewer than all if `alloc` returned no memory.
    pub(super) fn write<'a>(
        &mut self,
        offset: u64,
        data: impl Into<WriteData<'a>>,
        alloc: &mut dyn FnMut(usize) -> Option<BufMut>,
    ) -> usize {
        let data = data.into();
        if offset == self.run_end {
            self.run_len += data.len() as u64;
        } else {
            self.run_len = data.len() as u64;
        }
        self.run_end = offset + data.len() as u64;
        if self.adopt(offset, data) {
            return data.len();
        }
        // A long run of sequential writes gets larger blocks, in advance of its data.
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
            let from = &data.bytes()[(at - offset) as usize..(stop - offset) as usize];
            let done = self.touch(start, |block| {
                let done = block.change(alloc, |to| {
                    to[inside.start as usize..inside.end as usize].copy_from_slice(from);
                });
                if done {
                    block.written(inside);
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

    /// Makes the buffer of the data a block, if its place and size permit and there is no block
    /// yet.
    fn adopt(&mut self, offset: u64, data: WriteData<'_>) -> bool {
        let Some(buf) = data.buf() else {
            return false;
        };
        let len = data.len() as u64;
        let end = offset + len;
        if !len.is_power_of_two()
            || !(PAGE..=MAX_PIECE).contains(&len)
            || !offset.is_multiple_of(len)
            || self.block_at(offset).is_some()
            || self.blocks.range(offset..end).next().is_some()
        {
            return false;
        }
        let block = Block::new(buf.clone(), RangeSet::default());
        self.resident += data.len();
        self.blocks.insert(offset, Box::new(block));
        self.touch(offset, |block| block.written(0..len as u32));
        true
    }

    /// Data that an earlier process has recorded, in its buffer. It is dirty again, unless a later record
    /// has it: these come first. False if there was no memory.
    pub(super) fn restore(
        &mut self,
        record: Record<Extent>,
        buf: &Buf,
        alloc: &mut dyn FnMut(usize) -> Option<BufMut>,
    ) -> bool {
        let (offset, range) = (record.offset, record.range());
        let end = offset + buf.len() as u64;
        let known = self.block_at(offset);
        let known =
            known.map(|(start, block)| (start, block.buf().place()) == (offset, buf.place()));
        let free = known.is_none() && self.blocks.range(offset..end).next().is_none();
        if free {
            let block = Block::new(buf.clone(), RangeSet::default());
            self.resident += buf.len();
            self.blocks.insert(offset, Box::new(block));
        }
        if free || known == Some(true) {
            self.touch(offset, |block| {
                block.valid.insert(range.clone());
                block.dirty.insert(range);
                block.records.push(record);
            });
            return true;
        }
        let at = |place: u32| offset + u64::from(place);
        while let Some(part) = self.missing(at(range.start)..at(range.end)) {
            let inside = (part.start - offset) as usize..(part.end - offset) as usize;
            if self.write(part.start, &buf[inside.clone()], alloc) < inside.len() {
                return false;
            }
        }
        true
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
                let block = Block::new(buf.freeze(), RangeSet::default());
                self.blocks.insert(page, Box::new(block));
                return Some(page);
            }
            if size == PAGE {
                return None;
            }
            size /= 2;
        }
    }

    /// Takes the first dirty data inside `within` for one WRITE of at most `most` bytes. With
    /// `full`, only a run of exactly `most` bytes.
    pub(super) fn begin_write(
        &mut self,
        within: Range<u64>,
        most: u32,
        full: bool,
    ) -> Option<WriteJob> {
        let parts = self.next_run(within, most, full)?;
        let (first, range) = parts.first()?;
        let mut job = WriteJob {
            offset: first + u64::from(range.start),
            len: 0,
            data: Segs::new(),
        };
        for (start, range) in parts {
            job.len += range.end - range.start;
            let data = self.touch(start, |block| {
                let data = block.buf().slice(range.start as usize..range.end as usize);
                block.dirty.remove(range.clone());
                block.writing.insert(range);
                data
            });
            job.data.push(data);
        }
        Some(job)
    }

    /// The first run of data to write inside `within`: consecutive parts of blocks. The cost is
    /// proportional to the run (with `full`, to the runs before it as well), not to all dirty data.
    fn next_run(&self, within: Range<u64>, most: u32, full: bool) -> Option<Parts> {
        let first = self.block_at(within.start).map_or(within.start, |b| b.0);
        let mut parts = Parts::new();
        let (mut end, mut len) = (0, 0);
        if first >= within.end {
            return None;
        }
        'blocks: for &start in self.index.idle.range(first..within.end) {
            let block = &self.blocks[&start];
            let skip = within
                .start
                .saturating_sub(start)
                .min(u64::from(block.size)) as u32;
            for dirty in block.dirty.within(skip..block.size) {
                // Newer data must not overtake a WRITE of the same bytes that is under way.
                for range in block.writing.gaps(dirty) {
                    let offset = start + u64::from(range.start);
                    if !parts.is_empty() && offset != end {
                        if !full || len == u64::from(most) {
                            break 'blocks;
                        }
                        // This run is too short: look for a full one after it.
                        parts.clear();
                        len = 0;
                    }
                    let taken = u64::from(range.end - range.start).min(u64::from(most) - len);
                    parts.push((start, range.start..range.start + taken as u32));
                    len += taken;
                    end = offset + taken;
                    if len == u64::from(most) {
                        break 'blocks;
                    }
                }
            }
        }
        (len > 0 && (!full || len == u64::from(most))).then_some(parts)
    }

    /// The reply to a WRITE of `sent`: the server accepted the first `count` bytes. The rest is
    /// dirty again.
    pub(super) fn end_write(
        &mut self,
        sent: Range<u64>,
        count: u32,
        committed: Stable,
        verifier: Verifier,
    ) -> Verdict {
        let taken = sent.start..(sent.start + u64::from(count)).min(sent.end);
        let verdict = self.check(verifier);
        let unstable = committed != Stable::FileSync;
        let overtaken = self.overtaken;
        self.each(taken.clone(), |block, range| {
            let parts = block.writing.part(range.clone());
            block.writing.remove_all(&parts);
            if unstable {
                block.unstable.insert_all(&parts);
                block.unstable.remove_all(&block.dirty.part(range));
            } else {
                block.settle(parts, overtaken);
            }
        });
        self.retry_write(taken.end..sent.end);
        verdict
    }

    /// A WRITE of `sent` failed for good: drops its data, except what was written again meanwhile.
    pub(super) fn fail_write(&mut self, sent: Range<u64>) {
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
    pub(super) fn retry_write(&mut self, sent: Range<u64>) {
        self.each(sent, |block, range| {
            let parts: Vec<_> = block.writing.within(range).collect();
            for part in parts {
                block.writing.remove(part.clone());
                block.dirty.insert(part);
            }
        });
    }

    /// Applies `f` to the blocks at `starts`.
    fn each_of(&mut self, starts: BTreeSet<u64>, mut f: impl FnMut(&mut Block)) {
        for start in starts {
            self.touch(start, &mut f);
        }
    }

    /// Whether there is dirty data that is not in a WRITE under way.
    pub(super) fn has_idle_dirty(&self) -> bool {
        !self.index.idle.is_empty()
    }

    fn check(&mut self, verifier: Verifier) -> Verdict {
        match self.verifier {
            Some(known) if known != verifier && self.index.uncommitted > 0 => {
                self.verifier = Some(verifier);
                self.redo();
                Verdict::Restarted
            }
            _ => {
                self.verifier = Some(verifier);
                Verdict::Same
            }
        }
    }

    /// After a restart of the server, makes the uncommitted data dirty again. (Data that was written
    /// since the restart is written once more, which does no harm.)
    fn redo(&mut self) {
        let uncommitted = &self.index.unstable | &self.index.committing;
        self.each_of(uncommitted, |block| {
            let mut again = std::mem::take(&mut block.unstable);
            again.insert_all(&std::mem::take(&mut block.committing));
            // For data in a WRITE that is under way, its reply decides.
            again.remove_all(&block.writing);
            block.dirty.insert_all(&again);
        });
    }

    /// Makes the next COMMIT cover all unstable data.
    pub(super) fn begin_commit(&mut self) {
        self.each_of(self.index.unstable.clone(), |block| {
            let unstable = std::mem::take(&mut block.unstable);
            block.committing.insert_all(&unstable);
        });
    }

    /// The reply to the COMMIT: drops the data that it covered; or marks it as dirty, if the server
    /// has restarted.
    pub(super) fn end_commit(&mut self, verifier: Verifier) -> Verdict {
        let verdict = self.check(verifier);
        let overtaken = self.overtaken;
        self.each_of(self.index.committing.clone(), |block| {
            let committed = std::mem::take(&mut block.committing);
            block.settle(committed, overtaken);
        });
        verdict
    }

    /// The COMMIT failed for good, so the server may have lost the data that it covered: drops that,
    /// and returns its ranges.
    pub(super) fn fail_commit(&mut self) -> Vec<Range<u64>> {
        let mut all = Vec::new();
        for start in self.index.committing.clone() {
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
}
