//! What a name in a directory leads to, for the operations that use names: from memory, or by a LOOKUP
//! (RFC 1813 section 3.3.3). What replies and own changes show goes into the cache of names.
//!
//! The answer to a LOOKUP is cached, NFS3ERR_NOENT as well, but only if no change of the directory by
//! this mount has been under way since the call was sent, and none by others was noticed: an answer that
//! a RENAME or CREATE has overtaken would otherwise be used until the attributes expire.

use super::Fs;
use super::error::{FsError, FsResult};
use super::inode::{Inode, ROOT, Stamp};
use super::names::Child;
use nfsrdma_nfs3::{Cred, Nfs3, NfsError, NfsResult};
use nfsrdma_xdr::nfs3::{Attributes, FileHandle, Status, WccData};
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl<N: Nfs3> Fs<N> {
    /// Sends LOOKUP, applies the attributes of its reply and caches the name. The kernel gets no
    /// reference to the inode.
    pub(super) async fn find(
        &self,
        cred: &Cred,
        dir: &Arc<Inode>,
        name: &[u8],
    ) -> FsResult<(Arc<Inode>, Attributes)> {
        self.know_fsid(cred).await?;
        let stamp = Stamp::now();
        let epoch = dir.state.lock().epoch;
        let found = match self.nfs.lookup(cred, &dir.handle, name).await {
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
        if let Child::Is(inode) = &child {
            inode.is_named(dir.nodeid, name);
        }
        let valid = || {
            let state = dir.state.lock();
            state.undisturbed(stamp) && state.epoch == epoch
        };
        if valid() {
            self.cache_name(dir, epoch, name, child);
            // A change by this mount may have begun meanwhile, and cached its own name before.
            if !valid() {
                self.forget_name(dir, name);
            }
        }
    }

    /// Caches what the kernel is given of a name. If it has cached something else before a change by
    /// somebody else, it is notified of that instead.
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
        let inode = self.table.resolve(handle, attributes);
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

    /// The inode that a name leads to, from the cache if the entry is valid, else by a LOOKUP.
    pub(super) async fn child(
        &self,
        cred: &Cred,
        dir: &Arc<Inode>,
        name: &[u8],
    ) -> FsResult<Arc<Inode>> {
        if let Some(Child::Is(inode)) = self.valid_name(dir, name) {
            return Ok(inode);
        }
        Box::pin(self.find(cred, dir, name))
            .await
            .map(|found| found.0)
    }

    /// What the cache has for a name, if the directory's attributes are valid.
    fn valid_name(&self, dir: &Inode, name: &[u8]) -> Option<Child> {
        let epoch = {
            let state = dir.state.lock();
            state.fresh(self.now())?;
            state.epoch
        };
        self.names.get(dir.nodeid, epoch, name)
    }

    /// Whether the directory is known not to have a name.
    pub(super) fn lacks(&self, dir: &Inode, name: &[u8]) -> bool {
        matches!(self.valid_name(dir, name), Some(Child::Absent))
    }

    /// The inode that the cache has for a name, even if the directory's attributes have expired.
    pub(super) fn known_child(&self, dir: &Inode, name: &[u8]) -> Option<Arc<Inode>> {
        let epoch = dir.state.lock().epoch;
        match self.names.get(dir.nodeid, epoch, name)? {
            Child::Is(inode) => Some(inode),
            Child::Absent => None,
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
        let child = child.map_or(Child::Absent, |inode| {
            inode.is_named(dir.nodeid, name);
            Child::Is(inode.clone())
        });
        self.names.put(dir.nodeid, epoch, name, child);
    }
}
