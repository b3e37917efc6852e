//! Files that are about to be opened.
//!
//! open(2) is two requests: LOOKUP of the name, and OPEN of what it leads to. If the file is
//! removed or replaced in between, the server no longer knows it, and OPEN fails with ESTALE. The
//! kernel then looks up each name of the path again, and fails for good at the second ESTALE, which
//! happens to a file that is replaced again and again. Programs of this machine never see this if
//! the file is replaced through this mount, by two rules:
//!
//! * A file counts as open while an OPEN of it asks the server, so that RENAME and REMOVE hide it. An
//!   OPEN waits for those that have begun before (`losing.rs`).
//! * After an OPEN failed, each file that a LOOKUP of the same thread returns counts as open until it
//!   is opened or a second has passed. Such a LOOKUP is sent while no RENAME or REMOVE of this mount
//!   is under way in the directory, since one that has begun would not hide the file; it waits for
//!   them for a second at most. This rule ends when the thread has had another OPEN answered, and
//!   after a second at the latest. Other threads have no part in it: a user who opens a removed file
//!   again and again must not slow down the look-ups of others.
//!
//! A file that counts as open only by these rules does not keep its directory from being removed.

use super::Fs;
use super::clock::nanos;
use super::error::FsError;
use super::inode::Inode;
use nfsrdma_nfs3::Nfs3;
use nfsrdma_rpcrdma::exec;
use nfsrdma_rpcrdma::tap::caller;
use nfsrdma_xdr::nfs3::{FileType, Status};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::sync::{RwLockReadGuard, RwLockWriteGuard};

/// How long look-ups count as opens after an OPEN failed, and how long each file is held at most.
const HELD: Duration = Duration::from_secs(1);

/// While this lives, a file counts as open because an OPEN of it is under way.
#[derive(Debug)]
pub(super) struct OpenUnderWay<'a, N: Nfs3> {
    fs: &'a Arc<Fs<N>>,
    inode: Arc<Inode>,
}

impl<N: Nfs3> Drop for OpenUnderWay<'_, N> {
    fn drop(&mut self) {
        self.fs.opening.end();
        self.fs.count_closed(&self.inode);
        self.fs.release_held(&self.inode);
    }
}

impl<N: Nfs3> Fs<N> {
    /// Makes `inode` count as open until the result is dropped.
    pub(super) fn open_under_way<'a>(
        self: &'a Arc<Self>,
        inode: &Arc<Inode>,
    ) -> OpenUnderWay<'a, N> {
        self.opening.begin();
        inode.opens.fetch_add(1, Ordering::SeqCst);
        OpenUnderWay {
            fs: self,
            inode: inode.clone(),
        }
    }

    /// An OPEN failed. If the file was gone, the kernel will look the name up again, and look-ups of
    /// this thread count as opens from now on.
    pub(super) fn note_open_error(&self, error: &FsError) {
        let stale = matches!(error, FsError::Stale | FsError::UnknownInode)
            || matches!(error.status(), Some(Status::Stale | Status::BadHandle));
        if stale {
            let now = self.now();
            self.opening
                .failed(caller::current(), now, now + nanos(HELD));
        }
    }

    /// Whether look-ups of this thread count as opens now.
    pub(super) fn holds_lookups(&self) -> bool {
        let now = self.now();
        self.opening.is_holding_for(caller::current(), now)
    }

    /// A look-up returned `inode` while [`Fs::holds_lookups`]: makes it count as open.
    pub(super) fn hold_for_open(&self, inode: &Arc<Inode>) {
        if inode.kind == FileType::Regular {
            self.opening.hold(inode, self.now() + nanos(HELD));
        }
    }

    /// An OPEN of `inode` has ended.
    fn release_held(self: &Arc<Self>, inode: &Arc<Inode>) {
        for inode in self.opening.opened(caller::current(), inode) {
            self.count_closed(&inode);
        }
    }

    /// Releases files for which no OPEN arrived in time; with `all`, all held files.
    pub(super) fn release_expired(self: &Arc<Self>, all: bool) {
        let now = self.now();
        for inode in self.opening.release_if(|until, _| all || until <= now) {
            self.count_closed(&inode);
        }
        self.opening.ticked();
    }

    /// Releases held files that are hidden in a directory which is about to be removed, so that
    /// their hidden names are removed.
    pub(super) fn release_hidden_in(self: &Arc<Self>, dir: &Inode) {
        let hidden = |inode: &Inode| inode.hidden_in() == Some(dir.nodeid);
        for inode in self.opening.release_if(|_, inode| hidden(inode)) {
            self.count_closed(&inode);
        }
    }

    /// `inode` no longer counts as open by one of these rules. If it was hidden meanwhile and is
    /// not open otherwise, its hidden name is removed here, because no last close will do it.
    pub(super) fn count_closed(self: &Arc<Self>, inode: &Arc<Inode>) {
        if inode.opens.fetch_sub(1, Ordering::SeqCst) != 1 {
            return;
        }
        if let Some(silly) = inode.take_hidden(false) {
            let (fs, inode) = (self.clone(), inode.clone());
            self.begin_removal(silly.dir_node);
            exec::spawn(async move {
                let _removal = fs.begun_removal(silly.dir_node);
                fs.remove_hidden(&inode, silly).await;
            });
        }
    }

    /// Whether any file is open or counts as open.
    pub(super) fn any_open(&self) -> bool {
        // In this order, because an OPEN ends after its file was added, and a RELEASE begins before its
        // file is taken away.
        self.opening.any() || !self.files.read().is_empty() || self.releases.any()
    }

    /// Call before a name in a directory is removed or replaced; see [`Fs::not_removing`].
    pub(super) async fn removing(&self, dir_node: u64) -> RwLockReadGuard<'_, ()> {
        self.opening.removing(dir_node).await
    }

    /// While the result lives, no name in a directory is removed or replaced. `None` if a RENAME or
    /// REMOVE that is under way takes too long.
    pub(super) async fn not_removing(&self, dir_node: u64) -> Option<RwLockWriteGuard<'_, ()>> {
        let until = self.now() + nanos(HELD);
        self.opening
            .not_removing(dir_node, || self.now() >= until)
            .await
    }
}
