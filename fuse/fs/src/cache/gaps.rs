//! What to read before a flush, so that many small dirty ranges go out in few WRITEs instead of one
//! for each range.
//!
//! Bytes between dirty ranges may be written along if they are valid, clean, and in pages that have
//! dirty bytes ([`Gaps::Join`](super::Gaps)). If they are not cached, one READ can fetch those of
//! many pages. This pays only if it saves more WRITEs than it costs: reading the pages first was
//! measured to take 0.4 to 0.6 of the CPU time if every page has dirty bytes, and 1.4 to 1.6 times
//! as much if only every second page has (docs/PERFORMANCE.md), because a page without dirty bytes
//! is never written along.

use super::pages::{PAGE, Pages};
use std::ops::Range;

/// The least number of WRITEs that one READ must save.
const LEAST_SAVED: u64 = 8;
/// The most blocks that one call looks at.
const PART: usize = 1024;

/// A run of dirty ranges without a clean page between them.
#[derive(Debug)]
struct Run {
    /// Where its first dirty range begins, and its last one ends so far.
    start: u64,
    end: u64,
    /// The range from the first to the last gap that is not cached; `count` is their number.
    gaps: Option<Range<u64>>,
    count: u64,
}

impl Run {
    fn new(dirty: Range<u64>) -> Self {
        Run {
            start: dirty.start,
            end: dirty.end,
            gaps: None,
            count: 0,
        }
    }

    /// The pages to read, if reading them pays.
    fn pages(&self) -> Option<Range<u64>> {
        let gaps = self.gaps.as_ref()?;
        let pages = gaps.start / PAGE * PAGE..gaps.end.next_multiple_of(PAGE);
        let many = (pages.end - pages.start) / PAGE <= self.count * 2;
        (self.count >= LEAST_SAVED && many).then_some(pages)
    }
}

impl Pages {
    /// Finds pages from `from` on, at most `most` bytes, that are worth reading before a flush.
    /// Also returns the offset at which to go on, unless the end is reached.
    pub(super) fn worth_reading(&self, from: u64, most: u64) -> (Option<Range<u64>>, Option<u64>) {
        let mut run: Option<Run> = None;
        let first = self.block_at(from).map_or(from, |block| block.0);
        let mut blocks = self.index.idle.range(first..);
        for &start in blocks.by_ref().take(PART) {
            let block = &self.blocks[&start];
            let taken = [&block.writing, &block.unstable, &block.committing];
            if !taken.iter().all(|set| set.is_empty()) {
                // Data that a restarting server may lose is not written along.
                if let Some(pages) = run.take().and_then(|run| run.pages()) {
                    return (Some(pages), Some(start));
                }
                continue;
            }
            let skip = from.saturating_sub(start).min(u64::from(block.size)) as u32;
            for dirty in block.dirty.within(skip..block.size) {
                let dirty = start + u64::from(dirty.start)..start + u64::from(dirty.end);
                let Some(known) = &mut run else {
                    run = Some(Run::new(dirty));
                    continue;
                };
                let gap = known.end..dirty.start;
                let apart = gap.end / PAGE * PAGE > gap.start.next_multiple_of(PAGE);
                let long = dirty.end.next_multiple_of(PAGE) - known.start / PAGE * PAGE > most;
                if apart || long {
                    if let Some(pages) = known.pages() {
                        return (Some(pages), Some(dirty.start));
                    }
                    run = Some(Run::new(dirty));
                    continue;
                }
                if self.missing(gap.clone()).is_some() {
                    let first = known.gaps.as_ref().map_or(gap.start, |gaps| gaps.start);
                    known.gaps = Some(first..gap.end);
                    known.count += 1;
                }
                known.end = dirty.end;
            }
        }
        let next = blocks.next().copied();
        (run.and_then(|run| run.pages()), next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nfsrdma_rdma::Pool;
    use proptest::prelude::*;

    const MOST: u64 = 1 << 20;

    fn written(places: impl IntoIterator<Item = (u64, usize)>) -> Pages {
        let pool = Pool::new(64 << 20).unwrap();
        let mut pages = Pages::default();
        for (at, len) in places {
            assert_eq!(
                pages.write(at, &vec![1; len], &mut |len| pool.alloc(len)),
                len
            );
        }
        pages
    }

    fn all(pages: &Pages, most: u64) -> Vec<Range<u64>> {
        let (mut found, mut from) = (Vec::new(), 0);
        loop {
            let (range, next) = pages.worth_reading(from, most);
            found.extend(range);
            match next {
                Some(next) => {
                    assert!(next > from, "{next} after {from}");
                    from = next;
                }
                None => return found,
            }
        }
    }

    #[test]
    fn pages_each_of_which_is_written_to_are_read() {
        let pages = written((0..600).map(|n| (n * PAGE + 100, 8)));
        assert_eq!(
            all(&pages, MOST),
            [
                0..256 * PAGE,
                256 * PAGE..512 * PAGE,
                512 * PAGE..600 * PAGE
            ]
        );
    }

    #[test]
    fn what_saves_no_writes_is_not_read() {
        let second = written((0..600).map(|n| (2 * n * PAGE, 8)));
        assert_eq!(all(&second, MOST), []);
        let few = written((0..LEAST_SAVED).map(|n| (n * PAGE, 8)));
        assert_eq!(all(&few, MOST), []);
        let whole = written((0..100).map(|n| (n * PAGE, PAGE as usize)));
        assert_eq!(all(&whole, MOST), []);
        // One gap in ten pages.
        let dense = written((0..100).flat_map(|n| {
            let whole = (n * 10 * PAGE, 9 * PAGE as usize);
            [whole, ((n * 10 + 9) * PAGE, 8)]
        }));
        assert_eq!(all(&dense, MOST), []);
    }

    proptest! {
        /// Only pages with dirty bytes are read, each at most once, no more than `most` at a time,
        /// and the search ends.
        #[test]
        fn only_pages_that_are_written_to(
            places in prop::collection::vec((0u64..400, 0u64..PAGE, 1usize..9000), 0..300),
            most in 1u64..64,
        ) {
            let pages = written(places.iter().map(|&(page, at, len)| (page * PAGE + at, len)));
            let mut touched = std::collections::BTreeSet::new();
            for &(page, at, len) in &places {
                let start = page * PAGE + at;
                touched.extend(start / PAGE..(start + len as u64).div_ceil(PAGE));
            }
            let mut before = 0;
            for range in all(&pages, most * PAGE) {
                prop_assert!(range.start >= before && range.start < range.end);
                prop_assert!(range.end - range.start <= most * PAGE);
                prop_assert_eq!((range.start % PAGE, range.end % PAGE), (0, 0));
                for page in range.start / PAGE..range.end / PAGE {
                    prop_assert!(touched.contains(&page), "page {}", page);
                }
                before = range.end;
            }
        }
    }
}
