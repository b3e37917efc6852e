//! Readahead of one open file: which data to fetch before it is read.
//!
//! [`ReadAhead::note`] gets each range that is read. Sequential reads open a window of one READ,
//! which doubles, up to the limit, whenever no more than half of it is left. They may be slightly
//! out of order, as the kernel's requests arrive from several threads. Reads of equal length at
//! equal distances count as a strided stream, whose next parts are fetched. Any other read closes
//! the window, so that random reads fetch nothing. [`ReadAhead::left_behind`] returns what a long
//! sequence has passed, which can be dropped because the kernel has it in its own page cache.

use std::ops::Range;

/// The most parts of a strided stream that are fetched ahead.
const MOST_PARTS: u64 = 16;
/// A sequence that has read this many bytes leaves all but the last of them behind,
const LONG: u64 = 8 << 20;
/// and at least this many bytes at a time.
const PART: u64 = 2 << 20;
/// After this many sequential reads, requests may be further out of order.
const SURE: u32 = 4;
/// After this many equal steps, a stream counts as strided.
const STEPS: u32 = 3;

/// Detects whether an open file is read sequentially, or in equal parts at equal distances, and
/// decides how far to read ahead.
#[derive(Debug, Default)]
pub struct ReadAhead {
    /// Where the next read of a sequence begins.
    next: u64,
    /// Sequential reads so far.
    streak: u32,
    /// Bytes to keep fetched ahead.
    window: u64,
    /// The offset up to which data was fetched.
    fetched: u64,
    /// Where the sequence began; `left`: the offset up to which it was left behind.
    start: u64,
    left: u64,
    stride: Stride,
}

/// Equal parts at equal distances, forwards.
#[derive(Debug, Default, Clone, Copy)]
struct Stride {
    /// Offset and length of the last part.
    start: u64,
    len: u64,
    /// The distance from the start of one part to that of the next.
    step: u64,
    /// Equal steps so far.
    steps: u32,
    /// Parts to keep fetched ahead.
    window: u64,
    /// The offset of the next part to fetch.
    next: u64,
}

impl Stride {
    /// As [`ReadAhead::note`], for reads that are not sequential.
    fn note(&mut self, range: &Range<u64>, size: u64, most: u64) -> Vec<Range<u64>> {
        let len = range.end - range.start;
        let step = range.start.wrapping_sub(self.start);
        let forward = range.start > self.start && step >= len;
        if len != self.len || step != self.step || !forward {
            *self = Stride {
                start: range.start,
                len,
                step: if forward && len == self.len { step } else { 0 },
                steps: u32::from(forward && len == self.len),
                ..Stride::default()
            };
            return Vec::new();
        }
        self.start = range.start;
        self.steps += 1;
        // Only few parts are fetched, because few equal steps may be chance.
        let most = (most / len.max(1)).min(MOST_PARTS);
        if self.steps < STEPS || most == 0 {
            return Vec::new();
        }
        self.next = self.next.max(range.start.saturating_add(step));
        let ahead = (self.next - range.start) / step - 1;
        if self.window > 0 && ahead > self.window / 2 {
            return Vec::new();
        }
        self.window = (self.window * 2).clamp(1, most);
        let mut parts = Vec::new();
        for _ in ahead..self.window {
            if self.next >= size {
                break;
            }
            parts.push(self.next..self.next.saturating_add(len).min(size));
            self.next = self.next.saturating_add(step);
        }
        parts
    }
}

impl ReadAhead {
    /// A program reads `range` of a file of `size` bytes. Returns the ranges to fetch ahead.
    /// `unit`: the bytes of one READ; `most`: the most bytes to fetch ahead.
    pub fn note(&mut self, range: Range<u64>, size: u64, unit: u64, most: u64) -> Vec<Range<u64>> {
        match self.in_order(range.clone(), size, unit, most) {
            Some(ahead) => ahead.into_iter().collect(),
            None => self.stride.note(&range, size, most),
        }
    }

    /// What a long sequence has left behind since the last call, in whole `unit`s. The kernel has
    /// it: keeping it here as well would evict what others use, and take more and more memory.
    /// `most`: the most bytes ahead, which is also the kernel's read-ahead.
    pub fn left_behind(&mut self, unit: u64, most: u64) -> Option<Range<u64>> {
        // The kernel has up to two windows of requests under way, in no strict order.
        let near = 2 * most + PART;
        let end = self.next.saturating_sub(near) / unit * unit;
        if self.next.saturating_sub(self.start) < near.max(LONG) || end < self.left + PART {
            return None;
        }
        let left = self.left..end;
        self.left = end;
        Some(left)
    }

