//! Makes the FUSE mount: by mount(2) where that is permitted, and otherwise by `fusermount3`, which
//! is set-user-id. Both make a mount of type `fuse.nfsrdma` whose source is the export.

use crate::failure::{Exit, Failure};
use crate::holder::protocol::{self, Received};
use crate::mount::apart::{Apart, mount_apart};
use crate::mount::mount_point::MountPoint;
use crate::mounts::FSTYPE;
use crate::options::{AccessTime, Options, Permissions, VfsFlags};
use crate::output::without_number;
use rustix::io::{Errno, FdFlags, fcntl_setfd};
use rustix::mount::{MountFlags, mount};
use rustix::net::RecvFlags;
use rustix::process::{getegid, geteuid};
use std::ffi::{CString, OsStr};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use tracing::debug;

pub(crate) const DEVICE: &str = "/dev/fuse";
const HELPER: &str = "fusermount3";

/// Whether other users may use the mount: as the options say, and by default if root mounts.
pub(crate) fn allow_other(options: &Options) -> bool {
    options.allow_other.unwrap_or_else(|| geteuid().is_root())
}

/// Who checks permissions. By default this is the kernel if other users may use the mount, and the server does not look
/// for itself who calls: under Kerberos it may know a user by another number than this machine.
/// Otherwise it is the server: there is nobody to protect files from, and the server may permit the
/// user more than the modes show (ACLs, `all_squash`).
pub(crate) fn permissions(options: &Options) -> Permissions {
    options
        .permissions
        .unwrap_or(match allow_other(options) && !options.has_kerberos() {
            true => Permissions::Kernel,
            false => Permissions::Server,
        })
}

/// Whether the kernel has to check modes.
fn default_permissions(options: &Options) -> bool {
    permissions(options) == Permissions::Kernel
}

/// The flags of mount(2).
pub(crate) fn flags(vfs: &VfsFlags) -> MountFlags {
    let mut flags = MountFlags::empty();
    for (on, flag) in [
        (vfs.read_only, MountFlags::RDONLY),
        (!vfs.suid, MountFlags::NOSUID),
        (!vfs.dev, MountFlags::NODEV),
        (!vfs.exec, MountFlags::NOEXEC),
        (vfs.sync, MountFlags::SYNCHRONOUS),
        (vfs.dirsync, MountFlags::DIRSYNC),
        (
            vfs.access_time == AccessTime::Always,
            MountFlags::STRICTATIME,
        ),
        (vfs.access_time == AccessTime::Never, MountFlags::NOATIME),
        (!vfs.dir_access_time, MountFlags::NODIRATIME),
        (!vfs.symfollow, MountFlags::NOSYMFOLLOW),
    ] {
        if on {
            flags |= flag;
        }
    }
    flags
}

/// The directory exists if the kernel has SELinux.
const SELINUX: &str = "/sys/fs/selinux";

/// The security contexts for the data of mount(2). They are left out, as mount(8) does, if there is
/// no SELinux, because then the kernel refuses them as unknown.
fn security_contexts(options: &Options) -> &[String] {
    match Path::new(SELINUX).join("enforce").exists() {
        true => &options.security_contexts,
        false => &[],
    }
}

/// Opens the FUSE device. It is opened early, since nothing works without it.
pub(crate) fn open_device(path: &Path) -> Result<File, Failure> {
    let device = path.display();
    OpenOptions::new()
        .read(true)
        .write(true)
        .open(path)
        .map_err(|error| {
            Failure::new(
                Exit::System,
                match error.raw_os_error() {
                    Some(libc::ENOENT) => format!(
                        "{device} is missing: load the module with 'modprobe fuse', or give the container --device /dev/fuse"
                    ),
                    Some(libc::ENODEV | libc::ENXIO) => format!(
                        "the kernel has no FUSE behind {device}: load the module with 'modprobe fuse'"
                    ),
                    Some(libc::EACCES | libc::EPERM) => format!(
                        "not permitted to open {device}: give the container --device /dev/fuse, or make the device readable and writable"
                    ),
                    _ => format!(
                        "cannot open {device}: {}; see 'ls -l {device}'",
                        crate::output::without_number(&error)
                    ),
                },
            )
        })
}

/// Mounts on `point`, and returns the descriptor by which to serve the mount; or, if the kernel checks ACLs and it can be
/// done, mounts apart from it.
pub(crate) fn attach(
    point: &MountPoint,
    source: &[u8],
    options: &Options,
    checks_acls: bool,
) -> Result<(OwnedFd, Option<Apart>), Failure> {
    let device = open_device(Path::new(DEVICE))?;
    // Mount by descriptor, so that nobody can change what the path leads to after the check.
    let directory = point.open()?;
    let target = format!("/proc/self/fd/{}", directory.as_raw_fd());
    let dir = &point.path;
    let mut data = format!(
        "fd={},rootmode=40000,user_id={},group_id={}",
        device.as_raw_fd(),
        geteuid().as_raw(),
        getegid().as_raw()
    );
    if allow_other(options) {
        data.push_str(",allow_other");
    }
    if default_permissions(options) {
        data.push_str(",default_permissions");
    }
    for context in security_contexts(options) {
        data.push(',');
        data.push_str(context);
    }
    let flags = flags(&options.vfs);
    let refused = |errno| refusal(errno, dir);
    let data = CString::new(data).map_err(|_| refused(Errno::INVAL))?;
    if checks_acls {
        let copy = directory.try_clone().map_err(|_| refused(Errno::MFILE))?;
        match mount_apart(copy, source, flags, &data) {
            Ok(apart) => return Ok((device.into(), Some(apart))),
            Err(error) => debug!("the kernel will ask for the root's ACL each time: {error}"),
        }
    }
    match mount(source, target, FSTYPE, flags, data.as_c_str()) {
        Ok(()) => Ok((device.into(), None)),
        Err(Errno::PERM) => Ok((by_helper(dir, source, options)?, None)),
        Err(errno) => Err(refused(errno)),
    }
}

