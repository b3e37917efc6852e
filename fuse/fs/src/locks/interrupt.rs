//! A signal for whoever waits for a lock.

use std::sync::atomic::{AtomicBool, Ordering};
use tokio::sync::Notify;

/// Whether the caller of a request got a signal, and whether it dies of one. It stays so.
#[derive(Debug, Default)]
pub struct Interrupt {
    fired: AtomicBool,
    killed: AtomicBool,
    told: Notify,
}

impl Interrupt {
    pub fn fire(&self) {
        self.fired.store(true, Ordering::Release);
        self.told.notify_waiters();
    }

    /// The caller is gone, or about to go: it has its answer.
    pub fn kill(&self) {
        self.killed.store(true, Ordering::Release);
        self.fire();
    }

    pub fn is_fired(&self) -> bool {
        self.fired.load(Ordering::Acquire)
    }

    /// Waits for a signal.
    pub async fn wait(&self) {
        self.until(&self.fired).await;
    }

    /// Waits for one to die of.
    pub async fn killed(&self) {
        self.until(&self.killed).await;
    }

    async fn until(&self, what: &AtomicBool) {
        loop {
            let mut told = std::pin::pin!(self.told.notified());
            told.as_mut().enable();
            if what.load(Ordering::Acquire) {
                return;
            }
            told.await;
        }
    }
}