    /// As [`ReadAhead::note`], for sequential reads. `None`: the read is not sequential.
    fn in_order(
        &mut self,
        range: Range<u64>,
        size: u64,
        unit: u64,
        most: u64,
    ) -> Option<Option<Range<u64>>> {
        // Requests of one sequence arrive from several threads, in any order: if a thread was not
        // scheduled for a while, its request arrives after all that the kernel has sent ahead.
        let slack = 2 * unit;
        let late = match self.streak {
            0..SURE => slack,
            _ => slack.max(2 * most),
        };
        let near = range.start <= self.next.saturating_add(slack)
            && range.end.saturating_add(late) >= self.next;
        if !near {
            *self = ReadAhead {
                next: range.end,
                start: range.start,
                left: range.start,
                streak: u32::from(range.start == 0),
                stride: self.stride,
                ..ReadAhead::default()
            };
            return None;
        }
        if range.start == self.next || range.end > self.next {
            self.streak += 1;
        }
        self.next = self.next.max(range.end);
        if most == 0 || self.streak < 2 || self.next >= size {
            return Some(None);
        }
        self.fetched = self.fetched.max(self.next);
        if self.window > 0 && self.fetched - self.next > self.window / 2 {
            return Some(None);
        }
        self.window = (self.window * 2).clamp(unit.min(most), most);
        let end = (self.next + self.window).div_ceil(unit) * unit;
        let ahead = self.fetched..end.min(size);
        self.fetched = ahead.end.max(self.fetched);
        Some((!ahead.is_empty()).then_some(ahead))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNIT: u64 = 1 << 20;
    const K: u64 = 1 << 10;

    #[test]
    fn reads_in_order_are_fetched_ahead_once_and_completely() {
        let size = 64 * UNIT;
        let mut ahead = ReadAhead::default();
        let mut fetched = 0;
        let mut most = 0;
        for at in (0..size).step_by(128 << 10) {
            let end = at + 128 * K;
            for range in ahead.note(at..end, size, UNIT, 8 * UNIT) {
                assert!(range.start >= fetched && range.start >= end.min(fetched.max(end)));
                fetched = range.end;
                most = most.max(fetched - end);
            }
        }
        assert_eq!(fetched, size);
        assert!(most > 4 * UNIT && most <= 10 * UNIT, "{most}");
    }

    #[test]
    fn random_reads_fetch_nothing() {
        let mut ahead = ReadAhead::default();
        let mut random = fastrand::Rng::with_seed(1);
        for _ in 0..1000 {
            let at = random.u64(..1000) * 16 * UNIT;
            assert_eq!(ahead.note(at..at + 4096, u64::MAX, UNIT, 8 * UNIT), []);
        }
    }

    #[test]
    fn equal_parts_at_equal_distances_are_fetched_ahead_once_each() {
        let (step, len, size) = (10 * UNIT, 64 * K, 1000 * UNIT);
        let mut ahead = ReadAhead::default();
        let mut fetched = std::collections::BTreeSet::new();
        for n in 0..size / step {
            let at = 5 * UNIT + n * step;
            for part in ahead.note(at..at + len, size, UNIT, 8 * UNIT) {
                assert_eq!((part.start % step, part.end - part.start), (5 * UNIT, len));
                assert!(part.start > at && part.start <= at + (MOST_PARTS + 1) * step);
                assert!(fetched.insert(part.start), "fetched twice");
            }
        }
        // All parts but those that showed the stride.
        assert!(fetched.len() as u64 >= size / step - 5, "{}", fetched.len());
    }

    #[test]
    fn a_broken_stride_stops_at_once() {
        let mut ahead = ReadAhead::default();
        let mut note = |at: u64| ahead.note(at..at + 4096, u64::MAX, UNIT, 8 * UNIT);
        let told: usize = (0..10).map(|n| note(n * 9 * UNIT + UNIT).len()).sum();
        assert!(told > 0);
        assert_eq!(note(500 * UNIT), []);
        assert_eq!(note(517 * UNIT), []);
    }

    #[test]
    fn a_long_sequence_leaves_all_but_its_end_behind() {
        let mut ahead = ReadAhead::default();
        let size = 100 * UNIT;
        let mut left = 0;
        for at in (0..size).step_by(UNIT as usize / 2) {
            ahead.note(at..at + UNIT / 2, size, UNIT, 4 * UNIT);
            if let Some(range) = ahead.left_behind(UNIT, 4 * UNIT) {
                assert!(at + UNIT / 2 >= LONG, "{at}");
                assert_eq!(range.start, left);
                assert!(range.end + 8 * UNIT <= at && range.end % UNIT == 0);
                left = range.end;
            }
        }
        assert!(left >= size - 8 * UNIT - 3 * PART, "{left}");
        // At another place a new sequence begins.
        ahead.note(0..4096, size, UNIT, 8 * UNIT);
        assert_eq!(ahead.left_behind(UNIT, 4 * UNIT), None);
    }

    #[test]
    fn a_late_request_does_not_end_a_sequence() {
        let mut ahead = ReadAhead::default();
        let size = 100 * UNIT;
        let mut note = |at: u64| ahead.note(at * UNIT..(at + 1) * UNIT, size, UNIT, 4 * UNIT);
        let late = 20;
        let mut fetched = 0;
        for at in (0..100).filter(|at| *at != late) {
            let mut parts = note(at);
            if at == late + 6 {
                parts.extend(note(late));
            }
            for part in parts {
                assert!(part.start >= fetched, "fetched twice");
                fetched = part.end;
            }
        }
        assert_eq!(fetched, size);
        let left = ahead.left_behind(UNIT, 4 * UNIT).expect("a long sequence");
        assert_eq!(left.start, 0);
        assert!(left.end >= size - 12 * UNIT, "{left:?}");
    }

    #[test]
    fn short_sequences_stay() {
        let mut ahead = ReadAhead::default();
        for at in (0..LONG - UNIT).step_by(UNIT as usize) {
            ahead.note(at..at + UNIT, LONG, UNIT, 8 * UNIT);
            assert_eq!(ahead.left_behind(UNIT, 4 * UNIT), None);
        }
    }

    #[test]
    fn nothing_is_fetched_behind_the_end() {
        let mut ahead = ReadAhead::default();
        let size = 300 * K;
        for at in (0..size).step_by(4096) {
            for range in ahead.note(at..at + 4096, size, UNIT, 8 * UNIT) {
                assert!(range.end <= size);
            }
        }
    }
}
