//! What the operations of the adapter share: the file system, who asks, and when calls leave.

use super::credentials::Credentials;
use super::queued::{Queued, has_request};
use super::unmount::OwnMount;
use super::waiting::{Held, Waiting};
use crate::fs::{Fs, NewMode, Opened};
use nfsrdma_channel::{self as channel, Header, Notifier, Reply};
use nfsrdma_nfs3::{Cred, Nfs3};
use nfsrdma_rpcrdma::exec;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

pub(super) struct Adapter<N> {
    pub(super) fs: Arc<Fs<N>>,
    pub(super) credentials: Arc<Credentials>,
    pub(super) waiting: Arc<Waiting>,
    /// Invalidates what the kernel caches.
    pub(super) notifier: Notifier,
    pub(super) queued: Arc<Queued>,
    pub(super) mount: Arc<OwnMount>,
    pub(super) sending: Sending,
    /// Requests that arrived, and inodes that the kernel forgot.
    pub(super) requests: Arc<AtomicU64>,
    /// The kernel leaves the umask to this side.
    pub(super) applies_umask: bool,
}

/// When calls leave.
pub(super) enum Sending {
    /// Each by itself.
    AtOnce,
    /// Together with those of the kernel's next requests, if it has some already: the device is
    /// asked.
    Together(Arc<channel::Device>),
    /// At the end of a round of the event loop.
    ByRound,
}

/// Calls sent together, at most.
const MOST_DEFERRED: u32 = 16;

impl<N: Nfs3> Adapter<N> {
    /// A new object's mode and the umask that is still to be applied to it.
    pub(super) fn masked(&self, bits: u32, umask: u32) -> NewMode {
        match self.applies_umask {
            true => NewMode {
                bits,
                umask: umask & 0o777,
            },
            false => bits.into(),
        }
    }

    /// The credential of a request about `node`.
    pub(super) fn cred(&self, request: &Header, node: u64) -> Cred {
        match request.uid() == 0 && self.fs.is_superuser(node) {
            true => self.credentials.superuser(request.gid()),
            false => self.credentials.of(request),
        }
    }

    /// Whether POSIX locks go to the server, and end when a file is closed, also one that was
    /// opened for reading.
    pub(super) fn posix_locks(&self) -> bool {
        self.fs.locks().is_some_and(|locks| locks.kinds().posix)
    }

    /// Runs an operation: now, and where it waits for the server, on the thread that gets the
    /// answer.
    #[inline]
    pub(super) fn start(&self, operation: impl Future<Output = ()> + Send + 'static) {
        // Where it is made: futures of operations are kilobytes, and each move copies them.
        self.start_boxed(Box::pin(operation));
    }

    /// The same for an operation that changes something. It gets its reply, and is told if its
    /// caller is killed ([`abandon`](nfsrdma_rpcrdma::abandon)).
    pub(super) fn change<F>(
        &self,
        request: &Header,
        reply: Reply,
        operation: impl FnOnce(Held) -> F,
    ) where
        F: Future<Output = ()> + Send + 'static,
    {
        let (reply, caller) = self.waiting.hold_for_change(request, reply);
        self.start(caller.run(Box::pin(operation(reply))));
    }

    fn start_boxed(&self, operation: exec::Work) {
        match self.sending {
            Sending::Together(_) => exec::deferring(|| exec::spawn_boxed(operation)),
            Sending::AtOnce | Sending::ByRound => exec::spawn_boxed(operation),
        }
        self.send_deferred();
    }

    /// A request is dealt with. If the kernel has another one, its calls may go out together
    /// with those of this one; otherwise this is the moment to send them. (The kernel's other
    /// request may need no call and end elsewhere, as FUSE_INTERRUPT does: then the next reply
    /// sends them.)
    pub(super) fn send_deferred(&self) {
        let Sending::Together(device) = &self.sending else {
            return;
        };
        let deferred = self.fs.deferred();
        if deferred > 0 && (deferred >= MOST_DEFERRED || !has_request(device)) {
            self.fs.send_deferred();
        }
    }
}

/// Closes a file whose handle the kernel did not get.
pub(super) fn close<N: Nfs3>(fs: &Arc<Fs<N>>, opened: Opened) {
    let fs = fs.clone();
    exec::spawn(async move {
        // Nothing was written through it: there is no error to tell.
        let _ = fs.release(opened.handle).await;
    });
}
