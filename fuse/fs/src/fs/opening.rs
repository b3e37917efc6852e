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
//! * All requests of one open(2) come from one thread. After a thread's OPEN failed with ESTALE, the
//!   file that its next LOOKUP returns counts as open. That ends when the thread's next OPEN is answered,
//!   when one of its LOOKUPs fails, or when it has ended.
//!   Like an OPEN, such a LOOKUP waits for a RENAME or REMOVE that has begun before, and then looks
//!   once more.
//!
//! A file that counts as open only by these rules does not keep its directory from being removed.

use super::Fs;
use super::error::FsError;
use super::inode::Inode;
use nfsrdma_nfs3::Nfs3;
use nfsrdma_rpcrdma::exec;
use nfsrdma_rpcrdma::tap::caller;
use nfsrdma_xdr::nfs3::{FileType, Status};
use std::sync::Arc;
use std::sync::atomic::Ordering;

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
        self.fs.tries_no_more();
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

    /// An OPEN failed. If the file was gone, the kernel will look the name up again, and what this
    /// thread finds counts as open.
    pub(super) fn note_open_error(&self, error: &FsError) {
        let stale = matches!(error, FsError::Stale | FsError::UnknownInode)
            || matches!(error.status(), Some(Status::Stale | Status::BadHandle));
        if stale {
            self.opening.failed(caller::current());
        }
    }

    /// Whether what this thread looks up counts as open.
    pub(super) fn holds_lookups(&self) -> bool {
        self.opening.is_expected(caller::current())
    }

    /// A look-up by a thread for which [`Fs::holds_lookups`] returned `inode`: makes it count as open.
    pub(super) fn hold_for_open(self: &Arc<Self>, thread: u32, inode: &Arc<Inode>) {
        if inode.kind == FileType::Regular
            && let Some(before) = self.opening.hold(thread, inode)
        {
            self.count_closed(&before);
        }
    }

    /// This thread has had an OPEN answered, or found nothing to open.
    pub(super) fn tries_no_more(self: &Arc<Self>) {
        if let Some(inode) = self.opening.over(caller::current()) {
            self.count_closed(&inode);
        }
    }

    /// Releases the files that threads have looked up which have ended since. To be called about once
    /// a second.
    pub fn release_held(self: &Arc<Self>, has_ended: impl Fn(u32) -> bool) {
        // Asked without the lock, which look-ups take.
        for thread in self
            .opening
            .threads()
            .into_iter()
            .filter(|&of| has_ended(of))
        {
            if let Some(inode) = self.opening.over(thread) {
                self.count_closed(&inode);
            }
        }
    }

    /// Releases held files that are hidden in a directory which is about to be removed, so that
    /// their hidden names are removed.
    pub(super) fn release_hidden_in(self: &Arc<Self>, dir: &Inode) {
        let here = |held: &Arc<Inode>| held.hidden_in() == Some(dir.nodeid);
        for inode in self.opening.over_if(here) {
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
            let dir = silly.name.dir_node;
            self.begin_removal(dir);
            exec::spawn(async move {
                let _removal = fs.begun_removal(dir);
                fs.remove_hidden(&inode, silly).await;
            });
        }
    }

    /// Whether any file is open or counts as open.
    pub(super) fn any_open(&self) -> bool {
        // In this order, because an OPEN ends after its file was added, and a RELEASE begins before its
        // file is taken away.
        self.opening.any() || !self.files.is_empty() || self.releases.any()
    }
}
