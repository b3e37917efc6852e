//! Whether to look at a descriptor once more that was probably emptied a moment ago.
//!
//! Where messages or requests come one at a time it is empty, and the system call is wasted. So the
//! more of these attempts find nothing, the more rarely they are made.

/// The longest run of rounds without an attempt.
const MOST_SKIPPED: u32 = 63;

/// How often the attempts at one descriptor have found something.
#[derive(Debug, Default)]
pub struct Attempts {
    /// Attempts that found nothing; each one that finds something halves this.
    missed: u32,
    /// Rounds without an attempt that are still to come.
    skip: u32,
}

impl Attempts {
    /// A round begins. Returns whether the attempt is made in it.
    pub fn is_due(&mut self) -> bool {
        let due = self.skip == 0;
        self.skip = self.skip.saturating_sub(1);
        due
    }

    /// An attempt was made, and found something or nothing.
    pub fn made(&mut self, found: bool) {
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

    fn made(attempts: &mut Attempts, rounds: u32, found: bool) -> usize {
        let made = (0..rounds).filter(|_| {
            let due = attempts.is_due();
            if due {
                attempts.made(found);
            }
            due
        });
        made.count()
    }

    #[test]
    fn attempts_that_find_something_go_on() {
        assert_eq!(made(&mut Attempts::default(), 100, true), 100);
    }

    #[test]
    fn attempts_that_find_nothing_become_rare_and_are_made_again() {
        let mut attempts = Attempts::default();
        let rare = made(&mut attempts, 6400, false);
        assert!((100..=110).contains(&rare), "{rare}");
        let usual = made(&mut attempts, 6400, true);
        assert!(usual > 6300, "{usual}");
    }
}
