//! A tree of files of every shape, and the comparison of two trees.

use crate::fill;
use anyhow::{Context, Result, bail};
use nfsrdma_test_support::Random;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

/// Sizes just below and above every boundary: pages, inline thresholds, blocks, chunks.
pub(crate) const ODD_SIZES: &[usize] = &[
    0, 1, 2, 3, 4, 5, 511, 512, 513, 1000, 1023, 1024, 1025, 4000, 4095, 4096, 4097, 8191, 8192,
    8193, 65_535, 65_536, 65_537, 131_071, 131_072, 131_073, 262_143, 262_145, 524_287, 524_289,
    1_048_573, 1_048_575, 1_048_576, 1_048_577, 1_050_000, 2_097_149, 2_097_153, 3_145_731,
];

const UNICODE: &[&str] = &[
    "äöü",
    "日本語",
    "имя",
    "e\u{301}",
    "name with spaces",
    "🦀",
    "-rf",
    "a'b\"c",
    "back\\slash",
    "new\nline",
];

/// Makes about `files` files below `root`.
pub(crate) fn make(root: &Path, files: usize, seed: u64) -> Result<()> {
    let mut random = Random::new(seed);
    let mut directories = vec![root.to_path_buf()];
    fs::create_dir_all(root)?;
    let sizes = root.join("sizes");
    fs::create_dir(&sizes)?;
    for (n, &size) in ODD_SIZES.iter().enumerate() {
        fs::write(
            sizes.join(format!("size-{size}")),
            fill::bytes(seed ^ n as u64, size),
        )?;
    }
    let mut deep = root.join("deep");
    for level in 0..40 {
        fs::create_dir(&deep)?;
        fs::write(deep.join("file"), format!("level {level}\n"))?;
        deep.push(format!("level-{level}"));
    }
    let names = root.join("names");
    fs::create_dir(&names)?;
    for name in UNICODE {
        fs::write(names.join(name), name)?;
    }
    fs::write(names.join("n".repeat(255)), "longest name")?;
    fs::write(
        names.join("é".repeat(127)),
        "longest in two-byte characters",
    )?;
    let links = root.join("links");
    fs::create_dir(&links)?;
    fs::write(links.join("target"), "the target")?;
    symlink("target", links.join("symlink"))?;
    symlink("nowhere", links.join("dangling"))?;
    symlink("..", links.join("up"))?;
    symlink("x/".repeat(2000), links.join("long"))?;
    for n in 0..5 {
        fs::hard_link(links.join("target"), links.join(format!("hard-{n}")))?;
    }
    for n in 0..files {
        let parent = directories[random.below(directories.len())].clone();
        if n % 25 == 0 {
            let made = parent.join(format!("dir-{n}"));
            fs::create_dir(&made)?;
            directories.push(made);
        }
        let size = match random.below(20) {
            0 => 0,
            1 => random.below(200_000),
            2..=5 => random.below(20_000),
            _ => random.below(3_000),
        };
        let path = parent.join(format!("file-{n}"));
        fs::write(&path, fill::bytes(random.number(), size))
            .with_context(|| format!("writing {}", path.display()))?;
        match n % 50 {
            7 => fs::set_permissions(&path, fs::Permissions::from_mode(0o640))?,
            8 => fs::set_permissions(&path, fs::Permissions::from_mode(0o4755))?,
            9 => symlink(format!("file-{n}"), parent.join(format!("symlink-{n}")))?,
            10 => fs::hard_link(&path, parent.join(format!("hard-{n}")))?,
            11 => crate::sys::set_times(&path, (1_000_000_000, 0), (1_234_567_890, 123_456_789))?,
            _ => {}
        }
    }
    Ok(())
}

/// The properties of an object that are compared.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Object {
    kind: u32,
    mode: u32,
    size: u64,
    nlink: u64,
    content: u64,
    target: Option<PathBuf>,
    mtime: (i64, i64),
}

/// All objects below `root`, by their relative paths.
pub(crate) fn walk(root: &Path) -> Result<BTreeMap<OsString, Object>> {
    let mut found = BTreeMap::new();
    let mut left = vec![PathBuf::new()];
    while let Some(relative) = left.pop() {
        let directory = root.join(&relative);
        for entry in
            fs::read_dir(&directory).with_context(|| format!("listing {}", directory.display()))?
        {
            let entry = entry?;
            let relative = relative.join(entry.file_name());
            let path = root.join(&relative);
            let meta =
                fs::symlink_metadata(&path).with_context(|| format!("lstat {}", path.display()))?;
            let object = Object {
                kind: meta.mode() & libc::S_IFMT,
                mode: meta.mode() & 0o7777,
                // The size of a directory depends on the file system.
                size: if meta.is_dir() { 0 } else { meta.len() },
                nlink: if meta.is_dir() { 0 } else { meta.nlink() },
                content: if meta.is_file() {
                    fill::checksum(&path)?.1
                } else {
                    0
                },
                target: meta
                    .is_symlink()
                    .then(|| fs::read_link(&path))
                    .transpose()?,
                mtime: if meta.is_file() {
                    (meta.mtime(), meta.mtime_nsec())
                } else {
                    (0, 0)
                },
            };
            if meta.is_dir() {
                left.push(relative.clone());
            }
            if found
                .insert(relative.clone().into_os_string(), object)
                .is_some()
            {
                bail!("{} is listed twice", relative.display());
            }
        }
    }
    Ok(found)
}

/// Fails, with the first difference, unless the trees are equal.
pub(crate) fn expect_same(
    left: &BTreeMap<OsString, Object>,
    right: &BTreeMap<OsString, Object>,
    what: &str,
) -> Result<()> {
    for (path, object) in left {
        match right.get(path) {
            None => bail!("{what}: {path:?} is missing"),
            Some(other) if other != object => {
                bail!("{what}: {path:?} is {other:?} instead of {object:?}")
            }
            _ => {}
        }
    }
    if let Some(path) = right.keys().find(|p| !left.contains_key(*p)) {
        bail!("{what}: {path:?} should not be there");
    }
    Ok(())
}
