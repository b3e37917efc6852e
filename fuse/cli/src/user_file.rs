//! Opens files that the user names, to write to them, possibly as root in a directory where others
//! may put links.

use rustix::fs::{CWD, FileType, Mode, OFlags, fstat, fstatfs, openat, readlinkat};
use rustix::io::{Errno, retry_on_intr};
use rustix::process::geteuid;
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// Most links that are followed, as in path_resolution(7).
const MOST_LINKS: usize = 40;

/// Opens `path`. Symbolic links, in its directories as well, are followed only if they belong to this
/// user or to root, so that nobody else leads the writer to a file of his choice (as
/// fs.protected_symlinks of proc(5), which looks at the last name only, in sticky directories).
pub(crate) fn open(path: &Path, flags: OFlags, mode: Mode) -> io::Result<File> {
    let mut dir: Option<OwnedFd> = None;
    let mut rest = path.to_owned();
    let mut links = 0;
    loop {
        let at = dir.as_ref().map_or(CWD, AsFd::as_fd);
        let mut names = rest.components();
        let name = names
            .next()
            .map_or(OsString::new(), |name| name.as_os_str().to_owned());
        let behind = names.as_path().to_owned();
        let last = behind.as_os_str().is_empty();
        let look = |follow| {
            openat(
                at,
                &name,
                OFlags::PATH | OFlags::CLOEXEC | follow,
                Mode::empty(),
            )
        };
        let open =
            |follow| retry_on_intr(|| openat(at, &name, flags | OFlags::CLOEXEC | follow, mode));
        let there = match look(OFlags::NOFOLLOW) {
            Err(Errno::NOENT) if last => return Ok(open(OFlags::NOFOLLOW)?.into()),
            there => there?,
        };
        let next = match link(&there)? {
            // A link that was put there meanwhile is an error, too.
            Link::No if last => return Ok(open(OFlags::NOFOLLOW)?.into()),
            Link::No => there,
            Link::Kernels if last => return Ok(open(OFlags::empty())?.into()),
            Link::Kernels => look(OFlags::empty())?,
            Link::To(target) => {
                links += 1;
                if links > MOST_LINKS {
                    return Err(Errno::LOOP.into());
                }
                rest = target.join(behind);
                continue;
            }
        };
        dir = Some(next);
        rest = behind;
    }
}

enum Link {
    No,
    To(PathBuf),
    /// The text of a link like /proc/self/fd/1 is no path. Nobody else can put one there.
    Kernels,
}

/// What kind of link `there` is, if it is one that may be followed.
fn link(there: &OwnedFd) -> io::Result<Link> {
    let stat = fstat(there)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::Symlink {
        return Ok(Link::No);
    }
    if stat.st_uid != 0 && stat.st_uid != geteuid().as_raw() {
        return Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            "a symbolic link of another user leads there",
        ));
    }
    if fstatfs(there)?.f_type == rustix::fs::PROC_SUPER_MAGIC {
        return Ok(Link::Kernels);
    }
    let target = OsString::from_vec(readlinkat(there, "", Vec::new())?.into_bytes());
    Ok(Link::To(target.into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::create_dir;
    use std::os::unix::fs::{lchown, symlink};

    #[test]
    fn only_own_links_are_followed() {
        let dir = std::env::temp_dir().join(format!("nfsrdma-links-{}", std::process::id()));
        create_dir(&dir).unwrap();
        let flags = OFlags::APPEND | OFlags::WRONLY | OFlags::CREATE;
        let open = |name: &str| open(&dir.join(name), flags, 0o600.into()).map(drop);
        symlink("b", dir.join("a")).unwrap();
        symlink(dir.join("c"), dir.join("b")).unwrap();
        symlink("loop", dir.join("loop")).unwrap();
        create_dir(dir.join("real")).unwrap();
        symlink("real/../real", dir.join("way")).unwrap();
        let own = (open("a"), dir.join("c").is_file());
        let through = (open("way/d"), dir.join("real/d").is_file());
        let looped = open("loop");
        // Only root can make a link of another user.
        let foreign = geteuid().is_root().then(|| {
            for name in ["b", "way"] {
                lchown(dir.join(name), Some(65534), None).unwrap();
            }
            std::fs::remove_file(dir.join("c")).unwrap();
            let refused = ["a", "way/d", "way/new"].map(|name| open(name).unwrap_err().kind());
            (
                refused,
                dir.join("c").exists() || dir.join("real/new").exists(),
            )
        });
        std::fs::remove_dir_all(&dir).unwrap();
        assert!(own.0.is_ok() && own.1);
        assert!(through.0.is_ok() && through.1);
        assert!(looped.is_err());
        assert!(foreign.is_none_or(|said| said == ([io::ErrorKind::PermissionDenied; 3], false)));
        super::open(Path::new("/proc/self/fd/2"), flags, Mode::empty()).unwrap();
    }
}
