//! Whether the server knows the exported directory still.
//!
//! RFC 1813 section 2.6: NFS3ERR_STALE says that "the file referred to by that file handle no longer exists or access
//! to it has been revoked". If that is the root of the mount, nothing works until the server exports the directory
//! again with its handles, or somebody mounts again. A reply to a call on another object, or on two, does not tell:
//! so after such a status, and while the root counts as stale, `Fs::tick` asks for the attributes of the root.

use std::sync::atomic::{AtomicBool, Ordering};

#[derive(Debug, Default)]
pub(super) struct Export {
    /// The next tick is to ask.
    asked_for: AtomicBool,
    stale: AtomicBool,
}

impl Export {
    /// A call was answered with a stale or bad handle.
    pub(super) fn refused(&self) {
        self.asked_for.store(true, Ordering::Relaxed);
    }

    /// Whether to ask for the attributes of the root now.
    pub(super) fn is_asked_for(&self) -> bool {
        self.asked_for.swap(false, Ordering::Relaxed) || self.is_stale()
    }

    pub(super) fn is_stale(&self) -> bool {
        self.stale.load(Ordering::Relaxed)
    }

    /// The server has answered for the root. Logs a change.
    pub(super) fn note(&self, stale: bool) {
        match (self.stale.swap(stale, Ordering::Relaxed), stale) {
            (false, true) => tracing::error!(
                "the server does not know the exported directory any longer, and every call fails with \
                 \"Stale file handle\": export it there again as it was, or unmount, and mount again"
            ),
            (true, false) => tracing::info!("the server knows the exported directory again"),
            _ => {}
        }
    }
}
