//! The directory to mount on: checks it, and makes sure that the mount is made on the checked one.

use crate::failure::Failure;
use crate::ipc::exit_watch::ExitWatch;
use crate::mounts::{FSTYPE, Mount, all, on_top_of, resolve};
use crate::output::without_number;
use rustix::fs::statvfs;
use rustix::io::Errno;
use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

/// A directory to mount on: its path without symbolic links, and its identity when checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MountPoint {
    pub path: PathBuf,
    device: u64,
    inode: u64,
    /// The dead mount that covers the directory, and is to be taken away first.
    pub dead: Option<Mount>,
}

impl MountPoint {
    fn of(path: PathBuf, found: &Metadata) -> MountPoint {
        MountPoint {
            path,
            device: found.dev(),
            inode: found.ino(),
            dead: None,
        }
    }

    /// A directory on which this program has mounted already.
    pub(crate) fn mounted(path: PathBuf) -> MountPoint {
        MountPoint {
            path,
            device: 0,
            inode: 0,
            dead: None,
        }
    }

    /// Refuses a log in the directory. When it is opened again it would be a file of this mount, whose
    /// process would wait for itself, and keep the mount busy.
    pub(crate) fn has_outside(&self, log: &Path) -> Result<(), Failure> {
        // Opening the log reports what is wrong with its path.
        match place_of(log).is_some_and(|place| place.starts_with(&self.path)) {
            true => Err(Failure::usage(format!(
                "the log {} would be in the mount itself: choose a file outside {} for --log",
                log.display(),
                self.path.display()
            ))),
            false => Ok(()),
        }
    }

    /// Opens the directory to mount on it. Fails if the path leads to another directory by now,
    /// because somebody has replaced a part of it. That may happen during days of attempts in the
    /// background.
    pub(crate) fn open(&self) -> Result<File, Failure> {
        let shown = self.path.display();
        let directory = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_PATH | libc::O_DIRECTORY | libc::O_NOFOLLOW)
            .open(&self.path)
            .map_err(|error| {
                Failure::failed(format!("mount point {shown} cannot be used: {error}"))
            })?;
        let opened = std::fs::read_link(format!("/proc/self/fd/{}", directory.as_raw_fd()));
        let found = directory.metadata();
        let same = opened.is_ok_and(|path| path == self.path)
            && found.is_ok_and(|at| (at.dev(), at.ino()) == (self.device, self.inode));
        if same {
            return Ok(directory);
        }
        Err(Failure::failed(format!(
            "mount point {shown} is not the directory any longer that it was: somebody replaced it; mount again"
        )))
    }
}

/// The most symbolic links that Linux follows (path_resolution(7)).
const MOST_LINKS: usize = 40;

/// Where a file that may not exist yet would be created: the last part of its path may be a symbolic
/// link to another place.
fn place_of(file: &Path) -> Option<PathBuf> {
    let mut file = std::path::absolute(file).ok()?;
    for _ in 0..MOST_LINKS {
        let Some(parent) = file.parent() else {
            return Some(file);
        };
        let parent = parent.canonicalize().ok()?;
        match std::fs::read_link(&file) {
            Ok(target) => file = parent.join(target),
            Err(_) => return Some(parent),
        }
    }
    None
}

/// Directories that programs, including this one, need.
const INDISPENSABLE: [&str; 4] = ["/", "/proc", "/sys", "/dev"];

/// Whether the process of this mount, which is on top of its directory, has ended. Where the process
/// answers, the mount is not touched: its server may be away. `None`: nothing answers.
pub(crate) fn is_dead(mount: &Mount) -> Option<bool> {
    if ExitWatch::connect(&mount.device, mount.owner).is_ok() {
        return Some(false);
    }
    // The kernel may have cached attributes, but never the numbers of statvfs(3).
    answer_of(mount, ANSWER).map(|answer| answer == Err(Errno::NOTCONN))
}

/// How long a mount may take to answer.
const ANSWER: Duration = Duration::from_secs(5);

/// Of `mount -a`, for which a mount is in order if its server is only away.
const QUICK_ANSWER: Duration = Duration::from_millis(500);

/// What statvfs(3) says of a mount, if it does in time. The server may be away.
fn answer_of(mount: &Mount, limit: Duration) -> Option<rustix::io::Result<()>> {
    let (tell, told) = mpsc::channel();
    let path = mount.dir.clone();
    // A thread is permitted here: nothing is mounted after one that does not end.
    let asked = thread::Builder::new().spawn(move || tell.send(statvfs(&path).map(drop)));
    let thread = asked.ok()?;
    let answer = told.recv_timeout(limit).ok()?;
    let _ = thread.join();
    Some(answer)
}

