//! Whether a thread looks for events for a while before it sleeps.
//!
//! Waking a thread on another CPU takes longer than all other work for a small call, so spinning
//! pays where the reply comes at once. Where it does not, or where the peer needs this CPU to
//! answer, spinning only takes time from other threads. A spin that finds nothing costs more than
//! one that finds something saves. So a thread goes on spinning as long as four of five spins find
//! something; otherwise it spins in fewer and fewer of its waits.

use crate::Instant;
use std::time::Duration;

/// The longest run of waits without spinning.
const MOST_SKIPPED: u32 = 63;

/// A spin that found nothing outweighs so many that found something.
const MISS: u32 = 4;

/// After so many spins that found something, earlier ones that found nothing are forgotten.
const MOST_HITS: u32 = 16;

/// How well spinning has paid for one thread.
#[derive(Debug)]
pub struct Spin {
    /// How long to spin in one wait, at most.
    time: Duration,
    /// Spins that found something, less [`MISS`] for each that found nothing.
    hits: u32,
    /// How often in a row `hits` fell to zero.
    missed: u32,
    /// Waits without spinning that are still to come.
    skip: u32,
    /// When the spin of this wait ends; `None` if this wait has none, or it is over.
    until: Option<Instant>,
}

impl Spin {
    /// A thread that spins for at most `time` in one wait, and never if `time` is zero.
    pub fn new(time: Duration) -> Self {
        Spin {
            time,
            hits: 0,
            missed: 0,
            skip: 0,
            until: None,
        }
    }

    /// The same for a thread that does not yield while it spins. It never spins if the process has
    /// only one CPU.
    pub fn holding_cpu(time: Duration) -> Self {
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        Spin::new(if cpus > 1 { time } else { Duration::ZERO })
    }

    /// A wait begins at `now`.
    pub fn begin(&mut self, now: Instant) {
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

    /// Nothing has come so far. Returns whether to look once more before sleeping.
    pub fn again(&mut self, now: Instant) -> bool {
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
        self.hits = self.hits.saturating_sub(MISS);
        if self.hits == 0 {
            self.missed = self.missed.saturating_add(1);
            self.skip = (1u32 << self.missed.min(16)).min(MOST_SKIPPED + 1) - 1;
        }
    }

    fn hit(&mut self) {
        self.hits += 1;
        if self.hits >= MOST_HITS {
            self.hits = MOST_HITS;
            self.missed = 0;
        }
    }

    /// Something has come. If it came during a spin, the spin has paid, unless other threads took
    /// the CPU for so long that sleeping would have been better: the scheduler prefers a thread that
    /// is woken to one that has yielded.
    pub fn found(&mut self, now: impl FnOnce() -> Instant) {
        match self.until.take() {
            Some(until) if now() <= until => self.hit(),
            Some(_) => self.miss(),
            None => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIME: Duration = Duration::from_micros(20);

    /// How many of `waits` waits spin if something comes after `delay` in each.
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
    fn what_pays_half_of_the_time_does_not_pay() {
        let mut spin = Spin::new(TIME);
        let mut spun = 0;
        for wait in 0..6400 {
            spun += spins(
                &mut spin,
                1,
                if wait % 2 == 0 { TIME / 2 } else { TIME * 10 },
            );
        }
        assert!((100..=400).contains(&spun), "{spun}");
    }

    #[test]
    fn a_miss_among_many_hits_changes_nothing() {
        let mut spin = Spin::new(TIME);
        for _ in 0..100 {
            assert_eq!(spins(&mut spin, 9, TIME / 2), 9);
            assert_eq!(spins(&mut spin, 1, TIME * 10), 1);
        }
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
