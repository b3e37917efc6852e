//! How often the procedures of NFS_ACL were called.

use nfsrdma_xdr::nfs_acl::{Getacl, Null, Setacl};
use nfsrdma_xdr::procedure::Procedure;

/// How often each procedure was called.
#[derive(Debug, Default)]
pub struct AclCalls([std::sync::atomic::AtomicU64; 3]);

impl AclCalls {
    pub(super) fn count(&self, procedure: u32) {
        if let Some(count) = self.0.get(procedure as usize) {
            count.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        }
    }

    /// By name.
    pub fn all(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let names = [Null::NAME, Getacl::NAME, Setacl::NAME];
        let counts = self.0.iter();
        names
            .into_iter()
            .zip(counts.map(|count| count.load(std::sync::atomic::Ordering::Relaxed)))
    }
}
