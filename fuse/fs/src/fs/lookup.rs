//! LOOKUP and FORGET: what a name in a directory leads to.
//!
//! The kernel keeps the names that it was given, and sends a LOOKUP of one if their time has run out,
//! or because it wants the name checked: before it refuses to make a name that exists, before a
//! rename, and where a walk has ended with ESTALE. The request does not say which. So a name that
//! exists is asked of the server (RFC 1813 section 3.3.3), but for two kinds (`lookup_cached`). That a
//! name does not exist is answered from the cache of names (`lookup_cached`): the call that then
//! makes the name finds out. Both only if the directory's attributes are valid, its contents have the
//! same epoch as when the name was cached, and the caller may search the directory (`search.rs`). The
//! answer to LOOKUP is cached, NFS3ERR_NOENT as well, but only if no change of the directory by this mount has been
//! under way since the call was sent, and none by others was noticed: an answer that a RENAME or
//! CREATE has overtaken would otherwise be used until the attributes expire. Each answer with an
//! object gives the kernel one reference to its node, which FORGET takes back.

use super::Fs;
use super::config::LookupCache;
use super::entry::{Entry, check_name};
use super::error::{FsError, FsResult};
use super::inode::{Inode, ROOT, Stamp};
use super::names::Child;
use nfsrdma_nfs3::{Cred, Nfs3, NfsError, NfsResult};
use nfsrdma_xdr::nfs3::{Attributes, FileHandle, Status, WccData};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

impl<N: Nfs3> Fs<N> {
    /// What `name` leads to, if that is cached and the caller may search the directory. `cred`
    /// gives the credential of the caller, user `uid`; it is called only if the uid does not decide
    /// that.
    pub fn lookup_cached(
        &self,
        parent: u64,
        name: &[u8],
        uid: u32,
        cred: impl FnOnce() -> Cred,
    ) -> Option<Found> {
        if self.config.lookup_cache == LookupCache::None || self.holds_lookups() {
            return None;
        }
        let dir = self.table.get(parent)?;
        let now = self.now();
        let epoch = {
            let state = dir.state.lock();
            state.fresh(now)?;
            state.epoch
        };
        // A program goes through the names of its listing, of which the kernel got only the names.
        let only_listed = |inode: &Inode| {
            inode.lookups.load(Ordering::Relaxed) == 0 && dir.opens.load(Ordering::Relaxed) > 0
        };
        let child = self.names.get(dir.nodeid, epoch, name)?;
        match child {
            Child::Absent if self.config.lookup_cache != LookupCache::All => None,
            // The kernel may want it checked, unless this is a walk through a directory whose names it
            // may not keep: that cannot be told from a wish to check.
            Child::Is(ref inode)
                if !only_listed(inode) && (!inode.is_dir() || self.kernel_may_keep_names(&dir)) =>
            {
                None
            }
            _ if !self.may_search_cached(&dir, now, uid, cred) => None,
            Child::Absent => {
                self.shared.stats.name_negative_hits.add(1);
                Some(Found::Absent(self.entry_ttl(&dir, now)))
            }
            Child::Is(inode) => {
                // The name is valid as long as its directory. Attributes that have expired are
                // given with a validity of zero: the kernel sends GETATTR when it needs them.
                let attributes = inode.last_known()?;
                let inode = self.table.adopt(&inode);
                self.shared.stats.name_hits.add(1);
                let entry = self.entry(&dir, &inode, attributes);
                self.without_old_pages(&inode, entry).map(Found::Is)
            }
        }
    }

    /// What `name` leads to, by a LOOKUP.
    pub async fn lookup(&self, cred: &Cred, parent: u64, name: &[u8]) -> FsResult<Found> {
        check_name(name)?;
        self.shared.stats.name_misses.add(1);
        let dir = self.inode(parent)?;
        let holds = self.holds_lookups();
        let _alone = match holds {
            true => self.not_removing(dir.nodeid).await,
            false => None,
        };
        let mut overtaken = false;
        let found = self.find_and(cred, &dir, name, &mut overtaken).await;
        self.probe_root_squash(cred, &dir, &found).await;
        match found {
            Ok((inode, attributes)) => {
                let inode = self.table.adopt(&inode);
                self.hidden_gone(&inode).await;
                if holds {
                    self.hold_for_open(&inode);
                }
                let mut entry = self.entry(&dir, &inode, attributes);
                if overtaken {
                    entry.entry_ttl = Duration::ZERO;
                }
                Ok(Found::Is(entry))
            }
            Err(error) if error.status() == Some(Status::NoEnt) => {
                let ttl = match self.config.lookup_cache {
                    _ if overtaken => Duration::ZERO,
                    LookupCache::All => self.entry_ttl(&dir, self.now()),
                    LookupCache::Positive | LookupCache::None => Duration::ZERO,
                };
                Ok(Found::Absent(ttl))
            }
            Err(error) => Err(error),
        }
    }

