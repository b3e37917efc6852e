//! What may happen at every call, and is logged once a minute.

use super::clock::Nanos;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

const PAUSE: Nanos = 60_000_000_000;

/// Lets one event a minute through and counts the others.
#[derive(Debug, Default)]
pub(super) struct Seldom {
    /// Nothing more is let through until then.
    until: AtomicU64,
    suppressed: AtomicU64,
}

impl Seldom {
    /// Something happened: whether to log it, and how many were not logged before it.
    pub(super) fn event(&self, now: Nanos) -> Option<u64> {
        let until = self.until.load(Relaxed);
        let mine = now >= until
            && self
                .until
                .compare_exchange(until, now + PAUSE, Relaxed, Relaxed)
                .is_ok();
        match mine {
            true => Some(self.suppressed.swap(0, Relaxed)),
            false => {
                self.suppressed.fetch_add(1, Relaxed);
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_event_a_minute_is_let_through_with_the_number_of_the_others() {
        let seldom = Seldom::default();
        assert_eq!(seldom.event(5), Some(0));
        assert_eq!(seldom.event(5), None);
        assert_eq!(seldom.event(PAUSE + 4), None);
        assert_eq!(seldom.event(PAUSE + 5), Some(2));
        assert_eq!(seldom.event(3 * PAUSE), Some(0));
    }
}
