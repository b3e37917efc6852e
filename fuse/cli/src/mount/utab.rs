//! Entries for umount(8) in /run/mount/utab, libmount's table of what the kernel does not keep.
//!
//! Without an entry, umount(8) asks statfs(2) for the type, which is `fuse`, looks for a helper
//! `umount.fuse`, and calls umount(2) itself. With an entry, it reads the type `fuse.nfsrdma` from
//! /proc/self/mountinfo and runs `umount.fuse.nfsrdma`, which waits for the flush and reports lost
//! data. The entry has the option `_netdev`, which makes systemd unmount before the network goes
//! down. mount(8) writes an entry only if it was given such options.
//!
//! The format is that of libmount: one line for each mount, with fields separated by blanks and
//! octal escapes. A change writes a new file while `utab.lock` is locked. Where the table cannot be
//! written (no root, no /run), there is no entry. The mount is then kept busy while it has
//! unwritten data, so that umount(2) fails with EBUSY.

use crate::mounts::escape;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

const DIRECTORY: &str = "/run/mount";
const TABLE: &str = "/run/mount/utab";
const LOCK: &str = "/run/mount/utab.lock";
/// A table larger than this is not touched.
const LARGEST: u64 = 16 << 20;
/// How long to wait for the lock. Everybody who may read the file can lock it.
const PATIENCE: Duration = Duration::from_secs(2);

/// The table without the entries for `source` on `dir`.
fn without(table: &[u8], source: &[u8], dir: &[u8]) -> Vec<u8> {
    let source = [b"SRC=", &escape(source)[..]].concat();
    let target = [b"TARGET=", &escape(dir)[..]].concat();
    let is_ours = |line: &[u8]| {
        let has = |wanted: &[u8]| {
            line.split(|&b| b == b' ' || b == b'\n')
                .any(|f| f == wanted)
        };
        has(&source) && has(&target)
    };
    let lines = table.split_inclusive(|&byte| byte == b'\n');
    lines
        .filter(|line| !is_ours(line))
        .flatten()
        .copied()
        .collect()
}

/// The table with exactly one entry for `root` in `source` on `dir`.
fn with(table: &[u8], source: &[u8], root: &[u8], dir: &[u8]) -> Vec<u8> {
    let mut table = without(table, source, dir);
    if table.last().is_some_and(|&byte| byte != b'\n') {
        table.push(b'\n');
    }
    table.extend_from_slice(b"SRC=");
    table.extend(escape(source));
    table.extend_from_slice(b" TARGET=");
    table.extend(escape(dir));
    table.extend_from_slice(b" ROOT=");
    table.extend(escape(root));
    table.extend_from_slice(b" OPTS=_netdev\n");
    table
}

/// Replaces the table by the result of `change`, unless that is the same.
fn update(change: impl FnOnce(&[u8]) -> Vec<u8>) -> io::Result<()> {
    let lock = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o644)
        .open(LOCK)?;
    // The lock lasts until the file is closed.
    lock_within(&lock, PATIENCE)?;
    let table = match fs::symlink_metadata(TABLE) {
        Ok(found) if !found.is_file() || found.len() > LARGEST => {
            return Err(io::Error::other("it is no table"));
        }
        Ok(_) => fs::read(TABLE)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
        Err(error) => return Err(error),
    };
    let changed = change(&table);
    if changed == table {
        return Ok(());
    }
    let fresh = format!("{TABLE}.nfsrdma-{}", std::process::id());
    let mut file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .open(&fresh)?;
    let written = file
        .write_all(&changed)
        .and_then(|()| file.set_permissions(Permissions::from_mode(0o644)))
        .and_then(|()| fs::rename(&fresh, TABLE));
    if written.is_err() {
        let _ = fs::remove_file(&fresh);
    }
    written
}

/// Locks the file, unless another process keeps it locked for `limit`.
fn lock_within(file: &File, limit: Duration) -> io::Result<()> {
    let begin = Instant::now();
    loop {
        match flock(file, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) if begin.elapsed() < limit => {
                std::thread::sleep(Duration::from_millis(10));
            }
            Err(Errno::INTR) => {}
            result => return Ok(result?),
        }
    }
}

/// Adds an entry for the mount of `root` in `source` on `dir`.
pub(crate) fn add(source: &[u8], root: &Path, dir: &Path) -> io::Result<()> {
    let _ = DirBuilder::new().mode(0o755).create(DIRECTORY);
    update(|table| {
        with(
            table,
            source,
            root.as_os_str().as_bytes(),
            dir.as_os_str().as_bytes(),
        )
    })
}

/// Removes the entries for `source` on `dir`.
pub(crate) fn remove(source: &[u8], dir: &Path) -> io::Result<()> {
    if !Path::new(TABLE).exists() {
        return Ok(());
    }
    update(|table| without(table, source, dir.as_os_str().as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn entries_as_libmount_writes_them() {
        let other = b"SRC=/dev/sr0 TARGET=/cd ROOT=/ OPTS=uhelper=udisks2\n";
        let both = with(
            other,
            b"srv:/x y",
            b"/",
            Path::new("/mnt/a b").as_os_str().as_bytes(),
        );
        let text = String::from_utf8(both.clone()).unwrap();
        assert_eq!(
            text.lines().last(),
            Some(r"SRC=srv:/x\040y TARGET=/mnt/a\040b ROOT=/ OPTS=_netdev")
        );
        assert_eq!(with(&both, b"srv:/x y", b"/", b"/mnt/a b"), both);
        assert_eq!(without(&both, b"srv:/x y", b"/mnt/a b"), other);
        assert_eq!(without(&both, b"srv:/z", b"/mnt/a b"), both);
    }

    #[test]
    fn what_mount_8_wrote_for_it_goes_too() {
        let table = b"ID=40 SRC=s:/x TARGET=/m ROOT=/ OPTS=_netdev\n";
        assert_eq!(without(table, b"s:/x", b"/m"), b"");
    }

    proptest! {
        #[test]
        fn other_lines_stay(table: Vec<u8>) {
            let there = with(&table, b"s:/x", b"/", b"/m");
            prop_assert!(there.starts_with(&without(&table, b"s:/x", b"/m")));
        }
    }
}
