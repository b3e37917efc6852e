//! CREATE, MKNOD, MKDIR and SYMLINK (RFC 1813 sections 3.3.8 to 3.3.11).
//!
//! Each sends one call with the caller's credential, applies the directory's wcc_data, puts the new
//! name into the cache of names, and returns the new object as an entry. A server may leave out its
//! handle or attributes; LOOKUP or GETATTR then fetches them. Mode and ACL of a new object come
//! from the umask or from the directory's default ACL (`acl.rs`).
//!
//! FUSE's CREATE opens the file as well, and the kernel checks no permission then, because it
//! assumes that the file is new. So that must be certain: the call is sent GUARDED, or EXCLUSIVE
//! with O_EXCL, and never UNCHECKED, which does not tell. If a GUARDED one is answered
//! NFS3ERR_EXIST, the name is looked up, and the file is opened only after ACCESS has granted it.
//! In a sticky directory such as /tmp the kernel has more to check (`fs.protected_regular`).

use super::Fs;
use super::acl::NewMode;
use super::entry::Entry;
use super::error::{FsError, FsResult};
use super::inode::{Inode, Stamp};
use super::open_file::Opened;
use super::rename::STICKY;
use nfsrdma_nfs3::{CreateMode, Cred, Made, Nfs3, NfsResult, Special};
use nfsrdma_xdr::nfs3::{Attributes, FileType, SetAttributes, SpecData, Status};
use std::pin::pin;
use std::sync::Arc;

/// The most rounds of CREATE and LOOKUP while others create and remove the name.
const TRIES: usize = 16;

fn with_mode(mode: u32) -> SetAttributes {
    SetAttributes {
        mode: Some(mode & 0o7777),
        ..SetAttributes::default()
    }
}

/// Whether O_CREAT may lead to a file that somebody else has put there for its caller to write into: a file of
/// neither the caller nor the owner of the directory, which is sticky and open to others. The kernel refuses that if
/// the administrator wants it (proc_sys_fs(5), `protected_regular`), but does not check files that CREATE returns.
fn is_put_there(cred: &Cred, dir: &Attributes, file: &Attributes) -> bool {
    let shared = dir.mode & STICKY != 0 && dir.mode & 0o022 != 0;
    shared && file.uid != cred.uid && file.uid != dir.uid
}

impl<N: Nfs3> Fs<N> {
    /// Creates a regular file and opens it; without O_EXCL, opens one that exists already. The
    /// kernel sends CREATE for a name that it does not know, or that it believes not to exist.
    pub async fn create(
        self: &Arc<Self>,
        cred: &Cred,
        parent: u64,
        name: &[u8],
        mode: impl Into<NewMode>,
        flags: i32,
    ) -> FsResult<(Entry, Opened)> {
        let (dir, mode) = (self.inode(parent)?, mode.into());
        let since = Stamp::mark();
        let how = if flags & libc::O_EXCL != 0 {
            CreateMode::Exclusive
        } else {
            CreateMode::Guarded
        };
        let attributes = with_mode(self.new_mode(cred, &dir, mode).await?);
        for _ in 0..TRIES {
            let stamp = Stamp::now();
            let call = pin!(self.nfs.create(cred, &dir.handle, name, how, &attributes));
            let made = self.changing_name(&dir, name, call, |made| made.dir);
            match made.await {
                Ok(made) => {
                    let (inode, found) = self.made(cred, stamp, &dir, name, &made).await?;
                    if inode.kind != FileType::Regular {
                        return Err(FsError::Stale);
                    }
                    // Nothing of a new file can be cached. If something is, the server answered a
                    // retransmitted call, or LOOKUP found the file instead of one whose reply was
                    // lost: the file is then opened as one that existed.
                    let checked = inode.data().is_none();
                    if checked {
                        let inode = self.table.adopt(&inode);
                        let entry = self.entry(&dir, &inode, found);
                        return Ok((entry, self.opened(inode, cred, flags)));
                    }
                    let found = (inode, found);
                    return Box::pin(self.open_found(cred, &dir, found, flags, since)).await;
                }
                Err(error)
                    if error.status() == Some(Status::Exist) && how == CreateMode::Guarded => {}
                Err(error) => return Err(error),
            }
            // Somebody else created the file since the kernel looked the name up.
            self.forget_name(&dir, name);
            let (inode, found) = match Box::pin(self.find(cred, &dir, name)).await {
                Ok(found) => found,
                Err(error) if error.status() == Some(Status::NoEnt) => continue,
                Err(error) => return Err(error),
            };
            if inode.kind != FileType::Regular {
                // ESTALE makes the kernel look the name up once more and go on with what it finds:
                // it follows a symbolic link, checks the mode of a device, and so on.
                return Err(FsError::Stale);
            }
            let found = (inode, found);
            return Box::pin(self.open_found(cred, &dir, found, flags, since)).await;
        }
        Err(FsError::Exists)
    }

