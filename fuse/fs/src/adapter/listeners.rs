//! How many of the workers listen to /dev/fuse.
//!
//! One event loop answers a caller that waits for each answer faster than several do: a request
//! that comes while the loop is about to wait would wake another thread, on another CPU, with
//! cold caches and another connection. So at first only the first worker listens. When it
//! hardly ever sleeps, it invites the next one, and so on; a worker that sleeps most of the time
//! leaves again, the last one first.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Rounds over which a worker's time is judged.
const WINDOW: u32 = 64;

/// Of all workers of a mount.
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
    pub(super) fn leave(&self, worker: usize) -> bool {
        let order = Ordering::SeqCst;
        worker > 0
            && self
                .listening
                .compare_exchange(worker + 1, worker, order, order)
                .is_ok()
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

/// What a worker should do about its load.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Advice {
    Stay,
    /// It has more than it can do.
    Invite,
    /// Others could do its work.
    Leave,
}

/// The time a worker sleeps, and does not.
#[derive(Debug)]
pub(super) struct Load {
    began: Instant,
    slept: Duration,
    rounds: u32,
}

impl Load {
    pub(super) fn new(now: Instant) -> Self {
        Load {
            began: now,
            slept: Duration::ZERO,
            rounds: 0,
        }
    }

    /// A round begins at `now`, after a wait since `waited`.
    pub(super) fn round(&mut self, waited: Instant, now: Instant) -> Advice {
        self.slept += now.saturating_duration_since(waited);
        self.rounds += 1;
        if self.rounds < WINDOW {
            return Advice::Stay;
        }
        let elapsed = now.saturating_duration_since(self.began);
        let slept = self.slept;
        *self = Load::new(now);
        if slept * 8 < elapsed {
            Advice::Invite
        } else if slept * 5 > elapsed * 3 {
            Advice::Leave
        } else {
            Advice::Stay
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROUND: Duration = Duration::from_micros(100);

    /// The advice after windows of rounds that sleep for so many hundredths of their time.
    fn advice(sleep: u32) -> Vec<Advice> {
        let mut now = Instant::now();
        let mut load = Load::new(now);
        let mut all = Vec::new();
        for _ in 0..3 * WINDOW {
            let waited = now;
            now += ROUND * sleep / 100;
            all.push(load.round(waited, now));
            now += ROUND * (100 - sleep) / 100;
        }
        all.retain(|advice| *advice != Advice::Stay);
        all
    }

    #[test]
    fn a_worker_that_hardly_sleeps_wants_help() {
        assert_eq!(advice(5), [Advice::Invite; 3]);
        assert_eq!(advice(30), []);
        assert_eq!(advice(80), [Advice::Leave; 3]);
    }

    #[test]
    fn the_last_one_leaves_first_and_the_first_one_stays() {
        let listeners = Listeners::new(3);
        assert_eq!((listeners.invite(), listeners.invite()), (Some(1), Some(2)));
        assert_eq!(listeners.invite(), None);
        assert!(!listeners.leave(1));
        assert!(listeners.leave(2) && listeners.leave(1));
        assert!(!listeners.leave(0));
        assert!(listeners.listens(0) && !listeners.listens(1));
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
