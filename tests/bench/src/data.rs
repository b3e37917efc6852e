//! The exported data every target is measured on.

use crate::scale::Scale;
use anyhow::{Context, Result};
use std::fs::{self, File};
use std::io::Write;
use std::path::Path;

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
        run(root, "tar", &["-cf", &archive.to_string_lossy(), "source"])?;
    }
    prepare_daily(root, scale)
}

/// Archives and a repository for the rows of `workload::daily`.
fn prepare_daily(root: &Path, scale: &Scale) -> Result<()> {
    for files in crate::workload::archives(scale.shrink) {
        let archive = root.join(format!("tree-{files}.tar"));
        if archive.exists() {
            continue;
        }
        let below = root.join("scratch/prepared");
        let _ = fs::remove_dir_all(&below);
        for n in 0..files {
            let dir = below.join(format!("tree/d{}", n / 50));
            fs::create_dir_all(&dir)?;
            fs::write(
                dir.join(format!("f{n}")),
                vec![b't'; 200 + n * 7919 % 20_000],
            )?;
        }
        run(&below, "tar", &["-cf", &archive.to_string_lossy(), "tree"])?;
        fs::remove_dir_all(&below)?;
    }
    let repository = root.join("repository.git");
    if std::process::Command::new("git")
        .arg("--version")
        .output()
        .is_err()
    {
        println!("git is not installed: the rows that need it stay empty");
    } else if !repository.exists() {
        run(root, "git", &["init", "-q", "--bare", "repository.git"])?;
        let git_dir = format!("--git-dir={}", repository.display());
        let at = [git_dir.as_str(), "--work-tree=."];
        let identity = ["-c", "user.name=bench", "-c", "user.email=bench@localhost"];
        let tree = root.join("source");
        run(&tree, "git", &[&at[..], &["add", "."]].concat())?;
        let commit = ["commit", "-q", "-m", "The source tree"];
        run(&tree, "git", &[&at[..], &identity, &commit].concat())?;
    }
    Ok(())
}

fn run(dir: &Path, name: &str, arguments: &[&str]) -> Result<()> {
    let status = std::process::Command::new(name)
        .args(arguments)
        .current_dir(dir)
        .status()
        .with_context(|| format!("running {name}"))?;
    anyhow::ensure!(status.success(), "{name} ended with {status}");
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
