//! The expected contents of a directory, and the comparison with the real ones.

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// A checksum, which is compared instead of the bytes.
pub(crate) fn checksum(bytes: &[u8]) -> u64 {
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc64Nvme, bytes)
}

/// An expected entry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Known {
    File { len: u64, sum: u64 },
    Dir,
    Symlink(String),
}

/// All expected entries below a directory, by their paths.
pub(crate) type Manifest = BTreeMap<String, Known>;

/// Fails, with the first difference, unless `got` equals `expected`.
pub(crate) fn same(what: &str, got: &[u8], expected: &[u8]) -> Result<()> {
    if got == expected {
        return Ok(());
    }
    let differs = |(a, b): (&u8, &u8)| a != b;
    let at = got
        .iter()
        .zip(expected)
        .position(differs)
        .unwrap_or(got.len().min(expected.len()));
    let until = got[at..]
        .iter()
        .zip(&expected[at..])
        .rposition(differs)
        .map_or(at, |last| at + last + 1);
    let zero = got
        .get(at..until)
        .is_some_and(|g| g.iter().all(|&b| b == 0));
    bail!(
        "{what}: differs in [{at}, {until}): {} bytes, {} expected; {:?} instead of {:?}{}",
        got.len(),
        expected.len(),
        got.get(at),
        expected.get(at),
        if zero { " (all zeros)" } else { "" },
    )
}

/// Compares all entries below `dir`, and returns the number of compared bytes. Hidden names of open
/// files are ignored.
pub(crate) fn verify(dir: &Path, manifest: &Manifest) -> Result<u64> {
    let mut found = BTreeSet::new();
    let mut bytes = 0;
    let mut todo = vec![String::new()];
    while let Some(below) = todo.pop() {
        for entry in fs::read_dir(dir.join(&below)).with_context(|| format!("listing {below}"))? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            if name.starts_with(".nfs") {
                continue;
            }
            let path = format!("{below}{name}");
            ensure!(found.insert(path.clone()), "{path} is listed twice");
            if entry.file_type()?.is_dir() {
                todo.push(format!("{path}/"));
            }
        }
    }
    for (path, known) in manifest {
        ensure!(found.remove(path), "{path} is missing in {}", dir.display());
        let full = dir.join(path);
        match known {
            Known::Dir => ensure!(full.is_dir(), "{path} is no directory"),
            Known::Symlink(to) => {
                let got = fs::read_link(&full)?;
                ensure!(got == Path::new(to), "{path} leads to {}", got.display());
            }
            Known::File { len, sum } => {
                let got = fs::read(&full).with_context(|| format!("reading {path}"))?;
                ensure!(
                    got.len() as u64 == *len && checksum(&got) == *sum,
                    "{}: {} bytes with checksum {:x}, not {len} with {sum:x}",
                    full.display(),
                    got.len(),
                    checksum(&got)
                );
                bytes += len;
            }
        }
    }
    ensure!(
        found.is_empty(),
        "{} has what nobody made: {found:?}",
        dir.display()
    );
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_are_named() {
        assert!(same("f", b"abc", b"abc").is_ok());
        let error = same("f", b"a\0\0d", b"abcd").unwrap_err().to_string();
        assert!(
            error.contains("[1, 3)") && error.contains("zeros"),
            "{error}"
        );
        assert!(same("f", b"ab", b"abc").is_err());
    }

    #[test]
    fn trees_are_compared_both_ways() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("d")).unwrap();
        fs::write(dir.path().join("d/f"), b"contents").unwrap();
        let file = |text: &[u8]| Known::File {
            len: text.len() as u64,
            sum: checksum(text),
        };
        let mut manifest = Manifest::new();
        manifest.insert("d".into(), Known::Dir);
        assert!(verify(dir.path(), &manifest).is_err(), "d/f is too much");
        manifest.insert("d/f".into(), file(b"contents"));
        assert_eq!(verify(dir.path(), &manifest).unwrap(), 8);
        manifest.insert("d/f".into(), file(b"contentS"));
        assert!(verify(dir.path(), &manifest).is_err(), "other bytes");
        manifest.insert("d/f".into(), file(b"contents"));
        manifest.insert("g".into(), file(b""));
        assert!(verify(dir.path(), &manifest).is_err(), "g is missing");
    }
}
