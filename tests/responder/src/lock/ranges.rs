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
