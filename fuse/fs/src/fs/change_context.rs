//! What all changes of a mount share: the kernel's cache, of which data can be taken away, what is
//! known of the server's wcc_data, and the pause of calls that are sent again.

use crate::sync::atomic::AtomicBool;
use nfsrdma_xdr::nfs3::WccData;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use tokio::sync::Notify;

/// What the kernel has of an object can be taken from it.
///
/// The calls must return at once, from any thread: to drop data the kernel takes locks of pages
/// that a READ may hold whose answer waits for this very thread.
pub trait KernelCache: Send + Sync {
    /// The kernel is to ask for the attributes again.
    fn invalidate_attributes(&self, nodeid: u64);
    /// The kernel is to drop the pages and ask for the attributes again.
    fn invalidate_data(&self, nodeid: u64);
    /// The kernel is to drop the pages of [`Fs::stale_pages`](super::Fs::stale_pages).
    fn drop_pages(&self, nodeid: u64);
    /// The kernel is to ask again for each name in a directory before it uses it.
    fn expire_names(&self, nodeid: u64);
}

/// Once a mount: what is learned of the server, and whom to tell.
#[derive(Default)]
pub(super) struct ChangeContext {
    pub(super) kernel: OnceLock<Box<dyn KernelCache>>,
    /// WRITE is answered without pre-operation attributes.
    pub(super) no_before: AtomicBool,
    /// They are given, and not taken in one step with the change: worth nothing.
    pub(super) not_atomic: AtomicBool,
    pub(super) retry: Arc<Retry>,
}

impl std::fmt::Debug for ChangeContext {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ChangeContext")
            .field("no_before", &self.no_before)
            .field("not_atomic", &self.not_atomic)
            .finish_non_exhaustive()
    }
}

/// One thread sleeps for all calls that are to be tried again.
#[derive(Debug, Default)]
pub(super) struct Retry {
    pub(super) sleeps: AtomicBool,
    pub(super) over: Notify,
}

impl ChangeContext {
    /// Without a `before` that is worth nothing.
    pub(super) fn trusted(&self, data: &WccData) -> WccData {
        let not_atomic = self.not_atomic.load(Ordering::Relaxed);
        WccData {
            before: data.before.filter(|_| !not_atomic),
            after: data.after,
        }
    }
}

/// How long somebody has waited for memory that calls hold.
#[derive(Debug, Default)]
pub(super) struct MemoryWait {
    /// Tries in a row that found nothing else to wait for.
    pub(super) tries: u32,
    pub(super) looks: u32,
    /// Looks in a row that found no call under way.
    pub(super) idle: u32,
}
