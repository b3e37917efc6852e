//! Counters of the calls of NFS_ACL, and the calls that are to be dropped.

use nfsrdma_xdr::nfs_acl::{Getacl, Null, Setacl};
use nfsrdma_xdr::procedure::Procedure;
use std::sync::atomic::{AtomicU64, Ordering};

/// The number of calls of each procedure, and the number of calls that are still to be dropped.
#[derive(Debug, Default)]
pub struct AclCalls([AtomicU64; 3], AtomicU64);

impl AclCalls {
    pub(super) fn count(&self, procedure: u32) {
        if let Some(count) = self.0.get(procedure as usize) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The number of calls of each procedure, by its name.
    pub fn all(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let names = [Null::NAME, Getacl::NAME, Setacl::NAME];
        let counts = self.0.iter();
        names
            .into_iter()
            .zip(counts.map(|count| count.load(Ordering::Relaxed)))
    }

    /// The next `count` calls are neither executed nor answered.
    pub fn drop_next(&self, count: u64) {
        self.1.store(count, Ordering::Relaxed);
    }

    pub(super) fn is_dropped(&self) -> bool {
        let less = |left: u64| left.checked_sub(1);
        self.1
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, less)
            .is_ok()
    }
}
