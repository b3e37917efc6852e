//! Lost data, for the report at the unmount.

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
