//! Transaction IDs.

use std::sync::atomic::{AtomicU32, Ordering};

/// Counts XIDs up from an unpredictable start: two clients behind one address, or one client
/// started twice, do not meet in the server's duplicate-request cache.
#[derive(Debug)]
pub struct Xids(AtomicU32);

impl Xids {
    /// A random start; the time's noise if the system has no randomness to give.
    pub fn new() -> Self {
        let start = getrandom::u32().unwrap_or_else(|_| {
            std::time::SystemTime::now()
                .duration_since(std::time::UNIX_EPOCH)
                .map_or(1, |t| t.subsec_nanos())
        });
        Xids(AtomicU32::new(start))
    }

    /// One not used for the next four thousand million calls.
    pub fn take(&self) -> u32 {
        self.0.fetch_add(1, Ordering::Relaxed)
    }
}

impl Default for Xids {
    fn default() -> Self {
        Xids::new()
    }
}
