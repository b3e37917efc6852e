//! Access control lists as extended attributes: `system.posix_acl_access` and `system.posix_acl_default`.
//!
//! GETACL fetches them. They are cached as long as the attributes are valid and the ctime, which every change of an
//! ACL changes, stays the same. A ctime that only calls of this mount have changed, by which no ACL changes, counts
//! as the same: creating and removing names changes that of the directory, and each new object would otherwise cost a
//! GETACL of its directory. An access ACL that says no more than the mode counts as none. Linux's server removes the
//! list that a SETACL leaves out, so for a directory the other list is fetched and sent along. It is left out only if
//! it is empty, because setting an access ACL clears the set-gid bit of a directory whose group the caller is not in.
//!
//! The server's file system gives a new object the default ACL of its directory; only without one
//! does the umask count (POSIX 1003.1e draft 17, section 23.3.4). So on a mount with ACLs the kernel
//! does not apply the umask (FUSE_DONT_MASK), and this module does.

use super::changing::not_abandoned;
use super::error::{FsError, FsResult};
use super::inode::{Inode, Kind, ROOT, Stamp};
use super::objects::Objects;
use super::search::is_current;
use nfsrdma_nfs3::{Acls, Cred, Nfs3, SetLists, own_credential};
use nfsrdma_xdr::nfs3::{FileType, Status, WccData};
use nfsrdma_xdr::posix_acl::{ACCESS_NAME, AclError, DEFAULT_NAME, PosixAcl};
use std::sync::Arc;

/// Which of the two lists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Which {
    Access,
    Default,
}

fn which(name: &[u8]) -> FsResult<Which> {
    if name == ACCESS_NAME.as_bytes() {
        Ok(Which::Access)
    } else if name == DEFAULT_NAME.as_bytes() {
        Ok(Which::Default)
    } else {
        Err(FsError::NotSupported)
    }
}

/// The ACL in the value of an extended attribute.
fn parse(value: &[u8]) -> FsResult<PosixAcl> {
    match PosixAcl::from_xattr(value) {
        Ok(acl) if acl.is_empty() || acl.is_valid() => Ok(acl),
        Ok(_) | Err(AclError::Malformed | AclError::Invalid | AclError::TooLong) => {
            Err(FsError::Invalid)
        }
        Err(AclError::Version) => Err(FsError::NotSupported),
    }
}

/// Whether the answer to a GETACL means that no ACL counts: that of a server which has none for this
/// file system, or does not know the object any more.
fn is_without_acls(error: &FsError) -> bool {
    matches!(error.status(), Some(Status::NotSupp | Status::Stale))
}

fn list(acls: &Acls, which: Which) -> &PosixAcl {
    match which {
        Which::Access => &acls.access,
        Which::Default => &acls.default,
    }
}

/// The mode that a program asks for, and its umask.
#[derive(Debug, Clone, Copy)]
pub struct NewMode {
    pub bits: u32,
    pub umask: u32,
}

impl From<u32> for NewMode {
    fn from(bits: u32) -> Self {
        NewMode { bits, umask: 0 }
    }
}

impl<N: Nfs3> Objects<N> {
    pub fn has_acl(&self) -> bool {
        self.nfs.has_acl()
    }

    /// The list that an extended attribute stands for, and the object that may have it.
    fn acl_of(&self, nodeid: u64, name: &[u8]) -> FsResult<(Which, Arc<Inode>)> {
        let (which, inode) = (which(name)?, self.inode(nodeid)?);
        match self.has_acl() && inode.kind != FileType::Symlink {
            true => Ok((which, inode)),
            false => Err(FsError::NotSupported),
        }
    }

    /// getxattr(2), from memory.
    pub fn getxattr_cached(&self, nodeid: u64, name: &[u8]) -> Option<FsResult<Vec<u8>>> {
        let (which, inode) = match self.acl_of(nodeid, name) {
            Ok(of) => of,
            Err(error) => return Some(Err(error)),
        };
        if which == Which::Default && !inode.is_dir() {
            return Some(Err(FsError::NoData));
        }
        let acls = self.acls_cached(&inode)?;
        Some(value(list(&acls, which)))
    }

