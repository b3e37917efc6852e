//! The end of a mount's locks, and what mounts that were killed have left.

use super::manager::{Locks, Retry};
use nfsrdma_nfs3::nlm::{Abandoned, LockCall, LockTarget};
use nfsrdma_rpcrdma::rpc::plain::PlainError;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

impl Locks {
    /// The mount has ended: what is still to be unlocked gets this long. Returns how many locks
    /// are left at the server.
    ///
    /// A mount that was aborted (`umount -f`) has files open, and no FLUSH or RELEASE comes for them.
    pub async fn finish(self: &Arc<Self>, patience: Duration) -> usize {
        self.unused.fire();
        let held: Vec<_> = self.state.lock().holdings.keys().copied().collect();
        for (file, owner) in held {
            let this = self.clone();
            self.spawn(async move {
                // There is nobody to be told that a lock was lost.
                let _ = this.unlock_all(file, owner).await;
            });
        }
        let rest = async {
            loop {
                let mut idle = std::pin::pin!(self.idle.notified());
                idle.as_mut().enable();
                if self.running.load(Ordering::Acquire) == 0 {
                    return;
                }
                idle.await;
            }
        };
        let _ = tokio::time::timeout(patience, rest).await;
        self.ending.fire();
        self.server.end().await;
        self.state.lock().table.len()
    }

    /// Unlocks what mounts of this machine have left that were killed.
    pub async fn unlock_orphans(&self, journals: Vec<Abandoned>) {
        for journal in journals {
            let count = journal.orphans.len();
            for orphan in &journal.orphans {
                let target = LockTarget {
                    file: orphan.file,
                    svid: orphan.svid,
                    offset: 0,
                    length: 0,
                };
                let mut retry = Retry::default();
                loop {
                    let call = self.server.call(&orphan.cred, &target, LockCall::Unlock);
                    let result = tokio::select! {
                        result = call => result,
                        () = self.ending.wait() => return,
                    };
                    if !matches!(
                        result,
                        Err(PlainError::TimedOut | PlainError::Unreachable(_))
                    ) {
                        break;
                    }
                    tokio::select! {
                        () = tokio::time::sleep(retry.next()) => {}
                        () = self.ending.wait() => return,
                    }
                }
            }
            if count > 0 {
                tracing::info!(count, "unlocked what a mount that was killed had locked");
            }
            journal.done();
        }
    }
}
