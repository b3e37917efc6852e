//! An open export: its directory, its file system, and opening objects in it by name.

use super::handle::Key;
use super::inode::{Inode, proc_path};
use super::status::{self, Result};
use rustix::fs::{Mode, OFlags, ResolveFlags};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

/// A directory that clients may mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExportSpec {
    /// The absolute path by which clients name it.
    pub name: Vec<u8>,
    /// The local path.
    pub dir: PathBuf,
}

/// An export, open.
#[derive(Debug)]
pub struct Export {
    pub name: Vec<u8>,
    /// The number of the export in handles.
    pub(super) id: u32,
    pub(super) root: OwnedFd,
    /// The root opened again, because opening by handle accepts no `O_PATH` descriptor.
    pub(super) mount: Option<OwnedFd>,
    pub(super) device: u64,
    pub(super) root_inode: u64,
    /// The fsid of everything in the export.
    pub(super) fsid: u64,
    /// The largest file size of its file system.
    pub(super) max_file_size: u64,
    /// The path of the root in this process's mount namespace, as the kernel reports it.
    path: PathBuf,
}

impl Export {
    pub(super) fn open(spec: &ExportSpec) -> io::Result<Self> {
        let root = rustix::fs::open(
            &spec.dir,
            OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
            Mode::empty(),
        )?;
        let stat = rustix::fs::fstat(&root)?;
        let fsid = match rustix::fs::fstatvfs(&root)?.f_fsid {
            0 => stat.st_dev,
            fsid => fsid,
        };
        Ok(Export {
            name: spec.name.clone(),
            id: Key::export_id(&spec.name),
            device: stat.st_dev,
            root_inode: stat.st_ino,
            fsid,
            path: path_of(root.as_fd())?,
            max_file_size: max_file_size(&root),
            mount: rustix::fs::open(
                proc_path(root.as_fd()),
                OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC,
                Mode::empty(),
            )
            .ok(),
            root,
        })
    }

    pub(super) fn open_root(&self) -> Result<OwnedFd> {
        self.root.try_clone().map_err(status::of_io)
    }

    pub(super) fn is_root(&self, inode: &Inode) -> bool {
        inode.key() == (self.device, self.root_inode)
    }

    /// Whether a directory is the root of the export or below it.
    pub(super) fn contains(&self, dir: BorrowedFd<'_>) -> Result<bool> {
        Ok(self.depth(dir)?.is_some())
    }

    /// The number of directories between a directory and the root of the export; `None` if it is
    /// elsewhere.
    pub(super) fn depth(&self, dir: BorrowedFd<'_>) -> Result<Option<u64>> {
        match path_of(dir) {
            Ok(path) => Ok(path
                .strip_prefix(&self.path)
                .ok()
                .map(|below| below.components().count() as u64)),
            // The kernel reports no path of more than 4095 bytes.
            Err(error) if error.raw_os_error() == Some(libc::ENAMETOOLONG) => self.climb(dir),
            Err(error) => Err(status::of_io(error)),
        }
    }

    /// The same by going up from the directory, however long its path is.
    fn climb(&self, dir: BorrowedFd<'_>) -> Result<Option<u64>> {
        let key = |fd: &OwnedFd| rustix::fs::fstat(fd).map(|stat| (stat.st_dev, stat.st_ino));
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut at = dir.try_clone_to_owned().map_err(status::of_io)?;
        let mut own = key(&at).map_err(status::of)?;
        for depth in 0.. {
            if own == (self.device, self.root_inode) {
                return Ok(Some(depth));
            }
            at = rustix::fs::openat(&at, c"..", flags, Mode::empty()).map_err(status::of)?;
            let above = key(&at).map_err(status::of)?;
            if above == own {
                break;
            }
            own = above;
        }
        Ok(None)
    }
}

/// The largest file size in the file system of `dir`. No system call reports it, so this finds the
/// largest size to which a file without a name can be extended as one hole.
fn max_file_size(dir: &OwnedFd) -> u64 {
    const MOST: u64 = i64::MAX as u64;
    let file = rustix::fs::open(
        proc_path(dir.as_fd()),
        OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC,
        Mode::RUSR | Mode::WUSR,
    );
    // Read-only, or no files without names: each WRITE will get its own error.
    let Ok(file) = file else { return MOST };
    let takes = |size| rustix::fs::ftruncate(&file, size).is_ok();
    if takes(MOST) {
        return MOST;
    }
    // Every file system supports 2 GiB, the limit before large file support.
    let (mut low, mut high) = (i32::MAX as u64, MOST);
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        match takes(middle) {
            true => low = middle,
            false => high = middle,
        }
    }
    low
}

/// The path of an open directory, as the kernel reports it.
fn path_of(fd: BorrowedFd<'_>) -> io::Result<PathBuf> {
    std::fs::read_link(Path::new(&proc_path(fd)))
}

/// Opens one component below `dir`, never through a symbolic link or out of the mount.
pub(super) fn open_component(dir: BorrowedFd<'_>, name: &[u8]) -> rustix::io::Result<OwnedFd> {
    rustix::fs::openat2(
        dir,
        name,
        OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC,
        Mode::empty(),
        ResolveFlags::BENEATH | ResolveFlags::NO_XDEV | ResolveFlags::NO_MAGICLINKS,
    )
}
