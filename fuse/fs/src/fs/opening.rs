//! Files that are about to be open.
//!
//! open(2) is two requests: LOOKUP of the name, OPEN of what it led to. If the file is removed
//! or replaced in between, the server no longer knows it, and OPEN fails with ESTALE, upon which
//! the kernel walks the path once more, asking for each name, and fails for good at the second
//! ESTALE. Where a file is replaced again and again that happens. So that a program of this
//! machine never sees it when the replacing goes through this mount:
//!
//! * A file counts as open while OPEN asks the server for it, so that RENAME and REMOVE hide it
//!   ([`Fs::begin_hiding`]).
//! * After an OPEN failed, each file that LOOKUP answers with counts as open, until OPEN comes
//!   for it or a second has passed. Such a LOOKUP asks the server while no RENAME or REMOVE of this
//!   mount is under way in the directory: one that is has not taken the file into account. A
//!   RENAME or REMOVE that takes more than a second is waited for no longer. This ends when each
//!   thread whose OPEN failed has had another one answered, and after a second at the latest.
//!
//! A file that only counts as open does not keep its directory from being removed.

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

/// How long look-ups count as opens after an OPEN failed, and each of them at most.
const HELD: Duration = Duration::from_secs(1);

/// A file that counts as open while this lives.
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
    /// Has `inode` count as open for as long as OPEN takes.
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

    /// OPEN failed: if the file was gone, the kernel is going to look the name up again.
    pub(super) fn note_open_error(&self, error: &FsError) {
        let stale = matches!(error, FsError::Stale | FsError::UnknownInode)
            || matches!(error.status(), Some(Status::Stale | Status::BadHandle));
        if stale {
            let now = self.now();
            self.opening
                .failed(caller::current(), now, now + nanos(HELD));
        }
    }

    /// Whether look-ups count as opens now.
    pub(super) fn holds_lookups(&self) -> bool {
        self.opening.is_holding(self.now())
    }

    /// A look-up led to `inode`, while [`Fs::holds_lookups`].
    pub(super) fn hold_for_open(&self, inode: &Arc<Inode>) {
        if inode.kind == FileType::Regular {
            self.opening.hold(inode, self.now() + nanos(HELD));
        }
    }

    /// OPEN has been answered for `inode`.
    fn release_held(self: &Arc<Self>, inode: &Arc<Inode>) {
        for inode in self.opening.opened(caller::current(), inode) {
            self.count_closed(&inode);
        }
    }

    /// Releases files for which no OPEN arrived in time; with `all`, at once.
    pub(super) fn release_expired(self: &Arc<Self>, all: bool) {
        let now = self.now();
        for inode in self.opening.release_if(|until, _| all || until <= now) {
            self.count_closed(&inode);
        }
        self.opening.ticked();
    }

    /// Releases files that were hidden in a directory which is to be removed, and that nobody has
    /// opened: their hidden names go.
    pub(super) fn release_hidden_in(self: &Arc<Self>, dir: &Inode) {
        let hidden = |inode: &Inode| {
            let state = inode.state.lock();
            let silly = state.silly.as_ref();
            silly.is_some_and(|silly| silly.dir_node == dir.nodeid)
        };
        for inode in self.opening.release_if(|_, inode| hidden(inode)) {
            self.count_closed(&inode);
        }
    }

    /// `inode` no longer counts as open for a reason above. If it was removed meanwhile, and
    /// nobody has opened it, nobody else takes it away.
    pub(super) fn count_closed(self: &Arc<Self>, inode: &Arc<Inode>) {
        if inode.opens.fetch_sub(1, Ordering::SeqCst) != 1 {
            return;
        }
        let silly = inode.state.lock().silly.take();
        if let Some(silly) = silly {
            let (fs, inode) = (self.clone(), inode.clone());
            self.begin_removal(silly.dir_node);
            exec::spawn(async move {
                let _removal = fs.begun_removal(silly.dir_node);
                fs.remove_hidden(&inode, *silly).await;
            });
        }
    }

    /// Whether any file counts as open.
    pub(super) fn any_open(&self) -> bool {
        !self.files.read().is_empty() || self.opening.any()
    }

    /// A name in a directory is about to be taken from a file.
    pub(super) async fn removing(&self, dir_node: u64) -> RwLockReadGuard<'_, ()> {
        self.opening.removing(dir_node).await
    }

    /// While this lives, no name in a directory is. `None`: one that is under way takes long.
    pub(super) async fn not_removing(&self, dir_node: u64) -> Option<RwLockWriteGuard<'_, ()>> {
        let until = self.now() + nanos(HELD);
        self.opening
            .not_removing(dir_node, || self.now() >= until)
            .await
    }
}
