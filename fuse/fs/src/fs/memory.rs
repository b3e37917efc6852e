//! Buffers of the pool, and what happens when it is empty.

use super::error::{FsError, FsResult};
use super::files::Files;
use super::server::MemoryWait;
use nfsrdma_nfs3::Nfs3;
use nfsrdma_rdma::BufMut;
use std::sync::Arc;

impl<N: Nfs3> Files<N> {
    /// A buffer of `len` bytes. Waits for one if all are in use.
    pub(super) async fn alloc(self: &Arc<Self>, len: usize) -> FsResult<BufMut> {
        let mut waited = MemoryWait::default();
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
            if !self.is_busy() {
                if !self.memory_may_come_back(&mut waited).await {
                    return Err(FsError::NoMemory);
                }
                continue;
            }
            waited.tries = 0;
            // A call that the server has put off gives its memory back without a notification.
            tokio::select! {
                () = freed => {}
                () = self.pause() => {}
            }
        }
    }
}
