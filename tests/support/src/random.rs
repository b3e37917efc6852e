//! Random choices that depend on a seed only.

/// A generator of `fastrand`, with the choices that tests need. The same seed gives the same
/// numbers on every machine, as long as Cargo.lock has the same version of `fastrand`.
#[derive(Debug, Clone)]
pub struct Random(fastrand::Rng);

impl Random {
    /// The generator of a seed.
    pub fn new(seed: u64) -> Self {
        Random(fastrand::Rng::with_seed(seed))
    }

    /// A random seed, which is short enough to be typed.
    pub fn any_seed() -> u64 {
        u64::from(fastrand::u32(..))
    }

    /// Any number.
    pub fn number(&mut self) -> u64 {
        self.0.u64(..)
    }

    /// A number below `bound`; 0 if that is 0.
    pub fn below(&mut self, bound: usize) -> usize {
        self.0.usize(..bound.max(1))
    }

    /// True in `part` of `whole` cases.
    pub fn chance(&mut self, part: usize, whole: usize) -> bool {
        self.below(whole) < part
    }

    /// One element of `of`, which must not be empty.
    pub fn pick<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.below(of.len())]
    }

    /// A length of any magnitude, from 1 to `most`.
    pub fn length(&mut self, most: usize) -> usize {
        let scale = *self.pick(&[16, 512, 4096, 20_000, 70_000, 300_000, 1 << 20]);
        1 + self.below(scale.min(most.max(1)))
    }

    /// `len` random bytes.
    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut out = vec![0; len];
        self.0.fill(&mut out);
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_repeats() {
        let (mut a, mut b, mut c) = (Random::new(7), Random::new(7), Random::new(8));
        assert!((0..100).all(|_| a.number() == b.number()));
        let bytes = a.bytes(100);
        assert_eq!(bytes, b.bytes(100));
        assert_ne!(bytes, c.bytes(100));
        assert_eq!(a.length(5000), b.length(5000));
    }

    #[test]
    fn choices_are_within_their_bounds_and_reach_them() {
        let mut random = Random::new(1);
        let seen: std::collections::BTreeSet<_> = (0..1000).map(|_| random.below(3)).collect();
        assert_eq!(seen.into_iter().collect::<Vec<_>>(), [0, 1, 2]);
        assert_eq!((random.below(0), random.below(1)), (0, 0));
        assert!((0..1000).all(|_| (1..=100).contains(&random.length(100))));
        assert!((0..1000).all(|_| random.chance(3, 3) && !random.chance(0, 3)));
    }
}
