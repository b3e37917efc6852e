//! Opens files that the user names, to write to them, possibly as root in a directory where others
//! may put links.

use rustix::fs::{CWD, Mode, OFlags, fstat, fstatfs, openat, readlinkat};
use rustix::io::Errno;
use rustix::process::geteuid;
use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Most links that are followed, as in path_resolution(7).
const MOST_LINKS: usize = 40;

/// Opens `path`. Symbolic links there are followed only if they belong to this user or to root, so
/// that nobody else leads the writer to a file of his choice (as fs.protected_symlinks of proc(5),
/// in every directory).
pub(crate) fn open(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    let mut path = path.to_owned();
    for _ in 0..MOST_LINKS {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let there = match openat(CWD, &path, flags, Mode::empty()) {
            Err(Errno::NOENT) => break,
            there => there?,
        };
        let stat = fstat(&there)?;
        if rustix::fs::FileType::from_raw_mode(stat.st_mode) != rustix::fs::FileType::Symlink {
            break;
        }
        if stat.st_uid != 0 && stat.st_uid != geteuid().as_raw() {
            return Err(io::Error::new(
                io::ErrorKind::PermissionDenied,
                "it is a symbolic link of another user",
            ));
        }
        // The text of a link like /proc/self/fd/1 is no path. Nobody else can put one there.
        if fstatfs(&there)?.f_type == rustix::fs::PROC_SUPER_MAGIC {
            return options.open(&path);
        }
        let target = OsString::from_vec(readlinkat(&there, "", Vec::new())?.into_bytes());
        path = path.parent().unwrap_or(Path::new("")).join(target);
    }
    // A link that was put there meanwhile is an error, too.
    options.custom_flags(libc::O_NOFOLLOW).open(&path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{lchown, symlink};

    #[test]
    fn only_own_links_are_followed() {
        let dir = std::env::temp_dir().join(format!("nfsrdma-links-{}", std::process::id()));
        std::fs::create_dir(&dir).unwrap();
        let open = |name: &str| {
            open(
                &dir.join(name),
                OpenOptions::new().append(true).create(true),
            )
        };
        symlink("b", dir.join("a")).unwrap();
        symlink(dir.join("c"), dir.join("b")).unwrap();
        symlink("loop", dir.join("loop")).unwrap();
        let own = (open("a").map(drop), dir.join("c").is_file());
        let looped = open("loop").map(drop);
        // Only root can make a link of another user.
        let foreign = geteuid().is_root().then(|| {
            lchown(dir.join("b"), Some(65534), None).unwrap();
            std::fs::remove_file(dir.join("c")).unwrap();
            (open("a").unwrap_err().kind(), dir.join("c").exists())
        });
        std::fs::remove_dir_all(&dir).unwrap();
        assert!(own.0.is_ok() && own.1);
        assert!(looped.is_err());
        assert!(foreign.is_none_or(|said| said == (io::ErrorKind::PermissionDenied, false)));
        super::open(
            Path::new("/proc/self/fd/2"),
            OpenOptions::new().append(true),
        )
        .unwrap();
    }
}
