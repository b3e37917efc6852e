//! Calls that change an object: what is recorded when one is sent, and what follows from its reply.
//!
//! While such a call is under way, replies to other calls cannot be ordered against it. So its begin and its end are
//! recorded in the object's `AttributeCache`, which applies the wcc_data of the reply (RFC 1813 section 2.6) and
//! decides whether this mount alone has changed the object. If not, the cached contents are dropped, here and in the
//! kernel ([`Files::follow`]). [`Change`] ends a change even if its future is dropped.

use super::error::FsResult;
use super::files::Files;
use super::inode::{Answered, Inode, Kind, Outcome, ROOT, Stamp};
use super::outdated::drop_outdated;
use nfsrdma_nfs3::{Cred, Nfs3, NfsError, NfsResult, WriteDone};
use nfsrdma_rdma::Buf;
use nfsrdma_rdma::contract::Segs;
use nfsrdma_rpcrdma::abandon::is_abandoned;
use nfsrdma_xdr::nfs3::{Attributes, Stable, Verifier, WccData};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A change by this mount that is under way. Dropping it ends the change as failed.
pub(super) struct Change<'a, N: Nfs3> {
    fs: &'a Files<N>,
    inode: &'a Arc<Inode>,
    kind: Kind,
    sent: Stamp,
    done: bool,
}

impl<N: Nfs3> Change<'_, N> {
    /// The change was answered with `data`.
    pub(super) fn end(self, data: &WccData) {
        self.end_at(data, 0);
    }

    /// As [`Change::end`], for a WRITE that ends at `floor`.
    fn end_at(mut self, data: &WccData, floor: u64) {
        self.done = true;
        let kind = self.kind;
        let answered = Answered { kind, data, floor };
        self.fs.end_change(self.inode, self.sent, Ok(&answered));
    }

    pub(super) fn refused(mut self) {
        self.done = true;
        self.fs.end_change(self.inode, self.sent, Err(true));
    }

    /// The change ended with `error`.
    pub(super) fn failed(self, error: &NfsError) {
        match error {
            NfsError::Status(_) => self.refused(),
            _ => drop(self),
        }
    }
}

impl<N: Nfs3> Drop for Change<'_, N> {
    fn drop(&mut self) {
        if !self.done {
            self.fs.end_change(self.inode, self.sent, Err(false));
        }
    }
}

/// Fails if the caller was killed, so that no change is made that nobody waits for.
pub(super) fn not_abandoned() -> FsResult<()> {
    match is_abandoned() {
        true => Err(NfsError::Interrupted.into()),
        false => Ok(()),
    }
}

impl<N: Nfs3> Files<N> {
    /// Makes a call that changes `inode`, mostly a directory, and applies its wcc_data. If the
    /// caller was killed, the call is not made.
    ///
    /// Pass a pinned call: the future of an async function has room for each argument twice, and
    /// each operation's future is allocated and moved as a whole.
    pub(super) async fn changing<T>(
        &self,
        inode: &Arc<Inode>,
        call: impl Future<Output = NfsResult<T>>,
        wcc: impl FnOnce(&T) -> WccData,
    ) -> FsResult<T> {
        not_abandoned()?;
        let change = self.change(inode, Kind::Contents);
        self.changed(change, inode, call, wcc).await
    }

    /// As [`Files::changing`], for a change that was begun by [`Files::change`].
    pub(super) async fn changed<T>(
        &self,
        change: Change<'_, N>,
        inode: &Inode,
        call: impl Future<Output = NfsResult<T>>,
        wcc: impl FnOnce(&T) -> WccData,
    ) -> FsResult<T> {
        match call.await {
            Ok(result) => {
                change.end(&wcc(&result));
                Ok(result)
            }
            Err(error) => {
                change.failed(&error);
                Err(self.note_error(inode, error))
            }
        }
    }

    /// Records that a call that changes `inode` is about to be sent.
    pub(super) fn change<'a>(&'a self, inode: &'a Arc<Inode>, kind: Kind) -> Change<'a, N> {
        let sent = inode.state.lock().begin_change();
        Change {
            fs: self,
            inode,
            kind,
            sent,
            done: false,
        }
    }

    /// A change was answered, or it failed; `Err(false)`: without a reply of the server.
    fn end_change(&self, inode: &Arc<Inode>, sent: Stamp, answer: Result<&Answered<'_>, bool>) {
        if answer.is_ok_and(|answer| answer.data.after.is_some()) {
            inode.mark_valid();
        }
        let (now, times) = (self.now(), self.times(inode.kind));
        let outcome = {
            let mut state = inode.state.lock();
            match answer {
                Ok(answer) => state.end_change(sent, answer, now, times),
                Err(answered) => state.fail_change(sent, answered),
            }
        };
        self.follow(inode, outcome);
    }

