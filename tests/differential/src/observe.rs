//! The state of objects, as text that can be compared.
//!
//! Times are compared if a call has set them: such times are years away from now (`generate.rs`).
//! All others are shown as `now`, since two calls never happen at the same moment.

use crate::acl_attribute;
use crate::sys::{self, Sys};
use std::collections::HashMap;
use std::ffi::CString;
use std::fmt::Write;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

/// Times within this distance are shown as `now`, in seconds.
const NEAR: i64 = 100_000;

/// Most bytes of contents that are compared, since files may be sparse and huge.
pub(crate) const READ_MOST: usize = 2 << 20;

pub(crate) fn time(seconds: i64, nanoseconds: i64) -> String {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |d| d.as_secs() as i64);
    match (seconds - now).abs() < NEAR {
        true => "now".into(),
        false => format!("{seconds}.{nanoseconds:09}"),
    }
}

/// The name of an errno, or its number.
pub(crate) fn errno_name(errno: i32) -> String {
    let name = match errno {
        0 => "OK",
        libc::EPERM => "EPERM",
        libc::ENOENT => "ENOENT",
        libc::EIO => "EIO",
        libc::ENXIO => "ENXIO",
        libc::E2BIG => "E2BIG",
        libc::ENOEXEC => "ENOEXEC",
        libc::EBADF => "EBADF",
        libc::EAGAIN => "EAGAIN",
        libc::ENOMEM => "ENOMEM",
        libc::EACCES => "EACCES",
        libc::EFAULT => "EFAULT",
        libc::EBUSY => "EBUSY",
        libc::EEXIST => "EEXIST",
        libc::EXDEV => "EXDEV",
        libc::ENODEV => "ENODEV",
        libc::ENOTDIR => "ENOTDIR",
        libc::EISDIR => "EISDIR",
        libc::EINVAL => "EINVAL",
        libc::EMFILE => "EMFILE",
        libc::ENOTTY => "ENOTTY",
        libc::ETXTBSY => "ETXTBSY",
        libc::EFBIG => "EFBIG",
        libc::ENOSPC => "ENOSPC",
        libc::ESPIPE => "ESPIPE",
        libc::EROFS => "EROFS",
        libc::EMLINK => "EMLINK",
        libc::EPIPE => "EPIPE",
        libc::ERANGE => "ERANGE",
        libc::EDEADLK => "EDEADLK",
        libc::ENAMETOOLONG => "ENAMETOOLONG",
        libc::ENOLCK => "ENOLCK",
        libc::ENOSYS => "ENOSYS",
        libc::ENOTEMPTY => "ENOTEMPTY",
        libc::ELOOP => "ELOOP",
        libc::ENODATA => "ENODATA",
        libc::EOVERFLOW => "EOVERFLOW",
        libc::EOPNOTSUPP => "EOPNOTSUPP",
        libc::ESTALE => "ESTALE",
        libc::ECANCELED => "left out",
        libc::EDQUOT => "EDQUOT",
        libc::ENOTCONN => "ENOTCONN",
        _ => return format!("errno{errno}"),
    };
    name.into()
}

fn type_name(mode: u32) -> &'static str {
    match mode & libc::S_IFMT {
        libc::S_IFREG => "file",
        libc::S_IFDIR => "directory",
        libc::S_IFLNK => "symlink",
        libc::S_IFIFO => "fifo",
        libc::S_IFSOCK => "socket",
        libc::S_IFCHR => "char",
        libc::S_IFBLK => "block",
        _ => "other",
    }
}

/// The fields of `mask`. The size of a directory is left out, because servers choose it.
pub(crate) fn statx_line(stat: &libc::statx, mask: u32) -> String {
    let mode = u32::from(stat.stx_mode);
    let mut line = format!("type={}", type_name(mode));
    let mut field = |bit: u32, text: String| {
        if mask & bit != 0 {
            let _ = write!(line, " {text}");
        }
    };
    field(libc::STATX_MODE, format!("mode={:04o}", mode & 0o7777));
    field(libc::STATX_NLINK, format!("nlink={}", stat.stx_nlink));
    field(libc::STATX_UID, format!("uid={}", stat.stx_uid));
    field(libc::STATX_GID, format!("gid={}", stat.stx_gid));
    if mode & libc::S_IFMT != libc::S_IFDIR {
        field(libc::STATX_SIZE, format!("size={}", stat.stx_size));
    }
    let shown = |t: &libc::statx_timestamp| time(t.tv_sec, i64::from(t.tv_nsec));
    field(
        libc::STATX_ATIME,
        format!("atime={}", shown(&stat.stx_atime)),
    );
    field(
        libc::STATX_MTIME,
        format!("mtime={}", shown(&stat.stx_mtime)),
    );
    if matches!(mode & libc::S_IFMT, libc::S_IFCHR | libc::S_IFBLK) {
        let _ = write!(
            line,
            " rdev={}:{}",
            stat.stx_rdev_major, stat.stx_rdev_minor
        );
    }
    line
}

