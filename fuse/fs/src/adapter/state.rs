//! What the operations of the adapter share: the file system, and the credentials of callers.

use super::credentials::Credentials;
use super::queued::Queued;
use super::unmount::OwnMount;
use super::waiting::{Held, Waiting};
use crate::fs::{Fs, Opened};
use nfsrdma_channel::{Header, Notifier, Reply};
use nfsrdma_nfs3::{Cred, Nfs3};
use nfsrdma_rpcrdma::exec;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use tokio::sync::watch;

pub(super) struct Adapter<N> {
    pub(super) fs: Arc<Fs<N>>,
    pub(super) credentials: Arc<Credentials>,
    pub(super) waiting: Arc<Waiting>,
    pub(super) notifier: Notifier,
    pub(super) queued: Arc<Queued>,
    pub(super) mount: Arc<OwnMount>,
    /// The number of requests that arrived, plus the inodes that the kernel forgot.
    pub(super) requests: Arc<AtomicU64>,
    /// Dropped with this, when the last of the threads that serve has ended.
    pub(super) _served: watch::Sender<()>,
}

impl<N: Nfs3> Adapter<N> {
    /// The credential of a request about `node`.
    pub(super) fn cred(&self, request: &Header, node: u64) -> Cred {
        match request.uid() == 0 && self.fs.is_superuser(node) {
            true => self.credentials.user_of(request),
            false => self.credentials.of(request),
        }
    }

    /// Whether POSIX locks are taken at the server, so that closing a file must release them, even
    /// if it was opened for reading.
    pub(super) fn posix_locks(&self) -> bool {
        self.fs.locks().is_some_and(|locks| locks.kinds().posix)
    }

    /// Runs an operation: it starts now, and after a call it goes on with the thread that receives
    /// the reply.
    #[inline]
    pub(super) fn start<F>(&self, operation: impl FnOnce() -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        exec::spawn_for(None, operation);
    }

    /// As [`Adapter::start`], for an operation that changes something. It is passed its reply, and can see whether
    /// its caller was killed, and whether the request came again ([`abandon`](nfsrdma_rpcrdma::abandon)).
    pub(super) fn change<F>(
        &self,
        request: &Header,
        reply: Reply,
        operation: impl FnOnce(Held) -> F,
    ) where
        F: Future<Output = ()> + Send + 'static,
    {
        let caller = self.fs.caller(request.original(), request.resent());
        let leaving = caller.clone();
        let reply = self.waiting.hold_for_change(request, reply, leaving);
        exec::spawn_for(Some(caller), move || operation(reply));
    }
}

/// Closes an open file that the kernel did not get.
pub(super) fn close<N: Nfs3>(fs: &Arc<Fs<N>>, opened: Opened) {
    let fs = fs.clone();
    exec::spawn(async move {
        // Nothing was written through it, so there is no error to report.
        let _ = fs.release(opened.handle).await;
    });
}
