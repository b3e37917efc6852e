//! The clock of the caches.

use nfsrdma_rdma::Instant;
pub(super) use nfsrdma_rdma::nanoseconds as nanos;
use nfsrdma_rpcrdma::exec;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Nanoseconds since the clock was made.
pub(super) type Nanos = u64;

/// The machine's monotonic clock, or one that tests move by hand.
#[derive(Debug, Clone)]
pub enum Clock {
    /// It counts from this point.
    System(Instant),
    Manual(Arc<AtomicU64>),
}

impl Default for Clock {
    fn default() -> Self {
        Clock::System(exec::now())
    }
}

impl Clock {
    /// A clock that stands still until [`Clock::advance`] moves it.
    pub fn manual() -> Self {
        Clock::Manual(Arc::new(AtomicU64::new(1)))
    }

    /// The time; within a round of an event loop, that of its beginning.
    pub fn now(&self) -> Nanos {
        match self {
            Clock::System(start) => exec::now().nanos_since(*start),
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
