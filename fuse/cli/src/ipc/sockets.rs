//! The Unix sockets by which commands find the process that serves a mount.
//!
//! They lie in a directory that only their owner can enter, so that nobody else can connect, take a
//! name first, or fill a queue: `/run/nfsrdma` for root, and `/run/user/UID/nfsrdma` for other
//! users, or a directory `/tmp/nfsrdma-UID-*` of mode 0700 where there is no `/run/user/UID`.
//! (Names in the abstract namespace, unix(7), belong to whoever binds them first, and everybody may
//! connect to them.) Directories of another owner or mode are ignored, and a client also checks the
//! credentials of the listener. A socket is named after the mount's device number. A younger mount
//! with the same number replaces the name.

use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, UnixAddr, connect as connect_socket, getsockopt, socket,
    sockopt,
};
use nix::unistd::mkdtemp;
use rustix::fs::{FlockOperation, flock};
use rustix::process::geteuid;
use std::fs::{self, DirBuilder, File, Permissions};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long a client waits for room in the listener's queue.
const QUEUE: Duration = Duration::from_secs(2);
/// How many clients may wait in the listener's queue, as in the standard library.
const BACKLOG: i32 = 128;
/// Most entries of /tmp and /run/user that are looked at.
const MOST_ENTRIES: usize = 100_000;

/// The standard directory for the sockets of a user.
fn proper_directory(uid: u32) -> PathBuf {
    match uid {
        0 => "/run/nfsrdma".into(),
        uid => format!("/run/user/{uid}/nfsrdma").into(),
    }
}

/// Whether `dir` is a directory of `uid` that nobody else can enter.
fn is_private(dir: &Path, uid: u32) -> bool {
    fs::symlink_metadata(dir)
        .is_ok_and(|found| found.is_dir() && found.uid() == uid && found.mode() & 0o077 == 0)
}

/// The directories in /tmp that `uid` made because the standard one was not available.
fn makeshift_directories(uid: u32) -> Vec<PathBuf> {
    let prefix = format!("nfsrdma-{uid}-");
    let Ok(entries) = fs::read_dir("/tmp") else {
        return Vec::new();
    };
    entries
        .take(MOST_ENTRIES)
        .filter_map(Result::ok)
        .filter(|entry| {
            entry
                .file_name()
                .as_encoded_bytes()
                .starts_with(prefix.as_bytes())
        })
        .map(|entry| entry.path())
        .filter(|dir| is_private(dir, uid))
        .collect()
}

/// The directory for this process's sockets. Creates it if necessary.
fn own_directory() -> io::Result<PathBuf> {
    let uid = geteuid().as_raw();
    let proper = proper_directory(uid);
    // This may fail because the directory exists; the next line checks what is there.
    let _ = DirBuilder::new().mode(0o700).create(&proper);
    if is_private(&proper, uid) {
        return Ok(proper);
    }
    if let Some(dir) = makeshift_directories(uid).into_iter().next() {
        return Ok(dir);
    }
    Ok(mkdtemp(format!("/tmp/nfsrdma-{uid}-XXXXXX").as_str())?)
}

/// Keeps other processes from changing names in a directory, until the result is closed.
fn lock(dir: &Path) -> io::Result<File> {
    let dir = File::open(dir)?;
    flock(&dir, FlockOperation::LockExclusive)?;
    Ok(dir)
}

/// The name of a socket at which this process listens. Dropping it removes the name, unless another
/// process has taken the name since.
#[derive(Debug)]
pub(crate) struct Name {
    path: PathBuf,
    inode: u64,
}

impl Name {
    fn is_own(&self) -> bool {
        fs::symlink_metadata(&self.path).is_ok_and(|found| found.ino() == self.inode)
    }

    /// Whether the name is gone, without another process having taken it: at the end of a user's last
    /// session /run/user/UID goes, and the mount stays.
    pub(crate) fn is_missing(&self) -> bool {
        let found = fs::symlink_metadata(&self.path);
        found.is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
    }

    fn dir(&self) -> &Path {
        self.path.parent().unwrap_or(Path::new("/"))
    }

