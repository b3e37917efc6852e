//! Objects, names and attributes.

use crate::fill;
use crate::place::Place;
use crate::sys::{self, expect_errno};
use anyhow::{Context, Result, bail, ensure};
use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{
    FileExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink,
};
use std::path::Path;

pub(crate) fn objects(place: &Place) -> Result<()> {
    let dir = &place.mounted;
    fs::write(dir.join("file"), "contents")?;
    fs::create_dir(dir.join("dir"))?;
    symlink("file", dir.join("symlink"))?;
    fs::hard_link(dir.join("file"), dir.join("hard"))?;
    sys::mknod(&dir.join("fifo"), libc::S_IFIFO | 0o600, 0)?;
    sys::mknod(&dir.join("socket"), libc::S_IFSOCK | 0o600, 0)?;
    // SAFETY: has no precondition.
    let root = unsafe { libc::geteuid() } == 0;
    if root {
        sys::mknod(
            &dir.join("char"),
            libc::S_IFCHR | 0o600,
            libc::makedev(1, 3),
        )?;
        sys::mknod(
            &dir.join("block"),
            libc::S_IFBLK | 0o600,
            libc::makedev(7, 9),
        )?;
        let meta = fs::symlink_metadata(dir.join("char"))?;
        ensure!(
            meta.file_type().is_char_device(),
            "char is a character device"
        );
        ensure!(
            meta.rdev() == libc::makedev(1, 3),
            "device number {:x}",
            meta.rdev()
        );
        ensure!(
            fs::symlink_metadata(dir.join("block"))?
                .file_type()
                .is_block_device()
        );
    }
    ensure!(
        fs::symlink_metadata(dir.join("fifo"))?
            .file_type()
            .is_fifo()
    );
    ensure!(
        fs::symlink_metadata(dir.join("socket"))?
            .file_type()
            .is_socket()
    );
    let (a, b) = (
        fs::metadata(dir.join("file"))?,
        fs::metadata(dir.join("hard"))?,
    );
    ensure!(
        a.ino() == b.ino() && b.nlink() == 2,
        "a hard link is the same file"
    );
    fs::remove_file(dir.join("file"))?;
    fill::expect_same(&dir.join("hard"), b"contents")?;
    ensure!(
        fs::metadata(dir.join("hard"))?.nlink() == 1,
        "nlink after unlink"
    );
    expect_errno(
        "following the dangling link",
        fs::metadata(dir.join("symlink")),
        libc::ENOENT,
    )?;
    fs::rename(dir.join("hard"), dir.join("file"))?;
    fill::expect_same(&dir.join("symlink"), b"contents")?;
    ensure!(
        fs::metadata(dir)?.nlink() == 3,
        "a directory with one directory in it"
    );
    let mut names: Vec<_> = fs::read_dir(dir)?
        .map(|e| Ok(e?.file_name().into_string().expect("names made above")))
        .collect::<Result<_>>()?;
    names.sort();
    let mut expected = vec!["dir", "fifo", "file", "socket", "symlink"];
    if root {
        expected.extend(["block", "char"]);
        expected.sort();
    }
    ensure!(names == expected, "{names:?} instead of {expected:?}");
    if let Some(direct) = &place.direct {
        ensure!(
            fs::symlink_metadata(direct.join("fifo"))?
                .file_type()
                .is_fifo()
        );
        ensure!(fs::read_link(direct.join("symlink"))? == Path::new("file"));
    }
    Ok(())
}

