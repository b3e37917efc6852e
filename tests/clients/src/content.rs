//! The possible contents of a file: a set of values for each position, one of which is "behind the
//! end of the file". Sizes follow from them: a file may have the size `n` if `n` may be behind its
//! end and the byte before it may not.

use std::fmt;

/// The largest file of a run, in bytes.
pub(crate) const FILE_MAX: u64 = 16 << 20;

/// A set of bytes and "behind the end".
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Set([u64; 5]);

const END: usize = 256;

impl Set {
    pub(crate) fn byte(value: u8) -> Self {
        Set::default().with(usize::from(value))
    }

    pub(crate) fn end() -> Self {
        Set::default().with(END)
    }

    fn with(mut self, bit: usize) -> Self {
        self.0[bit / 64] |= 1 << (bit % 64);
        self
    }

    pub(crate) fn union(mut self, other: Set) -> Self {
        for (word, more) in self.0.iter_mut().zip(other.0) {
            *word |= more;
        }
        self
    }

    pub(crate) fn has(self, value: u8) -> bool {
        let bit = usize::from(value);
        self.0[bit / 64] & (1 << (bit % 64)) != 0
    }

    pub(crate) fn has_end(self) -> bool {
        self.0[4] & 1 != 0
    }

    /// Whether a byte of the file is possible.
    fn has_byte(self) -> bool {
        self.without_end() != Set::default()
    }

    pub(crate) fn without_end(mut self) -> Self {
        self.0[4] = 0;
        self
    }

    /// The possible bytes: where the end is possible, too, a byte may also be a zero.
    pub(crate) fn bytes(self) -> Self {
        match self.has_byte() && self.has_end() {
            true => self.without_end().with(0),
            false => self.without_end(),
        }
    }

    /// After an extension of the file, positions behind the end are zeros.
    fn extended(self) -> Self {
        match self.has_end() {
            true => self.without_end().with(0),
            false => self,
        }
    }
}

impl fmt::Debug for Set {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = (0..=255u8)
            .filter(|b| self.has(*b))
            .map(|b| format!("{b:#04x}"));
        let end = self.has_end().then(|| "end".to_string());
        let all: Vec<String> = bytes.chain(end).collect();
        write!(f, "{{{}}}", all.join(" "))
    }
}

/// A value for each position of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Ranges<T> {
    /// The beginning of each value, from position 0 on; neighbours differ.
    starts: Vec<(u64, T)>,
}

impl<T: Copy + PartialEq> Ranges<T> {
    pub(crate) fn new(value: T) -> Self {
        Ranges {
            starts: vec![(0, value)],
        }
    }

    pub(crate) fn get(&self, at: u64) -> T {
        self.starts[self.index(at)].1
    }

    fn index(&self, at: u64) -> usize {
        self.starts.partition_point(|(start, _)| *start <= at) - 1
    }

    /// The ranges with one value: start, end, value.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, u64, T)> {
        self.starts.iter().enumerate().map(|(n, (start, value))| {
            let end = self.starts.get(n + 1).map_or(FILE_MAX, |next| next.0);
            (*start, end, *value)
        })
    }

    fn split(&mut self, at: u64) {
        if at < FILE_MAX {
            let index = self.index(at);
            if self.starts[index].0 != at {
                let value = self.starts[index].1;
                self.starts.insert(index + 1, (at, value));
            }
        }
    }

    /// Changes `from..to` by a function of the start of each range and its value.
    pub(crate) fn change(&mut self, from: u64, to: u64, mut with: impl FnMut(u64, T) -> T) {
        if from >= to {
            return;
        }
        self.split(from);
        self.split(to);
        for (start, value) in &mut self.starts {
            if (from..to).contains(start) {
                *value = with(*start, *value);
            }
        }
        self.starts.dedup_by(|later, earlier| later.1 == earlier.1);
    }

    /// Combines this with another one, range by range.
    pub(crate) fn combine<U: Copy + PartialEq>(
        &mut self,
        other: &Ranges<U>,
        with: impl Fn(T, U) -> T,
    ) {
        for (start, end, theirs) in other.iter() {
            self.change(start, end, |_, mine| with(mine, theirs));
        }
    }
}

