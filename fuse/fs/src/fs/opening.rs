//! Files that are about to be opened, or whose RELEASE is under way.
//!
//! open(2) is two requests: LOOKUP of the name, and OPEN of what it leads to. If the file is
//! removed or replaced in between, the server no longer knows it, and OPEN fails with ESTALE. The
//! kernel then looks up each name of the path again, and fails for good at the second ESTALE.
//!
//! So that this is rare where a file is replaced again and again through this mount, a file counts as
//! open while an OPEN of it asks the server: RENAME and REMOVE hide it. An OPEN waits for those that have
//! begun before (`losing.rs`).

use super::Fs;
use super::inode::Inode;
use nfsrdma_nfs3::Nfs3;
use nfsrdma_rpcrdma::exec;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// While this lives, a file counts as open because an OPEN or RELEASE of it is under way.
#[derive(Debug)]
pub(super) struct OpenUnderWay<'a, N: Nfs3> {
    fs: &'a Arc<Fs<N>>,
    inode: Arc<Inode>,
}

impl<N: Nfs3> Drop for OpenUnderWay<'_, N> {
    fn drop(&mut self) {
        self.fs.count_closed(&self.inode);
    }
}

impl<N: Nfs3> Fs<N> {
    /// Makes `inode` count as open until the result is dropped.
    pub(super) fn open_under_way<'a>(
        self: &'a Arc<Self>,
        inode: &Arc<Inode>,
    ) -> OpenUnderWay<'a, N> {
        inode.opens.fetch_add(1, Ordering::SeqCst);
        OpenUnderWay {
            fs: self,
            inode: inode.clone(),
        }
    }

    /// `inode` no longer counts as open without being open. If it was hidden meanwhile and is
    /// not open otherwise, its hidden name is removed here, because no last close will do it.
    pub(super) fn count_closed(self: &Arc<Self>, inode: &Arc<Inode>) {
        if inode.opens.fetch_sub(1, Ordering::SeqCst) != 1 {
            return;
        }
        inode.errors_were_told();
        if let Some(silly) = inode.take_hidden(false) {
            let (fs, inode) = (self.clone(), inode.clone());
            exec::spawn(async move { fs.remove_hidden(&inode, silly).await });
        }
    }
}