fn nothing_to_do(dir: &Path, source: &[u8]) -> String {
    let (shown, source) = (dir.display(), String::from_utf8_lossy(source));
    format!(
        "{source} is already mounted on {shown}: nothing is to be done; \
         'nfsrdma umount {shown}' comes before mounting it with other options"
    )
}

/// A line that says so, if `source` is mounted on `dir`, unless nothing covers it and it is dead or stale.
pub(crate) fn is_mounted(dir: &Path, source: &[u8]) -> Option<String> {
    let path = resolve(dir).ok()?;
    let mut on_it = all()
        .ok()?
        .into_iter()
        .rev()
        .filter(|mount| mount.dir == path);
    let is_it = |mount: &Mount| mount.is_ours() && mount.source.as_bytes() == source;
    let top = on_it.next()?;
    let there = match is_it(&top) {
        true => answer_of(&top, QUICK_ANSWER).is_none_or(|answer| answer.is_ok()),
        false => on_it.any(|mount| is_it(&mount)),
    };
    there.then(|| nothing_to_do(dir, source))
}

/// The error for a mount of the same source that is on `dir` already.
fn already_mounted(dir: &Path, mount: &Mount) -> Failure {
    let (shown, source) = (dir.display(), mount.source.to_string_lossy());
    Failure::failed(match answer_of(mount, ANSWER) {
        Some(Err(Errno::STALE)) => format!(
            "{source} is mounted on {shown}, but its server does not know that export any longer (stale): \
             'nfsrdma umount {shown}', then mount again"
        ),
        // Not even root may look at a mount that another user has for himself.
        Some(Err(Errno::ACCESS)) if ExitWatch::connect(&mount.device, mount.owner).is_err() => {
            format!(
                "{source} was mounted on {shown} by another user, and its program does not answer: \
                 'nfsrdma umount {shown}', then mount again"
            )
        }
        _ => nothing_to_do(dir, mount.source.as_bytes()),
    })
}

/// Checks whether `source` may be mounted on `dir`.
pub(crate) fn check(dir: &Path, source: &[u8]) -> Result<MountPoint, Failure> {
    let shown = dir.display();
    let refused = |error: io::Error| {
        Failure::failed(match error.kind() {
            io::ErrorKind::NotFound => {
                format!("mount point {shown} does not exist: make it with 'mkdir -p {shown}'")
            }
            io::ErrorKind::PermissionDenied => {
                format!(
                    "mount point {shown} cannot be reached: permission denied on its path; \
                     choose another, or be root"
                )
            }
            io::ErrorKind::NotADirectory => {
                format!("mount point {shown} is not a directory: choose a directory")
            }
            _ if error.raw_os_error() == Some(libc::ENOTCONN) => format!(
                "{shown} is inside a mount whose program has ended: mount that one again first"
            ),
            io::ErrorKind::StaleNetworkFileHandle => format!(
                "{shown} is on a file system that its server does not know any longer (stale): unmount that, and \
                 mount it again"
            ),
            _ => format!(
                "mount point {shown} cannot be used: {}; choose another directory",
                without_number(&error)
            ),
        })
    };
    let path = resolve(dir).map_err(refused)?;
    if INDISPENSABLE.iter().any(|place| path == Path::new(place)) {
        return Err(Failure::usage(format!(
            "{shown} cannot be mounted over, because programs need what is there: \
             choose a directory below /mnt or /srv"
        )));
    }
    let ours = on_top_of(&path).map_err(refused)?;
    let ours = ours.filter(|mount| mount.fstype == FSTYPE);
    if let Some(mount) = ours {
        let same = mount.source.as_bytes() == source;
        match (is_dead(&mount), same) {
            (Some(true), _) => {
                return Ok(MountPoint {
                    dead: Some(mount),
                    ..MountPoint::mounted(path)
                });
            }
            (Some(false), true) => return Err(already_mounted(dir, &mount)),
            (Some(false), false) => {}
            (None, true) => return Err(Failure::failed(nothing_to_do(dir, source))),
            (None, false) => {
                return Err(Failure::failed(format!(
                    "{} is mounted on {shown} and does not answer: 'nfsrdma umount -l {shown}', then mount again",
                    mount.source.to_string_lossy()
                )));
            }
        }
    }
    let found = std::fs::metadata(&path).map_err(refused)?;
    if !found.is_dir() {
        return Err(refused(io::ErrorKind::NotADirectory.into()));
    }
    Ok(MountPoint::of(path, &found))
}
