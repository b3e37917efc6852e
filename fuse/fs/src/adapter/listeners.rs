//! How many of the workers listen to /dev/fuse.
//!
//! One event loop answers a caller that waits for each answer faster than several do: a request that comes while the
//! loop is about to wait would wake another thread, on another CPU, with cold caches and another connection. So at
//! first only the first worker listens. When it hardly ever sleeps, it invites the next one, and so on. A worker
//! leaves again, the last one first, when the one before it could do the work of both: programs that make one request
//! at a time keep two workers awake for as long as one.

use nfsrdma_rdma::Instant;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// Rounds over which a worker's time is judged.
const WINDOW: u32 = 64;

/// A worker that is awake for more of its time, in thousandths, invites another one.
const MOST_AWAKE: u32 = 875;
/// A worker that is awake for less, together with the one before it, leaves.
const LEAST_AWAKE: u32 = 800;

/// Which workers of a mount listen.
#[derive(Debug)]
pub(super) struct Listeners {
    /// The workers from 0 up to this one listen.
    listening: AtomicUsize,
    rounds: Vec<Round>,
}

/// What others can see of a worker.
#[derive(Debug, Default)]
struct Round {
    number: AtomicU64,
    under_way: AtomicBool,
    /// `number` at the end of the last window of the worker before this one.
    seen: AtomicU64,
    /// The part of its time for which it was awake in its last window, in thousandths.
    awake: AtomicU32,
}

impl Listeners {
    pub(super) fn new(workers: usize) -> Self {
        Listeners {
            listening: AtomicUsize::new(1),
            rounds: (0..workers.max(1)).map(|_| Round::default()).collect(),
        }
    }

    /// Whether the worker with this number is to listen.
    pub(super) fn listens(&self, worker: usize) -> bool {
        worker < self.listening.load(Ordering::SeqCst)
    }

    /// Whether the worker with this number is the only one that listens.
    pub(super) fn alone(&self, worker: usize) -> bool {
        worker == 0 && self.listening.load(Ordering::Relaxed) == 1
    }

    /// The worker with this number begins to wait.
    pub(super) fn waits(&self, worker: usize) {
        self.rounds[worker]
            .under_way
            .store(false, Ordering::Relaxed);
    }

    /// It goes on.
    pub(super) fn works(&self, worker: usize) {
        let round = &self.rounds[worker];
        round.number.fetch_add(1, Ordering::Relaxed);
        round.under_way.store(true, Ordering::Relaxed);
    }

    /// One more is to listen: which, if there is one.
    pub(super) fn invite(&self) -> Option<usize> {
        let next = |listening| (listening < self.rounds.len()).then_some(listening + 1);
        let order = Ordering::SeqCst;
        let before = self.listening.fetch_update(order, order, next);
        // Workers count from 0.
        before.ok()
    }

    /// The worker wants to stop listening; whether it does. The first one never does.
    fn leave(&self, worker: usize) -> bool {
        let order = Ordering::SeqCst;
        worker > 0
            && self
                .listening
                .compare_exchange(worker + 1, worker, order, order)
                .is_ok()
    }

    /// In its last window the worker was awake for so many thousandths of its time. It stops
    /// listening if the worker before it could do the work of both. Returns a worker to wake: one
    /// that is to listen as well, since this one has too much to do; or the next one, which is to stop
    /// listening, since it has done nothing for as long as this one has a window.
    pub(super) fn was_awake(&self, worker: usize, awake: u32) -> Option<usize> {
        self.rounds[worker].awake.store(awake, Ordering::Relaxed);
        if awake > MOST_AWAKE {
            return self.invite();
        }
        if let Some(before) = worker.checked_sub(1)
            && awake + self.rounds[before].awake.load(Ordering::Relaxed) < LEAST_AWAKE
        {
            self.leave(worker);
        }
        let idle = worker + 1;
        let round = self.rounds.get(idle)?;
        let number = round.number.load(Ordering::Relaxed);
        let was_idle = round.seen.swap(number, Ordering::Relaxed) == number;
        (awake < LEAST_AWAKE && was_idle && self.leave(idle)).then_some(idle)
    }

    /// From now on all listen: one of them has failed.
    pub(super) fn all_listen(&self) {
        self.listening.store(usize::MAX, Ordering::SeqCst);
    }

    /// Whether every worker that listens is in the round it was in when `seen` was filled, which
    /// is filled anew: then something holds them up.
    pub(super) fn is_stuck(&self, seen: &mut Vec<u64>) -> bool {
        let listening = self.listening.load(Ordering::SeqCst).min(self.rounds.len());
        seen.resize(self.rounds.len(), u64::MAX);
        let mut stuck = true;
        for (round, seen) in self.rounds[..listening].iter().zip(seen) {
            let number = round.number.load(Ordering::Relaxed);
            stuck &= round.under_way.load(Ordering::Relaxed) && number == *seen;
            *seen = number;
        }
        stuck
    }
}

