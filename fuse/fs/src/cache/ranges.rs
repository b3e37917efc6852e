//! Sets of byte ranges inside a block.
//!
//! A block has several such sets (valid, dirty, writing and so on), most of which are empty or have one range. So a
//! set is a sorted list that needs no allocation for up to two ranges. Ranges that touch are joined.

use smallvec::SmallVec;
use std::ops::Range;

/// With so few ranges, adding or removing one after the other costs less than a pass over both sets.
const FEW: usize = 4;

/// Byte ranges of one block: sorted, not empty, and not touching each other.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RangeSet {
    ranges: SmallVec<[(u32, u32); 2]>,
    /// The total length of all ranges.
    bytes: u32,
}

impl RangeSet {
    /// The set of one range, or of none if it is empty.
    pub fn of(range: Range<u32>) -> Self {
        let mut set = RangeSet::default();
        set.insert(range);
        set
    }

    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// The number of bytes in the set.
    pub fn bytes(&self) -> u32 {
        self.bytes
    }

    pub fn iter(&self) -> impl Iterator<Item = Range<u32>> + '_ {
        self.ranges.iter().map(|r| r.0..r.1)
    }

    /// Adds a range, and joins it with the ranges that it touches.
    pub fn insert(&mut self, range: Range<u32>) {
        if range.is_empty() {
            return;
        }
        let from = self.ranges.partition_point(|r| r.1 < range.start);
        let to = self.ranges.partition_point(|r| r.0 <= range.end);
        if from == to {
            self.bytes += range.end - range.start;
            self.ranges.insert(from, (range.start, range.end));
            return;
        }
        let start = self.ranges[from].0.min(range.start);
        let end = self.ranges[to - 1].1.max(range.end);
        let joined: u32 = self.ranges[from..to].iter().map(|r| r.1 - r.0).sum();
        self.bytes = self.bytes - joined + (end - start);
        self.ranges[from] = (start, end);
        self.ranges.drain(from + 1..to);
    }

    pub fn remove(&mut self, range: Range<u32>) {
        if range.is_empty() {
            return;
        }
        let from = self.ranges.partition_point(|r| r.1 <= range.start);
        let to = self.ranges.partition_point(|r| r.0 < range.end);
        if from >= to {
            return;
        }
        let left = (self.ranges[from].0, range.start);
        let right = (range.end, self.ranges[to - 1].1);
        let removed: u32 = self.ranges.drain(from..to).map(|r| r.1 - r.0).sum();
        self.bytes -= removed;
        for rest in [right, left] {
            if rest.0 < rest.1 {
                self.bytes += rest.1 - rest.0;
                self.ranges.insert(from, rest);
            }
        }
    }

    /// Adds all ranges of another set: many in order, because each insertion into the middle of a long
    /// list would move what is behind it.
    pub fn insert_all(&mut self, other: &RangeSet) {
        if other.ranges.len() <= FEW {
            return other.iter().for_each(|r| self.insert(r));
        }
        let own = std::mem::take(self);
        let mut all: Vec<_> = own.iter().chain(other.iter()).collect();
        all.sort_by_key(|r| r.start);
        all.into_iter().for_each(|r| self.insert(r));
    }

    /// Removes all ranges of another set.
    pub fn remove_all(&mut self, other: &RangeSet) {
        if other.ranges.len() <= FEW {
            return other.iter().for_each(|r| self.remove(r));
        }
        for range in std::mem::take(self).iter() {
            other.gaps(range).into_iter().for_each(|r| self.insert(r));
        }
    }

    /// The ranges of the set inside `range`.
    pub fn part(&self, range: Range<u32>) -> RangeSet {
        let mut part = RangeSet::default();
        self.within(range).for_each(|r| part.insert(r));
        part
    }

    /// Whether every byte of `range` is in the set.
    pub fn covers(&self, range: Range<u32>) -> bool {
        range.is_empty()
            || self
                .ranges
                .get(self.ranges.partition_point(|r| r.1 <= range.start))
                .is_some_and(|r| r.0 <= range.start && range.end <= r.1)
    }

    /// The parts of `range` that are in the set.
    pub fn within(&self, range: Range<u32>) -> impl Iterator<Item = Range<u32>> + '_ {
        let from = self.ranges.partition_point(|r| r.1 <= range.start);
        self.ranges[from..]
            .iter()
            .take_while({
                let end = range.end;
                move |r| r.0 < end
            })
            .map(move |r| r.0.max(range.start)..r.1.min(range.end))
    }

    /// The parts of `range` that are not in the set.
    pub fn gaps(&self, range: Range<u32>) -> SmallVec<[Range<u32>; 2]> {
        let mut gaps = SmallVec::new();
        let mut at = range.start;
        for part in self.within(range.clone()) {
            if at < part.start {
                gaps.push(at..part.start);
            }
            at = part.end;
        }
        if at < range.end {
            gaps.push(at..range.end);
        }
        gaps
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn sets_are_added_and_removed_as_their_ranges_are(
            own in prop::collection::vec((0u32..200, 1u32..8), 0..40),
            other in prop::collection::vec((0u32..200, 1u32..8), 0..40),
        ) {
            let of = |ranges: &[(u32, u32)]| {
                let mut set = RangeSet::default();
                ranges.iter().for_each(|(start, len)| set.insert(*start..start + len));
                set
            };
            let (own, other) = (of(&own), of(&other));
            let (mut added, mut expected) = (own.clone(), own.clone());
            added.insert_all(&other);
            other.iter().for_each(|r| expected.insert(r));
            prop_assert_eq!(added, expected);
            let (mut left, mut expected) = (own.clone(), own);
            left.remove_all(&other);
            other.iter().for_each(|r| expected.remove(r));
            prop_assert_eq!(left, expected);
        }

        #[test]
        fn a_set_is_the_set_of_its_bytes(
            steps in prop::collection::vec((any::<bool>(), 0u32..64, 0u32..64), 0..40),
            probe in (0u32..64, 0u32..64),
        ) {
            let mut set = RangeSet::default();
            let mut model = [false; 128];
            for (add, start, len) in steps {
                let range = start..start + len;
                model[start as usize..(start + len) as usize].fill(add);
                if add { set.insert(range) } else { set.remove(range) }
                let mut last = None;
                for r in set.iter() {
                    prop_assert!(r.start < r.end);
                    prop_assert!(last.is_none_or(|end| end < r.start));
                    last = Some(r.end);
                }
            }
            let bytes: Vec<bool> = (0..128).map(|b| set.covers(b..b + 1)).collect();
            prop_assert_eq!(&bytes[..], &model[..]);
            prop_assert_eq!(set.bytes() as usize, model.iter().filter(|&&b| b).count());
            let probe = probe.0..probe.0 + probe.1;
            let inside: u32 = set.within(probe.clone()).map(|r| r.end - r.start).sum();
            let outside: u32 = set.gaps(probe.clone()).iter().map(|r| r.end - r.start).sum();
            prop_assert_eq!(inside + outside, probe.end - probe.start);
            prop_assert_eq!(set.covers(probe.clone()), outside == 0);
        }
    }
}
