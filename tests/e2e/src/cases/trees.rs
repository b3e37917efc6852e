//! A whole tree.

use crate::place::Place;
use crate::tree::{self, expect_same};
use crate::{fill, sys};
use anyhow::{Context, Result, ensure};
use std::fs::{self, OpenOptions};
use std::os::unix::fs::MetadataExt;

/// A directory outside the mount, removed when dropped.
struct Scratch(std::path::PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

pub(crate) fn tree(place: &Place) -> Result<()> {
    let files = place.scaled(5_000, 120);
    let scratch =
        Scratch(std::env::temp_dir().join(format!("nfsrdma-e2e-tree-{}", std::process::id())));
    tree::make(&scratch.0, files, place.seed)?;
    let source = tree::walk(&scratch.0)?;
    ensure!(source.len() > files, "{} objects made", source.len());
    let from = scratch
        .0
        .to_str()
        .context("a temporary directory with a name in UTF-8")?;
    sys::program(&place.mounted, "cp", &["-a", from, "tree"])?;
    expect_same(
        &source,
        &tree::walk(&place.mounted.join("tree"))?,
        "the copy through the mount",
    )?;
    if let Some(direct) = &place.direct {
        expect_same(
            &source,
            &tree::walk(&direct.join("tree"))?,
            "the copy at the server",
        )?;
    }
    // Renamed as a whole.
    fs::rename(place.mounted.join("tree"), place.mounted.join("renamed"))?;
    let renamed = place.mounted.join("renamed");
    expect_same(&source, &tree::walk(&renamed)?, "the renamed tree")?;
    // Truncated.
    for (n, path) in source.keys().enumerate() {
        let path = renamed.join(path);
        let meta = fs::symlink_metadata(&path)?;
        if n % 17 == 0 && meta.is_file() && meta.nlink() == 1 && meta.mode() & 0o200 != 0 {
            let keep = meta.len() / 2;
            let expected = fs::read(&path)?[..keep as usize].to_vec();
            OpenOptions::new().write(true).open(&path)?.set_len(keep)?;
            fill::expect_same(&path, &expected).context("after truncation")?;
        }
    }
    if let Some(direct) = &place.direct {
        expect_same(
            &tree::walk(&renamed)?,
            &tree::walk(&direct.join("renamed"))?,
            "the truncated tree at the server",
        )?;
    }
    sys::program(&place.mounted, "rm", &["-rf", "renamed"])?;
    ensure!(
        fs::read_dir(&place.mounted)?.count() == 0,
        "something is left of the tree"
    );
    Ok(())
}
