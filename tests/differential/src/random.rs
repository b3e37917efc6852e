//! Random choices that a seed repeats.

/// SplitMix64: the same numbers for the same seed, everywhere.
#[derive(Debug, Clone)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Random(seed)
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
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_repeats() {
        let (mut a, mut b) = (Random::new(7), Random::new(7));
        assert!((0..100).all(|_| a.next() == b.next()));
        assert!((0..100).all(|_| a.below(3) < 3));
    }
}
