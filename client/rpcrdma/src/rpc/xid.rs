//! Transaction IDs.

use std::sync::atomic::{AtomicU32, Ordering};

/// Counts XIDs up from a random start, so that two clients behind one address, or one client
/// started twice, do not collide in the server's duplicate request cache.
#[derive(Debug)]
pub struct Xids(AtomicU32);

impl Xids {
    /// A random start, or one taken from the clock if the system provides no randomness.
    pub fn new() -> Self {
        let start = getrandom::u32().unwrap_or_else(|_| {
            std::time::SystemTime::now()
                .duration_since(std::time::UNIX_EPOCH)
                .map_or(1, |t| t.subsec_nanos())
        });
        Xids(AtomicU32::new(start))
    }

    /// Returns the next XID. It repeats after 2^32 calls.
    pub fn take(&self) -> u32 {
        self.0.fetch_add(1, Ordering::Relaxed)
    }
}

impl Default for Xids {
    fn default() -> Self {
        Xids::new()
    }
}
