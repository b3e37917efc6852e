//! Mounts where nobody sees it, and puts a copy of the root that [`Channel::show_root`] shows on the directory.
//!
//! A thread gets a mount namespace of its own for this, which ends with the thread. It mounts on /proc, which is always
//! there and is made private first, so that the mount is not propagated. The copy (open_tree(2), since Linux 5.2)
//! belongs to no namespace until move_mount(2) puts it on the directory. What the thread mounted ends with its namespace;
//! the file system goes on in the copy.

use crate::mounts::FSTYPE;
use nfsrdma_fs::adapter::Channel;
use rustix::fs::CWD;
use rustix::mount::{
    MountFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags, mount, mount_change,
    move_mount, open_tree,
};
use rustix::thread::{UnshareFlags, unshare_unsafe};
use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::mpsc::channel;
use std::thread::{Builder, JoinHandle};

const PLACE: &str = "/proc";
/// Any name: all lead to the root. findmnt(8) shows it, as `server:/path[/export]`.
const SHOWN: &str = "/proc/export";
const COPY: OpenTreeFlags = OpenTreeFlags::OPEN_TREE_CLONE.union(OpenTreeFlags::OPEN_TREE_CLOEXEC);

/// A mount that is not on its directory yet.
#[derive(Debug)]
pub(crate) struct Apart {
    directory: File,
    copying: JoinHandle<io::Result<OwnedFd>>,
}

/// Makes a mount that is to be on `directory`, an O_PATH descriptor. Its INIT is not answered. If this fails, there is
/// none.
pub(crate) fn mount_apart(
    directory: File,
    source: &[u8],
    flags: MountFlags,
    data: &CStr,
) -> io::Result<Apart> {
    let (source, data) = (source.to_vec(), data.to_owned());
    let (told, made) = channel();
    let copying = Builder::new().name("mount".into()).spawn(move || {
        let made = make(&source, flags, &data);
        let failed = made.is_err();
        // It waits for this.
        let _ = told.send(made);
        match failed {
            true => Err(io::Error::other("not mounted")),
            false => Ok(open_tree(CWD, SHOWN, COPY)?),
        }
    })?;
    made.recv()
        .unwrap_or_else(|_| Err(io::Error::other("the thread that mounts has ended")))?;
    Ok(Apart { directory, copying })
}

/// Mounts, on a thread that does nothing else.
fn make(source: &[u8], flags: MountFlags, data: &CStr) -> io::Result<()> {
    // SAFETY: this thread goes on with the descriptors of the process.
    unsafe { unshare_unsafe(UnshareFlags::FS | UnshareFlags::NEWNS)? };
    mount_change(PLACE, MountPropagationFlags::PRIVATE)?;
    // Whether there will be a copy.
    open_tree(CWD, PLACE, COPY)?;
    Ok(mount(source, PLACE, FSTYPE, flags, data)?)
}

impl Apart {
    /// Puts the mount on its directory. INIT is answered, and nobody reads its requests.
    pub(crate) fn show(self, channel: &Channel) -> io::Result<()> {
        channel.show_root(|| self.copying.is_finished())?;
        let copied = self.copying.join();
        let copy = copied.unwrap_or_else(|_| {
            Err(io::Error::other(
                "the thread that copies the mount has ended",
            ))
        })?;
        let flags =
            MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
        Ok(move_mount(copy, "", self.directory, "", flags)?)
    }
}
