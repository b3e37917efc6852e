//! What is under way for a file, in the order in which it began.

use smallvec::SmallVec;
use std::ops::Range;

/// What is done with a part of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Doing {
    /// A READ into the cache. `void`: the range was written or invalidated meanwhile, so the data read must
    /// not be cached.
    Read { void: bool },
    /// A READ of the kernel that is not answered.
    KernelRead,
    /// A WRITE of the kernel that waits, for memory or for a flush.
    ///
    /// write(2) copies data into a page that is up to date, unlocks the page, and makes the WRITE. If a
    /// notification drops the page before that is carried out, a READ brings the page back, and it must
    /// not lack the data: a program that stores into it by a mapping would have all of it sent. So a READ
    /// waits for the WRITEs before it. A WRITE waits for nothing that the kernel does, so this ends.
    KernelWrite,
    /// An O_DIRECT write of a program.
    Direct,
    /// A flush of what was written.
    Flush,
    /// A SETATTR, or its wait for data written before.
    Setattr,
}

#[derive(Debug)]
struct Item {
    number: u64,
    doing: Doing,
    range: Range<u64>,
}

impl Item {
    fn touches(&self, range: &Range<u64>) -> bool {
        self.range.start < range.end && range.start < self.range.end
    }
}

/// All that is under way for one file.
#[derive(Debug, Default)]
pub(super) struct UnderWay {
    items: SmallVec<[Item; 1]>,
    last: u64,
}

impl UnderWay {
    /// Something begins. Returns its number.
    pub(super) fn begin(&mut self, doing: Doing, range: Range<u64>) -> u64 {
        self.last += 1;
        let number = self.last;
        self.items.push(Item {
            number,
            doing,
            range,
        });
        number
    }

    /// What has this number ends. `None`: it has ended before.
    pub(super) fn end(&mut self, number: u64) -> Option<Doing> {
        let at = self.items.iter().position(|item| item.number == number)?;
        Some(self.items.remove(at).doing)
    }

    /// The number of what began last.
    pub(super) fn last(&self) -> u64 {
        self.last
    }

    /// Whether there is something of this kind.
    pub(super) fn any(&self, kind: impl Fn(Doing) -> bool) -> bool {
        self.items.iter().any(|item| kind(item.doing))
    }

    /// The same among what began up to `last` and touches `range`.
    pub(super) fn any_until(
        &self,
        last: u64,
        range: &Range<u64>,
        kind: impl Fn(Doing) -> bool,
    ) -> bool {
        let before = self.items.iter().take_while(|item| item.number <= last);
        let mut touching = before.filter(|item| item.touches(range));
        touching.any(|item| kind(item.doing))
    }

    /// The same among all that touches `range`.
    pub(super) fn any_in(&self, range: &Range<u64>, kind: impl Fn(Doing) -> bool) -> bool {
        self.any_until(u64::MAX, range, kind)
    }

    /// READs into the cache that touch `range` are void.
    pub(super) fn void_reads(&mut self, range: &Range<u64>) {
        for item in &mut self.items {
            if let Doing::Read { void } = &mut item.doing {
                *void |= item.range.start < range.end && range.start < item.range.end;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_finds_the_writes_that_came_before_it() {
        let mut all = UnderWay::default();
        let writes = |doing| doing == Doing::KernelWrite;
        let first = all.begin(Doing::KernelWrite, 0..10);
        let second = all.begin(Doing::KernelWrite, 5..15);
        let read = all.begin(Doing::KernelRead, 9..20);
        all.begin(Doing::KernelWrite, 0..100);
        assert!(!all.any_until(read, &(15..20), writes));
        assert!(all.any_until(read, &(9..20), writes));
        assert_eq!(all.end(second), Some(Doing::KernelWrite));
        assert_eq!(all.end(second), None);
        assert!(all.any_until(read, &(9..20), writes));
        all.end(first);
        assert!(!all.any_until(read, &(9..20), writes));
        assert!(all.any_in(&(9..20), writes));
    }

    #[test]
    fn only_reads_of_the_range_are_void() {
        let mut all = UnderWay::default();
        let reads = [0..10, 10..20].map(|range| all.begin(Doing::Read { void: false }, range));
        all.void_reads(&(0..10));
        let ended = reads.map(|read| all.end(read).unwrap());
        assert_eq!(ended, [true, false].map(|void| Doing::Read { void }));
    }
}
