//! The clock of the caches.

use rustix::time::{ClockId, clock_gettime};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Nanoseconds since the clock was made.
pub(super) type Nanos = u64;

pub(super) fn nanos(duration: Duration) -> Nanos {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// The machine's monotonic clock, or one that tests move by hand.
#[derive(Debug, Clone)]
pub enum Clock {
    /// It counts from this point of CLOCK_MONOTONIC.
    System(Nanos),
    Manual(Arc<AtomicU64>),
}

impl Default for Clock {
    fn default() -> Self {
        Clock::System(monotonic())
    }
}

/// The machine's monotonic clock.
fn monotonic() -> Nanos {
    let now = clock_gettime(ClockId::Monotonic);
    (now.tv_sec as u64) * 1_000_000_000 + now.tv_nsec as u64
}

impl Clock {
    /// A clock that stands still until [`Clock::advance`] moves it.
    pub fn manual() -> Self {
        Clock::Manual(Arc::new(AtomicU64::new(1)))
    }

    pub fn now(&self) -> Nanos {
        match self {
            Clock::System(start) => monotonic() - start,
            Clock::Manual(now) => now.load(Ordering::Relaxed),
        }
    }

    /// Moves a manual clock on; has no effect on the machine's clock.
    pub fn advance(&self, by: Duration) {
        if let Clock::Manual(now) = self {
            now.fetch_add(nanos(by), Ordering::Relaxed);
        }
    }
}