pub(crate) fn errors(place: &Place) -> Result<()> {
    let dir = &place.mounted;
    fs::write(dir.join("file"), "x")?;
    fs::create_dir(dir.join("dir"))?;
    fs::write(dir.join("dir/inner"), "x")?;
    expect_errno(
        "opening nothing",
        File::open(dir.join("nothing")),
        libc::ENOENT,
    )?;
    expect_errno(
        "a path through a file",
        File::open(dir.join("file/x")),
        libc::ENOTDIR,
    )?;
    expect_errno(
        "mkdir over a file",
        fs::create_dir(dir.join("file")),
        libc::EEXIST,
    )?;
    expect_errno(
        "rmdir of a full directory",
        fs::remove_dir(dir.join("dir")),
        libc::ENOTEMPTY,
    )?;
    expect_errno(
        "rmdir of a file",
        fs::remove_dir(dir.join("file")),
        libc::ENOTDIR,
    )?;
    expect_errno(
        "unlink of a directory",
        fs::remove_file(dir.join("dir")),
        libc::EISDIR,
    )?;
    expect_errno(
        "writing a directory",
        OpenOptions::new().write(true).open(dir.join("dir")),
        libc::EISDIR,
    )?;
    expect_errno(
        "a long name",
        File::create(dir.join("n".repeat(256))),
        libc::ENAMETOOLONG,
    )?;
    expect_errno(
        "link over a file",
        fs::hard_link(dir.join("dir/inner"), dir.join("file")),
        libc::EEXIST,
    )?;
    expect_errno(
        "symlink over a file",
        symlink("x", dir.join("file")),
        libc::EEXIST,
    )?;
    expect_errno(
        "exclusive create of a file that is there",
        OpenOptions::new()
            .write(true)
            .create_new(true)
            .open(dir.join("file")),
        libc::EEXIST,
    )?;
    expect_errno(
        "a directory into itself",
        fs::rename(dir.join("dir"), dir.join("dir/inside")),
        libc::EINVAL,
    )?;
    expect_errno(
        "a directory over a file",
        fs::rename(dir.join("dir"), dir.join("file")),
        libc::ENOTDIR,
    )?;
    expect_errno(
        "a file over a directory",
        fs::rename(dir.join("file"), dir.join("dir")),
        libc::EISDIR,
    )?;
    // A negative entry must not outlive the creation of the object through the same mount.
    let late = dir.join("late");
    expect_errno(
        "stat of what is not yet there",
        fs::metadata(&late),
        libc::ENOENT,
    )?;
    fs::write(&late, "now")?;
    fill::expect_same(&late, b"now")?;
    fs::remove_file(&late)?;
    expect_errno("stat of what is gone", fs::metadata(&late), libc::ENOENT)
}

pub(crate) fn attributes(place: &Place) -> Result<()> {
    let path = place.mounted.join("file");
    fs::write(&path, fill::bytes(1, 10_000))?;
    let before = fs::metadata(&path)?;
    ensure!(before.len() == 10_000 && before.nlink() == 1 && before.is_file());
    for mode in [0o600, 0o644, 0o4755, 0o2755, 0o1777, 0o000, 0o640] {
        fs::set_permissions(&path, fs::Permissions::from_mode(mode))?;
        let got = fs::metadata(&path)?.mode() & 0o7777;
        ensure!(got == mode, "mode {got:o} after chmod {mode:o}");
    }
    sys::set_times(&path, (1_000_000_001, 5), (2_000_000_002, 999_999_999))?;
    let meta = fs::metadata(&path)?;
    ensure!(
        (meta.mtime(), meta.mtime_nsec()) == (2_000_000_002, 999_999_999),
        "mtime {}.{:09}",
        meta.mtime(),
        meta.mtime_nsec()
    );
    ensure!(
        (meta.atime(), meta.atime_nsec()) == (1_000_000_001, 5),
        "atime"
    );
    fs::write(&path, "changed")?;
    ensure!(
        fs::metadata(&path)?.mtime() < 2_000_000_000,
        "a write sets mtime to now"
    );
    let file = OpenOptions::new().read(true).write(true).open(&path)?;
    for size in [0u64, 1, 4096, 4097, 1_048_577, 5000, 100] {
        file.set_len(size)?;
        ensure!(
            file.metadata()?.len() == size && fs::metadata(&path)?.len() == size,
            "size {size}"
        );
        if let Some(direct) = &place.direct {
            ensure!(
                fs::metadata(direct.join("file"))?.len() == size,
                "size {size} at the server"
            );
        }
    }
    // SAFETY: has no precondition.
    if unsafe { libc::geteuid() } == 0 {
        std::os::unix::fs::chown(&path, Some(1234), Some(5678))?;
        let meta = fs::metadata(&path)?;
        ensure!(
            (meta.uid(), meta.gid()) == (1234, 5678),
            "owner after chown"
        );
        if let Some(direct) = &place.direct {
            let meta = fs::metadata(direct.join("file"))?;
            ensure!(
                (meta.uid(), meta.gid()) == (1234, 5678),
                "owner at the server"
            );
        }
    }
    Ok(())
}

