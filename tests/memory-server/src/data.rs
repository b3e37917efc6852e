//! The contents of a file: sparse, and with a record of uncommitted changes.

use std::collections::BTreeMap;

const CHUNK: u64 = 1 << 20;

/// The bytes of a file.
#[derive(Debug, Default)]
pub(super) struct Data {
    chunks: BTreeMap<u64, Vec<u8>>,
    pub(super) size: u64,
    /// The undo log of uncommitted changes, oldest first: offset, old bytes, old size.
    undo: Vec<(u64, Vec<u8>, u64)>,
}

impl Data {
    /// The memory that the contents occupy, in bytes.
    pub(super) fn used(&self) -> u64 {
        self.chunks.values().map(|chunk| chunk.len() as u64).sum()
    }

    pub(super) fn read(&self, offset: u64, to: &mut [u8]) -> usize {
        let n = self.size.saturating_sub(offset).min(to.len() as u64) as usize;
        let mut at = 0;
        while at < n {
            let place = offset + at as u64;
            let inside = (place % CHUNK) as usize;
            let len = (CHUNK as usize - inside).min(n - at);
            let part = &mut to[at..at + len];
            let stored = self
                .chunks
                .get(&(place / CHUNK))
                .map_or(&[][..], |chunk| chunk.get(inside..).unwrap_or_default());
            let have = stored.len().min(len);
            part[..have].copy_from_slice(&stored[..have]);
            part[have..].fill(0);
            at += len;
        }
        n
    }

    fn put(&mut self, offset: u64, from: &[u8]) {
        let mut at = 0;
        while at < from.len() {
            let place = offset + at as u64;
            let inside = (place % CHUNK) as usize;
            let len = (CHUNK as usize - inside).min(from.len() - at);
            let chunk = self.chunks.entry(place / CHUNK).or_default();
            if chunk.len() < inside + len {
                chunk.resize(inside + len, 0);
            }
            chunk[inside..inside + len].copy_from_slice(&from[at..at + len]);
            at += len;
        }
        self.size = self.size.max(offset + from.len() as u64);
    }

    pub(super) fn write(&mut self, offset: u64, from: &[u8], stable: bool) {
        if !stable {
            let mut old = vec![0; from.len()];
            let n = self.read(offset, &mut old);
            old.truncate(n);
            self.undo.push((offset, old, self.size));
        }
        self.put(offset, from);
        if stable {
            // Like fsync, this commits the whole file.
            self.commit();
        }
    }

    pub(super) fn commit(&mut self) {
        self.undo.clear();
    }

    /// The contents that a restart would leave.
    pub(super) fn durable(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.size as usize];
        self.read(0, &mut bytes);
        for (offset, old, size) in self.undo.iter().rev() {
            bytes.resize(*size as usize, 0);
            let at = *offset as usize;
            if !old.is_empty() {
                bytes[at..at + old.len()].copy_from_slice(old);
            }
        }
        bytes
    }

    /// Undoes uncommitted changes.
    pub(super) fn crash(&mut self) {
        for (offset, old, size) in std::mem::take(&mut self.undo).into_iter().rev() {
            self.put(offset, &old);
            self.cut(size);
        }
    }

    fn cut(&mut self, size: u64) {
        self.chunks.retain(|&at, chunk| {
            let keep = size.saturating_sub(at * CHUNK).min(CHUNK) as usize;
            chunk.truncate(keep);
            keep > 0
        });
        self.size = size;
    }

    pub(super) fn truncate(&mut self, size: u64) {
        self.commit();
        self.cut(size);
    }
}
