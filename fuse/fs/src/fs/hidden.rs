//! The removal of hidden names: of files that were unlinked while open, after their last close.
//!
//! `remove.rs` and `rename.rs` make hidden names. Whoever closes the file last takes the name
//! ([`Inode::take_hidden`]) and removes it here; RMDIR and the end of the mount wait for that.

use super::Fs;
use super::error::FsError;
use super::error::FsResult;
use super::inode::{Inode, Silly};
use nfsrdma_nfs3::{Cred, Credential, Nfs3};
use nfsrdma_rpcrdma::abandon::regardless;
use nfsrdma_xdr::nfs3::Status;
use std::collections::hash_map::Entry;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// While this lives, a hidden name is being removed from a directory, and RMDIR of that waits.
pub(super) struct Removal<'a, N: Nfs3> {
    fs: &'a Fs<N>,
    dir_node: u64,
}

impl<N: Nfs3> Drop for Removal<'_, N> {
    fn drop(&mut self) {
        if let Entry::Occupied(mut count) = self.fs.removals.lock().entry(self.dir_node) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
        self.fs.removed.notify_waiters();
    }
}

impl<N: Nfs3> Fs<N> {
    /// Waits until no hidden name is being removed from any directory.
    pub(super) async fn all_removals_done(&self) {
        self.until_removed(None).await;
    }

    /// Waits until no hidden name is being removed, or is about to be, from this directory, or from any.
    pub(super) async fn until_removed(&self, dir: Option<u64>) {
        let under_way = || {
            let removals = self.removals.lock();
            dir.map_or(!removals.is_empty(), |dir| removals.contains_key(&dir))
        };
        loop {
            let mut removed = pin!(self.removed.notified());
            removed.as_mut().enable();
            // In this order, because a RELEASE that takes a hidden name has counted its removal before.
            if !self.releases.hold_in(dir) && !under_way() {
                break;
            }
            removed.await;
        }
    }

    pub(super) fn removal(&self, dir_node: u64) -> Removal<'_, N> {
        self.begin_removal(dir_node);
        self.begun_removal(dir_node)
    }

    /// The first step of [`Fs::removal`]; [`Fs::begun_removal`] is the second, in a spawned task.
    pub(super) fn begin_removal(&self, dir_node: u64) {
        *self.removals.lock().entry(dir_node).or_default() += 1;
    }

    pub(super) fn begun_removal(&self, dir_node: u64) -> Removal<'_, N> {
        Removal { fs: self, dir_node }
    }

    /// Removes the hidden name of `inode`, which was [taken](Inode::take_hidden); until then it is not
    /// counted as a link.
    pub(super) async fn remove_hidden(&self, inode: &Inode, silly: Silly) {
        /// Ends the removal, even if the future is dropped.
        struct Gone<'a, N: Nfs3>(&'a Inode, Option<Removal<'a, N>>);
        impl<N: Nfs3> Drop for Gone<'_, N> {
            fn drop(&mut self) {
                let mut state = self.0.state.lock();
                state.named_otherwise();
                self.0.hidden_links.fetch_sub(1, Ordering::Relaxed);
                drop(state);
                self.0.kept_or_gone();
                // This notifies the operations that wait.
                self.1.take();
            }
        }
        let _gone = Gone(inode, Some(self.removal(silly.name.dir_node)));
        self.remove_silly(silly).await;
    }

    pub(super) async fn remove_silly(&self, silly: Silly) {
        let mut result = self.remove_as(&silly.cred, &silly).await;
        // Whoever unlinked the file may not remove it any more if the directory was given away since,
        // but the name is this program's own, and has no other use. Its owner may.
        if let Err(error) = &result
            && let Some(Status::Access | Status::Perm) = error.status()
            && let Ok(dir) = self.nfs.getattr(&silly.cred, &silly.name.dir).await
            && dir.uid != silly.cred.uid
        {
            let owner = Arc::new(Credential {
                uid: dir.uid,
                gid: dir.gid,
                groups: Vec::new(),
            });
            result = self.remove_as(&owner, &silly).await;
        }
        if let Err(error) = result {
            self.hidden_name_stays(&silly.name.name, &error);
        }
    }

    async fn remove_as(&self, cred: &Cred, silly: &Silly) -> FsResult<()> {
        let of = &silly.name;
        let call = pin!(self.nfs.remove(cred, &of.dir, &of.name));
        match self.table.get(of.dir_node) {
            Some(dir) if dir.handle == of.dir => {
                let call = self.changing(&dir, call, |wcc| *wcc);
                regardless(call).await.map(|_| ())
            }
            _ => call.await.map(|_| ()).map_err(FsError::from),
        }
    }

    /// Logs that a hidden name could not be removed. It is an ordinary name from now on. One warning a
    /// minute, since any user can cause it, by taking the right to write from his own directory; the
    /// others are for who debugs.
    pub(super) fn hidden_name_stays(&self, name: &[u8], error: &FsError) {
        let now = Duration::from_nanos(self.now());
        let more = self.hidden_stay.lock().event(now);
        let name = String::from_utf8_lossy(name);
        match more {
            Some(more) => tracing::warn!(
                %name,
                %error,
                more,
                "cannot remove a file that was unlinked while open"
            ),
            None => tracing::debug!(
                %name,
                %error,
                "cannot remove a file that was unlinked while open"
            ),
        }
    }
}
