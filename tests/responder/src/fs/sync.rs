//! Measures how long fsync takes, to decide whether a shared thread may run it.

use super::status::{self, Result};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// An fsync that takes longer counts as a wait, in nanoseconds. (Handing a call over to another
/// thread takes 25,000 to 60,000.)
const QUICK: u64 = 20_000;
/// A longer time counts as this, so that an outlier is soon forgotten.
const SLOW: u64 = 1_000_000;

/// A moving average over all exports, in nanoseconds. If one of them is slow, all are treated as
/// slow.
#[derive(Debug)]
pub(crate) struct SyncTime(AtomicU64);

impl Default for SyncTime {
    fn default() -> Self {
        // Assume a slow disk until there is a measurement.
        SyncTime(AtomicU64::new(SLOW))
    }
}

impl SyncTime {
    /// Whether fsync recently took less time than handing a call over. That is so on file systems
    /// in memory, and on disks whose cache is not volatile.
    pub(crate) fn is_quick(&self) -> bool {
        self.0.load(Ordering::Relaxed) < QUICK
    }

    /// Runs an fsync, and measures its time.
    pub(super) fn of(&self, sync: impl FnOnce() -> rustix::io::Result<()>) -> Result<()> {
        let begin = Instant::now();
        let result = sync();
        let took = begin.elapsed().as_nanos().min(SLOW.into()) as u64;
        // If two threads do this at once, one measurement may be lost, which does no harm.
        let known = self.0.load(Ordering::Relaxed);
        self.0
            .store(known - known / 8 + took / 8, Ordering::Relaxed);
        result.map_err(status::of)
    }
}
