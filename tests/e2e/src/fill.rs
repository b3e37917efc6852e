//! Contents that can be recognised: each byte depends on the seed and its offset.

use anyhow::{Context, Result, bail};
use nfsrdma_test_support::Random;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// `len` bytes for `seed`.
pub(crate) fn bytes(seed: u64, len: usize) -> Vec<u8> {
    Random::new(seed).bytes(len)
}

/// Fails, with the first difference, unless the file has exactly the bytes `expected`.
pub(crate) fn expect_same(path: &Path, expected: &[u8]) -> Result<()> {
    let mut got = Vec::with_capacity(expected.len());
    File::open(path)
        .and_then(|mut f| f.read_to_end(&mut got))
        .with_context(|| format!("reading {}", path.display()))?;
    expect_equal(path, &got, expected)
}

/// Fails, with the first difference, unless `got` equals `expected`.
pub(crate) fn expect_equal(path: &Path, got: &[u8], expected: &[u8]) -> Result<()> {
    if got == expected {
        return Ok(());
    }
    let at = got
        .iter()
        .zip(expected)
        .position(|(a, b)| a != b)
        .unwrap_or(got.len().min(expected.len()));
    bail!(
        "{}: differs from offset {at} on ({} bytes, {} expected; {:?} instead of {:?})",
        path.display(),
        got.len(),
        expected.len(),
        got.get(at),
        expected.get(at)
    );
}

/// The checksum of a file, which is read in pieces.
pub(crate) fn checksum(path: &Path) -> Result<(u64, u64)> {
    let file = File::open(path).with_context(|| format!("opening {}", path.display()))?;
    let mut digest = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc64Nvme);
    let mut piece = vec![0; 1 << 20];
    let mut at = 0;
    loop {
        let n = file
            .read_at(&mut piece, at)
            .with_context(|| format!("reading {} at {at}", path.display()))?;
        if n == 0 {
            return Ok((at, digest.finalize()));
        }
        digest.update(&piece[..n]);
        at += n as u64;
    }
}
