//! Readahead of one open file: which data to fetch before it is read.
//!
//! [`ReadAhead::note`] gets each range that is read. Sequential reads open a window of one READ, which doubles, up to
//! the limit, whenever no more than half of it is left. They may be slightly out of order, as the kernel's requests
//! arrive from several threads. Any other read closes the window, so that random reads fetch nothing.

use std::ops::Range;

/// Detects whether an open file is read sequentially, and decides how far to read ahead.
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
}

impl ReadAhead {
    /// A program reads `range` of a file of `size` bytes. Returns the range to fetch ahead.
    /// `unit`: the bytes of one READ; `most`: the most bytes to fetch ahead.
    pub fn note(
        &mut self,
        range: Range<u64>,
        size: u64,
        unit: u64,
        most: u64,
    ) -> Option<Range<u64>> {
        // A request whose thread was not scheduled for a while comes late.
        let slack = 2 * unit;
        let near = range.start <= self.next.saturating_add(slack)
            && range.end.saturating_add(slack) >= self.next;
        if !near {
            *self = ReadAhead {
                next: range.end,
                streak: u32::from(range.start == 0),
                ..ReadAhead::default()
            };
            return None;
        }
        if range.start == self.next || range.end > self.next {
            self.streak += 1;
        }
        self.next = self.next.max(range.end);
        if most == 0 || self.streak < 2 || self.next >= size {
            return None;
        }
        self.fetched = self.fetched.max(self.next);
        if self.window > 0 && self.fetched - self.next > self.window / 2 {
            return None;
        }
        self.window = (self.window * 2).clamp(unit.min(most), most);
        let end = (self.next + self.window).div_ceil(unit) * unit;
        let ahead = self.fetched..end.min(size);
        self.fetched = ahead.end.max(self.fetched);
        (!ahead.is_empty()).then_some(ahead)
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
            if let Some(range) = ahead.note(at..end, size, UNIT, 8 * UNIT) {
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
            assert_eq!(ahead.note(at..at + 4096, u64::MAX, UNIT, 8 * UNIT), None);
        }
    }

    #[test]
    fn a_late_request_does_not_end_a_sequence() {
        let mut ahead = ReadAhead::default();
        let size = 100 * UNIT;
        let part = UNIT / 8;
        let mut note = |at: u64| ahead.note(at * part..(at + 1) * part, size, UNIT, 4 * UNIT);
        let late = 20;
        let mut fetched = 0;
        for at in (0..800).filter(|at| *at != late) {
            let also = (at == late + 6).then_some(late);
            for part in [at].into_iter().chain(also).filter_map(&mut note) {
                assert!(part.start >= fetched, "fetched twice");
                fetched = part.end;
            }
        }
        assert_eq!(fetched, size);
    }

    #[test]
    fn nothing_is_fetched_behind_the_end() {
        let mut ahead = ReadAhead::default();
        let size = 300 * K;
        for at in (0..size).step_by(4096) {
            if let Some(range) = ahead.note(at..at + 4096, size, UNIT, 8 * UNIT) {
                assert!(range.end <= size);
            }
        }
    }
}
