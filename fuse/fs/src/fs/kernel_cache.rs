//! The way to the caches of the kernel.

use std::fmt::Debug;

/// Notifications that invalidate what the kernel caches of an object.
///
/// The functions are called from any thread and must not wait for the kernel: to drop pages, it
/// takes page locks that a READ may hold until the calling thread has answered it.
pub trait KernelCache: Debug + Send + Sync {
    /// Makes the kernel ask for the attributes again.
    fn invalidate_attributes(&self, nodeid: u64);
    /// Makes the kernel drop the pages and ask for the attributes again.
    fn invalidate_data(&self, nodeid: u64);
    /// Makes the kernel look up again the names of
    /// [`Fs::names_to_expire`](super::files::Files::names_to_expire).
    fn expire_names(&self, nodeid: u64);
}
