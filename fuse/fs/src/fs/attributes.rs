//! GETATTR, SETATTR, READLINK and STATFS (RFC 1813 sections 3.3.1, 3.3.2, 3.3.5 and 3.3.18).
//!
//! GETATTR is answered from the `AttributeCache` while what it has is valid; the size shown is
//! never less than the end of what this mount has written. stat(2) of a file with dirty data writes
//! that first, because the server sets mtime and ctime when it gets the data.
//!
//! SETATTR runs alone: all data written before is on stable storage when it is sent, and programs'
//! writes wait until it is answered. So no WRITE that is late, or is repeated because the server
//! restarted, can undo a truncation, a time that was set, or the clearing of a set-id bit.

use super::Fs;
use super::changing::not_abandoned;
use super::error::{FsError, FsResult};
use super::file::{FileData, FileState};
use super::inode::{Inode, Kind, Stamp};
use nfsrdma_nfs3::{Cred, Nfs3, NfsError};
use nfsrdma_xdr::nfs3::{Attributes, FileType, FsstatOk, SetAttributes, SetTime, Status, access};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// What fstat(2) shows of an object that this mount removed and a program has open: the server no
/// longer knows its handle (`error`), so these are its last known attributes, without links.
fn removed_object(inode: &Inode, error: &FsError) -> Option<Attributes> {
    let gone = matches!(error.status(), Some(Status::Stale | Status::BadHandle));
    if !gone || !inode.removed.load(Ordering::Relaxed) {
        return None;
    }
    let attributes = inode.state.lock().attributes().copied()?;
    Some(Attributes {
        nlink: 0,
        ..attributes
    })
}

/// The last known size of a regular file. `None` if it has set-id bits: the server clears them
/// when it sets a size.
fn known_size(inode: &Inode) -> Option<u64> {
    let known = inode.state.lock().attributes().copied()?;
    (known.kind == FileType::Regular && known.mode & 0o6000 == 0).then_some(known.size)
}

/// Programs' writes to the file wait while this lives.
pub(super) struct Exclusive<'a>(&'a FileData);

impl<'a> Exclusive<'a> {
    fn new(data: &'a FileData) -> Self {
        data.with(FileState::begin_exclusive);
        Exclusive(data)
    }
}

impl Drop for Exclusive<'_> {
    fn drop(&mut self) {
        self.0.with(FileState::end_exclusive);
        self.0.changed.notify_waiters();
    }
}

impl<N: Nfs3> Fs<N> {
    /// Attributes from memory, while they are valid, and for how long they still are.
    /// `revalidate`: the kernel asks for its own sake (to see whether its cache is still valid),
    /// not for a program's stat(2): then dirty data does not matter, as times need not be final.
    pub fn getattr_cached(&self, nodeid: u64, revalidate: bool) -> Option<(Attributes, Duration)> {
        let inode = self.table.get(nodeid)?;
        let now = self.now();
        // Before the attributes, as in `shown`.
        let (dirty, stale, end) = inode.data().map_or((false, false, 0), |data| {
            data.with(|inner| {
                (
                    inner.is_dirty(),
                    inner.stale_pages().is_waiting(),
                    inner.end(),
                )
            })
        });
        // Before the kernel reads its pages, or data is written.
        if (dirty && !revalidate) || (stale && revalidate) {
            return None;
        }
        let (shown, ttl) = {
            let mut state = inode.state.lock();
            let attributes = *state.fresh(now)?;
            let size = attributes.size.max(end);
            if state.record_told(size) {
                self.pages_dropped_of(&inode);
            }
            let shown = Attributes {
                size,
                fileid: self.table.visible_fileid(&attributes),
                nlink: inode.visible_links(&attributes),
                ..attributes
            };
            (shown, state.fresh_for(now))
        };
        self.shared.stats.attribute_hits.add(1);
        let ttl = if dirty || inode.hidden_links.load(Ordering::Relaxed) > 0 {
            Duration::ZERO
        } else {
            Duration::from_nanos(ttl)
        };
        Some((shown, ttl))
    }

    /// Attributes as the server has them after all data written so far.
    pub async fn getattr(
        self: &Arc<Self>,
        cred: &Cred,
        nodeid: u64,
        revalidate: bool,
    ) -> FsResult<(Attributes, Duration)> {
        let inode = self.inode(nodeid)?;
        if revalidate {
            if self.until_pages_dropped(&inode).await
                && let Some(known) = self.getattr_cached(nodeid, revalidate)
            {
                return Ok(known);
            }
        } else if inode.is_dirty() {
            // The server sets mtime and ctime when it gets the data.
            self.write_back(&inode, false).await;
            let state = inode.state.lock();
            if let Some(attributes) = state.fresh(self.now()) {
                let attributes = *attributes;
                drop(state);
                let ttl = self.attr_ttl(&inode, self.now());
                return Ok((self.visible_attributes(&inode, attributes), ttl));
            }
        }
        // The reply itself tells the kernel.
        inode.state.lock().forget_told();
        let attributes = match self.fetch(cred, &inode).await {
            Ok(attributes) => attributes,
            Err(error) => {
                let attributes = removed_object(&inode, &error).ok_or(error)?;
                return Ok((attributes, Duration::ZERO));
            }
        };
        let ttl = self.attr_ttl(&inode, self.now());
        Ok((self.visible_attributes(&inode, attributes), ttl))
    }