pub(crate) fn rename(place: &Place) -> Result<()> {
    let dir = &place.mounted;
    fs::write(dir.join("a"), "a")?;
    fs::write(dir.join("b"), "b")?;
    fs::rename(dir.join("a"), dir.join("b"))?;
    place.same_everywhere("b", b"a")?;
    expect_errno("the old name", fs::metadata(dir.join("a")), libc::ENOENT)?;
    fs::create_dir_all(dir.join("one/two"))?;
    fs::write(dir.join("one/two/file"), "deep")?;
    fs::rename(dir.join("one/two"), dir.join("moved"))?;
    place.same_everywhere("moved/file", b"deep")?;
    fs::rename(dir.join("one"), dir.join("renamed"))?;
    ensure!(
        fs::read_dir(dir.join("renamed"))?.count() == 0,
        "the emptied directory is empty"
    );
    fs::create_dir(dir.join("empty"))?;
    fs::rename(dir.join("moved"), dir.join("empty"))?;
    place.same_everywhere("empty/file", b"deep")?;
    fs::create_dir(dir.join("full"))?;
    fs::write(dir.join("full/x"), "x")?;
    expect_errno(
        "over a full directory",
        fs::rename(dir.join("empty"), dir.join("full")),
        libc::ENOTEMPTY,
    )?;
    // An open file keeps its descriptor across a rename.
    let mut open = OpenOptions::new()
        .read(true)
        .write(true)
        .open(dir.join("b"))?;
    fs::rename(dir.join("b"), dir.join("c"))?;
    open.seek(SeekFrom::End(0))?;
    open.write_all(b" and more")?;
    drop(open);
    place.same_everywhere("c", b"a and more")?;
    // For two names of the same file, nothing happens.
    fs::hard_link(dir.join("c"), dir.join("d"))?;
    fs::rename(dir.join("c"), dir.join("d"))?;
    place.same_everywhere("d", b"a and more")?;
    // Operations that NFSv3 does not have are refused, and not done in part.
    fs::write(dir.join("e"), "e")?;
    match sys::rename_with(&dir.join("d"), &dir.join("e"), libc::RENAME_EXCHANGE) {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {}
        other => bail!("RENAME_EXCHANGE gave {other:?} instead of EINVAL"),
    }
    match sys::rename_with(&dir.join("d"), &dir.join("e"), libc::RENAME_NOREPLACE) {
        Err(error) if matches!(error.raw_os_error(), Some(libc::EINVAL | libc::EEXIST)) => {}
        other => bail!("RENAME_NOREPLACE over a file gave {other:?}"),
    }
    place.same_everywhere("e", b"e")
}

/// The number of silly-rename entries in a directory.
fn hidden(dir: &Path) -> Result<usize> {
    let mut count = 0;
    for entry in fs::read_dir(dir)? {
        count += usize::from(entry?.file_name().as_bytes().starts_with(b".nfs"));
    }
    Ok(count)
}

