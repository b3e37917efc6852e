//! Large directories.

use crate::place::Place;
use anyhow::{Context, Result, ensure};
use std::collections::HashSet;
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;

pub(crate) fn listing(place: &Place) -> Result<()> {
    let count = place.scaled(100_000, 800);
    // It is made at the server if that is accessible, because another case tests creating.
    let made = place
        .direct
        .as_deref()
        .unwrap_or(&place.mounted)
        .join("large");
    fs::create_dir(&made)?;
    for n in 0..count {
        File::create(made.join(format!("entry-{n:06}-{}", "x".repeat(n % 40))))?;
    }
    let large = place.mounted.join("large");
    for attributes in [false, true] {
        let mut seen = HashSet::with_capacity(count);
        for entry in fs::read_dir(&large)? {
            let entry = entry.context("listing")?;
            let name = entry.file_name();
            if attributes {
                let meta = fs::symlink_metadata(entry.path())?;
                ensure!(
                    meta.is_file() && meta.len() == 0,
                    "{name:?} is an empty file"
                );
                ensure!(
                    std::os::unix::fs::DirEntryExt::ino(&entry) == meta.ino(),
                    "inode of {name:?}"
                );
            }
            ensure!(seen.insert(name.clone()), "{name:?} is listed twice");
        }
        ensure!(
            seen.len() == count,
            "{} of {count} entries listed",
            seen.len()
        );
    }
    // It is removed there as well, because the next case tests removing.
    for entry in fs::read_dir(&made)? {
        fs::remove_file(entry?.path())?;
    }
    Ok(())
}

pub(crate) fn shrinking(place: &Place) -> Result<()> {
    let count = place.scaled(5_000, 250);
    let dir = place.mounted.join("shrinking");
    fs::create_dir(&dir)?;
    for n in 0..count {
        File::create(dir.join(format!("entry-{n}")))?;
    }
    let mut seen = HashSet::new();
    for (n, entry) in fs::read_dir(&dir)?.enumerate() {
        let entry = entry.context("listing while entries go")?;
        ensure!(
            seen.insert(entry.file_name()),
            "{:?} is listed twice",
            entry.file_name()
        );
        if n % 2 == 0 {
            fs::remove_file(entry.path())?;
        }
    }
    ensure!(seen.len() == count, "{} of {count} listed", seen.len());
    let left = fs::read_dir(&dir)?.count();
    ensure!(left == count / 2, "{left} entries left of {count}");
    fs::remove_dir_all(&dir)?;
    // A directory is listed again after removals, and not from an old listing.
    fs::create_dir(&dir)?;
    File::create(dir.join("one"))?;
    ensure!(fs::read_dir(&dir)?.count() == 1);
    File::create(dir.join("two"))?;
    ensure!(
        fs::read_dir(&dir)?.count() == 2,
        "an entry made after a listing"
    );
    fs::remove_file(dir.join("one"))?;
    ensure!(
        fs::read_dir(&dir)?.count() == 1,
        "an entry removed after a listing"
    );
    Ok(())
}