/// The state of an object, or the error of looking at it.
pub(crate) fn state(found: Sys<libc::statx>) -> String {
    match found {
        Ok(stat) => statx_line(&stat, libc::STATX_BASIC_STATS),
        Err(errno) => errno_name(errno),
    }
}

/// A text for bytes: their number, their checksum and their first runs.
pub(crate) fn bytes(data: &[u8]) -> String {
    let sum = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc64Nvme, data);
    let mut out = format!("{}:{sum:x}", data.len());
    for run in data.chunk_by(|a, b| a == b).take(4) {
        let _ = write!(out, ",{}*{}", run.len(), run[0]);
    }
    out
}

/// Whether it is a name of a removed open file, which a local file system does not need.
pub(crate) fn is_hidden(name: &[u8]) -> bool {
    name.starts_with(b".nfs")
}

/// A tree with one line for each name, and whether a directory has hidden names only.
#[derive(Debug, Default)]
pub(crate) struct Tree {
    pub(crate) lines: Vec<String>,
    pub(crate) hidden: usize,
    pub(crate) only_hidden: bool,
}

#[derive(Debug)]
struct Node {
    path: Vec<u8>,
    inode: u64,
    directory: bool,
    line: String,
    nlink: u64,
}

/// The tree below `root`, as this process sees it, including which names are links of one file.
/// Hidden names are left out. Links of hidden names, which the server counts, are subtracted if
/// `hidden_links` is set.
pub(crate) fn tree(root: &Path, hidden_links: bool) -> Tree {
    let mut out = Tree::default();
    let mut nodes = Vec::new();
    let mut hidden = HashMap::new();
    walk(root, b"", &mut nodes, &mut hidden, &mut out);
    nodes.sort_by(|a, b| a.path.cmp(&b.path));
    out.hidden = hidden.values().sum::<u64>() as usize;
    let mut first: HashMap<u64, usize> = HashMap::new();
    for (number, node) in nodes.iter().enumerate() {
        let same = *first.entry(node.inode).or_insert(number);
        let not_shown = hidden.get(&node.inode).copied().filter(|_| hidden_links);
        let links = node.nlink.saturating_sub(not_shown.unwrap_or(0));
        let mut line = format!("{} {}", node.path.escape_ascii(), node.line);
        if !node.directory {
            let _ = write!(
                line,
                " nlink={links} same={}",
                nodes[same].path.escape_ascii()
            );
        }
        out.lines.push(line);
    }
    out
}

fn walk(
    dir: &Path,
    below: &[u8],
    nodes: &mut Vec<Node>,
    hidden: &mut HashMap<u64, u64>,
    out: &mut Tree,
) {
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) => {
            let line = format!("cannot be read: {error}");
            nodes.push(Node {
                path: below.to_vec(),
                inode: 0,
                directory: true,
                line,
                nlink: 0,
            });
            return;
        }
    };
    let (mut shown, mut not_shown) = (0, 0);
    for entry in entries {
        let Ok(entry) = entry else {
            nodes.push(Node {
                path: below.to_vec(),
                inode: 0,
                directory: true,
                line: "a name cannot be read".into(),
                nlink: 0,
            });
            return;
        };
        let name = entry.file_name();
        let found = fs::symlink_metadata(entry.path());
        if is_hidden(name.as_bytes()) {
            not_shown += 1;
            if let Ok(stat) = found {
                *hidden.entry(stat.ino()).or_default() += 1;
            }
            continue;
        }
        shown += 1;
        let mut path = below.to_vec();
        if !path.is_empty() {
            path.push(b'/');
        }
        path.extend_from_slice(name.as_bytes());
        let stat = match found {
            Ok(stat) => stat,
            Err(error) => {
                nodes.push(Node {
                    path,
                    inode: 0,
                    directory: true,
                    line: error.to_string(),
                    nlink: 0,
                });
                continue;
            }
        };
        let line = describe(&entry.path(), &stat);
        let directory = stat.is_dir();
        nodes.push(Node {
            path: path.clone(),
            inode: stat.ino(),
            directory,
            line,
            nlink: stat.nlink(),
        });
        if directory {
            walk(&entry.path(), &path, nodes, hidden, out);
        }
    }
    out.only_hidden |= shown == 0 && not_shown > 0;
}

