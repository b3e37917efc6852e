//! Which files may be locked. The locks themselves are in [`crate::lock`].

use super::{FileSystem, Identity, Result};
use nfsrdma_xdr::nfs3::{FileHandle, Status};

impl FileSystem {
    /// Checks that a handle is that of a regular file. With `right`, `who` must also own it or have
    /// the right to read it, as Linux's server demands.
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

    /// Takes the server's identity, in whose name the hosts with locks are remembered.
    pub fn take_own_identity(&self) {
        let _ = self.assume(&Identity::SERVER);
    }

    /// The handle of the object at `path`, which begins with the name of an export.
    pub fn find_path(&self, path: &[u8]) -> Result<FileHandle> {
        let at = path.iter().rposition(|&b| b == b'/').ok_or(Status::Inval)?;
        let dir = self.resolve(&self.mount(&path[..at])?)?;
        self.server(|| Ok(self.child(&dir, &path[at + 1..])?.0.handle))
    }
}
