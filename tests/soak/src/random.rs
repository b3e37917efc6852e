//! Random choices that a seed repeats.

/// A small generator (SplitMix64): the same numbers for the same seed, everywhere.
#[derive(Debug, Clone)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Random(seed)
    }

    /// A seed nobody chose.
    pub(crate) fn any_seed() -> u64 {
        use std::hash::{BuildHasher, Hasher};
        let hasher = std::collections::hash_map::RandomState::new().build_hasher();
        // Short enough to be typed.
        hasher.finish() >> 32
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`, or 0.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        (self.next() % (bound as u64).max(1)) as usize
    }

    /// True in `part` of `whole` cases.
    pub(crate) fn chance(&mut self, part: usize, whole: usize) -> bool {
        self.below(whole) < part
    }

    pub(crate) fn pick<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.below(of.len())]
    }

    /// Lengths of all magnitudes, up to `most`.
    pub(crate) fn length(&mut self, most: usize) -> usize {
        let scale = *self.pick(&[16, 512, 4096, 20_000, 70_000, 300_000, 1 << 20]);
        1 + self.below(scale.min(most.max(1)))
    }

    pub(crate) fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut out = Vec::with_capacity(len + 8);
        while out.len() < len {
            out.extend_from_slice(&self.next().to_le_bytes());
        }
        out.truncate(len);
        out
    }
}

/// What is compared instead of the bytes themselves.
pub(crate) fn checksum(bytes: &[u8]) -> u64 {
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc64Nvme, bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_repeats() {
        let (mut a, mut b) = (Random::new(7), Random::new(7));
        assert_eq!(a.bytes(100), b.bytes(100));
        assert_eq!(a.length(5000), b.length(5000));
        assert!((0..100).all(|_| a.below(3) < 3));
    }
}
