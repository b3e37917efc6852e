//! What all changes of a mount share: how the kernel's caches are invalidated, and what is known of the
//! server's wcc_data.

use crate::sync::atomic::AtomicBool;
use std::sync::OnceLock;

/// Notifications that invalidate what the kernel caches of an object.
///
/// The functions are called from any thread and must not wait for the kernel: to drop pages, it
/// takes page locks that a READ may hold until the calling thread has answered it.
pub trait KernelCache: Send + Sync {
    /// Makes the kernel ask for the attributes again.
    fn invalidate_attributes(&self, nodeid: u64);
    /// Makes the kernel drop the pages and ask for the attributes again.
    fn invalidate_data(&self, nodeid: u64);
    /// Makes the kernel look up again the names of
    /// [`Fs::names_to_expire`](super::files::Files::names_to_expire).
    fn expire_names(&self, nodeid: u64);
}

/// One for each mount.
#[derive(Default)]
pub(super) struct ChangeContext {
    pub(super) kernel: OnceLock<Box<dyn KernelCache>>,
    /// The server's last reply to WRITE had pre-operation attributes. Otherwise only a GETATTR shows what a
    /// file was before; so it is supposed at first.
    pub(super) gives_before: AtomicBool,
}

impl std::fmt::Debug for ChangeContext {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ChangeContext")
            .field("gives_before", &self.gives_before)
            .finish_non_exhaustive()
    }
}
