//! GETATTR, READLINK and STATFS (RFC 1813 sections 3.3.1, 3.3.5 and 3.3.18).
//!
//! GETATTR is answered from the `AttributeCache` while its attributes are valid; the size shown is
//! never less than the end of what this mount has written. stat(2) of a file with dirty data first
//! writes the data, because the server sets mtime and ctime when it gets it.
//!
//! A server that is away must not stop programs that have nothing to do with it: df(1) and file managers look at every
//! mount, and `stat` of a directory at each entry. So STATFS, and GETATTR and GETACL of the root, are answered with what was
//! known last if the server is silent ([`Files::unless_silent`]). Nothing can be read or changed by that: the next call waits.

use super::clock::Nanos;
use super::error::{FsError, FsResult};
use super::files::Files;
use super::inode::{Inode, ROOT, Stamp};
use super::inode_flags::Flag;
use nfsrdma_nfs3::{Cred, Nfs3, NfsError, own_credential};
use nfsrdma_xdr::nfs3::{Attributes, FsstatOk, Status};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// GETATTRs until the reply to one overlaps no other.
const FETCH_TRIES: u32 = 4;
/// How long a look at the mount from outside waits for the server.
const LOOK_FROM_OUTSIDE: Duration = Duration::from_secs(2);
/// The age of attributes from which on they are not good enough to refuse a user.
pub(super) const LATELY: Nanos = 1_000_000_000;

/// The attributes that fstat(2) shows of an open object that this mount removed: since the server
/// no longer knows its handle (`error`), the last known ones, with no links.
fn removed_object(inode: &Inode, error: &FsError) -> Option<Attributes> {
    let gone = matches!(error.status(), Some(Status::Stale | Status::BadHandle));
    if !gone || !inode.flags.has(Flag::Removed) {
        return None;
    }
    let attributes = inode.state.lock().attributes().copied()?;
    Some(Attributes {
        nlink: 0,
        ..attributes
    })
}

