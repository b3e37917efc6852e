//! What commands ask of the table of mounts.

use crate::failure::Failure;
use crate::options::mount_source::MountSource;
use crate::output::{is_obeyed, without_number};
pub use nfsrdma_mountinfo::{FSTYPE, Mount, all, on_top_of, unescape};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

/// The line that says that `of`, whose process has ended, was replaced. It names the other
/// mounts of `table` that go with it, and those of the same file system.
pub(crate) fn replaced(of: &Mount, table: &[Mount]) -> String {
    let dir = of.dir.display();
    let source = of.source.to_string_lossy();
    let mut line = format!(
        "the program of the mount of {source} on {dir} had ended (its log says why): took that dead mount away"
    );
    // A mount comes after those that it is in.
    let later = table.iter().skip_while(|mount| mount.id != of.id).skip(1);
    let below: Vec<&Mount> = later
        .filter(|mount| mount.dir.starts_with(&of.dir) && mount.dir != of.dir)
        .collect();
    let others: Vec<&Mount> = table
        .iter()
        .filter(|mount| mount.device == of.device && mount.id != of.id)
        .filter(|mount| !below.contains(mount))
        .collect();
    let names = |mounts: &[&Mount]| {
        let names = mounts.iter().map(|mount| mount.dir.display().to_string());
        names.collect::<Vec<_>>().join(", ")
    };
    if !below.is_empty() {
        line += &format!(
            "; with it went what was mounted on {}: mount that again",
            names(&below)
        );
    }
    if !others.is_empty() {
        line += &format!(
            "; its file system is dead on {}, too: unmount that",
            names(&others)
        );
    }
    line
}

/// Encodes a field for getmntent(3): blanks and backslashes become octal escapes, and so does what a
/// terminal would obey.
pub fn escape(field: &[u8]) -> Vec<u8> {
    escape_where(field, |c| matches!(c, ' ' | '\\') || is_obeyed(c))
}

/// Encodes what a terminal would obey in a field that is encoded already.
pub(crate) fn escape_obeyed(field: &[u8]) -> Vec<u8> {
    escape_where(field, is_obeyed)
}

/// Writes the bytes of some characters, and those that are not UTF-8, as octal escapes.
fn escape_where(field: &[u8], is_escaped: impl Fn(char) -> bool) -> Vec<u8> {
    let mut escaped = Vec::with_capacity(field.len());
    let octal = |to: &mut Vec<u8>, bytes: &[u8]| {
        for byte in bytes {
            to.extend_from_slice(format!("\\{byte:03o}").as_bytes());
        }
    };
    for chunk in field.utf8_chunks() {
        for c in chunk.valid().chars() {
            let mut bytes = [0; 4];
            let bytes = c.encode_utf8(&mut bytes).as_bytes();
            match is_escaped(c) {
                true => octal(&mut escaped, bytes),
                false => escaped.extend_from_slice(bytes),
            }
        }
        octal(&mut escaped, chunk.invalid());
    }
    escaped
}

/// Those of this program.
pub fn ours() -> io::Result<Vec<Mount>> {
    let mut ours = all()?;
    ours.retain(|mount| mount.fstype == FSTYPE);
    Ok(ours)
}

/// Resolves symbolic links of `dir`, without touching a mount there, which may not answer.
pub fn resolve(dir: &Path) -> io::Result<PathBuf> {
    match dir.components().next_back() {
        Some(Component::Normal(name)) => {
            let parent = match dir.parent() {
                Some(parent) if !parent.as_os_str().is_empty() => parent,
                _ => Path::new("."),
            };
            let resolved = parent.canonicalize()?.join(name);
            if on_top_of(&resolved)?.is_some() {
                return Ok(resolved);
            }
            dir.canonicalize()
        }
        _ => dir.canonicalize(),
    }
}

