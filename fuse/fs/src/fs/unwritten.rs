//! Data that was lost, for reports.

use std::ops::Range;

/// Data that could not be written when the file system was shut down.
#[derive(Debug, Clone)]
pub struct Unwritten {
    /// The file's inode number.
    pub fileid: u64,
    /// A name it was last known by, if any.
    pub name: Option<String>,
    /// Bytes of the file: all that is lost lies in here.
    pub range: Range<u64>,
    /// How many ranges these are, which do not touch, and how many bytes in all.
    pub ranges: u64,
    pub bytes: u64,
    /// Why.
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

    /// Takes `other`, of the same file, into the account of this one.
    pub(super) fn add(&mut self, other: &Unwritten) {
        self.range.start = self.range.start.min(other.range.start);
        self.range.end = self.range.end.max(other.range.end);
        self.ranges += other.ranges;
        self.bytes += other.bytes;
    }
}
