//! The mount of this process: finding it again, keeping it busy, and unmounting it.
//!
//! A path leads to whatever was mounted on it last, and it changes when a directory above it is renamed. So this
//! process remembers the mount ID (/proc/self/fdinfo) of its own mount. Before it unmounts anything, it opens the
//! path with O_PATH, compares the ID, and searches /proc/self/mountinfo for mounts on top of or below its own, which
//! MNT_DETACH would unmount too. Linux has no call that unmounts by ID (umount2(2) of `/proc/self/fd/N` unmounts what
//! is on top), so the comparison is made immediately before the call.

use nfsrdma_mountinfo::{Mount, plain};
use parking_lot::Mutex;
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, open, openat2};
use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

/// A mount of this process.
#[derive(Debug)]
pub struct OwnMount {
    dir: PathBuf,
    /// The mount ID; 0 if it could not be determined.
    id: u64,
    hold: Mutex<Hold>,
}

/// A reference to the mount, which makes umount(2) fail with EBUSY.
#[derive(Debug, Default)]
struct Hold {
    descriptor: Option<OwnedFd>,
    wanted: bool,
    /// A thread is looking for the mount.
    looking: bool,
    /// The connection to the kernel has ended, so unwritten data no longer depends on the mount.
    released: bool,
}

const ROOT: OFlags = OFlags::PATH
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);

/// Opens the root of what is mounted on `dir`, without a request to its file system. The file systems
/// that the path leads through may be asked, and one of a server that is away does not answer.
fn open_root(dir: &Path) -> io::Result<OwnedFd> {
    Ok(open(dir, ROOT, Mode::empty())?)
}

/// The same if the kernel has the path in its cache (Linux 5.12). Asks nobody.
fn open_root_at_once(dir: &Path) -> io::Result<OwnedFd> {
    let how = ResolveFlags::CACHED;
    Ok(openat2(CWD, dir, ROOT, Mode::empty(), how)?)
}

/// The ID of the mount that a descriptor is on, from /proc. This needs no request to the file system, and works where
/// this user has no access to it, and under emulators whose statx(2) does not know STATX_MNT_ID.
pub fn mount_id(descriptor: &OwnedFd) -> io::Result<u64> {
    let path = format!("/proc/self/fdinfo/{}", descriptor.as_raw_fd());
    let text = std::fs::read_to_string(path)?;
    let id = text.lines().find_map(|line| line.strip_prefix("mnt_id:"));
    let id = id.and_then(|id| id.trim().parse().ok());
    id.ok_or_else(|| io::Error::other("no mount ID in /proc/self/fdinfo"))
}

/// The mount point of the mount with this ID.
fn place_of(table: &[Mount], id: u64) -> Option<PathBuf> {
    let own = table.iter().find(|mount| mount.id == id)?;
    Some(own.dir.clone())
}

impl OwnMount {
    /// The mount that was just made on `dir`.
    pub fn on(dir: &Path) -> OwnMount {
        let id = open_root(dir).and_then(|root| mount_id(&root));
        OwnMount::with_id(dir, id.unwrap_or(0))
    }

    /// The mount with this ID, which was made on `dir` by a process that has ended.
    pub fn with_id(dir: &Path, id: u64) -> OwnMount {
        OwnMount {
            dir: dir.to_owned(),
            id,
            hold: Mutex::default(),
        }
    }

    /// The mount ID; 0 if it could not be determined.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Where it was mounted.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The path and the root of the mount. The path differs from that at mount time if the mount was
    /// moved, or a directory above it was renamed.
    fn find(&self, open: fn(&Path) -> io::Result<OwnedFd>) -> Option<(PathBuf, OwnedFd)> {
        let at = |dir: PathBuf| {
            let root = open(&dir).ok()?;
            (mount_id(&root).ok()? == self.id).then_some((dir, root))
        };
        at(self.dir.clone()).or_else(|| at(place_of(&nfsrdma_mountinfo::all().ok()?, self.id)?))
    }

    /// Takes or gives back a reference: while `on`, umount(2) fails with EBUSY. Does nothing if no
    /// path leads to the mount: then another mount on top keeps it busy, or it is detached.
    ///
    /// The mount may be inside one whose server is away. This is called by threads that serve
    /// requests, so a path that is not in the kernel's cache is looked up by another thread.
    pub fn hold(self: &Arc<Self>, on: bool) {
        let mut hold = self.hold.lock();
        hold.wanted = on;
        if !on {
            hold.descriptor = None;
        } else if !hold.released && !hold.looking && hold.descriptor.is_none() {
            hold.descriptor = self.find(open_root_at_once).map(|(_, root)| root);
            if hold.descriptor.is_none() {
                let this = self.clone();
                let thread = std::thread::Builder::new().name("hold".into());
                hold.looking = thread.spawn(move || this.look_for_hold()).is_ok();
            }
        }
    }

