//! Lost data, for the report at the unmount.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ops::Range;

/// The most entries of one file; the last one has all further ranges.
const MOST_LISTED: usize = 16;

/// Data of one file that could not be written: one range, or several that are put together.
#[derive(Debug, Clone)]
pub struct Unwritten {
    /// The file's inode number.
    pub fileid: u64,
    /// A path of the file, if one is cached.
    pub name: Option<String>,
    /// The bytes from the first to the last that is lost.
    pub range: Range<u64>,
    /// How many separate ranges are lost within `range`; `bytes`: their total length.
    pub ranges: u64,
    pub bytes: u64,
    /// The error.
    pub reason: String,
}

impl Unwritten {
    pub(super) fn new(fileid: u64, range: Range<u64>, reason: String) -> Self {
        Unwritten {
            fileid,
            name: None,
            ranges: 1,
            bytes: range.end - range.start,
            range,
            reason,
        }
    }

    /// Adds `other`, of the same file, to this entry.
    fn add(&mut self, other: &Unwritten) {
        self.range.start = self.range.start.min(other.range.start);
        self.range.end = self.range.end.max(other.range.end);
        self.ranges += other.ranges;
        self.bytes += other.bytes;
    }

    /// Whether this and `next` make one range.
    fn touches(&self, next: &Unwritten) -> bool {
        let touch = self.range.start <= next.range.end && next.range.start <= self.range.end;
        touch && self.ranges == 1 && self.reason == next.reason
    }

    fn join(&mut self, next: &Unwritten) {
        self.add(next);
        self.ranges = 1;
        self.bytes = self.range.end - self.range.start;
    }
}

/// Lost data of which no program got the error, by [`FileData::id`](super::file::FileData::id), with the
/// number of the file's last error ([`super::err_seq`]).
#[derive(Debug, Default)]
pub(super) struct LostData(BTreeMap<u64, (u64, Vec<Unwritten>)>);

impl LostData {
    pub(super) fn add(&mut self, id: u64, number: u64, lost: Unwritten) {
        let (last, entries) = self.0.entry(id).or_default();
        *last = number;
        let full = entries.len() == MOST_LISTED;
        match entries.last_mut() {
            Some(entry) if entry.touches(&lost) => entry.join(&lost),
            Some(entry) if full => entry.add(&lost),
            _ => entries.push(lost),
        }
    }

    /// A program got the error with this number, and with it those before.
    pub(super) fn forget(&mut self, id: u64, number: u64) {
        if let Entry::Occupied(entry) = self.0.entry(id)
            && entry.get().0 <= number
        {
            entry.remove();
        }
    }

    /// By file and offset.
    pub(super) fn all(&self) -> Vec<Unwritten> {
        let mut all: Vec<_> = self.0.values().flat_map(|of| &of.1).cloned().collect();
        all.sort_by_key(|of| (of.fileid, of.range.start));
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lost(fileid: u64, at: u64) -> Unwritten {
        Unwritten::new(fileid, at..at + 8, "full".into())
    }

    #[test]
    fn very_many_ranges_of_a_file_are_few_entries() {
        let mut all = LostData::default();
        for n in 0..100_000 {
            all.add(1, n, lost(1, n * 16));
        }
        let all = all.all();
        assert_eq!((all.len(), all[0].range.clone()), (MOST_LISTED, 0..8));
        let ranges = 100_001 - MOST_LISTED as u64;
        let last = all.last().unwrap();
        assert_eq!((last.ranges, last.bytes), (ranges, 8 * ranges));
    }

    #[test]
    fn what_a_program_was_told_is_forgotten_and_nothing_else() {
        let mut all = LostData::default();
        all.add(1, 1, lost(7, 0));
        all.add(2, 1, lost(8, 0));
        all.add(2, 2, lost(8, 8));
        all.forget(1, 1);
        all.forget(2, 1);
        let left = all.all();
        assert_eq!(
            (left.len(), left[0].range.clone(), left[0].ranges),
            (1, 0..16, 1)
        );
        all.forget(2, 2);
        assert!(all.all().is_empty());
    }
}
