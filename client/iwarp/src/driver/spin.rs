//! Whether to look at the socket for a while before sleeping.
//!
//! Waking a sleeper on another CPU costs more than all else of a small call, so spinning pays
//! where answers come at once. Where they do not, or where the peer needs this CPU to answer,
//! it only takes time from others: what has not paid lately is tried less and less often.

use std::time::{Duration, Instant};

/// Waits without spinning between two tries, at most.
const MOST_SKIPPED: u32 = 63;

#[derive(Debug)]
pub(crate) struct Spin {
    time: Duration,
    /// Spins in a row that ended with nothing.
    missed: u32,
    /// Waits yet to come without spinning.
    skip: u32,
    /// This wait's spinning ends then.
    until: Option<Instant>,
}

impl Spin {
    pub(crate) fn new(time: Duration) -> Self {
        Spin {
            time,
            missed: 0,
            skip: 0,
            until: None,
        }
    }

    /// A wait begins at `now`.
    pub(crate) fn begin(&mut self, now: Instant) {
        self.until = None;
        if self.time.is_zero() {
            return;
        }
        if self.skip > 0 {
            self.skip -= 1;
        } else {
            self.until = Some(now + self.time);
        }
    }

    /// Nothing came so far: whether to look once more before sleeping.
    pub(crate) fn again(&mut self, now: Instant) -> bool {
        let Some(until) = self.until else {
            return false;
        };
        if now < until {
            return true;
        }
        self.until = None;
        self.miss();
        false
    }

    fn miss(&mut self) {
        self.missed = self.missed.saturating_add(1);
        self.skip = (1u32 << self.missed.min(16)).min(MOST_SKIPPED + 1) - 1;
    }

    /// Something came. If it did while spinning, that paid; unless others took the CPU for so
    /// long that sleeping would have been better (a sleeper that is woken goes first, one that
    /// yields goes last).
    pub(crate) fn found(&mut self, now: impl FnOnce() -> Instant) {
        match self.until.take() {
            Some(until) if now() <= until => self.missed = 0,
            Some(_) => self.miss(),
            None => {}
        }
    }
}

/// Whether to read a socket that was empty a moment ago once more before sleeping. Where messages
/// come one at a time it is empty still, and that was a system call for nothing; so what has not
/// paid is tried less and less often.
#[derive(Debug, Default)]
pub(crate) struct FirstLook {
    /// Tries that found nothing, halved by each that found something.
    missed: u32,
    /// Waits yet to come without a try.
    skip: u32,
}

/// What [`FirstLook`] says of a read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Look {
    /// It may find something.
    Needed,
    /// To find out whether it does.
    Tried,
    Skipped,
}

impl FirstLook {
    /// A wait begins.
    pub(crate) fn next(&mut self) -> Look {
        match self.skip.checked_sub(1) {
            Some(left) => {
                self.skip = left;
                Look::Skipped
            }
            None => Look::Tried,
        }
    }

    /// What a try found.
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

    const TIME: Duration = Duration::from_micros(20);

    /// How often `waits` waits spin, if something comes after `delay`.
    fn spins(spin: &mut Spin, waits: u32, delay: Duration) -> u32 {
        let mut now = Instant::now();
        let mut spun = 0;
        for _ in 0..waits {
            spin.begin(now);
            let comes = now + delay;
            let mut tried = false;
            while now < comes && spin.again(now) {
                tried = true;
                now += Duration::from_micros(1);
            }
            spun += u32::from(tried);
            now = now.max(comes);
            spin.found(|| now);
        }
        spun
    }

    #[test]
    fn what_pays_goes_on() {
        let mut spin = Spin::new(TIME);
        assert_eq!(spins(&mut spin, 1000, TIME / 2), 1000);
    }

    #[test]
    fn what_does_not_pay_becomes_rare_and_is_tried_again() {
        let mut spin = Spin::new(TIME);
        let tries = spins(&mut spin, 6400, TIME * 10);
        assert!((100..=110).contains(&tries), "{tries}");
        // At most so many waits later it is found to pay again.
        assert!(spins(&mut spin, 1000, TIME / 2) >= 1000 - MOST_SKIPPED);
    }

    #[test]
    fn yielding_to_a_busy_neighbour_does_not_pay() {
        let mut spin = Spin::new(TIME);
        let mut now = Instant::now();
        let mut spun = 0;
        for _ in 0..6400 {
            spin.begin(now);
            if spin.again(now) {
                spun += 1;
                // The yield returns late, and by then the answer is there.
                now += TIME * 100;
            }
            spin.found(|| now);
        }
        assert!((100..=110).contains(&spun), "{spun}");
    }

    #[test]
    fn no_time_no_spinning() {
        let mut spin = Spin::new(Duration::ZERO);
        assert_eq!(spins(&mut spin, 100, TIME), 0);
    }
}