/// The possible contents of a file.
pub(crate) type Content = Ranges<Set>;

impl Content {
    pub(crate) fn empty() -> Self {
        Ranges::new(Set::end())
    }

    /// Exactly these bytes.
    pub(crate) fn of(data: &[u8]) -> Self {
        let mut starts: Vec<(u64, Set)> = Vec::new();
        let bytes = data.iter().map(|byte| Set::byte(*byte));
        for (at, set) in bytes.chain([Set::end()]).enumerate() {
            if starts.last().is_none_or(|(_, last)| *last != set) {
                starts.push((at as u64, set));
            }
        }
        Ranges { starts }
    }

    /// No possible value at all, to which others are added.
    pub(crate) fn nothing() -> Self {
        Ranges::new(Set::default())
    }

    /// Any of the bytes of `other` may have been written.
    pub(crate) fn maybe_put(&mut self, other: &Content) {
        for (from, to, bytes) in other.iter().filter(|(.., set)| set.has_byte()) {
            self.change(0, to, |_, set| match set.has_end() {
                true => set.union(Set::byte(0)),
                false => set,
            });
            self.change(from, to, |_, set| set.union(bytes));
        }
    }

    /// The possible bytes of the file, without its end.
    pub(crate) fn all_bytes(&self) -> Content {
        let mut bytes = self.clone();
        bytes.change(0, FILE_MAX, |_, set| set.without_end());
        bytes
    }

    /// In `from..to`, each possible byte of the file may also be a zero.
    pub(crate) fn maybe_zero(&mut self, from: u64, to: u64) {
        self.change(from, to, |_, set| match set.has_byte() {
            true => set.with(0),
            false => set,
        });
    }

    /// Each position that may be a byte, or behind the end, may also be a zero.
    pub(crate) fn maybe_zero_behind_end(&mut self) {
        self.change(0, FILE_MAX, |_, set| {
            match set.has_byte() && set.has_end() {
                true => set.with(0),
                false => set,
            }
        });
    }

    /// The bytes of `other` below `end` are possible, too.
    pub(crate) fn uncover(&mut self, end: u64, other: &Content) {
        for (from, to, bytes) in other.iter().filter(|(.., set)| set.has_byte()) {
            self.change(from, to.min(end), |_, set| set.union(bytes));
        }
    }

    /// `from..to` are `value` now. If the file was shorter, zeros lie between.
    pub(crate) fn write(&mut self, from: u64, to: u64, value: u8) {
        self.change(0, from, |_, set| set.extended());
        self.change(from, to, |_, _| Set::byte(value));
    }

    /// The write may have happened, or not, or parts of it, its last ones first.
    pub(crate) fn maybe_write(&mut self, from: u64, to: u64, value: u8) {
        let mut written = self.clone();
        written.write(from, to, value);
        self.change(0, to, |_, set| match set.has_end() {
            true => set.union(Set::byte(0)),
            false => set,
        });
        self.add(&written);
    }

    pub(crate) fn truncate(&mut self, size: u64) {
        self.change(0, size, |_, set| set.extended());
        self.change(size, FILE_MAX, |_, _| Set::end());
    }

    pub(crate) fn add(&mut self, other: &Content) {
        self.combine(other, Set::union);
    }

    pub(crate) fn may_have_size(&self, size: u64) -> bool {
        size < FILE_MAX && self.get(size).has_end() && (size == 0 || self.get(size - 1).has_byte())
    }

    /// The possible sizes at which the possible values change, in order.
    pub(crate) fn sizes(&self) -> impl Iterator<Item = u64> {
        let starts = self.iter().map(|(start, ..)| start);
        starts.filter(|start| self.may_have_size(*start))
    }

