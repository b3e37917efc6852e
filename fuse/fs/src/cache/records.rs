//! Which bytes of a file's blocks must not be dropped, in records that outlive the process (`nfsrdma_record`).
//!
//! A block has a record for each range of such bytes. Whoever goes on with the mount finds a byte of the file in
//! the buffer of the latest record that has it. So the bytes are in the buffer before the record has
//! them, what is recorded anew is so before older records go, and a buffer stays until it has no record.

use super::RangeSet;
use nfsrdma_rdma::Place;
use nfsrdma_record::{Credential, Extent, Record, Region};
use smallvec::SmallVec;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// The most records of a block. If it has more pieces that do not touch, the others do not outlive the process.
const MOST: usize = 32;

/// The records of a block.
pub(super) type Records = SmallVec<[Record<Extent>; 1]>;

/// Makes the records of a file's blocks.
pub struct Recorder {
    extents: Arc<Region<Extent>>,
    nodeid: u64,
    cred: Credential,
    /// All that must not be dropped is recorded.
    complete: bool,
    /// Called when some of it is not, before its older records go.
    mark: Box<dyn Fn() + Send + Sync>,
}

impl fmt::Debug for Recorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Recorder({}, {})", self.nodeid, self.complete)
    }
}

impl Recorder {
    /// `mark` is called when data of the file has no record, before an older one goes.
    pub fn new(
        extents: &Arc<Region<Extent>>,
        nodeid: u64,
        mark: impl Fn() + Send + Sync + 'static,
    ) -> Self {
        Recorder {
            extents: extents.clone(),
            nodeid,
            cred: Credential::new(0, 0, &[]),
            complete: true,
            mark: Box::new(mark),
        }
    }

    /// The credential of the data that comes from now on. There is none of another one.
    pub(super) fn written_by(&mut self, cred: Credential) {
        self.cred = cred;
    }

    /// Nothing is to be recorded.
    pub(super) fn all_safe(&mut self) {
        self.complete = true;
    }

    pub(super) fn is_complete(&self) -> bool {
        self.complete
    }

    /// Records that the bytes `kept` of the block at `offset`, whose buffer is at `place`, must not be dropped.
    /// `records` are those that it has.
    pub(super) fn record(
        &mut self,
        offset: u64,
        place: Place,
        kept: &RangeSet,
        records: &mut Records,
    ) {
        let is = |record: &Record<Extent>| (record.at, record.start) == (place.at, place.start);
        let mut ranges = kept.iter();
        let (first, second) = (ranges.next(), ranges.next());
        if let (Some(range), None, [record]) = (first, second, &records[..])
            && is(record)
        {
            if record.range() != range {
                record.set_range(range);
            }
            return;
        }
        if kept.is_empty() {
            return records.clear();
        }
        let mut old = std::mem::take(records);
        for range in kept.iter().take(MOST) {
            let known = |record: &Record<Extent>| is(record) && record.range() == range;
            let record = match old.iter().position(known) {
                Some(known) => old.swap_remove(known),
                None => self.new_record(offset, place, range),
            };
            records.push(record);
        }
        if kept.iter().nth(MOST).is_some() || !self.extents.lasts() {
            self.complete = false;
            (self.mark)();
        }
    }

    fn new_record(&self, offset: u64, place: Place, range: Range<u32>) -> Record<Extent> {
        let place = [place.at, place.order, place.start, place.len];
        let extent = Extent::new(self.nodeid, offset, place, self.cred);
        let record = self.extents.alloc(extent);
        record.set_range(range);
        record
    }
}

/// Where recorded data lies in its pool.
pub fn place_of(extent: &Extent) -> Place {
    Place {
        at: extent.at,
        order: extent.order,
        start: extent.start,
        len: extent.len,
    }
}