pub(crate) fn silly(place: &Place) -> Result<()> {
    let dir = &place.mounted;
    let body = fill::bytes(3, 300_000);
    for replaced in [false, true] {
        let path = dir.join("open");
        fs::write(&path, &body)?;
        let file = OpenOptions::new().read(true).write(true).open(&path)?;
        if replaced {
            fs::write(dir.join("other"), "other")?;
            fs::rename(dir.join("other"), &path)?;
            place.same_everywhere("open", b"other")?;
        } else {
            fs::remove_file(&path)?;
            expect_errno("the removed name", fs::metadata(&path), libc::ENOENT)?;
        }
        let mut got = vec![0; body.len()];
        file.read_exact_at(&mut got, 0)?;
        fill::expect_equal(&path, &got, &body)?;
        file.write_all_at(b"still writable", 100)?;
        file.sync_all()?;
        file.read_exact_at(&mut got[..14], 100)?;
        ensure!(&got[..14] == b"still writable");
        ensure!(
            file.metadata()?.len() == body.len() as u64,
            "fstat of a removed file"
        );
        // The name is free again while the old file exists.
        fs::write(&path, "new")?;
        fill::expect_same(&path, b"new")?;
        drop(file);
        fs::remove_file(&path)?;
    }
    // The hidden name is removed with the last close, which the kernel reports some time later.
    for _ in 0..200 {
        if hidden(dir)? == 0 {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(25));
    }
    ensure!(hidden(dir)? == 0, "a hidden name is left behind");
    let twice = dir.join("twice");
    fs::write(&twice, "two descriptors")?;
    let (mut first, second) = (File::open(&twice)?, File::open(&twice)?);
    fs::remove_file(&twice)?;
    drop(second);
    let mut text = String::new();
    first.read_to_string(&mut text)?;
    ensure!(text == "two descriptors", "the first descriptor reads on");
    drop(first);
    for _ in 0..200 {
        if hidden(dir)? == 0 {
            return Ok(());
        }
        std::thread::sleep(std::time::Duration::from_millis(25));
    }
    bail!("a hidden name is left behind")
}

pub(crate) fn symlinks(place: &Place) -> Result<()> {
    let dir = &place.mounted;
    for len in [
        1, 2, 3, 4, 5, 59, 60, 61, 255, 900, 1000, 1023, 1024, 1025, 2000, 3000, 4000, 4094, 4095,
    ] {
        let target = "t".repeat(len);
        let path = dir.join(format!("link-{len}"));
        symlink(&target, &path).with_context(|| format!("a link of {len} bytes"))?;
        ensure!(
            fs::read_link(&path)?.as_os_str() == OsStr::new(&target),
            "a link of {len} bytes"
        );
        ensure!(
            fs::symlink_metadata(&path)?.len() == len as u64,
            "size of a link of {len} bytes"
        );
        if let Some(direct) = &place.direct {
            ensure!(
                fs::read_link(direct.join(format!("link-{len}")))?.as_os_str()
                    == OsStr::new(&target),
                "a link of {len} bytes at the server"
            );
        }
    }
    Ok(())
}

pub(crate) fn statfs(place: &Place) -> Result<()> {
    let got = sys::statvfs(&place.mounted)?;
    ensure!(
        got.f_blocks > 0 && got.f_bsize > 0 && got.f_namemax >= 255,
        "{} blocks",
        got.f_blocks
    );
    if let Some(direct) = &place.direct {
        let there = sys::statvfs(direct)?;
        let (a, b) = (
            got.f_blocks as u128 * got.f_frsize as u128,
            there.f_blocks as u128 * there.f_frsize as u128,
        );
        ensure!(
            a.abs_diff(b) < (1 << 20),
            "{a} bytes in all, {b} at the server"
        );
    }
    sys::access(&place.mounted, libc::R_OK | libc::W_OK | libc::X_OK)?;
    let file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(place.mounted.join("file"))?;
    file.sync_all()?;
    Ok(())
}