    /// The size, if only one is possible.
    pub(crate) fn size(&self) -> Option<u64> {
        let mut size = 0;
        for (_, end, set) in self.iter() {
            match (set.has_byte(), set.has_end()) {
                (true, false) => size = end,
                (false, true) => return Some(size),
                _ => return None,
            }
        }
        None
    }

    /// Compares bytes read at `offset` into a buffer of `wanted` bytes, and says what is wrong.
    pub(crate) fn check(&self, offset: u64, wanted: u64, data: &[u8]) -> Result<(), String> {
        let end = offset + data.len() as u64;
        for (start, stop, set) in self.iter() {
            let (from, to) = (start.max(offset), stop.min(end));
            for at in from..to {
                let got = data[(at - offset) as usize];
                if !set.has(got) {
                    return Err(format!("at {at} is {got:#04x}, not of {set:?}"));
                }
            }
        }
        if (data.len() as u64) < wanted && !self.get(end).has_end() {
            let set = self.get(end);
            return Err(format!("the file ends at {end}, where {set:?} is"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_write_that_may_have_happened_leaves_both() {
        let mut content = Content::empty();
        content.write(0, 4, 1);
        content.maybe_write(6, 8, 2);
        assert!(content.may_have_size(4) && content.may_have_size(8));
        assert!(!content.may_have_size(3));
        assert_eq!(content.size(), None);
        assert!(content.check(0, 10, &[1, 1, 1, 1]).is_ok());
        assert!(content.check(0, 10, &[1, 1, 1, 1, 0, 0, 2, 2]).is_ok());
        assert!(content.check(0, 10, &[1, 1, 1, 1, 0, 0, 0, 2]).is_ok());
        assert!(content.check(0, 10, &[1, 1, 1, 1, 9]).is_err());
        assert!(content.check(0, 10, &[1, 1]).is_err());
    }

    #[test]
    fn zeros_behind_the_end_are_only_where_it_may_be() {
        let mut content = Content::empty();
        content.write(0, 8, 1);
        let mut cut = content.clone();
        cut.truncate(4);
        content.add(&cut);
        assert!(content.check(0, 10, &[1, 1, 1, 1, 0, 0, 0, 0]).is_err());
        content.maybe_zero_behind_end();
        assert!(content.check(0, 10, &[1, 1, 1, 1, 0, 0, 0, 0]).is_ok());
        assert!(content.check(0, 10, &[1, 1, 1, 0, 0, 0, 0, 0]).is_err());
        assert!(content.check(0, 10, &[1, 1, 1, 1, 0, 0, 0, 0, 0]).is_err());
    }

    proptest! {
        /// Changes without alternatives match those of a plain vector.
        #[test]
        fn certain_changes_are_exact(
            steps in proptest::collection::vec((0u64..60, 0u64..20, 1u8..255, any::<bool>()), 1..40),
        ) {
            let (mut content, mut model) = (Content::empty(), Vec::new());
            for (at, len, value, truncate) in steps {
                if truncate {
                    content.truncate(at);
                    model.resize(at as usize, 0);
                } else if len > 0 {
                    content.write(at, at + len, value);
                    if model.len() < (at + len) as usize {
                        model.resize((at + len) as usize, 0);
                    }
                    model[at as usize..(at + len) as usize].fill(value);
                }
                prop_assert_eq!(content.size(), Some(model.len() as u64));
                prop_assert!(content.check(0, 200, &model).is_ok());
                prop_assert_eq!(&content, &Content::of(&model));
                if let Some(last) = model.last() {
                    let mut wrong = model.clone();
                    *wrong.last_mut().unwrap() = last.wrapping_add(1);
                    prop_assert!(content.check(0, 200, &wrong).is_err());
                }
            }
        }
    }
}