    /// Sends LOOKUP, applies the attributes of its reply and caches the name. The kernel gets no
    /// reference to the inode.
    pub(super) async fn find(
        &self,
        cred: &Cred,
        dir: &Arc<Inode>,
        name: &[u8],
    ) -> FsResult<(Arc<Inode>, Attributes)> {
        self.find_and(cred, dir, name, &mut false).await
    }

    /// As [`Fs::find`]. `overtaken` is set if somebody else's change was noticed meanwhile: the
    /// reply may be older than that change, and the kernel gets it after a notification of the
    /// change.
    async fn find_and(
        &self,
        cred: &Cred,
        dir: &Arc<Inode>,
        name: &[u8],
        overtaken: &mut bool,
    ) -> FsResult<(Arc<Inode>, Attributes)> {
        self.know_fsid(cred).await?;
        let stamp = Stamp::now();
        let epoch = dir.state.lock().epoch;
        let found = self.nfs.lookup(cred, &dir.handle, name).await;
        *overtaken = dir.state.lock().epoch != epoch;
        let found = match found {
            Ok(found) => found,
            Err(error) => {
                if let NfsError::Status(Status::NoEnt) = error {
                    self.searched(cred, dir, stamp, None);
                    self.remember_name(dir, stamp, epoch, name, Child::Absent);
                }
                return Err(self.note_error(dir, error));
            }
        };
        self.apply_post_op_attr(dir, stamp, found.dir.as_ref());
        self.searched(cred, dir, stamp, found.dir.as_ref());
        let attributes = match found.attributes {
            Some(attributes) => attributes,
            None => Box::pin(self.nfs.getattr(cred, &found.object)).await?,
        };
        let inode = self.intern(stamp, &found.object, &attributes);
        self.remember_name(dir, stamp, epoch, name, Child::Is(inode.clone()));
        Ok((inode, attributes))
    }

    /// Caches what a reply shows of a name, unless the directory has changed, or a change of it has
    /// been under way, since the call was sent.
    pub(super) fn remember_name(
        &self,
        dir: &Inode,
        stamp: Stamp,
        epoch: u64,
        name: &[u8],
        child: Child,
    ) {
        let misled = {
            // Locked, so that a change by this mount comes before, or puts its name in place of this.
            let state = dir.state.lock();
            let valid = state.undisturbed(stamp) && state.epoch == epoch;
            valid && self.names.renew(dir.nodeid, epoch, name, child)
        };
        if misled {
            self.expire_names_in(dir);
        }
    }

    /// Caches what the kernel is given of a name. It may have cached it before a change by somebody
    /// else, and is notified then.
    pub(super) fn cache_name(&self, dir: &Inode, epoch: u64, name: &[u8], child: Child) {
        if self.names.renew(dir.nodeid, epoch, name, child) {
            self.expire_names_in(dir);
        }
    }

    /// The inode of a file handle, with `attributes` applied. The kernel gets no reference.
    pub(super) fn intern(
        &self,
        stamp: Stamp,
        handle: &FileHandle,
        attributes: &Attributes,
    ) -> Arc<Inode> {
        let (inode, other) = self.table.resolve(handle, attributes);
        if let Some(other) = other {
            self.other_type(&other);
        }
        self.apply_post_op_attr(&inode, stamp, Some(attributes));
        inode
    }

    /// Fetches the fsid of the export's root if it is not known: visible inode numbers depend on
    /// it.
    pub(super) async fn know_fsid(&self, cred: &Cred) -> FsResult<()> {
        if self.fsid_known.load(Ordering::Relaxed) {
            return Ok(());
        }
        let root = self.inode(ROOT)?;
        let stamp = Stamp::now();
        let attributes = Box::pin(self.nfs.getattr(cred, &root.handle)).await?;
        self.apply_post_op_attr(&root, stamp, Some(&attributes));
        Ok(())
    }

    /// Frees the memory of names that are no longer valid: those of directories that have changed
    /// since, or of what the kernel has forgotten. To be called while the mount is idle.
    pub fn forget_stale_names(&self) {
        self.names.retain(|dir, epoch, child| {
            let valid = |dir: Arc<Inode>| dir.state.lock().epoch == epoch;
            self.table.get(dir).is_some_and(valid) && !self.is_closed_name(dir, child)
        });
        self.table.tidy();
    }

    /// FORGET: the kernel gives up `count` references to an inode.
    pub fn forget(&self, nodeid: u64, count: u64) {
        self.table.forget(nodeid, count);
    }

