//! OPEN and RELEASE of regular files, neither of which NFSv3 has.
//!
//! For close-to-open consistency an open sends ACCESS (with `nocto`, only if what is known has expired), whose reply has the
//! attributes. If these do not confirm the cached contents, the file gets a new epoch (`revalidate`), and the kernel is told before
//! the reply (`kernel_pages`). The open file keeps the credential of whoever opened it, with which its READs and WRITEs are made,
//! since descriptors may be passed to other processes. RELEASE, the last close, writes back what FLUSH has not, releases the locks,
//! and removes the hidden name of a file that was unlinked while it was open.

use super::Fs;
use super::access::wanted_to_open;
use super::attributes::LATELY;
use super::error::{FsError, FsResult};
use super::file::FileData;
use super::inode::{Inode, Stamp};
use super::open_file::{OpenFile, Opened};
use super::outdated::drop_outdated;
use crate::locks::Releasing;
use nfsrdma_nfs3::{Cred, Nfs3};
use nfsrdma_xdr::nfs3::SetAttributes;
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl<N: Nfs3> Fs<N> {
    /// Opens a file: asks the server whether `cred` may, and whether the file has changed, so that
    /// it shows what others wrote before they closed it (close-to-open consistency).
    pub async fn open(self: &Arc<Self>, cred: &Cred, nodeid: u64, flags: i32) -> FsResult<Opened> {
        let inode = self.inode(nodeid)?;
        let _under_way = self.open_under_way(&inode);
        self.until_it_stays(cred, &inode).await?;
        let since = Stamp::mark();
        self.prepare_open(cred, &inode, flags, since).await?;
        Ok(self.opened(inode, cred, flags))
    }

    /// Checks that `cred` has the rights `wanted` to `inode`, and revalidates what is cached; the
    /// open began at `since`. With `nocto`, no call is needed if valid rights are cached.
    pub(super) async fn check_open(
        self: &Arc<Self>,
        cred: &Cred,
        inode: &Arc<Inode>,
        wanted: u32,
        since: Stamp,
    ) -> FsResult<()> {
        let known = if self.config.nocto {
            let now = self.now();
            let state = inode.state.lock();
            let granted = state
                .fresh(now)
                .and_then(|_| state.granted(cred, wanted, now));
            granted.filter(|&granted| granted & wanted == wanted || state.age(now) < LATELY)
        } else {
            None
        };
        match known {
            Some(granted) if granted & wanted == wanted => {}
            Some(_) => return Err(FsError::AccessDenied),
            None => {
                self.ask_access(cred, inode, wanted).await?;
                self.revalidate(cred, inode, since).await?;
                let overtaken = |data: &Arc<FileData>| {
                    data.with(|inner| {
                        drop_outdated(inner, inode);
                        inner.pages().has_overtaken()
                    })
                };
                if inode.data().is_some_and(overtaken) {
                    Box::pin(self.write_back(inode, true)).await;
                }
            }
        }
        Ok(())
    }

    /// The first part of every open of an existing file: [`Fs::check_open`], and the truncation for O_TRUNC.
    pub(super) async fn prepare_open(
        self: &Arc<Self>,
        cred: &Cred,
        inode: &Arc<Inode>,
        flags: i32,
        since: Stamp,
    ) -> FsResult<()> {
        let wanted = wanted_to_open(flags);
        self.check_open(cred, inode, wanted, since).await?;
        if flags & libc::O_TRUNC != 0 {
            let new = SetAttributes {
                size: Some(0),
                ..SetAttributes::default()
            };
            Box::pin(self.set(cred, inode, &new, false)).await?;
        }
        Ok(())
    }

    /// Registers an open file.
    pub(super) fn opened(&self, inode: Arc<Inode>, cred: &Cred, flags: i32) -> Opened {
        inode.opens.fetch_add(1, Ordering::Relaxed);
        if flags & libc::O_TRUNC != 0 {
            // The kernel truncates the file itself.
            inode.state.lock().kernel_size = 0;
        }
        let record = self.record_open(&inode, cred, flags);
        let file = OpenFile::new(inode, cred.clone(), record);
        Opened {
            handle: self.add(file),
            keep_cache: true,
        }
    }

    /// RELEASE: the last descriptor of an open file is closed. Data that FLUSH has not written,
    /// such as that of a mapping, is written now.
    pub async fn release(self: &Arc<Self>, handle: u64) -> FsResult<()> {
        self.release_and_unlock(handle, self.closing(handle, None))
            .await
    }

    /// As [`Fs::release`], with the result of [`Objects::closing`](super::objects::Objects::closing).
    pub async fn release_and_unlock(
        self: &Arc<Self>,
        handle: u64,
        locked: Vec<Releasing>,
    ) -> FsResult<()> {
        let Some(file) = self.files.get(handle) else {
            // The kernel may have sent it before, to a process that has died since.
            return Ok(());
        };
        let inode = file.inode.clone();
        // The file counts as open until the end, so that a RENAME meanwhile hides it; whoever finds it closed then removes
        // the hidden name.
        let _under_way = self.open_under_way(&inode);
        if self.files.remove(handle).is_none() {
            return Ok(());
        }
        inode.opens.fetch_sub(1, Ordering::SeqCst);
        let is_unsafe = |data: &Arc<FileData>| data.with(|inner| !inner.is_safe());
        if file.can_write() && inode.data().is_some_and(is_unsafe) {
            let kept = Box::pin(self.write_back(&inode, true)).await;
            if kept.is_some() && !locked.is_empty() {
                self.give_up_with_lock(&file.cred, &inode);
            }
        }
        if !locked.is_empty() {
            Box::pin(self.release_locks(&inode, locked)).await;
        }
        Ok(())
    }
}
