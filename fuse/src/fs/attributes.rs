//! GETATTR, SETATTR, READLINK, STATFS.

use super::*;
use nfsrdma_client::nfs::Cred;
use nfsrdma_xdr::nfs3::{FsstatOk, SetAttributes};

impl<N: Nfs3> Fs<N> {
    /// Attributes from memory, for as long as they are believed. `revalidate`: the kernel
    /// asks for its own sake (to see whether its cache is still good), not for a program's
    /// stat: then data not written back does not matter, and the times need not be final.
    pub fn getattr_cached(&self, nodeid: u64, revalidate: bool) -> Option<(Attributes, Duration)> {
        let inode = self.table.get(nodeid)?;
        let now = self.now();
        // Before the attributes, as in `shown`.
        let (dirty, end) = inode.data().map_or((false, 0), |data| {
            data.with(|inner| (inner.is_dirty(), inner.end()))
        });
        if dirty && !revalidate {
            return None;
        }
        let (attributes, ttl) = {
            let mut state = inode.state.lock();
            let attributes = *state.fresh(now)?;
            state.tell();
            (attributes, state.fresh_for(now))
        };
        self.shared.stats.attribute_hits.add(1);
        let ttl = if dirty {
            Duration::ZERO
        } else {
            Duration::from_nanos(ttl)
        };
        let size = attributes.size.max(end);
        Some((Attributes { size, ..attributes }, ttl))
    }

    /// Attributes as the server has them after all data written so far.
    pub async fn getattr(
        self: &Arc<Self>,
        cred: &Cred,
        nodeid: u64,
        revalidate: bool,
    ) -> FsResult<(Attributes, Duration)> {
        let inode = self.inode(nodeid)?;
        let dirty = inode
            .data()
            .is_some_and(|data| data.with(|inner| inner.is_dirty()));
        if dirty && !revalidate {
            // mtime and ctime are the server's to give: it gives them with the data.
            self.write_back(&inode, false).await;
            let state = inode.state.lock();
            if let Some(attributes) = state.fresh(self.now()) {
                let ttl = state.fresh_for(self.now());
                let attributes = *attributes;
                drop(state);
                return Ok((self.shown(&inode, attributes), Duration::from_nanos(ttl)));
            }
        }
        let attributes = self.fetch(cred, &inode).await?;
        let ttl = self.attr_ttl(&inode, self.now());
        Ok((self.shown(&inode, attributes), ttl))
    }

    /// GETATTR, learned.
    pub(super) async fn fetch(&self, cred: &Cred, inode: &Arc<Inode>) -> FsResult<Attributes> {
        self.shared.stats.attribute_misses.add(1);
        let stamp = Stamp::now();
        match self.nfs.getattr(cred, &inode.handle).await {
            Ok(attributes) if attributes.kind != inode.kind => {
                let error = NfsError::PeerMisbehaved("an object changed its type".into());
                Err(self.note_error(inode, error))
            }
            Ok(attributes) => {
                self.learn(inode, stamp, Some(&attributes));
                // A newer reply may have been learned meanwhile.
                let newest = inode.state.lock().attributes().copied();
                Ok(newest.unwrap_or(attributes))
            }
            Err(error) => Err(self.note_error(inode, error)),
        }
    }

    /// What is known of `inode`, however old; asks if nothing is.
    pub(super) async fn known(&self, cred: &Cred, inode: &Arc<Inode>) -> FsResult<Attributes> {
        let known = inode.state.lock().attributes().copied();
        match known {
            Some(attributes) => Ok(attributes),
            None => self.fetch(cred, inode).await,
        }
    }

    pub async fn setattr(
        self: &Arc<Self>,
        cred: &Cred,
        nodeid: u64,
        new: &SetAttributes,
    ) -> FsResult<(Attributes, Duration)> {
        let inode = self.inode(nodeid)?;
        self.set(cred, &inode, new).await?;
        let attributes = {
            let state = inode.state.lock();
            state.fresh(self.now()).copied()
        };
        let attributes = match attributes {
            Some(attributes) => attributes,
            None => self.fetch(cred, &inode).await?,
        };
        let ttl = self.attr_ttl(&inode, self.now());
        Ok((self.shown(&inode, attributes), ttl))
    }

    /// SETATTR. Data written before is at the server first: a size to set must not be
    /// overtaken by it, nor a time by its.
    pub(super) async fn set(
        self: &Arc<Self>,
        cred: &Cred,
        inode: &Arc<Inode>,
        new: &SetAttributes,
    ) -> FsResult<()> {
        if let Some(size) = new.size
            && size > self.limits().max_file_size
        {
            return Err(FsError::TooLarge);
        }
        // Also what is going to be cut off: the server may refuse to.
        let data = inode.data();
        if let Some(data) = data
            && data.with(|inner| inner.is_dirty())
        {
            self.write_back(inode, false).await;
        }
        // What is written meanwhile is sent after it.
        let _hold = data.map(|data| data.hold_writes());
        self.changing(
            inode,
            self.nfs.setattr(cred, &inode.handle, new, None),
            |wcc| *wcc,
        )
        .await?;
        if let Some(size) = new.size {
            if let Some(data) = data {
                data.with(|inner| inner.truncate(size));
            }
            let mut state = inode.state.lock();
            if state.attributes().is_some_and(|a| a.size != size) {
                state.expire();
            }
        }
        Ok(())
    }

    pub async fn readlink(&self, cred: &Cred, nodeid: u64) -> FsResult<Vec<u8>> {
        let inode = self.inode(nodeid)?;
        let stamp = Stamp::now();
        match self.nfs.readlink(cred, &inode.handle).await {
            Ok((path, attributes)) => {
                self.learn(&inode, stamp, attributes.as_ref());
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
                self.learn(&inode, stamp, stat.attributes.as_ref());
                Ok(stat)
            }
            Err(error) => Err(self.note_error(&inode, error)),
        }
    }
}
