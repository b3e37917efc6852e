//! Moments of the monotonic clock.

use rustix::time::{ClockId, clock_gettime};
use std::ops::{Add, AddAssign, Sub};
use std::time::Duration;

/// As [`std::time::Instant`], which counts seconds and nanoseconds apart: to subtract two of those takes
/// fifty instructions, and each call does it several times.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Instant(u64);

/// A duration in nanoseconds; of more than five centuries the largest number.
pub fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl Instant {
    #[inline]
    pub fn now() -> Self {
        let time = clock_gettime(ClockId::Monotonic);
        // It is positive, and small enough for five centuries.
        Instant(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
    }

    /// The time since `earlier` in nanoseconds; 0 if that is later.
    #[inline]
    pub fn nanos_since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }

    #[inline]
    pub fn saturating_duration_since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.nanos_since(earlier))
    }

    /// The earlier of two times, of which there may be none.
    #[inline]
    pub fn first(one: Option<Self>, other: Option<Self>) -> Option<Self> {
        match (one, other) {
            (Some(one), Some(other)) => Some(one.min(other)),
            (one, other) => one.or(other),
        }
    }

    pub fn elapsed(self) -> Duration {
        Self::now() - self
    }

    pub fn checked_sub(self, time: Duration) -> Option<Self> {
        self.0.checked_sub(nanoseconds(time)).map(Instant)
    }
}

impl Add<Duration> for Instant {
    type Output = Self;

    #[inline]
    fn add(self, time: Duration) -> Self {
        Instant(self.0.saturating_add(nanoseconds(time)))
    }
}

impl AddAssign<Duration> for Instant {
    #[inline]
    fn add_assign(&mut self, time: Duration) {
        *self = *self + time;
    }
}

impl Sub for Instant {
    type Output = Duration;

    #[inline]
    fn sub(self, earlier: Self) -> Duration {
        self.saturating_duration_since(earlier)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_counts_as_the_clock_does() {
        let (begin, second) = (Instant::now(), Duration::from_secs(1));
        let later = begin + second;
        assert_eq!((later - begin, begin - later), (second, Duration::ZERO));
        assert_eq!(later.checked_sub(second), Some(begin));
        assert_eq!(later.nanos_since(begin), 1_000_000_000);
        assert_eq!(Instant::first(Some(later), Some(begin)), Some(begin));
        assert_eq!(Instant::first(None, Some(later)), Some(later));
        assert_eq!(Instant::first(Some(later), None), Some(later));
        assert!(begin.checked_sub(Duration::MAX).is_none() && begin < begin + Duration::MAX);
        std::thread::sleep(Duration::from_millis(1));
        assert!(Duration::from_millis(1) <= begin.elapsed());
    }
}
