//! Whether other threads want the CPU that a worker runs on.
//!
//! A worker that spins shares its CPU worse than one that sleeps. The scheduler prefers a thread
//! that has just been woken to one that has been running, so a worker that sleeps until its event
//! runs at once, and one that spins may wait for the programs on its CPU. Therefore a worker stops
//! spinning for a while if it was kept from running in most of the last [`HISTORY`] windows, which
//! are [`WINDOW`] rounds each. A single window says little: on a quiet machine the scheduler also
//! puts a program on the worker's CPU now and then, and moves it away again.
//!
//! A worker was kept from running if its CPU time is less than the time for which it was awake. If
//! more than [`JUMP`] passes between two looks of one spin, another thread had the CPU, which counts
//! as [`JUMP_COUNTS`] windows.

use std::time::Duration;

/// Rounds whose times are added up.
const WINDOW: u32 = 64;
/// Windows that are remembered.
const HISTORY: u32 = 16;
/// A worker stops spinning if it was kept from running in so many of them.
const CONTENDED: u32 = 10;
/// What a jump of the clock counts for.
const JUMP_COUNTS: u32 = 5;
/// For how many windows a worker does not spin, the first time.
const FIRST_PAUSE: u32 = 32;
/// The same, if spinning was tried several times in a row and found contended each time.
const LONGEST_PAUSE: u32 = 512;
/// A window in which the worker was awake for less time says nothing.
const LEAST_AWAKE: Duration = Duration::from_micros(200);
/// Between two looks of a spin as much time passes only if other threads run.
const JUMP: Duration = Duration::from_micros(500);

/// How much other threads have kept one worker from running lately.
#[derive(Debug, Default)]
pub(super) struct Contention {
    /// Rounds of this window, and for how long the worker was awake in them.
    rounds: u32,
    awake: Duration,
    /// The worker's CPU time at the beginning of this window; `None` in the first one.
    cpu_time: Option<Duration>,
    /// One bit for each of the last windows, the newest one lowest: whether the worker was kept
    /// from running.
    history: u32,
    /// Windows since the history was cleared, up to [`HISTORY`].
    windows: u32,
    /// Windows until the worker may spin again.
    pause: u32,
    /// The length of the last pause; 0 if spinning has been undisturbed since.
    last_pause: u32,
}

impl Contention {
    /// Whether the worker may spin.
    pub(super) fn may_spin(&self) -> bool {
        self.pause == 0
    }

    /// A worker that spins has looked for events again after this time.
    pub(super) fn looked_again(&mut self, after: Duration) {
        if after > JUMP && self.may_spin() {
            for _ in 0..JUMP_COUNTS {
                self.remember(true);
            }
        }
    }

    /// A round has ended in which the worker was awake for this time. `cpu_time` returns the CPU
    /// time of its thread since the thread began.
    pub(super) fn round(&mut self, awake: Duration, cpu_time: impl FnOnce() -> Duration) {
        self.awake += awake;
        self.rounds += 1;
        if self.rounds < WINDOW {
            return;
        }
        let cpu_time = cpu_time();
        let awake = std::mem::take(&mut self.awake);
        self.rounds = 0;
        let Some(before) = self.cpu_time.replace(cpu_time) else {
            return;
        };
        if self.pause > 0 {
            self.pause -= 1;
        } else if awake >= LEAST_AWAKE {
            let kept_from_running = awake.saturating_sub(cpu_time.saturating_sub(before));
            self.remember(kept_from_running * 8 > awake);
        }
    }

    fn remember(&mut self, contended: bool) {
        self.history = self.history << 1 & ((1 << HISTORY) - 1) | u32::from(contended);
        self.windows = (self.windows + 1).min(HISTORY);
        if self.history.count_ones() >= CONTENDED {
            self.pause = (self.last_pause * 2).clamp(FIRST_PAUSE, LONGEST_PAUSE);
            self.last_pause = self.pause;
            self.history = 0;
            self.windows = 0;
        } else if self.windows == HISTORY {
            self.last_pause = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many of these windows a worker may spin in that runs for so many hundredths of the time
    /// for which it is awake.
    fn spins(contention: &mut Contention, windows: u32, runs: u32) -> u32 {
        let round = Duration::from_micros(100);
        let mut cpu_time = contention.cpu_time.unwrap_or_default();
        let mut spun = 0;
        for _ in 0..windows {
            spun += u32::from(contention.may_spin());
            for _ in 0..WINDOW {
                cpu_time += round * runs / 100;
                contention.round(round, || cpu_time);
            }
        }
        spun
    }

    #[test]
    fn a_worker_that_runs_while_it_is_awake_spins() {
        assert_eq!(spins(&mut Contention::default(), 100, 95), 100);
    }

    #[test]
    fn a_worker_that_is_kept_from_running_now_and_then_spins() {
        let mut contention = Contention::default();
        let spun: u32 = (0..300)
            .map(|_| spins(&mut contention, 8, 50) + spins(&mut contention, 8, 100))
            .sum();
        assert_eq!(spun, 300 * 16);
    }

    #[test]
    fn where_other_threads_run_spinning_is_tried_rarely_and_comes_back() {
        let mut contention = Contention::default();
        let windows = 10_000;
        let tried = spins(&mut contention, windows, 50);
        assert!((100..windows / 20).contains(&tried), "{tried}");
        assert!(spins(&mut contention, 1000, 100) >= 1000 - LONGEST_PAUSE);
        // After a quiet time the pause is short again.
        assert_eq!(spins(&mut contention, CONTENDED, 50), CONTENDED);
        assert!(!contention.may_spin());
        assert_eq!(spins(&mut contention, FIRST_PAUSE + 1, 100), 1);
    }

    #[test]
    fn a_clock_that_jumps_twice_stops_spinning() {
        let mut contention = Contention::default();
        contention.looked_again(Duration::from_micros(2));
        contention.looked_again(Duration::from_millis(3));
        assert!(contention.may_spin());
        contention.looked_again(Duration::from_millis(3));
        assert!(!contention.may_spin());
    }

    #[test]
    fn a_worker_that_hardly_does_anything_learns_nothing() {
        let mut contention = Contention::default();
        for _ in 0..100 * WINDOW {
            contention.round(Duration::from_micros(2), || Duration::ZERO);
        }
        assert!(contention.may_spin());
    }
}
