//! Buffers of the pool, and what happens when it is empty.

use super::error::{FsError, FsResult};
use super::files::Files;
use nfsrdma_nfs3::Nfs3;
use nfsrdma_rdma::BufMut;
use std::sync::Arc;

impl<N: Nfs3> Files<N> {
    /// A buffer of `len` bytes. Waits for one if all are in use.
    pub(super) async fn alloc(self: &Arc<Self>, len: usize) -> FsResult<BufMut> {
        let mut looks = 0;
        loop {
            let freed = self.shared.freed.notified();
            if let Some(buf) = self.pool.alloc(len) {
                return Ok(buf);
            }
            // The freed blocks may not be contiguous, so more is dropped than is needed.
            self.shared.budget.reclaim(len * 8);
            if let Some(buf) = self.pool.alloc(len) {
                return Ok(buf);
            }
            self.relieve();
            if !self.memory_may_come_back(freed, &mut looks).await {
                return Err(FsError::NoMemory);
            }
        }
    }
}