    /// Renames the socket to `name`. False if another process has taken the old name since.
    pub(crate) fn rename(&mut self, name: &str) -> io::Result<bool> {
        let _lock = lock(self.dir())?;
        if !self.is_own() {
            return Ok(false);
        }
        let path = self.dir().join(name);
        fs::rename(&self.path, &path)?;
        self.path = path;
        Ok(true)
    }
}

impl Drop for Name {
    fn drop(&mut self) {
        if let Ok(_lock) = lock(self.dir())
            && self.is_own()
        {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Listens at `name`, which replaces the socket of an earlier process.
pub(crate) fn listen(name: &str) -> io::Result<(UnixListener, Name)> {
    let dir = own_directory()?;
    let fresh = dir.join(format!(".{name}.{}", std::process::id()));
    let path = dir.join(name);
    let _lock = lock(&dir)?;
    let _ = fs::remove_file(&fresh);
    let listener = UnixListener::bind(&fresh)?;
    let bound = (|| {
        fs::set_permissions(&fresh, Permissions::from_mode(0o600))?;
        let inode = fs::symlink_metadata(&fresh)?.ino();
        fs::rename(&fresh, &path)?;
        Ok(inode)
    })();
    match bound {
        Ok(inode) => Ok((listener, Name { path, inode })),
        Err(error) => {
            let _ = fs::remove_file(&fresh);
            Err(error)
        }
    }
}

/// Listens on at the socket `name` of a process that has ended.
pub(crate) fn listen_on(listener: OwnedFd, name: &str) -> io::Result<(UnixListener, Name)> {
    // Who connects is told (SO_PEERCRED) who has called this last.
    rustix::net::listen(&listener, BACKLOG)?;
    let listener = UnixListener::from(listener);
    // It was bound by another name in the same directory.
    let bound = listener.local_addr()?;
    let dir = bound.as_pathname().and_then(Path::parent);
    let path = dir.ok_or(io::ErrorKind::NotFound)?.join(name);
    let inode = fs::symlink_metadata(&path)?.ino();
    Ok((listener, Name { path, inode }))
}

/// The sockets whose names begin with `prefix` and end with `suffix`, at most `most`: those of this
/// user, or of all users for root, its own first: of another user's it may not see all. Each has its
/// name without the suffix, and its owner as [`connect`] takes it.
pub(crate) fn names(prefix: &str, suffix: &str, most: usize) -> Vec<(String, Option<u32>)> {
    let own = geteuid().as_raw();
    let mut owners = vec![own];
    if own == 0 {
        let users = fs::read_dir("/run/user").into_iter().flatten();
        let users = users.take(MOST_ENTRIES).filter_map(Result::ok);
        owners.extend(users.filter_map(|user| user.file_name().to_str()?.parse::<u32>().ok()));
        // Sorted by number, because root may have a directory in /run/user, too. Root comes first.
        owners.sort_unstable();
        owners.dedup();
    }
    let mut found = Vec::new();
    for owner in owners {
        let proper = Some(proper_directory(owner)).filter(|dir| is_private(dir, owner));
        for dir in proper.into_iter().chain(makeshift_directories(owner)) {
            let entries = fs::read_dir(&dir).into_iter().flatten();
            let entries = entries.take(MOST_ENTRIES).filter_map(Result::ok);
            let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
            let names = names.filter(|name| name.starts_with(prefix));
            let mut names: Vec<_> = names
                .filter_map(|name| Some(name.strip_suffix(suffix)?.to_owned()))
                .collect();
            names.sort();
            let owner = (owner != 0).then_some(owner);
            found.extend(names.into_iter().map(|name| (name, owner)));
        }
    }
    found.truncate(most);
    found
}

/// Connects to the socket `name` of a mount that `owner` made (`None` for root). Fails with
/// PermissionDenied if this user may not.
pub(crate) fn connect(name: &str, owner: Option<u32>) -> io::Result<UnixStream> {
    let owner = owner.unwrap_or(0);
    let uid = geteuid().as_raw();
    if uid != 0 && uid != owner {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    let mut dirs = vec![proper_directory(owner)];
    dirs.retain(|dir| is_private(dir, owner));
    let found = |dirs: &[PathBuf]| {
        let mut paths = dirs.iter().map(|dir| dir.join(name));
        paths.find(|path| fs::symlink_metadata(path).is_ok_and(|at| at.file_type().is_socket()))
    };
    let path = found(&dirs)
        .or_else(|| found(&makeshift_directories(owner)))
        .ok_or(io::ErrorKind::NotFound)?;
    let stream = connect_within(&path, QUEUE)?;
    let peer = getsockopt(&stream, sockopt::PeerCredentials)?.uid();
    if peer != 0 && peer != owner {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    Ok(stream)
}

/// The ID of the process that listens at the other end, if it is in this PID namespace.
pub(crate) fn peer(stream: &UnixStream) -> Option<i32> {
    let peer = getsockopt(stream, sockopt::PeerCredentials).ok()?;
    Some(peer.pid()).filter(|&pid| pid > 0)
}

/// connect(2), but with a time limit on waiting for room in a full queue.
fn connect_within(path: &Path, limit: Duration) -> io::Result<UnixStream> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let socket = socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
    let address = UnixAddr::new(path)?;
    let begin = Instant::now();
    loop {
        match connect_socket(socket.as_raw_fd(), &address) {
            Ok(()) => break,
            Err(Errno::EAGAIN) if begin.elapsed() < limit => {
                std::thread::sleep(Duration::from_millis(10));
            }
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    let stream = UnixStream::from(socket);
    stream.set_nonblocking(false)?;
    Ok(stream)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own() -> Option<u32> {
        Some(geteuid().as_raw())
    }

    #[test]
    fn a_name_is_replaced_and_only_the_last_owner_removes_it() {
        let name = format!("test-{}.names", std::process::id());
        assert!(connect(&name, own()).is_err());
        let (_listener, first) = listen(&name).unwrap();
        connect(&name, own()).unwrap();
        let (listener, mut second) = listen(&name).unwrap();
        drop(first);
        connect(&name, own()).unwrap();
        listener.accept().unwrap();
        let other = format!("test-{}.renamed", std::process::id());
        assert!(second.rename(&other).unwrap());
        assert!(connect(&name, own()).is_err());
        connect(&other, own()).unwrap();
        drop(second);
        assert!(connect(&other, own()).is_err());
    }

    #[test]
    fn a_successor_listens_on() {
        let name = format!("test-{}.kept", std::process::id());
        let (listener, first) = listen(&name).unwrap();
        let early = connect(&name, own()).unwrap();
        let kept = OwnedFd::from(listener.try_clone().unwrap());
        // As if it was killed.
        drop(listener);
        std::mem::forget(first);
        let between = connect(&name, own()).unwrap();
        let (listener, second) = listen_on(kept, &name).unwrap();
        let late = connect(&name, own()).unwrap();
        for client in [early, between, late] {
            drop(listener.accept().unwrap());
            assert_eq!(peer(&client), Some(std::process::id() as i32));
        }
        drop(second);
        assert!(connect(&name, own()).is_err());
    }

    #[test]
    fn a_full_queue_is_not_waited_for() {
        let name = format!("test-{}.queue", std::process::id());
        let (_listener, own_name) = listen(&name).unwrap();
        let mut held = Vec::new();
        let error = loop {
            match connect_within(&own_name.path, Duration::ZERO) {
                Ok(stream) => held.push(stream),
                Err(error) => break error,
            }
            if held.len() > 100_000 {
                return;
            }
        };
        // Where the queue is long, the process may run out of descriptors first.
        assert!(
            error.kind() == io::ErrorKind::WouldBlock || error.raw_os_error() == Some(libc::EMFILE),
            "{error}"
        );
    }

    #[test]
    fn directories_others_can_enter_are_not_trusted() {
        assert!(!is_private(Path::new("/"), 0));
        assert!(!is_private(Path::new("/tmp"), 0));
        assert!(!is_private(Path::new("/no/such/place"), 0));
    }
}
