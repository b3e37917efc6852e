//! Files that are about to lose a name by REMOVE or RENAME, and opens of them meanwhile.
//!
//! NFSv3 has no open files: with its last name a file is gone, also for who has it open. So a name of a file that
//! is open, or is being opened, is not removed: the file gets a hidden name instead (`remove.rs`, `rename.rs`).
//! [`Hiding`] lets one call at a time hide a file, because a file with several names must not get two hidden ones.
//!
//! For a file that is not open, the call is sent, and may be run much later than an OPEN that is sent after it: a
//! server may put it off (NFS3ERR_JUKEBOX) until another client has given back its delegation of the file. So the
//! file is marked until the call has ended ([`Going`]), and an OPEN of a marked file waits for that, unless the
//! file has more names than it may lose. After the wait the object is looked at once more. If it is gone, the open
//! fails with ESTALE, and the kernel looks the name up again (`opening.rs`).
//!
//! No open is overlooked: each first counts as open and then looks for marks, and each removal first sets its mark
//! and then looks for opens. Both look with the inode's `state` locked.

use super::Fs;
use super::error::{FsError, FsResult};
use super::inode::{Inode, Stamp, State};
use super::inode_flags::Flag;
use nfsrdma_nfs3::{Cred, Nfs3};
use nfsrdma_xdr::nfs3::FileType;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A file is being hidden. Until this is dropped, no other call removes one of its names: two names
/// that are hidden at the same time would leave one hidden name behind.
pub(super) struct Hiding<'a, N: Nfs3> {
    fs: &'a Arc<Fs<N>>,
    /// It counts as open, so that a close meanwhile is not the last one.
    inode: Arc<Inode>,
}

impl<N: Nfs3> Drop for Hiding<'_, N> {
    fn drop(&mut self) {
        self.inode.flags.clear(Flag::Hiding);
        self.fs.removed.notify_waiters();
        self.fs.count_closed(&self.inode);
    }
}

/// While this lives, a call that removes a name of a file is under way, and opens of the file wait
/// if that may be its last name.
pub(super) struct Going<'a, N: Nfs3> {
    fs: &'a Fs<N>,
    inode: Arc<Inode>,
}

impl<N: Nfs3> Drop for Going<'_, N> {
    fn drop(&mut self) {
        self.inode.kept_or_gone();
        self.fs.removed.notify_waiters();
    }
}

/// What is to be done with a file before one of its names is removed.
pub(super) enum Losing<'a, N: Nfs3> {
    /// It is open, and has to be hidden by the caller.
    Open(Hiding<'a, N>),
    /// It is not open, or has a hidden name already. Keep this until the call has ended and its
    /// outcome is recorded.
    Closed(#[allow(dead_code, reason = "dropped at the end")] Going<'a, N>),
}

impl<N: Nfs3> Fs<N> {
    /// Call before `name` is removed or replaced. Returns what it leads to. Fails with `Busy` for the hidden
    /// name of an open file.
    pub(super) async fn about_to_lose<'a>(
        self: &'a Arc<Self>,
        cred: &Cred,
        dir: &Arc<Inode>,
        name: &[u8],
    ) -> FsResult<(Arc<Inode>, Losing<'a, N>)> {
        let child = self.child(cred, dir, name).await?;
        check_not_hidden(dir, name, &child)?;
        let losing = self.begin_hiding(&child).await;
        Ok((child, losing))
    }

    /// A process that has died since was about to hide the file, or has. Until it is known, no other call
    /// removes one of its names. [`Fs::resumed_hiding`] is the second step, in a spawned task.
    pub(super) fn resume_hiding(&self, inode: &Inode) {
        let _state = inode.state.lock();
        inode.flags.set(Flag::Hiding);
        inode.opens.fetch_add(1, Ordering::SeqCst);
    }

    pub(super) fn resumed_hiding(self: &Arc<Self>, inode: &Arc<Inode>) -> Hiding<'_, N> {
        Hiding {
            fs: self,
            inode: inode.clone(),
        }
    }

    async fn begin_hiding<'a>(self: &'a Arc<Self>, inode: &Arc<Inode>) -> Losing<'a, N> {
        loop {
            let removed = self.removed.notified();
            {
                let state = inode.state.lock();
                if !inode.flags.has(Flag::Hiding) {
                    if must_hide(inode, &state) {
                        inode.flags.set(Flag::Hiding);
                        inode.opens.fetch_add(1, Ordering::SeqCst);
                        break;
                    }
                    inode.losing.fetch_add(1, Ordering::Relaxed);
                    return Losing::Closed(Going {
                        fs: self,
                        inode: inode.clone(),
                    });
                }
            }
            removed.await;
        }
        Losing::Open(Hiding {
            fs: self,
            inode: inode.clone(),
        })
    }

    /// Call for an open, with `inode` counted as open: whether it is to wait for a call that may
    /// remove the last name. Mostly this is known at once.
    pub(super) async fn may_go(&self, cred: &Cred, inode: &Arc<Inode>) -> FsResult<bool> {
        let going = inode.names_going();
        if going == 0 {
            return Ok(false);
        }
        // Only attributes that were sent for now tell: later removals hide the file.
        Box::pin(async {
            let stamp = Stamp::now();
            match self.nfs.getattr(cred, &inode.handle).await {
                Ok(attributes) => {
                    self.apply_post_op_attr(inode, stamp, Some(&attributes));
                    Ok(attributes.nlink <= going)
                }
                Err(error) => Err(self.note_error(inode, error)),
            }
        })
        .await
    }

    /// Waits as long as [`Fs::may_go`]. The file may be gone then.
    pub(super) async fn until_it_stays(&self, cred: &Cred, inode: &Arc<Inode>) -> FsResult<()> {
        loop {
            let going = inode.names_going();
            if !self.may_go(cred, inode).await? {
                return Ok(());
            }
            loop {
                let removed = self.removed.notified();
                if inode.names_going() != going {
                    break;
                }
                removed.await;
            }
        }
    }
}

/// Whether `inode` must be hidden instead of being removed.
fn must_hide(inode: &Inode, state: &State) -> bool {
    inode.kind == FileType::Regular
        && inode.opens.load(Ordering::Relaxed) > 0
        && state.silly.is_none()
}

/// Fails if `name` is the hidden name of a file that is open here.
pub(super) fn check_not_hidden(dir: &Inode, name: &[u8], inode: &Inode) -> FsResult<()> {
    match &inode.state.lock().silly {
        Some(silly) if silly.name.dir == dir.handle && silly.name.name == *name => {
            Err(FsError::Busy)
        }
        _ => Ok(()),
    }
}
