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
pub struct RangeSet {
    ranges: Vec<(ByteRange, Mode)>,
}

impl RangeSet {
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    pub fn iter(&self) -> impl Iterator<Item = (ByteRange, Mode)> + '_ {
        self.ranges.iter().copied()
    }

    /// Locks `range` in `mode`, or unlocks it: splits, cuts and merges the ranges. It looks only at
    /// those that `range` overlaps or touches.
    pub fn set(&mut self, range: ByteRange, mode: Option<Mode>) {
        let from = self
            .ranges
            .partition_point(|(held, _)| held.end + 1 < range.start);
        let to = self
            .ranges
            .partition_point(|(held, _)| held.start <= range.end + 1);
        let mut next: Vec<(ByteRange, Mode)> = Vec::with_capacity(3);
        let mut put = |range: ByteRange, mode: Mode| match next.last_mut() {
            Some((last, of)) if *of == mode && last.end + 1 == range.start => last.end = range.end,
            _ => next.push((range, mode)),
        };
        if let Some(&(first, of)) = self.ranges[from..to].first()
            && first.start < range.start
        {
            let end = first.end.min(range.start - 1);
            put(ByteRange { end, ..first }, of);
        }
        if let Some(mode) = mode {
            put(range, mode);
        }
        if let Some(&(last, of)) = self.ranges[from..to].last()
            && last.end > range.end
        {
            let start = last.start.max(range.end + 1);
            put(ByteRange { start, ..last }, of);
        }
        self.ranges.splice(from..to, next);
    }

    /// The ranges that overlap or touch `range`: those that [`RangeSet::set`] may change.
    pub fn near(&self, range: ByteRange) -> impl Iterator<Item = (ByteRange, Mode)> + '_ {
        let from = self
            .ranges
            .partition_point(|(held, _)| held.end + 1 < range.start);
        let rest = self.ranges[from..].iter().copied();
        rest.take_while(move |(held, _)| held.start <= range.end + 1)
    }

    /// The ranges that overlap `range`.
    fn overlapping(&self, range: ByteRange) -> impl Iterator<Item = (ByteRange, Mode)> + '_ {
        let from = self
            .ranges
            .partition_point(|(held, _)| held.end < range.start);
        let rest = self.ranges[from..].iter().copied();
        rest.take_while(move |(held, _)| held.start <= range.end)
    }

    /// `range` divided into pieces by how each is locked.
    pub fn pieces(&self, range: ByteRange) -> Vec<(ByteRange, Option<Mode>)> {
        let mut pieces = Vec::new();
        let mut at = range.start;
        for (held, mode) in self.overlapping(range) {
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
        self.overlapping(range).find(|(_, of)| of.conflicts(mode))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const BYTES: u64 = 40;

    proptest! {
        #[test]
        fn a_set_is_a_map_of_bytes(
            steps in prop::collection::vec((0..BYTES, 0..BYTES, 0..3usize), 0..60),
            probe in (0..BYTES, 0..BYTES),
        ) {
            let mode = |number| [None, Some(Mode::Read), Some(Mode::Write)][number];
            let range_of = |a: u64, b: u64| range(a.min(b), a.max(b));
            let mut set = RangeSet::default();
            let mut bytes = [None; BYTES as usize];
            for (a, b, number) in steps {
                let of = range_of(a, b);
                set.set(of, mode(number));
                bytes[of.start as usize..=of.end as usize].fill(mode(number));
                let mut last: Option<(ByteRange, Mode)> = None;
                for (held, mode) in set.iter() {
                    prop_assert!(held.start <= held.end);
                    if let Some((before, of)) = last {
                        let apart = held.start > before.end + 1;
                        prop_assert!(apart || held.start == before.end + 1 && of != mode);
                    }
                    last = Some((held, mode));
                }
                let held: u64 = set.iter().map(|(of, _)| of.end - of.start + 1).sum();
                prop_assert_eq!(held, bytes.iter().flatten().count() as u64);
            }
            let probe = range_of(probe.0, probe.1);
            let mut at = probe.start;
            for (piece, mode) in set.pieces(probe) {
                prop_assert_eq!(piece.start, at);
                at = piece.end + 1;
                let part = &bytes[piece.start as usize..=piece.end as usize];
                prop_assert!(part.iter().all(|of| *of == mode));
            }
            prop_assert_eq!(at, probe.end + 1);
            for wanted in [Mode::Read, Mode::Write] {
                let part = &bytes[probe.start as usize..=probe.end as usize];
                let there = part.iter().flatten().any(|of| of.conflicts(wanted));
                prop_assert_eq!(set.conflict(probe, wanted).is_some(), there);
            }
        }
    }

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
}
