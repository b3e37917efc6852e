//! Limits how often messages of one kind are logged.

use std::ops::Add;
use std::time::Duration;

/// Time between two lines of a kind.
const PERIOD: Duration = Duration::from_secs(60);

/// Lets one event a minute through and counts the others. `T` is the time of the caller's clock: an
/// `Instant`, or a `Duration` since a beginning.
#[derive(Debug)]
pub struct Throttle<T> {
    /// No further event is let through before this time.
    until: Option<T>,
    suppressed: u64,
}

impl<T> Default for Throttle<T> {
    fn default() -> Self {
        Throttle::new()
    }
}

impl<T> Throttle<T> {
    /// Nothing was logged yet.
    pub const fn new() -> Self {
        Throttle {
            until: None,
            suppressed: 0,
        }
    }
}

impl<T: Copy + PartialOrd + Add<Duration, Output = T>> Throttle<T> {
    /// An event happened. Returns `None` if it is not to be logged, else the number of events that
    /// were not logged since the last line.
    pub fn event(&mut self, now: T) -> Option<u64> {
        if self.until.is_some_and(|until| now < until) {
            self.suppressed += 1;
            return None;
        }
        self.until = Some(now + PERIOD);
        Some(std::mem::take(&mut self.suppressed))
    }

    /// Returns the number of events that were not logged in a period that is over at `now`, if any.
    pub fn expired(&mut self, now: T) -> Option<u64> {
        if self.suppressed == 0 || self.until.is_some_and(|until| now < until) {
            return None;
        }
        self.until = Some(now + PERIOD);
        Some(std::mem::take(&mut self.suppressed))
    }
}

/// The text for a number of suppressed events; empty for 0.
pub fn and_more(suppressed: u64) -> String {
    match suppressed {
        0 => String::new(),
        1 => " (1 more before it was not logged)".to_owned(),
        n => format!(" ({n} more before it were not logged)"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn one_line_a_minute_with_the_count_of_the_rest() {
        let mut throttle = Throttle::default();
        let begin = Instant::now();
        let at = |seconds| begin + Duration::from_secs(seconds);
        assert_eq!(throttle.event(at(0)), Some(0));
        assert_eq!(throttle.expired(at(70)), None, "nothing was kept back");
        assert_eq!(throttle.event(at(70)), Some(0));
        assert_eq!(
            (1..50).filter_map(|s| throttle.event(at(70 + s))).count(),
            0
        );
        assert_eq!(throttle.expired(at(129)), None);
        assert_eq!(throttle.expired(at(130)), Some(49));
        assert_eq!(throttle.event(at(140)), None);
        assert_eq!(throttle.event(at(190)), Some(1));
    }
}
