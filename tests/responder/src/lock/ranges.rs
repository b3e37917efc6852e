//! The byte-range locks of one file, with POSIX semantics: an owner has at most one lock on a byte,
//! and a new lock replaces the owner's locks in its range (so it may upgrade, downgrade, split or
//! merge them). Shared locks of several owners may overlap; an exclusive lock overlaps no lock of
//! another owner.

/// The last byte a lock can cover (OFFSET_MAX of Linux).
pub const LAST: u64 = i64::MAX as u64;

/// The bytes from `start` to `end` inclusive; [`LAST`] means the end of the file, however it grows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Range {
    pub start: u64,
    pub end: u64,
}

impl Range {
    /// The range of an offset and a length. A length of 0 means to the end. `None` if the range
    /// goes beyond [`LAST`].
    pub fn new(offset: u64, length: u64) -> Option<Self> {
        let end = match length {
            0 => LAST,
            length => offset.checked_add(length - 1)?,
        };
        (offset <= LAST && end <= LAST).then_some(Range { start: offset, end })
    }

    /// The length as it is encoded on the wire.
    pub fn length(&self) -> u64 {
        match self.end {
            LAST => 0,
            end => end - self.start + 1,
        }
    }

    fn overlaps(&self, other: &Range) -> bool {
        self.start <= other.end && other.start <= self.end
    }
}

/// A lock that is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Held<O> {
    pub owner: O,
    pub exclusive: bool,
    pub range: Range,
}

/// All locks of a file. Those of one owner never overlap; adjacent ones of a kind are merged.
#[derive(Debug, Clone)]
pub struct FileLocks<O> {
    /// In ascending order of their first bytes.
    held: Vec<Held<O>>,
}

impl<O> Default for FileLocks<O> {
    fn default() -> Self {
        FileLocks { held: Vec::new() }
    }
}

impl<O: Copy + Eq> FileLocks<O> {
    /// Every lock, in ascending order of their first bytes.
    pub fn held(&self) -> &[Held<O>] {
        &self.held
    }

    /// The conflicting locks of other owners, in ascending order of their first bytes.
    pub fn conflicts(
        &self,
        owner: O,
        exclusive: bool,
        range: Range,
    ) -> impl Iterator<Item = &Held<O>> {
        self.held.iter().filter(move |held| {
            held.owner != owner && (exclusive || held.exclusive) && held.range.overlaps(&range)
        })
    }

    /// Gives `owner` the lock, which must not conflict with others.
    pub fn lock(&mut self, owner: O, exclusive: bool, range: Range) {
        self.unlock(owner, range);
        let mut merged = range;
        self.held.retain(|held| {
            let same = held.owner == owner && held.exclusive == exclusive;
            // `end + 1` cannot overflow: `end` is at most LAST.
            let touches = held.range.end + 1 >= merged.start && merged.end + 1 >= held.range.start;
            if same && touches {
                merged.start = merged.start.min(held.range.start);
                merged.end = merged.end.max(held.range.end);
            }
            !(same && touches)
        });
        self.insert(Held {
            owner,
            exclusive,
            range: merged,
        });
    }

    /// Removes the locks of `owner` in `range`.
    pub fn unlock(&mut self, owner: O, range: Range) {
        let mut rest = Vec::new();
        self.held.retain(|held| {
            if held.owner != owner || !held.range.overlaps(&range) {
                return true;
            }
            if held.range.start < range.start {
                rest.push(Held {
                    range: Range {
                        start: held.range.start,
                        end: range.start - 1,
                    },
                    ..*held
                });
            }
            if held.range.end > range.end {
                rest.push(Held {
                    range: Range {
                        start: range.end + 1,
                        end: held.range.end,
                    },
                    ..*held
                });
            }
            false
        });
        for held in rest {
            self.insert(held);
        }
    }

    /// Removes all locks of the owners for which `meant` is true. Returns whether there was one.
    pub fn unlock_all(&mut self, meant: impl Fn(&O) -> bool) -> bool {
        let before = self.held.len();
        self.held.retain(|held| !meant(&held.owner));
        self.held.len() < before
    }

