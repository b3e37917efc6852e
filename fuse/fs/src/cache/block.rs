//! One block of a file's cache: a buffer, and the state of its bytes.
//!
//! The size of a block is a power of two, and its offset in the file a multiple of its size. Five
//! sets of byte ranges hold the state of its bytes, and one has whole pages (*partly*, below):
//! - *valid*: the contents are known. Bytes of the other sets are valid, too. The others were read for
//!   the kernel, which has not taken them yet.
//! - *dirty*: to be written.
//! - *writing*: in a WRITE that is under way. May be dirty again; then it waits for the reply.
//! - *unstable*: written UNSTABLE, waits for a COMMIT.
//! - *committing*: covered by the COMMIT that is under way.
//!
//! When written bytes are on the server's stable storage they are dropped here, because the kernel has them in
//! its own pages. The exception are pages of which a request wrote a part only (*partly*), such as the last one
//! of most files: the kernel will READ them, so what is known of them stays here as if it had been read ahead.
//!
//! While a reply or a WRITE uses a buffer, it is shared and constant: a change then goes to a copy.

use super::RangeSet;
use super::records::Records;
use nfsrdma_rdma::{Buf, BufMut};
use std::ops::Range;

/// Smallest block, in bytes.
pub const PAGE: u64 = 4096;

#[derive(Debug)]
pub(super) struct Block {
    /// Of the bytes that must not be dropped, if there are records. Freed before the buffer.
    pub(super) records: Records,
    /// The buffer before it was copied, until there are no records of it.
    pub(super) replaced: Option<Buf>,
    /// `None` only while the buffer is being changed.
    pub(super) buf: Option<Buf>,
    pub(super) size: u32,
    pub(super) valid: RangeSet,
    pub(super) dirty: RangeSet,
    pub(super) writing: RangeSet,
    pub(super) unstable: RangeSet,
    pub(super) committing: RangeSet,
    /// Whole pages.
    partly: RangeSet,
}

/// What the indexes and counters of write-back need to know of one block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Summary {
    /// Bytes.
    pub(super) dirty: u64,
    pub(super) writing: u64,
    pub(super) unstable: u64,
    pub(super) committing: u64,
    /// Some dirty byte is not in a WRITE that is under way, so it can be sent.
    pub(super) idle: bool,
}

impl Summary {
    /// Whether no byte of the block waits to be on the server's stable storage.
    pub(super) fn is_clean(&self) -> bool {
        self.dirty + self.writing + self.unstable + self.committing == 0
    }

    /// Whether the server does not have all of the block yet.
    pub(super) fn is_dirty(&self) -> bool {
        self.dirty + self.writing > 0
    }
}

impl Block {
    pub(super) fn new(buf: Buf, valid: RangeSet) -> Self {
        Block {
            records: Records::new(),
            replaced: None,
            size: buf.len() as u32,
            buf: Some(buf),
            valid,
            dirty: RangeSet::default(),
            writing: RangeSet::default(),
            unstable: RangeSet::default(),
            committing: RangeSet::default(),
            partly: RangeSet::default(),
        }
    }

    pub(super) fn buf(&self) -> &Buf {
        self.buf.as_ref().expect("a block has its buffer")
    }

    pub(super) fn summary(&self) -> Summary {
        let (dirty, writing) = (self.dirty.bytes(), self.writing.bytes());
        let idle = dirty > writing
            || dirty > 0
                && self
                    .dirty
                    .iter()
                    .any(|range| !self.writing.gaps(range).is_empty());
        Summary {
            dirty: u64::from(dirty),
            writing: u64::from(writing),
            unstable: u64::from(self.unstable.bytes()),
            committing: u64::from(self.committing.bytes()),
            idle,
        }
    }

    /// Bytes that must not be dropped.
    pub(super) fn kept(&self) -> RangeSet {
        let mut kept = self.dirty.clone();
        kept.insert_all(&self.writing);
        kept.insert_all(&self.unstable);
        kept.insert_all(&self.committing);
        kept
    }

    /// One request of the kernel wrote `range`.
    pub(super) fn written(&mut self, range: Range<u32>) {
        const SIZE: u32 = PAGE as u32;
        let (start, end) = (range.start / SIZE * SIZE, range.end / SIZE * SIZE);
        self.partly.insert(start..range.end.next_multiple_of(SIZE));
        self.partly.remove(range.start.next_multiple_of(SIZE)..end);
        self.valid.insert(range.clone());
        self.unstable.remove(range.clone());
        self.committing.remove(range.clone());
        self.dirty.insert(range);
    }

    /// WRITE or COMMIT has put `bytes` on the server's stable storage: drops them, except what is in pages that
    /// were written partly, unless somebody else may have overwritten it.
    pub(super) fn settle(&mut self, mut bytes: RangeSet, overtaken: bool) {
        if !overtaken {
            bytes.remove_all(&self.partly);
        }
        self.drop_safe(bytes);
    }

    /// Drops those of `bytes` that the server has on stable storage.
    pub(super) fn drop_safe(&mut self, mut bytes: RangeSet) {
        self.partly.remove_all(&bytes);
        bytes.remove_all(&self.kept());
        self.valid.remove_all(&bytes);
    }

    /// Changes the buffer: in place if nobody else uses it, else in a copy from `alloc`. False if
    /// there is no memory for the copy.
    pub(super) fn change(
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
                    self.replaced = Some(shared);
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

    pub(super) fn forget(&mut self, range: Range<u32>) {
        self.valid.remove(range.clone());
        self.dirty.remove(range.clone());
        self.writing.remove(range.clone());
        self.unstable.remove(range.clone());
        self.committing.remove(range);
    }
}
