//! Opens whose replies make the kernel drop pages and attributes, which it may not have done yet.
//!
//! The kernel drops the pages when the program that opened the file goes on after the reply. A reply
//! that is given later may let another program go on first. So none says that the pages may stay,
//! until a request by one of the open files that were to make the kernel drop them shows that it has.
//! RELEASE shows nothing, since it is also sent where the open fails in the kernel.

use std::sync::atomic::{AtomicU16, Ordering};

/// What replies to opens of one object were to make the kernel drop: a number, which is another one
/// after each open that found more to drop, and in its lowest bits what is not known to be dropped.
/// Changed with the inode's `state` locked. (Inodes are many, so it has few bits: a number comes again
/// after 16384 such opens, by none of which a request came in between.)
#[derive(Debug, Default)]
pub(super) struct PromisedDrops(AtomicU16);

const PAGES: u16 = 1;
const ATTRIBUTES: u16 = 2;
const STEP: u16 = 4;

impl PromisedDrops {
    fn get(&self) -> u16 {
        self.0.load(Ordering::Relaxed)
    }

    /// An open is to be answered, whose reply makes the kernel drop this. (Nothing, if both are false.)
    pub(super) fn promise(&self, pages: bool, attributes: bool) {
        if pages || attributes {
            let more = (u16::from(pages) * PAGES) | (u16::from(attributes) * ATTRIBUTES);
            let next = self.get().wrapping_add(STEP) | more;
            self.0.store(next, Ordering::Relaxed);
        }
    }

    /// Whether the kernel may still have pages that it is to drop.
    pub(super) fn pages(&self) -> bool {
        self.get() & PAGES != 0
    }

    /// The same for attributes.
    pub(super) fn attributes(&self) -> bool {
        self.get() & ATTRIBUTES != 0
    }

    /// For [`PromisedDrops::dropped`], when a request comes by the open file whose open is to be answered;
    /// 0 if nothing is to be dropped.
    pub(super) fn number(&self) -> u16 {
        let all = self.get();
        match all & (PAGES | ATTRIBUTES) {
            0 => 0,
            _ => all,
        }
    }

    /// The kernel has handled the reply to an open, when this had that `number`.
    pub(super) fn dropped(&self, number: u16) {
        if self.get() == number {
            let rest = number & !(PAGES | ATTRIBUTES);
            self.0.store(rest, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_open_that_had_to_drop_all_shows_that_it_is_dropped() {
        let drops = PromisedDrops::default();
        drops.promise(false, false);
        assert_eq!(drops.number(), 0);
        drops.promise(false, true);
        let first = drops.number();
        assert!(!drops.pages() && drops.attributes());
        drops.promise(true, false);
        assert!(drops.pages() && drops.attributes());
        let second = drops.number();
        drops.promise(false, false);
        drops.dropped(first);
        assert!(drops.pages() && drops.attributes());
        assert_eq!(drops.number(), second);
        drops.dropped(second);
        assert!(!drops.pages() && !drops.attributes());
        drops.promise(true, false);
        drops.dropped(second);
        assert!(drops.pages() && drops.number() != second);
    }
}
