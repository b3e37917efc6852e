//! WRITEs of the kernel that have arrived and wait, for memory or for a flush.
//!
//! write(2) copies data into a page that is up to date, unlocks the page, and makes the WRITE. If a
//! notification drops the page before that is carried out, a READ brings the page back. (The kernel drops
//! no page of a WRITE by itself.) The page would lack
//! the data, and the kernel would keep it; and if a program stored into it by a mapping, all of it would
//! be sent, and the data of the WRITE would be lost. So a READ waits for the WRITEs that came before it
//! and have data for its range. A WRITE waits for nothing that the kernel does, so this ends.

use smallvec::SmallVec;
use std::ops::Range;

/// A number for each, in the order of arrival, and its range.
#[derive(Debug, Default)]
pub(super) struct WaitingWrites {
    arrived: SmallVec<[(u64, Range<u64>); 1]>,
    next: u64,
}

impl WaitingWrites {
    /// Returns the number of the WRITE, for [`WaitingWrites::handled`].
    pub(super) fn arrived(&mut self, range: Range<u64>) -> u64 {
        self.next += 1;
        self.arrived.push((self.next, range));
        self.next
    }

    pub(super) fn handled(&mut self, number: u64) {
        self.arrived.retain(|(of, _)| *of != number);
    }

    /// The number of the last WRITE that has data for `range`, of those up to the number `last`.
    pub(super) fn until(&self, range: &Range<u64>, last: u64) -> Option<u64> {
        let of_range = |(number, of): &&(u64, Range<u64>)| {
            *number <= last && of.start < range.end && range.start < of.end
        };
        let found = self.arrived.iter().rev().find(of_range);
        found.map(|(number, _)| *number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_waits_for_the_writes_that_came_before_it() {
        let mut writes = WaitingWrites::default();
        assert_eq!(writes.until(&(0..100), u64::MAX), None);
        let first = writes.arrived(0..10);
        let second = writes.arrived(5..15);
        assert_eq!(writes.until(&(15..20), u64::MAX), None);
        let last = writes.until(&(9..20), u64::MAX).unwrap();
        assert_eq!(last, second);
        let third = writes.arrived(0..100);
        writes.handled(second);
        assert_eq!(writes.until(&(9..20), last), Some(first));
        writes.handled(first);
        assert_eq!(writes.until(&(9..20), last), None);
        assert_eq!(writes.until(&(9..20), u64::MAX), Some(third));
    }
}
