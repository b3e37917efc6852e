//! Lost data, for the report at the unmount.

use std::ops::Range;

/// The most lost ranges of one file that are listed one by one.
const MOST_LISTED: usize = 16;
/// The number of lost ranges at which those of each file are put together.
const MOST_LOST: usize = 4096;

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
    pub(super) fn add(&mut self, other: &Unwritten) {
        self.range.start = self.range.start.min(other.range.start);
        self.range.end = self.range.end.max(other.range.end);
        self.ranges += other.ranges;
        self.bytes += other.bytes;
    }
}

/// Sorts by file and offset, joins ranges that touch, and makes one entry of many ranges of a file.
fn put_together(mut lost: Vec<Unwritten>) -> Vec<Unwritten> {
    lost.sort_by(|a, b| {
        (a.fileid, &a.reason, a.range.start).cmp(&(b.fileid, &b.reason, b.range.start))
    });
    lost.dedup_by(|next, last| {
        let same = (last.fileid, &last.reason) == (next.fileid, &next.reason);
        let single = last.ranges == 1 && next.ranges == 1;
        let touch = same && single && next.range.start <= last.range.end;
        if touch {
            last.range.end = last.range.end.max(next.range.end);
            last.bytes = last.range.end - last.range.start;
        }
        touch
    });
    let of_one_file = lost.chunk_by(|a, b| (a.fileid, &a.reason) == (b.fileid, &b.reason));
    let entries = of_one_file.flat_map(|ranges| match ranges {
        [first, rest @ ..] if ranges.len() > MOST_LISTED => {
            let mut all = first.clone();
            rest.iter().for_each(|range| all.add(range));
            vec![all]
        }
        few => few.to_vec(),
    });
    entries.collect()
}

/// Lost data of all files.
#[derive(Debug, Default)]
pub(super) struct LostData {
    ranges: Vec<Unwritten>,
    /// How many were left when they were last put together.
    left: usize,
}

impl LostData {
    pub(super) fn add(&mut self, lost: impl IntoIterator<Item = Unwritten>) {
        self.ranges.extend(lost);
        // Not at each addition: those of very many files remain many.
        if self.ranges.len() >= MOST_LOST.max(2 * self.left) {
            self.ranges = put_together(std::mem::take(&mut self.ranges));
            self.left = self.ranges.len();
        }
    }

    /// By file and offset.
    pub(super) fn all(&self) -> Vec<Unwritten> {
        put_together(self.ranges.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lost(fileid: u64, at: u64) -> Unwritten {
        Unwritten::new(fileid, at..at + 8, "full".into())
    }

    #[test]
    fn many_ranges_of_a_file_are_one_entry() {
        let mut all = LostData::default();
        for n in 0..100_000 {
            all.add([lost(1, n * 16)]);
            assert!(all.ranges.len() <= MOST_LOST);
        }
        let all = all.all();
        assert_eq!(
            (all.len(), all[0].ranges, all[0].bytes),
            (1, 100_000, 800_000)
        );
    }

    #[test]
    fn those_of_very_many_files_are_put_together_seldom() {
        let mut all = LostData::default();
        let mut times = 0;
        for n in 0..20 * MOST_LOST as u64 {
            let before = all.left;
            all.add([lost(n, 0)]);
            times += u32::from(all.left != before);
        }
        assert_eq!(times, 5);
        assert_eq!(all.all().len(), 20 * MOST_LOST);
    }
}
