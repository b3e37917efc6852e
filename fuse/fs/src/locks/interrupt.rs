//! Signals to the caller of a lock request.

use std::sync::atomic::{AtomicBool, Ordering};
use tokio::sync::Notify;

/// Whether the caller of a request got a signal, and whether a fatal one. It is never reset.
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

    /// The caller is being killed, and is answered already.
    pub fn kill(&self) {
        self.killed.store(true, Ordering::Release);
        self.fire();
    }

    /// Waits for a signal.
    pub async fn wait(&self) {
        self.until(&self.fired).await;
    }

    /// Waits for a fatal signal.
    pub async fn killed(&self) {
        self.until(&self.killed).await;
    }

    async fn until(&self, what: &AtomicBool) {
        loop {
            let told = self.told.notified();
            if what.load(Ordering::Acquire) {
                return;
            }
            told.await;
        }
    }
}