    fn insert(&mut self, held: Held<O>) {
        let at = self
            .held
            .partition_point(|other| other.range.start <= held.range.start);
        self.held.insert(at, held);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn range(start: u64, end: u64) -> Range {
        Range { start, end }
    }

    #[test]
    fn ranges_of_the_wire() {
        assert_eq!(Range::new(0, 0), Some(range(0, LAST)));
        assert_eq!(Range::new(5, 1), Some(range(5, 5)));
        assert_eq!(Range::new(LAST, 1), Some(range(LAST, LAST)));
        assert_eq!(Range::new(LAST, 0), Some(range(LAST, LAST)));
        assert_eq!(Range::new(LAST, 2), None);
        assert_eq!(Range::new(LAST + 1, 0), None);
        assert_eq!(Range::new(1, u64::MAX), None);
        assert_eq!(range(3, LAST).length(), 0);
        assert_eq!(range(3, 3).length(), 1);
    }

    #[test]
    fn a_lock_in_the_middle_splits() {
        let mut locks = FileLocks::default();
        locks.lock(1, true, range(0, 99));
        locks.lock(1, false, range(10, 19));
        let seen: Vec<_> = locks
            .held()
            .iter()
            .map(|h| (h.exclusive, h.range.start, h.range.end))
            .collect();
        assert_eq!(seen, [(true, 0, 9), (false, 10, 19), (true, 20, 99)]);
        locks.lock(1, true, range(10, 19));
        assert_eq!(locks.held().len(), 1);
        assert_eq!(locks.held()[0].range, range(0, 99));
    }

    /// A model: what each owner has on each byte (nothing, shared, or exclusive).
    #[derive(Debug, Default, Clone, PartialEq, Eq)]
    struct Bytes([[Option<bool>; SIZE]; OWNERS]);

    const SIZE: usize = 24;
    const OWNERS: usize = 3;

    impl Bytes {
        fn conflict(&self, owner: usize, exclusive: bool, range: Range) -> bool {
            (range.start..=range.end).any(|byte| {
                (0..OWNERS).any(|other| {
                    other != owner
                        && self.0[other][byte as usize].is_some_and(|held| held || exclusive)
                })
            })
        }

        fn set(&mut self, owner: usize, range: Range, to: Option<bool>) {
            for byte in range.start..=range.end {
                self.0[owner][byte as usize] = to;
            }
        }
    }

    #[derive(Debug, Clone)]
    enum Step {
        Lock(usize, bool, Range),
        Unlock(usize, Range),
        UnlockAll(usize),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let owner = 0..OWNERS;
        let range = (0..SIZE as u64, 0..SIZE as u64).prop_map(|(a, b)| range(a.min(b), a.max(b)));
        let step = prop_oneof![
            6 => (owner.clone(), any::<bool>(), range.clone())
                .prop_map(|(owner, exclusive, range)| Step::Lock(owner, exclusive, range)),
            3 => (owner.clone(), range).prop_map(|(owner, range)| Step::Unlock(owner, range)),
            1 => owner.prop_map(Step::UnlockAll),
        ];
        prop::collection::vec(step, 1..60)
    }

    proptest! {
        #[test]
        fn every_byte_is_locked_as_in_a_map_of_bytes(steps in steps()) {
            let mut locks = FileLocks::default();
            let mut model = Bytes::default();
            for step in steps {
                match step {
                    Step::Lock(owner, exclusive, range) => {
                        let conflict = locks.conflicts(owner, exclusive, range).next().is_some();
                        prop_assert_eq!(conflict, model.conflict(owner, exclusive, range));
                        if !conflict {
                            locks.lock(owner, exclusive, range);
                            model.set(owner, range, Some(exclusive));
                        }
                    }
                    Step::Unlock(owner, range) => {
                        locks.unlock(owner, range);
                        model.set(owner, range, None);
                    }
                    Step::UnlockAll(owner) => {
                        locks.unlock_all(|other| *other == owner);
                        model.set(owner, range(0, SIZE as u64 - 1), None);
                    }
                }
                let mut seen = Bytes::default();
                for held in locks.held() {
                    for byte in held.range.start..=held.range.end {
                        let cell = &mut seen.0[held.owner][byte as usize];
                        prop_assert!(cell.is_none(), "two locks of one owner overlap");
                        *cell = Some(held.exclusive);
                    }
                }
                prop_assert_eq!(&seen, &model);
                let sorted = locks.held().is_sorted_by_key(|held| held.range.start);
                prop_assert!(sorted);
                for owner in 0..OWNERS {
                    let own: Vec<_> = locks.held().iter().filter(|h| h.owner == owner).collect();
                    for pair in own.windows(2) {
                        let touch = pair[0].range.end + 1 == pair[1].range.start;
                        prop_assert!(!touch || pair[0].exclusive != pair[1].exclusive);
                    }
                }
            }
        }
    }
}
