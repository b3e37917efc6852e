//! Requests that the kernel sends again after the process has died that got them first: what they ask for
//! may have been done ([`abandon`](nfsrdma_rpcrdma::abandon)).

use super::Fs;
use super::inode::Inode;
use nfsrdma_nfs3::{Cred, Nfs3};
use nfsrdma_rpcrdma::abandon::{Caller, is_resent, number};
use nfsrdma_xdr::nfs3::Status;
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl<N: Nfs3> Fs<N> {
    /// The caller of the request that the kernel has numbered `unique`.
    pub fn caller(&self, unique: u64, resent: bool) -> Caller {
        // Without a memfd no process goes on with this mount.
        if self.records.fd().is_none() && !resent {
            return Caller::default();
        }
        let start = u128::from_ne_bytes(self.records.key()) as u64;
        Caller::of(start.wrapping_add(unique), resent)
    }

    /// Whether the process that got this UNLINK, RMDIR or RENAME first has taken the name from what it is about. The
    /// kernel knows that object until it has the answer. So one that it does not know is somebody else's, and new.
    pub(super) async fn has_lost(&self, cred: &Cred, dir: &Arc<Inode>, name: &[u8]) -> bool {
        is_resent()
            && match Box::pin(self.find(cred, dir, name)).await {
                Ok((child, _)) => child.lookups.load(Ordering::Relaxed) == 0,
                Err(error) => error.status() == Some(Status::NoEnt),
            }
    }

    /// An OPEN, CREATE or OPENDIR has opened `handle`. If it came again, this closes what the process has
    /// opened that got it first, and died before it told the kernel.
    pub async fn close_earlier(self: &Arc<Self>, handle: u64) {
        let Some(number) = number().filter(|_| is_resent()) else {
            return;
        };
        for (earlier, _) in self.files.select(|file| file.request() == number) {
            if earlier != handle {
                let _ = Box::pin(self.release(earlier)).await;
            }
        }
        for (earlier, _) in self.dirs.select(|dir| dir.request() == number) {
            if earlier != handle {
                let _ = self.releasedir(earlier);
            }
        }
    }
}
