//! CREATE, MKNOD, MKDIR, SYMLINK.

use super::*;
use nfsrdma_client::nfs::{CreateMode, Cred, Made, Special};
use nfsrdma_xdr::nfs3::{SetAttributes, SpecData, access};

fn with_mode(mode: u32) -> SetAttributes {
    SetAttributes {
        mode: Some(mode & 0o7777),
        ..SetAttributes::default()
    }
}

impl<N: Nfs3> Fs<N> {
    /// Creates a regular file and opens it.
    pub async fn create(
        self: &Arc<Self>,
        cred: &Cred,
        parent: u64,
        name: &[u8],
        mode: u32,
        flags: i32,
    ) -> FsResult<(Entry, Opened)> {
        check_name(name)?;
        let dir = self.inode(parent)?;
        let how = if flags & libc::O_EXCL != 0 {
            CreateMode::Exclusive
        } else {
            CreateMode::Unchecked
        };
        let mut attributes = with_mode(mode);
        if flags & libc::O_TRUNC != 0 && how == CreateMode::Unchecked {
            attributes.size = Some(0);
        }
        let stamp = Stamp::now();
        let call = self.nfs.create(cred, &dir.handle, name, how, &attributes);
        let made = self.changing(&dir, call, |made| made.dir).await?;
        let (inode, found) = self.made(cred, stamp, &dir, name, &made).await?;
        if inode.kind != FileType::Regular {
            // UNCHECKED took what was there.
            return Err(if inode.is_dir() {
                FsError::IsDirectory
            } else {
                FsError::Exists
            });
        }
        let inode = self.told(cred, inode, &found).await?;
        if how == CreateMode::Unchecked && inode.data().is_some() {
            // An old acquaintance: what is cached may be nothing this caller may see.
            let wanted = match flags & libc::O_ACCMODE {
                libc::O_RDONLY => access::READ,
                libc::O_WRONLY => access::MODIFY,
                _ => access::READ | access::MODIFY,
            };
            if let Err(error) = self.ask_access(cred, &inode, wanted).await {
                self.forget(inode.nodeid, 1);
                return Err(error);
            }
            if attributes.size == Some(0)
                && let Some(data) = inode.data()
            {
                data.with(|inner| {
                    inner.truncate(0);
                });
            }
        }
        let entry = self.entry(&dir, &inode, found);
        Ok((entry, self.opened(inode, cred, flags)))
    }

    pub async fn mknod(
        &self,
        cred: &Cred,
        parent: u64,
        name: &[u8],
        mode: u32,
        rdev: u32,
    ) -> FsResult<Entry> {
        check_name(name)?;
        let dir = self.inode(parent)?;
        let attributes = with_mode(mode);
        let stamp = Stamp::now();
        // The kernel's new_encode_dev: 12 bits of major between 8 and 12 bits of minor.
        let device = SpecData {
            major: rdev >> 8 & 0xfff,
            minor: rdev & 0xff | rdev >> 12 & 0xf_ff00,
        };
        let special = match mode & libc::S_IFMT {
            libc::S_IFREG | 0 => None,
            libc::S_IFCHR => Some(Special::Character(device)),
            libc::S_IFBLK => Some(Special::Block(device)),
            libc::S_IFSOCK => Some(Special::Socket),
            libc::S_IFIFO => Some(Special::Fifo),
            _ => return Err(FsError::Invalid),
        };
        let made = match special {
            None => {
                let call =
                    self.nfs
                        .create(cred, &dir.handle, name, CreateMode::Guarded, &attributes);
                self.changing(&dir, call, |made| made.dir).await?
            }
            Some(special) => {
                let call = self
                    .nfs
                    .mknod(cred, &dir.handle, name, special, &attributes);
                self.changing(&dir, call, |made| made.dir).await?
            }
        };
        self.made_entry(cred, stamp, &dir, name, &made).await
    }

    pub async fn mkdir(&self, cred: &Cred, parent: u64, name: &[u8], mode: u32) -> FsResult<Entry> {
        check_name(name)?;
        let dir = self.inode(parent)?;
        let stamp = Stamp::now();
        let attributes = with_mode(mode);
        let call = self.nfs.mkdir(cred, &dir.handle, name, &attributes);
        let made = self.changing(&dir, call, |made| made.dir).await?;
        self.made_entry(cred, stamp, &dir, name, &made).await
    }

    pub async fn symlink(
        &self,
        cred: &Cred,
        parent: u64,
        name: &[u8],
        target: &[u8],
    ) -> FsResult<Entry> {
        check_name(name)?;
        let dir = self.inode(parent)?;
        let stamp = Stamp::now();
        let attributes = SetAttributes::default();
        let call = self
            .nfs
            .symlink(cred, &dir.handle, name, target, &attributes);
        let made = self.changing(&dir, call, |made| made.dir).await?;
        self.made_entry(cred, stamp, &dir, name, &made).await
    }

    async fn made_entry(
        &self,
        cred: &Cred,
        stamp: Stamp,
        dir: &Arc<Inode>,
        name: &[u8],
        made: &Made,
    ) -> FsResult<Entry> {
        let (inode, attributes) = self.made(cred, stamp, dir, name, made).await?;
        let inode = self.told(cred, inode, &attributes).await?;
        Ok(self.entry(dir, &inode, attributes))
    }

    /// The inode of what was made. RFC 1813 section 3.3.8 lets a server leave out handle and
    /// attributes.
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
            return self.find(cred, dir, name).await;
        };
        let attributes = match made.attributes {
            Some(attributes) => attributes,
            None => self.nfs.getattr(cred, &object).await?,
        };
        let inode = self.intern(cred, stamp, &object, &attributes).await?;
        self.own_name(dir, name, Some(&inode));
        Ok((inode, attributes))
    }
}
