//! UNLINK, RMDIR, and files that are unlinked while open.
//!
//! NFSv3 has no open files: REMOVE of the last name removes the data. So a file that this mount has open is renamed
//! to a hidden name instead (silly rename), and removed at the last close with the credential of whoever unlinked it.
//! Since only the hidden name keeps the data, nobody on this machine can remove or rename it (EBUSY, as with Linux's
//! client). RMDIR waits a while for hidden names: a program may have closed the file already, which the kernel tells
//! later. The name of a file that is not open is removed by REMOVE (RFC 1813 section 3.3.12). `losing.rs` decides
//! whether a file is hidden.

use super::Fs;
use super::error::FsResult;
use super::inode::{Inode, Silly};
use super::inode_flags::Flag;
use super::losing::Losing;
use crate::credential::kept;
use nfsrdma_nfs3::{Cred, Nfs3};
use nfsrdma_record::{HIDDEN_NAME, Hidden};
use std::hash::BuildHasher;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// How long RMDIR waits for the removal of hidden names. Their files may be open: then it fails in the end. The kernel has
/// locked the directory above meanwhile.
const MOST_WAIT: Duration = Duration::from_secs(1);
/// How hidden names begin.
pub(super) const HIDDEN: &[u8] = b".nfs";

/// [`HIDDEN`] and 16 digits each of the file's inode number and of a number.
pub(super) type HiddenName = [u8; HIDDEN_NAME];

impl<N: Nfs3> Fs<N> {
    pub async fn unlink(self: &Arc<Self>, cred: &Cred, parent: u64, name: &[u8]) -> FsResult<()> {
        let dir = self.inode(parent)?;
        if self.has_lost(cred, &dir, name).await {
            return Ok(());
        }
        let (child, losing) = self.about_to_lose(cred, &dir, name).await?;
        if let Losing::Open(_hiding) = &losing {
            return Box::pin(self.hide_by_rename(cred, &dir, name, &child))
                .await
                .map(|_| ());
        }
        let call = pin!(self.nfs.remove(cred, &dir.handle, name));
        self.changing_name(&dir, name, call, |wcc| *wcc).await?;
        self.own_name(&dir, name, None);
        // The object has one link less now. This ends before the OPENs that wait for it go on.
        mark_removed(&child);
        child.state.lock().named_otherwise();
        Ok(())
    }

    pub async fn rmdir(self: &Arc<Self>, cred: &Cred, parent: u64, name: &[u8]) -> FsResult<()> {
        let dir = self.inode(parent)?;
        if self.has_lost(cred, &dir, name).await {
            return Ok(());
        }
        // The directory is marked as removed for those who have it open.
        let child = self.child(cred, &dir, name).await.ok();
        // Hidden files that were just closed may still be in the directory.
        if let Some(child) = &child {
            let none = self.until_none_is_hidden(Some(child.nodeid), MOST_WAIT);
            none.await;
        }
        let call = pin!(self.nfs.rmdir(cred, &dir.handle, name));
        self.changing_name(&dir, name, call, |wcc| *wcc).await?;
        self.own_name(&dir, name, None);
        if let Some(child) = child {
            mark_removed(&child);
        }
        Ok(())
    }

    /// A hidden name. There is none like it, as it is made with a random key.
    fn next_hidden_name(&self, inode: &Inode) -> HiddenName {
        // Nobody can tell from one name which are the next, and make those before.
        let number = self.silly_number.fetch_add(1, Ordering::Relaxed);
        let mixed = self.silly_keys.hash_one(number);
        let mut name = [0; HIDDEN_NAME];
        let (first, rest) = name.split_at_mut(HIDDEN.len());
        first.copy_from_slice(HIDDEN);
        rest.copy_from_slice(format!("{:016x}{mixed:016x}", inode.fileid).as_bytes());
        name
    }

    /// To be called before `inode` is given the hidden name. If this process dies, the next one looks
    /// whether there is such a name.
    fn about_to_hide(&self, cred: &Cred, dir: &Inode, name: HiddenName, inode: &Inode) -> Silly {
        let name = Hidden::new(inode.nodeid, dir.nodeid, dir.handle, name, kept(cred));
        Silly {
            name: self.records.hidden().alloc(name),
            cred: cred.clone(),
            dir: self.hidden_in(dir.nodeid),
        }
    }

    /// Renames an open file to a hidden name, which is returned.
    pub(super) async fn hide_by_rename(
        &self,
        cred: &Cred,
        dir: &Arc<Inode>,
        name: &[u8],
        inode: &Arc<Inode>,
    ) -> FsResult<HiddenName> {
        let hidden = self.next_hidden_name(inode);
        let silly = self.about_to_hide(cred, dir, hidden, inode);
        let handle = &dir.handle;
        let call = pin!(self.nfs.rename(cred, handle, name, handle, &hidden));
        let call = self.changing_name(dir, name, call, |wcc| wcc.to_dir);
        call.await?;
        self.own_name(dir, name, None);
        self.hidden(silly, inode).await;
        Ok(hidden)
    }

    /// Records that `inode` has a hidden name, which is to be removed at the last close.
    pub(super) async fn hidden(&self, silly: Silly, inode: &Inode) {
        self.shared.stats.silly_renames.add(1);
        mark_removed(inode);
        {
            let mut state = inode.state.lock();
            state.named_otherwise();
            state.silly = Some(Box::new(silly));
            inode.hidden_links.fetch_add(1, Ordering::Relaxed);
        }
        // If the file was closed meanwhile, no last close will remove the name.
        if let Some(silly) = inode.take_hidden(false) {
            self.remove_hidden(inode, silly).await;
        }
    }
}

/// Records that a name of this object was removed, which may have been its last. If the server no
/// longer knows the handle, fstat(2) is then answered from memory. This matters for objects that
/// are open without being hidden: directories, FIFOs, devices, sockets, and whatever was opened
/// with O_PATH.
pub(super) fn mark_removed(inode: &Inode) {
    inode.flags.set(Flag::Removed);
    inode.state.lock().expire();
}
