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
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_repeats() {
        let (mut a, mut b, mut c) = (Random::new(7), Random::new(7), Random::new(8));
        assert!((0..100).all(|_| a.number() == b.number()));
        assert_ne!(a.number(), c.number());
    }

    #[test]
    fn choices_are_within_their_bounds_and_reach_them() {
        let mut random = Random::new(1);
        let seen: std::collections::BTreeSet<_> = (0..1000).map(|_| random.below(3)).collect();
        assert_eq!(seen.into_iter().collect::<Vec<_>>(), [0, 1, 2]);
        assert_eq!((random.below(0), random.below(1)), (0, 0));
        assert!((0..1000).all(|_| random.chance(3, 3) && !random.chance(0, 3)));
    }
}
