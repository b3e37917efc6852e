//! The exported data every target is measured on.

use anyhow::{Context, Result};
use std::fs::{self, File};
use std::io::Write;
use std::path::Path;

/// How much of everything there is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Scale {
    /// Bytes of the large file.
    pub(crate) large: u64,
    /// Small files to stat, create, unlink.
    pub(crate) files: usize,
    /// Entries of the large directory.
    pub(crate) entries: usize,
    /// 4 KiB reads at depth 1.
    pub(crate) reads: usize,
    /// 4 KiB writes before one fsync.
    pub(crate) writes: usize,
    /// Files of the source tree.
    pub(crate) source: usize,
}

impl Scale {
    pub(crate) const FULL: Scale = Scale {
        large: 1 << 30,
        files: 10_000,
        entries: 100_000,
        reads: 20_000,
        writes: 5_000,
        source: 2_000,
    };
    pub(crate) const QUICK: Scale = Scale {
        large: 256 << 20,
        files: 2_000,
        entries: 20_000,
        reads: 5_000,
        writes: 1_000,
        source: 400,
    };
}

/// Fills `root` with what the workloads read. What is there already is kept.
pub(crate) fn prepare(root: &Path, scale: &Scale) -> Result<()> {
    fs::create_dir_all(root.join("scratch"))?;
    let large = root.join("large");
    if fs::metadata(&large).map_or(0, |m| m.len()) != scale.large {
        let mut file = File::create(&large).context("the large file")?;
        let piece: Vec<u8> = (0..1 << 20)
            .map(|n: u32| (n.wrapping_mul(2_654_435_761) >> 13) as u8)
            .collect();
        for _ in 0..scale.large >> 20 {
            file.write_all(&piece)?;
        }
        file.sync_all()?;
    }
    fill(&root.join("files"), scale.files, 100)?;
    fill(&root.join("entries"), scale.entries, 0)?;
    let tree = root.join("source");
    if !tree.exists() {
        for n in 0..scale.source {
            let dir = tree.join(format!("module-{}", n / 20));
            fs::create_dir_all(&dir)?;
            let text = format!("fn function_{n}() {{ call(); }}\n").repeat(20 + n % 300);
            fs::write(dir.join(format!("file-{n}.rs")), text)?;
        }
    }
    let archive = root.join("source.tar");
    if !archive.exists() {
        let status = std::process::Command::new("tar")
            .arg("-cf")
            .arg(&archive)
            .arg("-C")
            .arg(root)
            .arg("source")
            .status()
            .context("running tar")?;
        anyhow::ensure!(status.success(), "tar ended with {status}");
    }
    Ok(())
}

fn fill(dir: &Path, count: usize, size: usize) -> Result<()> {
    if fs::metadata(dir.join(format!("f{}", count - 1))).is_ok() {
        return Ok(());
    }
    fs::create_dir_all(dir)?;
    let body = vec![b'x'; size];
    for n in 0..count {
        fs::write(dir.join(format!("f{n}")), &body)?;
    }
    Ok(())
}
