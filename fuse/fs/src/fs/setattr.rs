//! SETATTR (RFC 1813 section 3.3.2).
//!
//! SETATTR runs alone: all data written before is on stable storage when it is sent, and programs'
//! writes wait until it is answered. So no WRITE that is late, or is repeated because the server
//! restarted, can undo a truncation, a time that was set, or the clearing of a set-id bit.

use super::changing::not_abandoned;
use super::error::{FsError, FsResult};
use super::file::{Begun, FileData};
use super::inode::{Inode, Kind};
use super::objects::Objects;
use super::under_way::Doing;
use nfsrdma_nfs3::{Cred, Nfs3};
use nfsrdma_xdr::nfs3::{Attributes, FileType, SetAttributes, SetTime, Status, access};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

/// The size of a regular file. `None` if it has set-id bits, because a SETATTR of the size then has
/// an effect even if the size stays: the server clears them.
fn plain_size(of: &Attributes) -> Option<u64> {
    (of.kind == FileType::Regular && of.mode & 0o6000 == 0).then_some(of.size)
}

impl<N: Nfs3> Objects<N> {
    /// SETATTR. `by_name`: a new size comes from truncate(2), not from an open file.
    pub async fn setattr(
        self: &Arc<Self>,
        cred: &Cred,
        nodeid: u64,
        new: &SetAttributes,
        by_name: bool,
    ) -> FsResult<(Attributes, Duration)> {
        let inode = self.inode(nodeid)?;
        self.set(cred, &inode, new, by_name).await?;
        // No notification may come before the reply, as elsewhere: it would wait until the kernel has
        // written back what mappings have changed, and that waits for this reply.
        self.drop_kernel_data(&inode);
        let attributes = {
            let state = inode.state.lock();
            state.fresh(self.now()).copied()
        };
        let attributes = match attributes {
            Some(attributes) => attributes,
            None => self.fetch(cred, &inode).await?,
        };
        let ttl = self.attr_ttl(&inode, self.now());
        Ok((self.visible_attributes(&inode, attributes), ttl))
    }

    /// SETATTR, alone as the head of this module says. `by_name`: as for [`Objects::setattr`].
    pub(super) async fn set(
        self: &Arc<Self>,
        cred: &Cred,
        inode: &Arc<Inode>,
        new: &SetAttributes,
        by_name: bool,
    ) -> FsResult<()> {
        if let Some(size) = new.size
            && size > self.limits().max_file_size
        {
            return Err(FsError::TooLarge);
        }
        // Created if there is none, because a READ may begin while the call is under way.
        let data = match new.size {
            Some(_) if inode.kind == FileType::Regular => Some(self.data(inode)),
            _ => inode.data(),
        };
        // Data that is about to be truncated is written as well, since the server may refuse.
        let _exclusive = self.exclusively(cred, inode, data).await?;
        let void = || {
            if let Some(data) = data {
                data.with(|inner| inner.void_reads(0..u64::MAX));
            }
        };
        let mut new = *new;
        let mut touch = false;
        if let Some(size) = new.size {
            let same = |of: Option<Attributes>| of.as_ref().and_then(plain_size) == Some(size);
            let is_known = same(inode.state.lock().attributes().copied());
            if !by_name {
                touch = new.mtime == SetTime::Keep && is_known;
            // truncate(2) to the same size leaves the times alone, but a SETATTR may change them (RFC
            // 1813 section 3.3.2 does not say). What is known may be old, and there may be no permission.
            } else if is_known && same(self.ask_access(cred, inode, access::MODIFY).await?) {
                new.size = None;
                if new == SetAttributes::default() {
                    return Ok(());
                }
            }
        }
        let metadata = new.size.is_none() && new.mtime == SetTime::Keep;
        let kind = match metadata {
            true => Kind::Metadata,
            false => Kind::Contents,
        };
        if new.size.is_some() {
            void();
        }
        not_abandoned()?;
        self.not_ended()?;
        let send = async |new: &SetAttributes| self.send_setattr(cred, inode, new, kind).await;
        let result = match touch {
            false => send(&new).await,
            // ftruncate(2) and O_TRUNC change the mtime even if the size stays; a server may not.
            // Where only owners may set times, the size alone is set.
            true => {
                let mtime = SetTime::ToServerTime;
                match send(&SetAttributes { mtime, ..new }).await {
                    Err(error) if error.status() == Some(Status::Perm) => send(&new).await,
                    result => result,
                }
            }
        };
        if let Some(size) = new.size {
            // Data read meanwhile may be older, even if it is not known whether the call was run.
            void();
            let told = result?;
            if let Some(data) = data {
                data.with(|inner| inner.truncate(size));
                // Dirty data may be gone.
                self.shared.room.notify_one();
            }
            let mut state = inode.state.lock();
            if !told {
                // Pages of mappings that waited must not be taken for a part of the file.
                state.set_size(size);
            } else if state.attributes().is_some_and(|a| a.size != size) {
                state.expire();
            }
            return Ok(());
        }
        result.map(|_| ())
    }

    /// Sends SETATTR and applies the attributes of its reply, which may have none (RFC 1813 section
    /// 2.6): then it returns false.
    pub(super) async fn send_setattr(
        &self,
        cred: &Cred,
        inode: &Arc<Inode>,
        new: &SetAttributes,
        kind: Kind,
    ) -> FsResult<bool> {
        inode.state.lock().forget_told();
        let change = self.change(inode, kind);
        let call = pin!(self.nfs.setattr(cred, &inode.handle, new));
        let result = self.changed(change, inode, call, |wcc| *wcc).await;
        self.maybe_unheard(inode, &result);
        Ok(result?.after.is_some())
    }

    /// Prepares for a call that changes attributes: waits until everything written before is on
    /// stable storage, and makes programs' writes wait until the result is dropped.
    pub(super) async fn exclusively<'a>(
        self: &Arc<Self>,
        cred: &Cred,
        inode: &Arc<Inode>,
        data: Option<&'a Arc<FileData>>,
    ) -> FsResult<Option<Begun<&'a FileData>>> {
        let Some(data) = data else { return Ok(None) };
        let exclusive = data.keep_writers(Doing::Setattr);
        let direct = |doing| doing == Doing::Direct;
        data.until(|inner| (!inner.under_way().any(direct)).then_some(()))
            .await;
        if !data.with(|inner| !inner.write_back().is_under_way() && inner.is_safe()) {
            while let Some(why) = self.write_back(inode, true).await {
                let may_write = async || self.ask_access(cred, inode, access::MODIFY).await.is_ok();
                if self.has_written(cred, inode) || !may_write().await {
                    return Err(why.into());
                }
                self.give_up(inode);
            }
        }
        Ok(Some(exclusive))
    }
}
