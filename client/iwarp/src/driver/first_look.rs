//! Whether to read a socket once more before sleeping, though it was empty a moment ago.
//!
//! Where messages come one at a time the socket is still empty, and the system call is wasted. So
//! the more of these reads find nothing, the more rarely they are made.

/// The longest run of waits without such a read.
const MOST_SKIPPED: u32 = 63;

/// How often these reads have found something on one connection.
#[derive(Debug, Default)]
pub(crate) struct FirstLook {
    /// Reads that found nothing; each read that finds something halves this.
    missed: u32,
    /// Waits without such a read that are still to come.
    skip: u32,
}

/// What [`FirstLook`] says of a read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Look {
    /// The socket may have data, so it has to be read.
    Needed,
    /// The socket is probably empty; the read shows whether such reads pay.
    Tried,
    /// The socket is not read.
    Skipped,
}

impl FirstLook {
    /// A wait begins. Returns whether its first read is made.
    pub(crate) fn next(&mut self) -> Look {
        match self.skip.checked_sub(1) {
            Some(left) => {
                self.skip = left;
                Look::Skipped
            }
            None => Look::Tried,
        }
    }

    /// A read that was [`Look::Tried`] found something, or nothing.
    pub(crate) fn tried(&mut self, found: bool) {
        if found {
            self.missed /= 2;
        } else {
            self.missed = (self.missed + 1).min(8);
            self.skip = (1 << self.missed).min(MOST_SKIPPED + 1) - 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_first_look_is_skipped_where_it_finds_nothing() {
        let mut look = FirstLook::default();
        let tries = |look: &mut FirstLook, found| {
            let tries = (0..6400).filter(|_| {
                let tried = look.next() == Look::Tried;
                if tried {
                    look.tried(found);
                }
                tried
            });
            tries.count()
        };
        let rare = tries(&mut look, false);
        assert!((100..=110).contains(&rare), "{rare}");
        let usual = tries(&mut look, true);
        assert!(usual > 6300, "{usual}");
    }
}