impl<N: Nfs3> Files<N> {
    /// The cached attributes, if they are valid, and for how much longer they are. `revalidate`:
    /// the kernel asks in order to revalidate its cache. Dirty data does not matter then, because the
    /// times need not be final. Otherwise they must not be older than [`LATELY`].
    pub fn getattr_cached(&self, nodeid: u64, revalidate: bool) -> Option<(Attributes, Duration)> {
        let inode = self.table.get(nodeid)?;
        let now = self.now();
        // This must be read before the attributes, as in `visible_attributes`.
        let (dirty, end) = inode.data().map_or((false, 0), |data| {
            data.with(|inner| (inner.is_dirty(), inner.end()))
        });
        // `getattr` writes the dirty data.
        if dirty && !revalidate {
            return None;
        }
        let (shown, ttl) = {
            let mut state = inode.state.lock();
            if !revalidate && state.age(now) >= LATELY {
                return None;
            }
            let attributes = *state.fresh(now)?;
            let size = attributes.size.max(end);
            // The kernel drops old pages before it is answered.
            if !inode.record_told(&mut state, size) {
                return None;
            }
            let nlink = inode.visible_links(&state, &attributes);
            let shown = Attributes {
                size,
                fileid: self.table.visible_fileid(&attributes),
                nlink,
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

    /// The attributes, after the server has got all data that is dirty.
    pub async fn getattr(
        self: &Arc<Self>,
        cred: &Cred,
        nodeid: u64,
        revalidate: bool,
    ) -> FsResult<(Attributes, Duration)> {
        let inode = self.inode(nodeid)?;
        if !revalidate && inode.is_dirty() {
            Box::pin(self.write_back(&inode, false)).await;
            let state = inode.state.lock();
            if let Some(attributes) = state.fresh(self.now()) {
                let attributes = *attributes;
                drop(state);
                let ttl = self.attr_ttl(&inode, self.now());
                return Ok((self.visible_attributes(&inode, attributes), ttl));
            }
        }
        if let Some(dir) = self.dir_of(&inode) {
            dir.state.lock().listed_mut().count_asked();
        }
        // The reply itself brings the kernel the new attributes.
        inode.state.lock().forget_told();
        let known = match nodeid {
            ROOT => inode.state.lock().attributes().copied(),
            _ => None,
        };
        let fetched = match known {
            Some(known) => Box::pin(self.unless_silent(self.fetch(cred, &inode), known)).await,
            None => self.fetch(cred, &inode).await,
        };
        let attributes = match fetched {
            Ok(attributes) => attributes,
            Err(error) => {
                let attributes = removed_object(&inode, &error).ok_or(error)?;
                return Ok((attributes, Duration::ZERO));
            }
        };
        let ttl = self.attr_ttl(&inode, self.now());
        Ok((self.visible_attributes(&inode, attributes), ttl))
    }

    /// What the server answers; `known` if it does not within [`LOOK_FROM_OUTSIDE`].
    pub(super) async fn unless_silent<T>(
        &self,
        answer: impl Future<Output = FsResult<T>>,
        known: T,
    ) -> FsResult<T> {
        tokio::select! {
            biased;
            told = answer => told,
            () = async { self.nfs.sleep(LOOK_FROM_OUTSIDE).await } => Ok(known),
        }
    }

    /// The kernel still has older attributes: it did not get those that it was to be given, because the caller was killed, or
    /// it made no call for a change.
    pub fn attributes_unheard(&self, nodeid: u64) {
        if let Some(inode) = self.table.get(nodeid) {
            inode.state.lock().kernel_size = 0;
            if let Some(kernel) = self.kernel.get() {
                kernel.invalidate_attributes(nodeid);
            }
        }
    }

    /// The same where the caller has changed the object, as by a SETATTR that has truncated the file. The kernel also
    /// has the older contents.
    pub fn change_unheard(&self, nodeid: u64) {
        if let Some(inode) = self.table.get(nodeid) {
            self.unheard(&inode);
        }
    }

    /// Sends GETATTR, applies the attributes of its reply, and returns the newest ones known.
    ///
    /// If the reply overlaps that to another call, which shows something else, either may be older than
    /// what the caller asks for. Then another GETATTR is sent.
    pub(super) async fn fetch(&self, cred: &Cred, inode: &Arc<Inode>) -> FsResult<Attributes> {
        let mut tries = 0;
        loop {
            self.shared.stats.attribute_misses.add(1);
            let stamp = Stamp::now();
            let told = match self.nfs.getattr(cred, &inode.handle).await {
                Ok(told) => told,
                Err(error) => return Err(self.note_error(inode, error)),
            };
            let ambiguous = self.apply_post_op_attr(inode, stamp, Some(&told));
            if told.kind != inode.kind {
                // As with Linux's client.
                return Err(FsError::Stale);
            }
            tries += 1;
            if !ambiguous || tries == FETCH_TRIES {
                let newest = inode.state.lock().attributes().copied();
                return Ok(newest.unwrap_or(told));
            }
        }
    }

    /// The known attributes of `inode`, valid or not; sends GETATTR if there are none.
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

    /// Close-to-open: has the server confirm what is cached of a file or directory, or drops it.
    /// `since` is when the open began. Mostly the reply to ACCESS has confirmed it already.
    pub(super) async fn revalidate(
        self: &Arc<Self>,
        cred: &Cred,
        inode: &Arc<Inode>,
        since: Stamp,
    ) -> FsResult<()> {
        let verified = || inode.state.lock().verified_since(since);
        if verified() {
            return Ok(());
        }
        // Own changes were under way, or replies overtook each other.
        Box::pin(self.write_back(inode, false)).await;
        self.fetch(cred, inode).await?;
        if !verified() {
            // Names go with the epoch of their directory; the reply makes the kernel drop its listing.
            inode.state.lock().renew_epoch();
            self.contents_changed(inode);
        }
        Ok(())
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
        let known = *self.space.lock();
        match known {
            Some(known) => self.unless_silent(self.fsstat(cred, &inode), known).await,
            None => self.fsstat(cred, &inode).await,
        }
    }

    async fn fsstat(&self, cred: &Cred, inode: &Arc<Inode>) -> FsResult<FsstatOk> {
        let stamp = Stamp::now();
        match self.nfs.fsstat(cred, &inode.handle).await {
            Ok(stat) => {
                self.apply_post_op_attr(inode, stamp, stat.attributes.as_ref());
                *self.space.lock() = Some(stat);
                Ok(stat)
            }
            Err(error) => Err(self.note_error(inode, error)),
        }
    }

    /// Whether the server does not know the exported directory, so that every call fails.
    pub fn is_stale(&self) -> bool {
        self.export.is_stale()
    }

    /// Asks for the attributes of the root, if a reply gave reason to: see [`Export`](super::export::Export).
    pub(super) fn check_export(self: &Arc<Self>) {
        if !self.export.is_asked_for() {
            return;
        }
        let Ok(root) = self.inode(ROOT) else { return };
        let fs = self.clone();
        nfsrdma_rpcrdma::exec::spawn(async move {
            // No permission is needed for this.
            match fs.nfs.getattr(&own_credential(), &root.handle).await {
                Ok(_) => fs.export.note(false),
                Err(NfsError::Status(Status::Stale | Status::BadHandle)) => fs.export.note(true),
                Err(_) => {}
            }
        });
    }
}