    /// Opens the regular file that a CREATE led to but may not have created. It may be cached here
    /// under another name, so it is revalidated like any other.
    ///
    /// If the caller may not open it, ESTALE makes the kernel look up the name, which it believes
    /// not to exist; the kernel then refuses the open, or sends an OPEN that is refused. The same
    /// where the kernel may refuse O_CREAT of a file that others put there ([`is_put_there`]).
    async fn open_found(
        self: &Arc<Self>,
        cred: &Cred,
        dir: &Arc<Inode>,
        found: (Arc<Inode>, Attributes),
        flags: i32,
        since: Stamp,
    ) -> FsResult<(Entry, Opened)> {
        let known = dir.state.lock().attributes().copied();
        if known.is_none_or(|dir| is_put_there(cred, &dir, &found.1)) {
            return Err(FsError::Stale);
        }
        let (inode, found) = (self.table.adopt(&found.0), found.1);
        let _under_way = self.open_under_way(&inode);
        // The kernel has locked the directory, so the wait is left to the OPEN that follows.
        let prepared = match self.may_go(cred, &inode).await {
            Ok(false) => self.prepare_open(cred, &inode, flags, since).await,
            Ok(true) => Err(FsError::Stale),
            Err(error) => Err(error),
        };
        if let Err(error) = prepared {
            self.forget(inode.nodeid, 1);
            return Err(match error {
                FsError::AccessDenied => FsError::Stale,
                error => error,
            });
        }
        let entry = self.entry(dir, &inode, found);
        Ok((entry, self.opened(inode, cred, flags)))
    }

    pub async fn mknod(
        &self,
        cred: &Cred,
        parent: u64,
        name: &[u8],
        mode: impl Into<NewMode>,
        rdev: u32,
    ) -> FsResult<Entry> {
        let (dir, mode) = (self.inode(parent)?, mode.into());
        let attributes = with_mode(self.new_mode(cred, &dir, mode).await?);
        // The kernel's new_encode_dev: 12 bits of major between 8 and 12 bits of minor.
        let device = SpecData {
            major: rdev >> 8 & 0xfff,
            minor: rdev & 0xff | rdev >> 12 & 0xf_ff00,
        };
        let special = match mode.bits & libc::S_IFMT {
            libc::S_IFREG | 0 => {
                let how = CreateMode::Guarded;
                let call = self.nfs.create(cred, &dir.handle, name, how, &attributes);
                return self.make(cred, &dir, name, call).await;
            }
            libc::S_IFCHR => Special::Character(device),
            libc::S_IFBLK => Special::Block(device),
            libc::S_IFSOCK => Special::Socket,
            libc::S_IFIFO => Special::Fifo,
            _ => return Err(FsError::Invalid),
        };
        let call = self
            .nfs
            .mknod(cred, &dir.handle, name, special, &attributes);
        self.make(cred, &dir, name, call).await
    }

    pub async fn mkdir(
        &self,
        cred: &Cred,
        parent: u64,
        name: &[u8],
        mode: impl Into<NewMode>,
    ) -> FsResult<Entry> {
        let (dir, mode) = (self.inode(parent)?, mode.into());
        let attributes = with_mode(self.new_mode(cred, &dir, mode).await?);
        let call = self.nfs.mkdir(cred, &dir.handle, name, &attributes);
        self.make(cred, &dir, name, call).await
    }

    pub async fn symlink(
        &self,
        cred: &Cred,
        parent: u64,
        name: &[u8],
        target: &[u8],
    ) -> FsResult<Entry> {
        let dir = self.inode(parent)?;
        // As Linux's client does: some servers keep the mode, and would otherwise choose one.
        let attributes = with_mode(0o777);
        let call = self
            .nfs
            .symlink(cred, &dir.handle, name, target, &attributes);
        self.make(cred, &dir, name, call).await
    }

    /// Makes `name` by `call`, which has not begun.
    async fn make(
        &self,
        cred: &Cred,
        dir: &Arc<Inode>,
        name: &[u8],
        call: impl Future<Output = NfsResult<Made>>,
    ) -> FsResult<Entry> {
        let (stamp, call) = (Stamp::now(), pin!(call));
        let made = self.changing_name(dir, name, call, |made| made.dir).await?;
        let (inode, attributes) = self.made(cred, stamp, dir, name, &made).await?;
        let inode = self.table.adopt(&inode);
        Ok(self.entry(dir, &inode, attributes))
    }

    /// The inode of a new object. RFC 1813 section 3.3.8 lets a server leave out handle and
    /// attributes, which are then fetched.
    async fn made(
        &self,
        cred: &Cred,
        stamp: Stamp,
        dir: &Arc<Inode>,
        name: &[u8],
        made: &Made,
    ) -> FsResult<(Arc<Inode>, Attributes)> {
        self.know_fsid(cred).await?;
        let Some(object) = made.object else {
            return Box::pin(self.find(cred, dir, name)).await;
        };
        let attributes = match made.attributes {
            Some(attributes) => attributes,
            None => Box::pin(self.nfs.getattr(cred, &object)).await?,
        };
        self.superuser.made(cred.uid, &attributes);
        let inode = self.intern(stamp, &object, &attributes);
        self.own_name(dir, name, Some(&inode));
        Ok((inode, attributes))
    }
}