    /// getxattr(2).
    pub async fn getxattr(&self, cred: &Cred, nodeid: u64, name: &[u8]) -> FsResult<Vec<u8>> {
        let (which, inode) = self.acl_of(nodeid, name)?;
        match self.acls_to_show(cred, &inode).await {
            Ok(acls) => value(list(&acls, which)),
            // The object was removed, or its file system at the server has no ACLs. The kernel asks in
            // order to check permissions, and would return any other error to the program: it now uses
            // the mode and goes on to the operation, whose error is that of a local file system.
            Err(error) if is_without_acls(&error) => Err(FsError::NoData),
            Err(error) => Err(error),
        }
    }

    /// Asks for what a look at the mount from outside needs, so that it can be answered without the server from now on.
    pub async fn know_outside(&self) {
        // Who asks next is told of an error.
        drop(self.statfs(&own_credential(), ROOT).await);
        drop(
            self.getxattr(&own_credential(), ROOT, ACCESS_NAME.as_bytes())
                .await,
        );
    }

    /// listxattr(2): the names, each followed by a NUL.
    pub async fn listxattr(&self, cred: &Cred, nodeid: u64) -> FsResult<Vec<u8>> {
        let inode = self.inode(nodeid)?;
        let mut names = Vec::new();
        if inode.kind == FileType::Symlink {
            return Ok(names);
        }
        let acls = match self.acls_to_show(cred, &inode).await {
            Err(error) if error.status() == Some(Status::NotSupp) => return Ok(names),
            acls => acls?,
        };
        for (name, acl) in [(ACCESS_NAME, &acls.access), (DEFAULT_NAME, &acls.default)] {
            if !acl.is_empty() {
                names.extend_from_slice(name.as_bytes());
                names.push(0);
            }
        }
        Ok(names)
    }

    /// setxattr(2), with its `flags` XATTR_CREATE and XATTR_REPLACE.
    pub async fn setxattr(
        self: &Arc<Self>,
        cred: &Cred,
        nodeid: u64,
        name: &[u8],
        new: &[u8],
        flags: u32,
    ) -> FsResult<()> {
        let (which, inode) = self.acl_of(nodeid, name)?;
        let acl = parse(new)?;
        if flags != 0 {
            let acls = self.acls(cred, &inode).await?;
            match list(&acls, which).is_empty() {
                true if flags & libc::XATTR_REPLACE as u32 != 0 => return Err(FsError::NoData),
                false if flags & libc::XATTR_CREATE as u32 != 0 => return Err(FsError::Exists),
                _ => {}
            }
        }
        self.set_acl(cred, &inode, which, acl).await
    }

    /// removexattr(2). Removing an ACL that does not exist succeeds, as on Linux.
    pub async fn removexattr(
        self: &Arc<Self>,
        cred: &Cred,
        nodeid: u64,
        name: &[u8],
    ) -> FsResult<()> {
        let (which, inode) = self.acl_of(nodeid, name)?;
        self.set_acl(cred, &inode, which, PosixAcl::default()).await
    }

    /// Sets one of the two lists; an empty `acl` removes it.
    async fn set_acl(
        self: &Arc<Self>,
        cred: &Cred,
        inode: &Arc<Inode>,
        which: Which,
        acl: PosixAcl,
    ) -> FsResult<()> {
        if which == Which::Default && !inode.is_dir() {
            return match acl.is_empty() {
                true => Ok(()),
                false => Err(FsError::AccessDenied),
            };
        }
        let mut acls = match inode.is_dir() || acl.is_empty() {
            // Not from the cache: the other list is sent back and must not be out of date.
            true => self.fetch_acls(cred, inode).await?,
            false => Arc::default(),
        };
        let removes = acl.is_empty();
        if removes && list(&acls, which).is_empty() {
            return Ok(());
        }
        let new = Arc::make_mut(&mut acls);
        match which {
            Which::Access if removes => {
                new.access = PosixAcl::of_mode(self.fetch(cred, inode).await?.mode);
            }
            Which::Access => new.access = acl,
            Which::Default => new.default = acl,
        }
        let lists = SetLists {
            access: !new.access.is_empty(),
            default: inode.is_dir() && (which == Which::Default || !new.default.is_empty()),
        };
        // As for SETATTR: data must be written while its writers still have the permission.
        let data = inode.data();
        let _exclusive = self.exclusively(cred, inode, data).await?;
        not_abandoned()?;
        self.send_acls(cred, inode, new, lists).await
    }

