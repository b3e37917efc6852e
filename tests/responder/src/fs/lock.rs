//! What may be locked. The locks themselves are in [`crate::lock`].

use super::{FileSystem, Identity, Result};
use nfsrdma_xdr::nfs3::{FileHandle, Status};

impl FileSystem {
    /// Whether a handle is that of a regular file; with `right`, of one that `who` owns or may read, as Linux's
    /// server wants it.
    pub fn lockable(&self, who: &Identity, file: &FileHandle, right: bool) -> Result<()> {
        let inode = self.resolve(file)?;
        if !inode.is_regular() {
            return Err(Status::Inval);
        }
        self.attributes(&inode)?;
        match right {
            true => self.check(who, &inode, libc::R_OK, true),
            false => Ok(()),
        }
    }

    /// The handle of the object at `path`, from the name of an export on.
    pub fn find_path(&self, path: &[u8]) -> Result<FileHandle> {
        let at = path.iter().rposition(|&b| b == b'/').ok_or(Status::Inval)?;
        let dir = self.resolve(&self.mount(&path[..at])?)?;
        self.server(|| Ok(self.child(&dir, &path[at + 1..])?.0.handle))
    }
}