    /// The inode that a name leads to, from the cache if the entry is valid, else by a LOOKUP.
    pub(super) async fn child(
        &self,
        cred: &Cred,
        dir: &Arc<Inode>,
        name: &[u8],
    ) -> FsResult<Arc<Inode>> {
        let known = {
            let state = dir.state.lock();
            state.fresh(self.now()).map(|_| state.epoch)
        };
        if let Some(epoch) = known
            && let Some(Child::Is(inode)) = self.names.get(dir.nodeid, epoch, name)
        {
            return Ok(inode);
        }
        Box::pin(self.find(cred, dir, name))
            .await
            .map(|found| found.0)
    }

    /// The inode that the cache has for a name, even if the directory's attributes have expired.
    pub(super) fn known_child(&self, dir: &Inode, name: &[u8]) -> Option<Arc<Inode>> {
        let epoch = dir.state.lock().epoch;
        match self.names.get(dir.nodeid, epoch, name)? {
            Child::Is(inode) => Some(inode),
            Child::Absent => None,
        }
    }

    /// The object that loses a name: mostly from memory, since the kernel has looked the name up, or
    /// by a LOOKUP, since the kernel may know a name that the bounded cache here has dropped. `None`
    /// if the directory is known not to have the name, or it cannot be looked up.
    pub(super) async fn child_to_unlink(
        &self,
        cred: &Cred,
        dir: &Arc<Inode>,
        name: &[u8],
    ) -> Option<Arc<Inode>> {
        let epoch = dir.state.lock().epoch;
        match self.names.get(dir.nodeid, epoch, name) {
            Some(Child::Is(inode)) => Some(inode),
            Some(Child::Absent) => None,
            None => Box::pin(self.child(cred, dir, name)).await.ok(),
        }
    }

    /// As [`Files::changing`](super::files::Files::changing), for a call that makes or removes `name` in `dir`. An error may show that
    /// somebody else has changed the directory.
    pub(super) async fn changing_name<T>(
        &self,
        dir: &Arc<Inode>,
        name: &[u8],
        call: impl Future<Output = NfsResult<T>>,
        wcc: impl FnOnce(&T) -> WccData,
    ) -> FsResult<T> {
        let result = self.changing(dir, call, wcc).await;
        result.map_err(|error| self.note_name_error(dir, name, error))
    }

    /// `entry`, which has just been made for the kernel, unless that has to be notified first.
    pub(super) fn without_old_pages(&self, inode: &Inode, entry: Entry) -> Option<Entry> {
        if inode.has_old_pages() {
            self.forget(inode.nodeid, 1);
            return None;
        }
        Some(entry)
    }

    /// A call on `name` failed. If the error contradicts what is cached of the name, somebody else has
    /// changed the directory, and all cached names in it become invalid. Otherwise a program that got
    /// EEXIST would not find the name. Where no status came, the server may have made the change.
    pub(super) fn note_name_error(&self, dir: &Inode, name: &[u8], error: FsError) -> FsError {
        if error.status().is_none() {
            self.name_unknown(dir, name);
            return error;
        }
        let epoch = dir.state.lock().epoch;
        let known = self.names.get(dir.nodeid, epoch, name);
        let is_other = matches!(
            (error.status(), known),
            (Some(Status::Exist), Some(Child::Absent)) | (Some(Status::NoEnt), Some(Child::Is(_)))
        );
        if is_other {
            {
                let mut state = dir.state.lock();
                state.renew_epoch();
                state.expire();
            }
            self.contents_changed(dir);
        }
        error
    }

    /// The kernel may be wrong about `name`: notifies it.
    pub(super) fn name_unknown(&self, dir: &Inode, name: &[u8]) {
        // It is notified of names that are cached with an old epoch.
        let outdated = dir.state.lock().epoch.wrapping_sub(1);
        self.names.put(dir.nodeid, outdated, name, Child::Absent);
        self.expire_names_in(dir);
    }

    /// The kernel did not get the reply to a call that has made or removed `name`, because the
    /// caller was killed. It may have cached meanwhile, or before, what the name led to before.
    pub fn name_unheard(&self, parent: u64, name: &[u8]) {
        if let Some(dir) = self.table.get(parent) {
            self.name_unknown(&dir, name);
            // Nor does the notification of a name that it has forgotten make it drop its listing.
            self.unheard(&dir);
        }
    }

    /// Nothing is known of `name`.
    pub(super) fn forget_name(&self, dir: &Inode, name: &[u8]) {
        self.names.remove(dir.nodeid, name);
    }

    /// Caches that a change by this mount made `name` lead to `child`, or to nothing.
    pub(super) fn own_name(&self, dir: &Inode, name: &[u8], child: Option<&Arc<Inode>>) {
        let epoch = dir.state.lock().epoch;
        let child = child.map_or(Child::Absent, |inode| Child::Is(inode.clone()));
        self.names.put(dir.nodeid, epoch, name, child);
    }
}

/// The answer to a look-up.
#[derive(Debug, Clone)]
pub enum Found {
    Is(Entry),
    /// There is no such name; the kernel may cache that for this long.
    Absent(Duration),
}
