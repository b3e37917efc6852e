//! Limits the log to one line a minute for what may happen at every call.

use super::clock::Nanos;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

const PAUSE: Nanos = 60_000_000_000;

/// Lets one event a minute through and counts the others.
#[derive(Debug, Default)]
pub(super) struct RateLimit {
    /// The time until which no further event is let through.
    until: AtomicU64,
    suppressed: AtomicU64,
}

impl RateLimit {
    /// An event has happened. Returns `None` if it is not to be logged, otherwise the number of
    /// events before it that were not.
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
        let limit = RateLimit::default();
        assert_eq!(limit.event(5), Some(0));
        assert_eq!(limit.event(5), None);
        assert_eq!(limit.event(PAUSE + 4), None);
        assert_eq!(limit.event(PAUSE + 5), Some(2));
        assert_eq!(limit.event(3 * PAUSE), Some(0));
    }
}