/// The mount of this program on `dir`, and its path without symbolic links. The error says what is
/// there instead, and where this program has mounts.
pub fn find(dir: &Path) -> Result<(PathBuf, Mount), Failure> {
    let shown = dir.display();
    let path = match resolve(dir) {
        Ok(path) => path,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return match MountSource::parse(dir.as_os_str()) {
                Ok(source) => of_source(&source),
                Err(_) => Err(not_ours(format!("{shown} does not exist"))),
            };
        }
        Err(error) if error.raw_os_error() == Some(libc::ENOTCONN) => {
            return Err(Failure::failed(format!(
                "{shown} is inside a mount whose program has ended: 'nfsrdma umount' takes that away"
            )));
        }
        Err(error) => {
            let why = without_number(&error);
            return Err(Failure::failed(format!(
                "cannot look at {shown}: {why}; check the permissions of its path"
            )));
        }
    };
    let table = |error: io::Error| {
        Failure::failed(format!(
            "cannot read the table of mounts: {error}; mount /proc"
        ))
    };
    match on_top_of(&path).map_err(table)? {
        Some(mount) if mount.fstype == FSTYPE => Ok((path, mount)),
        Some(mount) if matches!(mount.fstype.as_str(), "nfs" | "nfs4") => {
            Err(Failure::usage(format!(
                "{shown} is a mount of the kernel's NFS client, not of nfsrdma: \
             use mount(8), umount(8) and nfsstat(8) for it"
            )))
        }
        Some(mount) => Err(not_ours(format!(
            "{shown} is not an nfsrdma mount but one of type {}",
            mount.fstype
        ))),
        None => match inside(&path).map_err(table)? {
            Some(point) => Err(Failure::usage(format!(
                "{shown} is inside the nfsrdma mount on {0}: give {0}",
                point.display()
            ))),
            None => Err(not_ours(format!("{shown} is not an nfsrdma mount"))),
        },
    }
}

/// The mount of this program that has `dir` in it, and the path of `dir` without symbolic links.
pub(crate) fn containing(dir: &Path) -> Result<(PathBuf, Mount), Failure> {
    let other = match find(dir) {
        Err(other) => other,
        found => return found,
    };
    let within = || {
        let path = dir.canonicalize().ok()?;
        let point = inside(&path).ok()??;
        Some((path, on_top_of(&point).ok()??))
    };
    within().ok_or(other)
}

/// The mount of this source, which umount(8) takes in place of a directory, too.
fn of_source(source: &MountSource) -> Result<(PathBuf, Mount), Failure> {
    let wanted = source.source();
    let mut found = all().unwrap_or_default();
    found.retain(|mount| mount.fstype == FSTYPE && mount.source.as_bytes() == wanted);
    match &found[..] {
        [] => Err(not_ours(format!("{source} is not mounted"))),
        [mount] => Ok((mount.dir.clone(), mount.clone())),
        several => {
            let dirs: Vec<_> = several
                .iter()
                .map(|mount| mount.dir.display().to_string())
                .collect();
            Err(Failure::usage(format!(
                "{source} is mounted on {}: give the directory",
                dirs.join(", ")
            )))
        }
    }
}

/// The mount of this program that contains `path`, which is not a mount point itself.
fn inside(path: &Path) -> io::Result<Option<PathBuf>> {
    let all = all()?;
    for dir in path.ancestors().skip(1) {
        if let Some(mount) = all.iter().rev().find(|mount| mount.dir == dir) {
            let ours = mount.fstype == FSTYPE;
            return Ok(ours.then(|| mount.dir.clone()));
        }
    }
    Ok(None)
}

/// Most mount points that a message lists.
const LISTED: usize = 4;

fn not_ours(what: String) -> Failure {
    let ours = ours().unwrap_or_default();
    let mut dirs: Vec<String> = ours
        .iter()
        .map(|mount| mount.dir.display().to_string())
        .collect();
    dirs.sort();
    dirs.dedup();
    let more = dirs.len() > LISTED;
    dirs.truncate(LISTED);
    Failure::usage(match dirs.is_empty() {
        true => {
            format!("{what}, and nothing is mounted by nfsrdma here: see 'findmnt -t {FSTYPE}'")
        }
        false => format!(
            "{what}: nfsrdma mounts are on {}{}",
            dirs.join(", "),
            if more {
                " and elsewhere: see findmnt"
            } else {
                ""
            }
        ),
    })
}
