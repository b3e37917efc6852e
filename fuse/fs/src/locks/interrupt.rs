//! A signal for whoever waits for a lock.

use std::sync::atomic::{AtomicBool, Ordering};
use tokio::sync::Notify;

/// Whether the caller of a request got a signal. It stays so.
#[derive(Debug, Default)]
pub struct Interrupt {
    fired: AtomicBool,
    told: Notify,
}

impl Interrupt {
    pub fn fire(&self) {
        self.fired.store(true, Ordering::Release);
        self.told.notify_waiters();
    }

    pub fn is_fired(&self) -> bool {
        self.fired.load(Ordering::Acquire)
    }

    /// Waits for it.
    pub async fn wait(&self) {
        loop {
            let mut told = std::pin::pin!(self.told.notified());
            told.as_mut().enable();
            if self.is_fired() {
                return;
            }
            told.await;
        }
    }
}