    /// Applies the attributes in the reply to a call that was sent at `stamp`. Returns true if the
    /// reply may be older than the attributes already known: file data in it must not be cached.
    pub(super) fn apply_post_op_attr(
        &self,
        inode: &Arc<Inode>,
        stamp: Stamp,
        attributes: Option<&Attributes>,
    ) -> bool {
        let Some(attributes) = attributes else {
            return false;
        };
        // A handle names one object for ever, and an object keeps its type: these are another one's.
        if attributes.kind != inode.kind {
            return false;
        }
        inode.mark_valid();
        if inode.nodeid == ROOT && !self.fsid_known.load(Ordering::Relaxed) {
            self.table.set_fsid(attributes.fsid);
            self.records.set_fsid(attributes.fsid);
            self.fsid_known.store(true, Ordering::Relaxed);
        }
        let outcome = {
            let mut state = inode.state.lock();
            state.apply(stamp, attributes, self.now(), self.times(inode.kind))
        };
        self.follow(inode, outcome);
        outcome.ambiguous
    }

    /// Invalidates what is out of date according to a reply's attributes, here and in the kernel.
    pub(super) fn follow(&self, inode: &Inode, outcome: Outcome) {
        if outcome.foreign {
            self.contents_changed(inode);
        }
        if outcome.misled
            && let Some(kernel) = self.kernel.get()
        {
            kernel.invalidate_attributes(inode.nodeid);
        }
    }

    /// Somebody else changed a file's contents, or the names in a directory.
    pub(super) fn contents_changed(&self, inode: &Inode) {
        self.shared.stats.foreign_changes.add(1);
        self.expire_names_in(inode);
        if let Some(data) = inode.data() {
            data.with(|inner| drop_outdated(inner, inode));
        }
        self.drop_kernel_data(inode);
    }

    /// Makes the kernel look up again the names in a directory that are no longer valid here.
    pub(super) fn expire_names_in(&self, inode: &Inode) {
        if inode.is_dir()
            && let Some(kernel) = self.kernel.get()
        {
            kernel.expire_names(inode.nodeid);
        }
    }

    /// Names in a directory that are no longer valid, for notifications to the kernel. Each is
    /// returned once.
    pub fn names_to_expire(&self, nodeid: u64) -> Vec<Box<[u8]>> {
        let Some(dir) = self.table.get(nodeid) else {
            return Vec::new();
        };
        let epoch = dir.state.lock().epoch;
        self.names.take_outdated(nodeid, epoch)
    }

    /// Data that a program wrote is lost. The kernel still caches it, because write(2) put it
    /// there.
    pub(super) fn contents_lost(&self, inode: &Inode) {
        inode.state.lock().renew_epoch();
        self.drop_kernel_data(inode);
    }

    /// Makes the kernel drop old pages soon, though nobody asks for attributes.
    pub(super) fn drop_kernel_data(&self, inode: &Inode) {
        if inode.has_old_pages()
            && let Some(kernel) = self.kernel.get()
        {
            kernel.invalidate_data(inode.nodeid);
        }
    }

    pub(super) fn unheard(&self, inode: &Inode) {
        inode.state.lock().unheard();
        if let Some(kernel) = self.kernel.get() {
            kernel.invalidate_attributes(inode.nodeid);
        }
        self.drop_kernel_data(inode);
    }

    /// The result of a change of attributes. If the server did not answer, it may have carried it out,
    /// and the kernel keeps what it has when it gets the error.
    pub(super) fn maybe_unheard<T>(&self, inode: &Inode, result: &FsResult<T>) {
        if let Err(error) = result
            && error.status().is_none()
        {
            self.unheard(inode);
        }
    }

    /// Sends WRITE and applies its wcc_data.
    pub(super) async fn write_call(
        self: &Arc<Self>,
        cred: &Cred,
        inode: &Arc<Inode>,
        offset: u64,
        data: Segs<Buf>,
        stable: Stable,
    ) -> NfsResult<WriteDone> {
        let handle = &inode.handle;
        let call = || self.nfs.write(cred, handle, offset, data.clone(), stable);
        let end = |change: Change<'_, N>, done: &WriteDone| {
            change.end_at(&done.wcc, offset + u64::from(done.count));
        };
        self.changing_again(inode, Kind::Write, call, end).await
    }

    /// Sends COMMIT of the whole file and applies its wcc_data.
    pub(super) async fn commit_call(
        &self,
        cred: &Cred,
        inode: &Arc<Inode>,
    ) -> NfsResult<(WccData, Verifier)> {
        let call = || self.nfs.commit(cred, &inode.handle, 0, 0);
        let end = |change: Change<'_, N>, done: &(WccData, Verifier)| change.end(&done.0);
        self.changing_again(inode, Kind::Metadata, call, end).await
    }

    /// Makes a call that changes `inode`, again as long as this machine cannot send it.
    async fn changing_again<T, F: Future<Output = NfsResult<T>>>(
        &self,
        inode: &Arc<Inode>,
        kind: Kind,
        call: impl Fn() -> F,
        end: impl FnOnce(Change<'_, N>, &T),
    ) -> NfsResult<T> {
        let mut tries = 0;
        loop {
            let change = self.change(inode, kind);
            let call = pin!(call());
            match call.await {
                Ok(done) => {
                    end(change, &done);
                    return Ok(done);
                }
                Err(error) => {
                    change.failed(&error);
                    if !self.again(&error, &mut tries).await {
                        return Err(error);
                    }
                }
            }
        }
    }
}