/// Describes an object of a tree in one line.
fn describe(path: &Path, stat: &fs::Metadata) -> String {
    let mode = stat.mode();
    let mut line = format!(
        "type={} mode={:04o} uid={} gid={} atime={} mtime={}",
        type_name(mode),
        mode & 0o7777,
        stat.uid(),
        stat.gid(),
        time(stat.atime(), stat.atime_nsec()),
        time(stat.mtime(), stat.mtime_nsec()),
    );
    if stat.is_file() {
        let _ = write!(line, " size={} data={}", stat.size(), contents(path));
    } else if stat.is_symlink() {
        let target = fs::read_link(path);
        let _ = match target {
            Ok(target) => write!(
                line,
                " target={}",
                target.as_os_str().as_bytes().escape_ascii()
            ),
            Err(error) => write!(line, " target={error}"),
        };
    } else if matches!(mode & libc::S_IFMT, libc::S_IFCHR | libc::S_IFBLK) {
        let _ = write!(line, " rdev={:x}", stat.rdev());
    }
    if !stat.is_symlink() {
        line += &lists(path);
    }
    line
}

/// The ACLs of an object, if it has any.
fn lists(path: &Path) -> String {
    let c_path = CString::new(path.as_os_str().as_bytes()).unwrap_or_default();
    let mut text = String::new();
    for (default, what) in [(false, "acl"), (true, "default")] {
        let mut out = vec![0; 1024];
        match sys::getxattr(&c_path, acl_attribute::attribute(default), &mut out) {
            Ok(n) => {
                let _ = write!(text, " {what}={}", bytes(&out[..n as usize]));
            }
            Err(libc::ENODATA | libc::EOPNOTSUPP) => {}
            Err(errno) => {
                let _ = write!(text, " {what}={}", errno_name(errno));
            }
        }
    }
    text
}

/// The contents, after an fsync has written data that a client holds.
fn contents(path: &Path) -> String {
    let mut c_path = path.as_os_str().as_bytes().to_vec();
    c_path.retain(|&byte| byte != 0);
    let c_path = CString::new(c_path).unwrap_or_default();
    let flags = libc::O_RDONLY | libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_CLOEXEC;
    let fd = match sys::openat(libc::AT_FDCWD, &c_path, flags, 0) {
        Ok(fd) => fd,
        Err(errno) => return errno_name(errno),
    };
    let text = sys::fsync(fd).and_then(|_| read_all(fd));
    let _ = sys::close(fd);
    match text {
        Ok(data) => bytes(&data),
        Err(errno) => errno_name(errno),
    }
}

/// The contents of a descriptor from its beginning on.
pub(crate) fn read_all(fd: i32) -> Sys<Vec<u8>> {
    let mut out = Vec::new();
    let mut buffer = vec![0; 128 << 10];
    while out.len() < READ_MOST {
        let n = sys::pread(fd, &mut buffer, out.len() as i64)? as usize;
        if n == 0 {
            break;
        }
        out.extend_from_slice(&buffer[..n]);
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_near_now_are_not_told_apart_and_others_are() {
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap()
            .as_secs() as i64;
        assert_eq!(time(now - 3, 5), time(now + 3, 7));
        assert_ne!(time(0, 5), time(0, 7));
    }

    #[test]
    fn bytes_that_differ_are_told_apart() {
        assert_ne!(bytes(&[0; 10]), bytes(&[0; 11]));
        assert_ne!(bytes(b"abcdefgh"), bytes(b"abcdefgi"));
    }
}