    /// Sends GETATTR and applies the attributes of its reply.
    pub(super) async fn fetch(&self, cred: &Cred, inode: &Arc<Inode>) -> FsResult<Attributes> {
        self.shared.stats.attribute_misses.add(1);
        self.hidden_gone(inode).await;
        let stamp = Stamp::now();
        match self.nfs.getattr(cred, &inode.handle).await {
            Ok(attributes) if attributes.kind != inode.kind => {
                let error = NfsError::PeerMisbehaved("an object changed its type".into());
                Err(self.note_error(inode, error))
            }
            Ok(attributes) => {
                self.apply_post_op_attr(inode, stamp, Some(&attributes));
                // A newer reply may have been applied meanwhile.
                let newest = inode.state.lock().attributes().copied();
                Ok(newest.unwrap_or(attributes))
            }
            Err(error) => Err(self.note_error(inode, error)),
        }
    }

    /// The attributes known of `inode`, however old; sends GETATTR if there are none.
    pub(super) async fn attributes_or_fetch(
        &self,
        cred: &Cred,
        inode: &Arc<Inode>,
    ) -> FsResult<Attributes> {
        let known = inode.state.lock().attributes().copied();
        match known {
            Some(attributes) => Ok(attributes),
            None => self.fetch(cred, inode).await,
        }
    }

    /// SETATTR. `by_name`: a new size is that of truncate(2), not of an open file.
    pub async fn setattr(
        self: &Arc<Self>,
        cred: &Cred,
        nodeid: u64,
        new: &SetAttributes,
        by_name: bool,
    ) -> FsResult<(Attributes, Duration)> {
        let inode = self.inode(nodeid)?;
        self.set(cred, &inode, new, by_name).await?;
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

    /// Whether a regular file has this size at the server, which is asked only if it is likely.
    /// truncate(2) leaves the times alone then, and a server may not (RFC 1813 section 3.3.2
    /// does not say).
    async fn has_size(
        self: &Arc<Self>,
        cred: &Cred,
        inode: &Arc<Inode>,
        size: u64,
    ) -> FsResult<bool> {
        if known_size(inode) != Some(size) {
            return Ok(false);
        }
        match self.ask_access(cred, inode, access::MODIFY).await {
            Ok(()) => Ok(known_size(inode) == Some(size)),
            // SETATTR gets the server's reason.
            Err(FsError::AccessDenied) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// SETATTR, while no WRITE is under way and programs' writes wait (see the head of this
    /// module). `by_name`: a new size is that of truncate(2).
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
        // Made now if it is not there: a READ may begin while the call is under way.
        let data = match new.size {
            Some(_) if inode.kind == FileType::Regular => Some(self.data(inode)),
            _ => inode.data(),
        };
        // Also what is going to be cut off is written: the server may refuse to.
        let _exclusive = self.exclusively(inode, data).await;
        let void = || {
            if let Some(data) = data {
                data.with(|inner| inner.void_reads(0..u64::MAX));
            }
        };
        let mut new = *new;
        let mut touch = false;
        if let Some(size) = new.size {
            if !by_name {
                touch = new.mtime == SetTime::Keep && known_size(inode) == Some(size);
            } else if self.has_size(cred, inode, size).await? {
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
        self.hidden_gone(inode).await;
        // No WRITE may start either, whatever becomes dirty again.
        let _hold = data.map(|data| data.hold_writes());
        not_abandoned()?;
        self.not_ended()?;
        inode.state.lock().forget_told();
        let send = async |new: &SetAttributes| {
            let change = self.change(inode, kind);
            let call = pin!(self.nfs.setattr(cred, &inode.handle, new, None));
            self.changed(change, inode, call, |wcc| *wcc).await
        };
        let result = match touch {
            false => send(&new).await,
            // ftruncate(2) and O_TRUNC change the time also if the size stays, which a server may
            // not do by itself. One that lets only owners set times sets the size at least.
            true => {
                let mtime = SetTime::ToServerTime;
                match send(&SetAttributes { mtime, ..new }).await {
                    Err(error) if error.status() == Some(Status::Perm) => send(&new).await,
                    result => result,
                }
            }
        };
        if let Some(size) = new.size {
            // Whatever was read meanwhile may be older, also if the outcome is not known.
            void();
            result?;
            if let Some(data) = data {
                data.with(|inner| inner.truncate(size));
            }
            let mut state = inode.state.lock();
            if state.attributes().is_some_and(|a| a.size != size) {
                state.expire();
            }
            return Ok(());
        }
        result.map(drop)
    }

    /// For a call that changes attributes: everything written before is on stable storage, and
    /// programs' writes wait until what this returns is dropped.
    pub(super) async fn exclusively<'a>(
        self: &Arc<Self>,
        inode: &Arc<Inode>,
        data: Option<&'a Arc<FileData>>,
    ) -> Option<Exclusive<'a>> {
        let data = data?;
        let exclusive = Exclusive::new(data);
        data.until(|inner| (!inner.is_writing_direct()).then_some(()))
            .await;
        if !data.with(|inner| !inner.write_back().is_under_way() && inner.is_safe()) {
            self.write_back(inode, true).await;
        }
        Some(exclusive)
    }

    pub async fn readlink(&self, cred: &Cred, nodeid: u64) -> FsResult<Vec<u8>> {
        let inode = self.inode(nodeid)?;
        let stamp = Stamp::now();
        match self.nfs.readlink(cred, &inode.handle).await {
            Ok((path, attributes)) => {
                self.apply_post_op_attr(&inode, stamp, attributes.as_ref());
                Ok(path)
            }
            Err(error) => Err(self.note_error(&inode, error)),
        }
    }

    pub async fn statfs(&self, cred: &Cred, nodeid: u64) -> FsResult<FsstatOk> {
        let inode = self.inode(nodeid)?;
        let stamp = Stamp::now();
        match self.nfs.fsstat(cred, &inode.handle).await {
            Ok(stat) => {
                self.apply_post_op_attr(&inode, stamp, stat.attributes.as_ref());
                Ok(stat)
            }
            Err(error) => Err(self.note_error(&inode, error)),
        }
    }
}