fn refusal(errno: Errno, dir: &Path) -> Failure {
    let message = match errno {
        Errno::NODEV => "the kernel has no FUSE: load the module with 'modprobe fuse'".into(),
        _ => format!(
            "cannot mount on {}: {}; choose another directory",
            dir.display(),
            without_number(&errno.into())
        ),
    };
    Failure::new(Exit::System, message)
}

/// The value of `fusermount3 -o`. Commas and backslashes of the source are escaped.
fn helper_options(source: &[u8], options: &Options) -> Vec<u8> {
    let mut text = b"fsname=".to_vec();
    for &byte in source {
        if matches!(byte, b',' | b'\\') {
            text.push(b'\\');
        }
        text.push(byte);
    }
    text.extend_from_slice(b",subtype=nfsrdma");
    let vfs = &options.vfs;
    // fusermount3 itself adds nosuid and nodev.
    for (on, name) in [
        (vfs.read_only, "ro"),
        (!vfs.exec, "noexec"),
        (vfs.sync, "sync"),
        (vfs.dirsync, "dirsync"),
        (vfs.access_time == AccessTime::Never, "noatime"),
        (allow_other(options), "allow_other"),
        (default_permissions(options), "default_permissions"),
    ] {
        if on {
            text.push(b',');
            text.extend_from_slice(name.as_bytes());
        }
    }
    text
}

fn by_helper(dir: &Path, source: &[u8], options: &Options) -> Result<OwnedFd, Failure> {
    let failed = |message: String| Failure::new(Exit::System, message);
    if !options.vfs.symfollow {
        return Err(Failure::usage(format!(
            "nosymfollow cannot be honoured: {HELPER} does not know it; mount as root"
        )));
    }
    let (ours, theirs) =
        UnixStream::pair().map_err(|error| failed(format!("cannot talk to {HELPER}: {error}")))?;
    let mut command = Command::new(HELPER);
    command
        .arg("-o")
        .arg(OsStr::from_bytes(&helper_options(source, options)))
        .arg("--")
        .arg(dir)
        .env("_FUSE_COMMFD", theirs.as_raw_fd().to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    let number = theirs.as_raw_fd();
    // SAFETY: between fork and exec this makes one fcntl call on a descriptor that is open in
    // the child, which is async-signal-safe.
    unsafe {
        command.pre_exec(move || {
            // SAFETY: `theirs` is open until the helper was started.
            let fd = std::os::fd::BorrowedFd::borrow_raw(number);
            Ok(fcntl_setfd(fd, FdFlags::empty())?)
        });
    }
    let child = command.spawn().map_err(|error| {
        failed(match error.kind() {
            io::ErrorKind::NotFound => format!(
                "mounting needs root, or {HELPER}, which is not installed: install the package fuse3"
            ),
            _ => format!("cannot run {HELPER}: {error}"),
        })
    })?;
    drop(command);
    drop(theirs);
    let received = protocol::receive(&ours, RecvFlags::empty()).and_then(Received::descriptor);
    drop(ours);
    let output = child
        .wait_with_output()
        .map_err(|error| failed(format!("{HELPER}: {error}")))?;
    match received {
        Ok(fd) => Ok(fd),
        Err(error) => Err(helper_failure(
            &String::from_utf8_lossy(&output.stderr),
            &error,
            dir,
        )),
    }
}

/// The error for a failure of the helper, from its message, with the remedy.
fn helper_failure(said: &str, error: &io::Error, dir: &Path) -> Failure {
    let dir = dir.display();
    let said = said.trim();
    let message = if said.contains("user_allow_other") {
        "not permitted to mount with allow_other: write user_allow_other into /etc/fuse.conf, or leave the option out".into()
    } else if said.contains("no write access to mountpoint") || said.contains("user has no write") {
        format!("not permitted to mount on {dir}: choose a directory that you own and may write to")
    } else if said.contains("too many FUSE filesystems") {
        "too many FUSE mounts: raise mount_max in /etc/fuse.conf".into()
    } else if said.contains("Operation not permitted") || said.contains("Permission denied") {
        format!(
            "not permitted to mount on {dir}: be root, or in a container add --cap-add SYS_ADMIN ({said})"
        )
    } else if said.is_empty() {
        format!("{HELPER} failed: {error}")
    } else {
        format!("{HELPER} failed: {}", said.replace('\n', "; "))
    };
    Failure::usage(message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_of_the_helper() {
        let options = Options::parse("ro,noexec,noatime,noallow_other,sync").unwrap();
        assert_eq!(
            String::from_utf8(helper_options(br"s:/a,b\c", &options)).unwrap(),
            r"fsname=s:/a\,b\\c,subtype=nfsrdma,ro,noexec,sync,noatime"
        );
    }

    #[test]
    fn words_of_the_helper() {
        let said =
            |text: &str| helper_failure(text, &io::Error::other("gone"), Path::new("/m")).message;
        assert!(
            said("fusermount3: option allow_other only allowed if 'user_allow_other' is set in /etc/fuse.conf\n")
                .contains("write user_allow_other into /etc/fuse.conf")
        );
        assert!(
            said("fusermount3: user has no write access to mountpoint /m\n")
                .contains("choose a directory that you own")
        );
        assert!(said("fusermount3: mount failed: Operation not permitted\n").contains("SYS_ADMIN"));
        assert_eq!(said(""), "fusermount3 failed: gone");
    }
}
