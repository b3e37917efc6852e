//! The own mount: finding it again, keeping it busy, taking it away.
//!
//! A path names whatever is mounted there last, and changes when a directory above is renamed. The
//! own mount is known by its mount ID (/proc/self/fdinfo), taken when it was made. Before anything
//! is unmounted the path is opened with O_PATH, the ID compared, and /proc/self/mountinfo searched for mounts on top of
//! or below the own one, which MNT_DETACH would take away too. Linux has no call that unmounts
//! by ID (umount2(2) of `/proc/self/fd/N` goes up to what is mounted on top of it), so the
//! comparison comes immediately before the call.

use parking_lot::Mutex;
use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};
use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A mount of this process.
#[derive(Debug)]
pub struct OwnMount {
    dir: PathBuf,
    /// 0 if it could not be found out.
    id: u64,
    hold: Mutex<Hold>,
}

/// A reference to the mount, which umount(2) answers with EBUSY.
#[derive(Debug, Default)]
struct Hold {
    descriptor: Option<OwnedFd>,
    /// The connection has ended: what is unwritten does not depend on the mount any longer.
    released: bool,
}

/// Opens the root of what is mounted on `dir`, without asking its file system anything.
fn open_root(dir: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(open(dir, flags, Mode::empty())?)
}

/// The ID of the mount that a descriptor is on, by proc(5). That asks nothing of the file system
/// and works where this user may not look into it, and under emulators, whose statx(2) does not
/// know STATX_MNT_ID.
pub fn mount_id(descriptor: &OwnedFd) -> io::Result<u64> {
    let path = format!("/proc/self/fdinfo/{}", descriptor.as_raw_fd());
    let text = std::fs::read_to_string(path)?;
    let id = text.lines().find_map(|line| line.strip_prefix("mnt_id:"));
    let id = id.and_then(|id| id.trim().parse().ok());
    id.ok_or_else(|| io::Error::other("no mount ID in /proc/self/fdinfo"))
}

const TABLE: &str = "/proc/self/mountinfo";

/// A field of the table: blanks and backslashes are octal escapes.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&byte, behind)) = rest.split_first() {
        let code = behind.get(..3).filter(|_| byte == b'\\');
        let code = code.and_then(|digits| std::str::from_utf8(digits).ok());
        match code.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(code) => {
                plain.push(code);
                rest = &behind[3..];
            }
            None => {
                plain.push(byte);
                rest = behind;
            }
        }
    }
    plain
}

/// Where the mount with this ID is, by the lines of the table.
fn place_of(table: &[u8], id: u64) -> Option<PathBuf> {
    let id = id.to_string();
    let mut lines = table.split(|&byte| byte == b'\n');
    lines.find_map(|line| {
        let mut fields = line.split(|&byte| byte == b' ');
        let own = fields.next() == Some(id.as_bytes());
        let dir = fields.nth(3).filter(|_| own)?;
        Some(OsString::from_vec(unescape(dir)).into())
    })
}

/// A line of /proc/self/mountinfo: ID, ID of the parent, mount point (escaped).
fn parse_line(line: &str) -> Option<(u64, u64, &str)> {
    let mut fields = line.split(' ');
    let id = fields.next()?.parse().ok()?;
    let parent = fields.next()?.parse().ok()?;
    Some((id, parent, fields.nth(2)?))
}

impl OwnMount {
    /// The mount just made on `dir`.
    pub fn on(dir: &Path) -> OwnMount {
        OwnMount {
            dir: dir.to_owned(),
            id: open_root(dir).and_then(|root| mount_id(&root)).unwrap_or(0),
            hold: Mutex::default(),
        }
    }

    /// Its mount ID, 0 if it could not be found out.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Where it was mounted.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Its root, if a path leads to it.
    pub(super) fn root(&self) -> Option<OwnedFd> {
        self.find().map(|(_, root)| root)
    }

    /// The same with the path: where it was mounted; or where it is now, if it was moved, or a
    /// directory above it was renamed.
    fn find(&self) -> Option<(PathBuf, OwnedFd)> {
        let at = |dir: PathBuf| {
            let root = open_root(&dir).ok()?;
            (mount_id(&root).ok()? == self.id).then_some((dir, root))
        };
        at(self.dir.clone()).or_else(|| at(place_of(&fs::read(TABLE).ok()?, self.id)?))
    }

    /// While `on`, umount(2) fails with EBUSY. Does nothing where no path leads to the mount: then
    /// another one lies on top of it and keeps it busy, or it is detached.
    pub fn hold(&self, on: bool) {
        let mut hold = self.hold.lock();
        if on && !hold.released && hold.descriptor.is_none() {
            hold.descriptor = self.root();
        } else if !on {
            hold.descriptor = None;
        }
    }

    /// Gives the reference back for good.
    pub fn release(&self) {
        let mut hold = self.hold.lock();
        hold.released = true;
        hold.descriptor = None;
    }

    /// Whether it is in this namespace, and the first mount on top of it or below it.
    fn look(&self) -> io::Result<(bool, Option<String>)> {
        let table = fs::read(TABLE)?;
        let table = String::from_utf8_lossy(&table);
        let lines = || table.lines().filter_map(parse_line);
        let there = lines().any(|(id, _, _)| id == self.id);
        let other = lines().find(|&(_, parent, _)| parent == self.id);
        Ok((there, other.map(|(_, _, dir)| dir.to_owned())))
    }

    /// Unmounts it, and nothing else; directly where permitted, else by `fusermount3`, which is
    /// set-user-id. EBUSY if somebody uses it, or if another mount is on top of it or below it.
    /// With `lazy` users do not matter, but other mounts do.
    pub fn unmount(&self, lazy: bool) -> io::Result<()> {
        let found = self.find();
        let (there, other) = self.look()?;
        if !there && self.id != 0 {
            return Ok(());
        }
        if let Some(other) = other.filter(|_| self.id != 0) {
            return Err(io::Error::new(
                io::ErrorKind::ResourceBusy,
                format!("{other} is mounted on top of it or below it"),
            ));
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

/// Unmounts by `fusermount3`, for who may not call umount(2). Errors: `ResourceBusy` and
/// `PermissionDenied` as umount(2) has them, others of it as `Other` with its words, and those of
/// running it.
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
    fn lines_of_the_table() {
        let line = r"40 22 0:51 / /mnt/a\040b ro,nosuid - fuse.nfsrdma srv:/x rw,user_id=0";
        assert_eq!(parse_line(line), Some((40, 22, r"/mnt/a\040b")));
        assert_eq!(parse_line("40 22"), None);
        assert_eq!(parse_line(""), None);
        let table = format!("22 1 0:1 / / rw\n{line}\n");
        assert_eq!(place_of(table.as_bytes(), 40), Some("/mnt/a b".into()));
        assert_eq!(place_of(table.as_bytes(), 4), None);
        assert_eq!(unescape(br"\9 \04"), br"\9 \04");
    }

    #[test]
    fn the_root_of_this_namespace_is_found_by_its_id() {
        let own = OwnMount::on(Path::new("/"));
        assert_ne!(own.id, 0);
        assert!(own.root().is_some());
        assert!(own.look().unwrap().0);
        // Other mounts lie below it: nothing is unmounted.
        if own.look().unwrap().1.is_some() {
            let error = own.unmount(true).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::ResourceBusy);
        }
        own.hold(true);
        assert!(own.hold.lock().descriptor.is_some());
        own.release();
        own.hold(true);
        assert!(own.hold.lock().descriptor.is_none());
    }
}