    /// Takes the reference, if it is still wanted when the mount is found.
    fn look_for_hold(&self) {
        let root = self.find(open_root);
        let mut hold = self.hold.lock();
        hold.looking = false;
        if hold.wanted && !hold.released {
            hold.descriptor = root.map(|(_, root)| root);
        }
    }

    /// Gives the reference back for good.
    pub fn release(&self) {
        let mut hold = self.hold.lock();
        hold.released = true;
        hold.descriptor = None;
    }

    /// Whether the mount is no longer in this namespace. `ResourceBusy` if another mount is on top of it or
    /// below it.
    fn is_gone(&self) -> io::Result<bool> {
        let table = nfsrdma_mountinfo::all()?;
        if self.id == 0 || !table.iter().any(|mount| mount.id == self.id) {
            return Ok(self.id != 0);
        }
        let Some(other) = table.iter().find(|mount| mount.parent == self.id) else {
            return Ok(false);
        };
        let other = plain(&other.dir.to_string_lossy());
        Err(io::Error::new(
            io::ErrorKind::ResourceBusy,
            format!("{other} is mounted on top of it or below it"),
        ))
    }

    /// The paths, relative to the root of this mount, on which others are mounted in this namespace.
    pub(super) fn mounts_below(&self) -> Vec<Vec<u8>> {
        let Ok(table) = nfsrdma_mountinfo::all() else {
            return Vec::new();
        };
        // Not where it was mounted: a directory above it may have been renamed since.
        let Some(own) = place_of(&table, self.id) else {
            return Vec::new();
        };
        let others = table.iter().filter(|mount| mount.parent == self.id);
        let below = |mount: &Mount| {
            let rest = mount.dir.strip_prefix(&own).ok()?;
            let rest = rest.as_os_str().as_bytes();
            (!rest.is_empty()).then(|| rest.to_vec())
        };
        others.filter_map(below).collect()
    }

    /// Unmounts this mount and no other: by umount2(2) where that is permitted, else by
    /// `fusermount3`, which is set-user-id. EBUSY if the mount is in use (not with `lazy`), or if
    /// another mount is on top of it or below it.
    pub fn unmount(&self, lazy: bool) -> io::Result<()> {
        // Before the path is opened, because that would keep a mount on top of this one busy for a moment,
        // which its owner may want to unmount. Afterwards, because MNT_DETACH follows.
        if self.is_gone()? {
            return Ok(());
        }
        let found = self.find(open_root);
        if self.is_gone()? {
            return Ok(());
        }
        let Some((dir, root)) = found else {
            return Err(io::Error::new(
                io::ErrorKind::ResourceBusy,
                format!("{} does not lead to it any longer", self.dir.display()),
            ));
        };
        let result = if lazy {
            let path = format!("/proc/self/fd/{}", root.as_raw_fd());
            unmount(path.as_str(), UnmountFlags::DETACH)
        } else {
            // A descriptor would keep it busy.
            drop(root);
            unmount(&dir, UnmountFlags::NOFOLLOW)
        };
        match result {
            Err(Errno::PERM) => by_helper(&dir, lazy),
            result => Ok(result?),
        }
    }
}

/// Unmounts by `fusermount3`, for users who may not call umount(2). Errors: `ResourceBusy` and
/// `PermissionDenied` as with umount(2), other failures as `Other` with the output of the program,
/// and errors of running it.
pub fn by_helper(dir: &Path, lazy: bool) -> io::Result<()> {
    let output = Command::new("fusermount3")
        .arg(if lazy { "-uz" } else { "-u" })
        .arg("--")
        .arg(dir)
        .output()?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let kind = if said.contains("busy") {
        io::ErrorKind::ResourceBusy
    } else if said.contains("not permitted") || said.contains("not found in /etc/mtab") {
        io::ErrorKind::PermissionDenied
    } else {
        io::ErrorKind::Other
    };
    Err(io::Error::new(kind, said.trim().to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_root_of_this_namespace_is_found_by_its_id() {
        let own = Arc::new(OwnMount::on(Path::new("/")));
        assert_ne!(own.id, 0);
        assert!(own.find(open_root).is_some());
        // Mostly there are mounts below it: then nothing is unmounted.
        match own.is_gone() {
            Ok(gone) => assert!(!gone),
            Err(_) => {
                let error = own.unmount(true).unwrap_err();
                assert_eq!(error.kind(), io::ErrorKind::ResourceBusy);
            }
        }
        own.hold(true);
        assert!(own.hold.lock().descriptor.is_some());
        own.hold(false);
        assert!(own.hold.lock().descriptor.is_none());
        own.hold(true);
        own.release();
        own.hold(true);
        assert!(own.hold.lock().descriptor.is_none());
    }
}
