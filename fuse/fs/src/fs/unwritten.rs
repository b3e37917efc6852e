//! Lost data, for the report at the unmount.

use crate::named;
use nfsrdma_rpcrdma::words::counted;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ops::Range;

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
    /// The first error.
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

    /// Adds `other`, of the same file. Adjacent ranges are one.
    fn add(&mut self, other: &Unwritten) {
        let touch = self.range.start <= other.range.end && other.range.start <= self.range.end;
        self.range.start = self.range.start.min(other.range.start);
        self.range.end = self.range.end.max(other.range.end);
        if touch && self.ranges == 1 {
            self.bytes = self.range.end - self.range.start;
        } else {
            self.ranges += other.ranges;
            self.bytes += other.bytes;
        }
    }
}

/// The most files with lost data that have a line of their own in the log.
const MOST_NAMED: usize = 20;

/// Says of which files data is lost that only a process had that has died.
pub(super) fn log_lost(files: impl Iterator<Item = u64>) {
    let mut files = files.fuse();
    for fileid in files.by_ref().take(MOST_NAMED) {
        tracing::error!(
            "data may be lost that programs have written to {}: the process that served the mount died before \
             the server had it on stable storage; programs that have the file open get EIO",
            named::file(None, fileid)
        );
    }
    match files.count() as u64 {
        0 => {}
        more => tracing::error!("the same of {}", counted(more, "more file")),
    }
}

/// Lost data of which no program got the error, by the nodes of files, with the number of the file's last
/// error ([`super::err_seq`]).
#[derive(Debug, Default)]
pub(super) struct LostData(BTreeMap<u64, (u64, Unwritten)>);

impl LostData {
    pub(super) fn add(&mut self, node: u64, number: u64, lost: Unwritten) {
        match self.0.entry(node) {
            Entry::Vacant(entry) => {
                entry.insert((number, lost));
            }
            Entry::Occupied(mut entry) => {
                let (last, all) = entry.get_mut();
                *last = number;
                all.add(&lost);
            }
        }
    }

    /// A program got the error with this number, and with it those before.
    pub(super) fn forget(&mut self, node: u64, number: u64) {
        if self.0.get(&node).is_some_and(|(last, _)| *last <= number) {
            self.0.remove(&node);
        }
    }

    /// One entry for each file.
    pub(super) fn all(&self) -> Vec<Unwritten> {
        self.0.values().map(|(_, lost)| lost.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lost(fileid: u64, at: u64) -> Unwritten {
        Unwritten::new(fileid, at..at + 8, "full".into())
    }

    #[test]
    fn the_ranges_of_a_file_are_one_entry() {
        let mut all = LostData::default();
        for n in 0..2 {
            all.add(1, n, lost(7, n * 8));
        }
        let of = |all: &LostData| {
            let all = all.all();
            assert_eq!(all.len(), 1);
            (all[0].range.clone(), all[0].ranges, all[0].bytes)
        };
        assert_eq!(of(&all), (0..16, 1, 16));
        for n in 2..100_000 {
            all.add(1, n, lost(7, n * 16));
        }
        assert_eq!(of(&all), (0..1_599_992, 99_999, 16 + 8 * 99_998));
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
