//! The removal of hidden names: of files that were unlinked while open, after their last close.
//!
//! `remove.rs` and `rename.rs` make hidden names. Whoever closes the file last takes the name
//! ([`Inode::take_hidden`]) and removes it here; RMDIR and the end of the mount wait for that for a while.

use super::Fs;
use super::error::FsError;
use super::inode::{Inode, Silly};
use nfsrdma_nfs3::Nfs3;
use nfsrdma_rpcrdma::abandon::regardless;
use nfsrdma_xdr::nfs3::Status;
use std::pin::pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

impl<N: Nfs3> Fs<N> {
    /// What a hidden name in this directory keeps as long as it exists, or is about to.
    pub(super) fn hidden_in(&self, dir: u64) -> Arc<u64> {
        let dir = Arc::new(dir);
        let mut all = self.hidden_names.lock();
        all.retain(|of| of.strong_count() > 0);
        all.push(Arc::downgrade(&dir));
        dir
    }

    /// Whether there are hidden names in this directory, or at all.
    fn any_hidden(&self, dir: Option<u64>) -> bool {
        let all = self.hidden_names.lock();
        let mut dirs = all.iter().filter_map(Weak::upgrade);
        dirs.any(|of| dir.is_none_or(|dir| *of == dir))
    }

    /// Waits until there is no hidden name in this directory, or in any, but for `most` at most: the file may be open, or
    /// the server may put the removal off.
    pub(super) async fn until_none_is_hidden(&self, dir: Option<u64>, most: Duration) {
        if !self.any_hidden(dir) {
            return;
        }
        let none = async {
            loop {
                let gone = self.removed.notified();
                if !self.any_hidden(dir) {
                    return;
                }
                gone.await;
            }
        };
        tokio::select! {
            biased;
            () = none => {}
            () = self.nfs.sleep(most) => {}
        }
    }

    /// Removes the hidden name of `inode`, which was [taken](Inode::take_hidden); until then it is not
    /// counted as a link.
    pub(super) async fn remove_hidden(&self, inode: &Inode, silly: Silly) {
        /// Ends the removal, even if the future is dropped.
        struct Gone<'a, N: Nfs3>(&'a Fs<N>, &'a Inode);
        impl<N: Nfs3> Drop for Gone<'_, N> {
            fn drop(&mut self) {
                let mut state = self.1.state.lock();
                state.named_otherwise();
                self.1.hidden_links.fetch_sub(1, Ordering::Relaxed);
                drop(state);
                self.1.kept_or_gone();
                // For the opens that wait, and RMDIR.
                self.0.removed.notify_waiters();
            }
        }
        let _gone = Gone(self, inode);
        self.remove_silly(silly).await;
    }

    pub(super) async fn remove_silly(&self, silly: Silly) {
        {
            let of = &silly.name;
            let call = pin!(self.nfs.remove(&silly.cred, &of.dir, &of.name));
            let result = match self.table.get(of.dir_node) {
                Some(dir) if dir.handle == of.dir => {
                    let call = self.changing(&dir, call, |wcc| *wcc);
                    regardless(call).await.map(|_| ())
                }
                _ => call.await.map(|_| ()).map_err(FsError::from),
            };
            // No call of the kernel's has changed the directory.
            self.attributes_unheard(of.dir_node);
            // It may be gone: the process before this one may have removed it, and died before it knew.
            if let Err(error) = result
                && error.status() != Some(Status::NoEnt)
            {
                self.hidden_name_stays(&of.name, &error);
            }
        }
        drop(silly);
        self.removed.notify_waiters();
    }

    /// Logs that a hidden name could not be removed. It is an ordinary name from now on. One warning a
    /// minute, since any user can cause it, by taking the right to write from his own directory; the others
    /// are for who debugs, and for `tests/differential`.
    pub(super) fn hidden_name_stays(&self, name: &[u8], error: &FsError) {
        let now = Duration::from_nanos(self.now());
        let more = self.hidden_stay.lock().event(now);
        let name = String::from_utf8_lossy(name);
        const WHAT: &str = "cannot remove a file that was unlinked while open";
        match more {
            Some(more) => tracing::warn!(%name, %error, more, "{WHAT}"),
            None => tracing::debug!(%name, %error, "{WHAT}"),
        }
    }
}
