//! What fsync takes here, to know whether a thread that others wait for may wait for it.

use super::status::{self, Result};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// An fsync that takes longer is a wait, in nanoseconds. (Handing a call over takes 25,000 to
/// 60,000.)
const QUICK: u64 = 20_000;
/// What one is taken for that took longer than this, so that an outlier is forgotten again.
const SLOW: u64 = 1_000_000;

/// A moving average over all exports, in nanoseconds: where one of them is slow, all are handled
/// as such.
#[derive(Debug)]
pub(crate) struct SyncTime(AtomicU64);

impl Default for SyncTime {
    fn default() -> Self {
        // A disk's, until it is known.
        SyncTime(AtomicU64::new(SLOW))
    }
}

impl SyncTime {
    /// Whether fsync has taken less than handing over of late: on file systems in memory, and
    /// on disks whose cache keeps what it has.
    pub(crate) fn is_quick(&self) -> bool {
        self.0.load(Ordering::Relaxed) < QUICK
    }

    /// Runs an fsync, and takes its time.
    pub(super) fn of(&self, sync: impl FnOnce() -> rustix::io::Result<()>) -> Result<()> {
        let begin = Instant::now();
        let result = sync();
        let took = begin.elapsed().as_nanos().min(SLOW.into()) as u64;
        // Two threads at once may lose one of their figures.
        let known = self.0.load(Ordering::Relaxed);
        self.0
            .store(known - known / 8 + took / 8, Ordering::Relaxed);
        result.map_err(status::of)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nfsrdma_xdr::nfs3::Status;
    use std::time::Duration;

    #[test]
    fn quick_once_known_and_slow_again_after_one_that_waited() {
        let time = SyncTime::default();
        assert!(!time.is_quick());
        let mut tries = 0;
        while !time.is_quick() {
            time.of(|| Ok(())).unwrap();
            tries += 1;
        }
        assert!(tries > 8, "believed after {tries}");
        let failed = time.of(|| {
            std::thread::sleep(Duration::from_millis(2));
            Err(rustix::io::Errno::IO)
        });
        assert_eq!(failed, Err(Status::Io));
        assert!(!time.is_quick());
    }
}
