//! Ranges of bytes, and the ranges that one owner has locked in a file.
//!
//! A range includes its end, as in FUSE's and the kernel's locks. NLM has an offset and a length,
//! of which 0 means up to the end of the file; [`ByteRange::from_wire`] and [`ByteRange::to_wire`]
//! convert them. A [`RangeSet`] has ranges that do not overlap, in order: locking or unlocking
//! splits, cuts and merges them as fcntl(2) does, so that it equals the locks at the server.

/// The last byte that can be locked: a lock that ends here extends to the end of the file, even if
/// the file grows.
pub const LAST: u64 = i64::MAX as u64;

/// Bytes of a file, from `start` to `end` inclusive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ByteRange {
    pub start: u64,
    pub end: u64,
}

impl ByteRange {
    /// The whole file.
    pub const ALL: ByteRange = ByteRange {
        start: 0,
        end: LAST,
    };

    /// `None` if the end lies before the start or beyond what can be locked.
    pub fn new(start: u64, end: u64) -> Option<Self> {
        (start <= end && end <= LAST).then_some(ByteRange { start, end })
    }

    /// From NLM's offset and length; a length of 0 means up to the end of the file.
    pub fn from_wire(offset: u64, length: u64) -> Self {
        let start = offset.min(LAST);
        let end = match length {
            0 => LAST,
            length => offset.saturating_add(length - 1).clamp(start, LAST),
        };
        ByteRange { start, end }
    }

    /// NLM's offset and length.
    pub fn to_wire(self) -> (u64, u64) {
        match self.end {
            LAST => (self.start, 0),
            end => (self.start, end - self.start + 1),
        }
    }

    pub fn overlaps(&self, other: &ByteRange) -> bool {
        self.start <= other.end && other.start <= self.end
    }

    /// The bytes that are in both ranges.
    pub fn intersection(&self, other: &ByteRange) -> Option<ByteRange> {
        ByteRange::new(self.start.max(other.start), self.end.min(other.end))
    }
}

/// Shared or exclusive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Mode {
    Read,
    Write,
}

impl Mode {
    /// Whether two owners cannot hold locks of these modes on the same byte.
    pub fn conflicts(self, other: Mode) -> bool {
        self == Mode::Write || other == Mode::Write
    }
}

/// The locks of one owner on a file: ranges that do not overlap, in order. Adjacent ranges of the
/// same mode are one range, as at a server (fcntl(2)).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RangeSet(Vec<(ByteRange, Mode)>);

impl RangeSet {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn iter(&self) -> impl Iterator<Item = (ByteRange, Mode)> + '_ {
        self.0.iter().copied()
    }

    /// Locks `range` in `mode`, or unlocks it: splits, cuts and merges the ranges.
    pub fn set(&mut self, range: ByteRange, mode: Option<Mode>) {
        let mut next: Vec<(ByteRange, Mode)> = Vec::with_capacity(self.0.len() + 2);
        for &(held, of) in &self.0 {
            if !held.overlaps(&range) {
                next.push((held, of));
                continue;
            }
            if held.start < range.start {
                let end = range.start - 1;
                next.push((ByteRange { end, ..held }, of));
            }
            if held.end > range.end {
                let start = range.end + 1;
                next.push((ByteRange { start, ..held }, of));
            }
        }
        if let Some(mode) = mode {
            next.push((range, mode));
        }
        next.sort_unstable();
        next.dedup_by(|later, earlier| {
            let joined = earlier.1 == later.1 && earlier.0.end + 1 == later.0.start;
            if joined {
                earlier.0.end = later.0.end;
            }
            joined
        });
        self.0 = next;
    }

    /// `range` divided into pieces by how each is locked.
    pub fn pieces(&self, range: ByteRange) -> Vec<(ByteRange, Option<Mode>)> {
        let mut pieces = Vec::new();
        let mut at = range.start;
        for (held, mode) in self.iter() {
            let Some(part) = held.intersection(&range) else {
                continue;
            };
            if at < part.start {
                let end = part.start - 1;
                pieces.push((ByteRange { start: at, end }, None));
            }
            pieces.push((part, Some(mode)));
            at = part.end + 1;
        }
        if at <= range.end {
            let end = range.end;
            pieces.push((ByteRange { start: at, end }, None));
        }
        pieces
    }

    /// The first lock that keeps another owner from locking `range` in `mode`.
    pub fn conflict(&self, range: ByteRange, mode: Mode) -> Option<(ByteRange, Mode)> {
        self.iter()
            .find(|(held, of)| held.overlaps(&range) && of.conflicts(mode))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(start: u64, end: u64) -> ByteRange {
        ByteRange::new(start, end).unwrap()
    }

    #[test]
    fn ranges_on_the_wire() {
        assert_eq!(ByteRange::ALL.to_wire(), (0, 0));
        assert_eq!(range(5, 5).to_wire(), (5, 1));
        assert_eq!(range(7, LAST).to_wire(), (7, 0));
        assert_eq!(ByteRange::from_wire(7, 0), range(7, LAST));
        assert_eq!(ByteRange::from_wire(5, 1), range(5, 5));
        assert_eq!(ByteRange::from_wire(u64::MAX, 9), range(LAST, LAST));
        assert_eq!(ByteRange::from_wire(9, u64::MAX), range(9, LAST));
        assert_eq!(ByteRange::new(2, 1), None);
        assert_eq!(ByteRange::new(2, LAST + 1), None);
    }

    #[test]
    fn locking_splits_and_merges() {
        let mut set = RangeSet::default();
        set.set(range(0, 9), Some(Mode::Read));
        set.set(range(10, 19), Some(Mode::Read));
        assert_eq!(set.iter().collect::<Vec<_>>(), [(range(0, 19), Mode::Read)]);
        set.set(range(5, 14), Some(Mode::Write));
        let three = [
            (range(0, 4), Mode::Read),
            (range(5, 14), Mode::Write),
            (range(15, 19), Mode::Read),
        ];
        assert_eq!(set.iter().collect::<Vec<_>>(), three);
        set.set(range(5, 14), Some(Mode::Read));
        assert_eq!(set.iter().collect::<Vec<_>>(), [(range(0, 19), Mode::Read)]);
        set.set(range(3, LAST), None);
        assert_eq!(set.iter().collect::<Vec<_>>(), [(range(0, 2), Mode::Read)]);
        let pieces = set.pieces(range(2, 4));
        assert_eq!(
            pieces,
            [(range(2, 2), Some(Mode::Read)), (range(3, 4), None)]
        );
    }
}