/// The time for which a worker sleeps, and for which it is awake.
#[derive(Debug)]
pub(super) struct Load {
    began: Instant,
    /// In nanoseconds.
    slept: u64,
    rounds: u32,
}

impl Load {
    pub(super) fn new(now: Instant) -> Self {
        Load {
            began: now,
            slept: 0,
            rounds: 0,
        }
    }

    /// A round begins at `now`, after a wait since `waited`. At the end of a window: for which part
    /// of it the worker was awake, in thousandths.
    pub(super) fn round(&mut self, waited: Instant, now: Instant) -> Option<u32> {
        self.slept += now.nanos_since(waited);
        self.rounds += 1;
        if self.rounds < WINDOW {
            return None;
        }
        let elapsed = now.nanos_since(self.began).max(1);
        let slept = self.slept.min(elapsed);
        *self = Load::new(now);
        // At most 1000.
        Some(((elapsed - slept) * 1000 / elapsed) as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    const ROUND: Duration = Duration::from_micros(100);

    #[test]
    fn the_time_awake_is_measured_in_windows() {
        let mut now = Instant::now();
        let mut load = Load::new(now);
        let mut all = Vec::new();
        for _ in 0..3 * WINDOW {
            let waited = now;
            now += ROUND * 30 / 100;
            all.extend(load.round(waited, now));
            now += ROUND * 70 / 100;
        }
        assert_eq!(all.len(), 3);
        assert!(
            all.iter().all(|awake| (690..=700).contains(awake)),
            "{all:?}"
        );
    }

    #[test]
    fn a_worker_that_hardly_sleeps_gets_help_until_one_can_do_the_work() {
        let listeners = Listeners::new(2);
        assert_eq!(listeners.was_awake(0, 800), None);
        assert_eq!(listeners.was_awake(0, 900), Some(1));
        assert_eq!(listeners.was_awake(0, 900), None, "there is no other one");
        // One request at a time, which now one worker reads and now the other.
        listeners.works(1);
        assert_eq!(listeners.was_awake(1, 300), None);
        assert!(listeners.listens(1));
        listeners.works(1);
        assert_eq!(listeners.was_awake(0, 400), None);
        assert_eq!(listeners.was_awake(1, 450), None);
        assert!(listeners.listens(1));
        assert_eq!(listeners.was_awake(1, 350), None);
        assert!(!listeners.listens(1) && listeners.listens(0));
        assert_eq!(listeners.was_awake(0, 10), None);
        assert!(listeners.listens(0), "the first one stays");
    }

    #[test]
    fn a_worker_that_gets_no_requests_stops_listening() {
        let listeners = Listeners::new(2);
        assert_eq!(listeners.was_awake(0, 900), Some(1));
        listeners.works(1);
        assert_eq!(listeners.was_awake(0, 500), None);
        assert!(listeners.listens(1));
        assert_eq!(listeners.was_awake(0, 500), Some(1), "to be woken");
        assert!(!listeners.listens(1) && listeners.alone(0));
        assert_eq!(listeners.was_awake(0, 500), None);
    }

    #[test]
    fn the_last_one_leaves_first_and_the_first_one_stays() {
        let listeners = Listeners::new(3);
        assert_eq!((listeners.invite(), listeners.invite()), (Some(1), Some(2)));
        assert_eq!(listeners.invite(), None);
        assert!(!listeners.alone(0));
        assert!(!listeners.leave(1));
        assert!(listeners.leave(2) && listeners.leave(1));
        assert!(!listeners.leave(0));
        assert!(listeners.listens(0) && !listeners.listens(1));
        assert!(listeners.alone(0) && !listeners.alone(1));
    }

    #[test]
    fn a_round_that_does_not_end_is_noticed() {
        let listeners = Listeners::new(2);
        let mut seen = Vec::new();
        assert!(!listeners.is_stuck(&mut seen));
        listeners.works(0);
        assert!(!listeners.is_stuck(&mut seen));
        assert!(listeners.is_stuck(&mut seen));
        listeners.waits(0);
        assert!(!listeners.is_stuck(&mut seen));
        listeners.works(0);
        assert!(!listeners.is_stuck(&mut seen));
        assert_eq!(listeners.invite(), Some(1));
        assert!(!listeners.is_stuck(&mut seen), "the second one waits");
    }
}
