//! One block of a file's cache: a buffer, and the state of its bytes.
//!
//! The size of a block is a power of two, and its offset in the file a multiple of its size. Six
//! sets of byte ranges hold the state of its bytes:
//! - *valid*: the contents are known. Bytes of the other sets are valid, too.
//! - *dirty*: to be written.
//! - *writing*: in a WRITE that is under way. May be dirty again; then it waits for the reply.
//! - *unstable*: written UNSTABLE, waits for a COMMIT.
//! - *committing*: covered by the COMMIT that is under way.
//! - *overtaken*: in one of the three sets before, and possibly overwritten by a change of somebody
//!   else that became known since. Such bytes are kept in case the server loses them, and are no
//!   longer valid when they are committed, unless a program writes them again.
//!
//! While a reply or a WRITE uses a buffer, it is shared and constant: a change then goes to a copy.

use super::RangeSet;
use nfsrdma_rdma::{Buf, BufMut};
use std::ops::Range;

#[derive(Debug)]
pub(super) struct Block {
    /// `None` only while the buffer is being changed.
    pub(super) buf: Option<Buf>,
    pub(super) size: u32,
    pub(super) valid: RangeSet,
    pub(super) dirty: RangeSet,
    pub(super) writing: RangeSet,
    pub(super) unstable: RangeSet,
    pub(super) committing: RangeSet,
    pub(super) overtaken: RangeSet,
    /// The block was used since the last round of eviction.
    pub(super) referenced: bool,
    /// The budget has the block in its list of blocks that can be dropped.
    pub(super) listed: bool,
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
            size: buf.len() as u32,
            buf: Some(buf),
            valid,
            dirty: RangeSet::default(),
            writing: RangeSet::default(),
            unstable: RangeSet::default(),
            committing: RangeSet::default(),
            overtaken: RangeSet::default(),
            referenced: false,
            listed: false,
        }
    }

    pub(super) fn buf(&self) -> &Buf {
        self.buf.as_ref().expect("a block has its buffer")
    }

    /// Whether the server has all of the block on stable storage.
    pub(super) fn is_clean(&self) -> bool {
        self.dirty.is_empty()
            && self.writing.is_empty()
            && self.unstable.is_empty()
            && self.committing.is_empty()
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

    /// Drops all bytes that the server has on stable storage. Bytes that it may still lose become
    /// overtaken; dirty bytes stay.
    pub(super) fn invalidate(&mut self) {
        self.valid = self.kept();
        self.overtaken = self.valid.clone();
        self.overtaken.remove_all(&self.dirty);
    }

    /// Drops overtaken bytes that the server now has on stable storage. Those that became dirty
    /// again are no longer overtaken.
    pub(super) fn drop_overtaken(&mut self) {
        if self.overtaken.is_empty() {
            return;
        }
        self.overtaken.remove_all(&self.dirty);
        let mut safe = self.overtaken.clone();
        safe.remove_all(&self.kept());
        self.valid.remove_all(&safe);
        self.overtaken.remove_all(&safe);
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
        self.committing.remove(range.clone());
        self.overtaken.remove(range);
    }
}