    /// Sends SETACL and applies the attributes of its reply.
    async fn send_acls(
        &self,
        cred: &Cred,
        inode: &Arc<Inode>,
        acls: &Acls,
        lists: SetLists,
    ) -> FsResult<()> {
        inode.state.lock().forget_told();
        let change = self.change(inode, Kind::Metadata);
        let call = self.nfs.setacl(cred, &inode.handle, acls, lists);
        let sent = self.changed(change, inode, call, |after| WccData {
            before: None,
            after: *after,
        });
        let sent = sent.await;
        self.maybe_unheard(inode, &sent);
        // Whatever the reply says: the ACL may have changed, and the mode with it.
        let mut state = inode.state.lock();
        state.forget_rights();
        if !matches!(sent, Ok(Some(_))) {
            state.expire();
        }
        sent.map(drop)
    }

    fn acls_cached(&self, inode: &Inode) -> Option<Arc<Acls>> {
        let (state, now) = (inode.state.lock(), self.now());
        state.fresh(now)?;
        state.acls(now)
    }

    /// The ACLs, from memory if they are there.
    async fn acls(&self, cred: &Cred, inode: &Arc<Inode>) -> FsResult<Arc<Acls>> {
        match self.acls_cached(inode) {
            Some(acls) => Ok(acls),
            None => Box::pin(self.fetch_acls(cred, inode)).await,
        }
    }

    /// The same; those of the root as they were last, if the server is silent.
    async fn acls_to_show(&self, cred: &Cred, inode: &Arc<Inode>) -> FsResult<Arc<Acls>> {
        let known = inode.state.lock().last_acls();
        match known {
            Some(known) if inode.nodeid == ROOT => {
                self.unless_silent(self.acls(cred, inode), known).await
            }
            _ => self.acls(cred, inode).await,
        }
    }

    /// Sends GETACL. The attributes in its reply are applied, so this also revalidates.
    async fn fetch_acls(&self, cred: &Cred, inode: &Arc<Inode>) -> FsResult<Arc<Acls>> {
        let stamp = Stamp::now();
        let call = self.nfs.getacl(cred, &inode.handle, inode.is_dir());
        let (attributes, acls) = match call.await {
            Ok(got) => got,
            Err(error) => return Err(self.note_error(inode, error)),
        };
        let acls = Arc::new(acls);
        // Without attributes it is not known to which ctime the ACLs belong.
        if let Some(told) = attributes {
            self.apply_post_op_attr(inode, stamp, Some(&told));
            let mut state = inode.state.lock();
            if is_current(&state, &told) && state.undisturbed(stamp) {
                state.keep_acls(acls.clone(), self.now(), self.times(inode.kind));
            }
        }
        Ok(acls)
    }

    /// The mode to make a new object in `dir` with.
    pub(super) async fn new_mode(
        &self,
        cred: &Cred,
        dir: &Arc<Inode>,
        mode: NewMode,
    ) -> FsResult<u32> {
        // Without ACLs the kernel has applied the umask already.
        let masked = mode.bits & !(mode.umask & 0o777);
        if !self.has_acl() {
            return Ok(masked);
        }
        match self.acls(cred, dir).await {
            Ok(acls) if acls.default.is_empty() => Ok(masked),
            Ok(acls) => Ok(acls.default.inherited(mode.bits).1),
            // The server no longer has NFS_ACL, or not for this file system; or the directory is
            // gone, and the call that creates the object fails.
            Err(error) if is_without_acls(&error) => Ok(masked),
            Err(error) => Err(error),
        }
    }
}

fn value(acl: &PosixAcl) -> FsResult<Vec<u8>> {
    match acl.is_empty() {
        true => Err(FsError::NoData),
        false => Ok(acl.to_xattr()),
    }
}
