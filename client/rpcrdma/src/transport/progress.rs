//! Tells a slow link from a silent server.
//!
//! On a slow link a call can take longer than `timeo`, because of its data or of those before it. On a
//! new connection all of these would begin again; where one call takes longer than a connection lives,
//! none would ever end. So a connection is left as it is while data moves.
//!
//! But a call of which the server has lost sight must be sent again, also where others go on. It is told
//! from one that waits for its turn by the load, the data of all calls that had not ended: once as much
//! as that has moved, it was its turn.

use nfsrdma_rdma::Instant;
use std::time::Duration;

/// What is known of a connection at a tick of the transport's timer.
#[derive(Debug, Clone, Copy, Default)]
struct Sample {
    /// The bytes that have moved so far.
    moved: u64,
    /// The bytes of data of all calls that have not ended.
    load: u64,
}

#[derive(Debug, Default)]
pub(super) struct Progress {
    /// When `last` was taken; `before` is half of `timeo` older, or more.
    at: Option<Instant>,
    last: Sample,
    before: Sample,
}

impl Progress {
    /// Goes on to `now`, when `moved` bytes have moved so far. Returns whether a call that has had no
    /// reply for `timeo` may still get one: in that time, or the last half of it, something has moved,
    /// but not as much as there was to do.
    pub(super) fn is_slow(&mut self, now: Instant, moved: u64, load: u64, timeo: Duration) -> bool {
        let since = |at| now.saturating_duration_since(at);
        if self.at.is_none_or(|at| since(at) >= timeo / 2) {
            self.before = self.last;
            self.last = Sample { moved, load };
            self.at = Some(now);
        }
        let recent = moved.saturating_sub(self.before.moved);
        (1..load.max(self.before.load)).contains(&recent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEO: u64 = 60;
    const MIB: u64 = 1 << 20;

    /// Seconds of the first hour, from `timeo` on, at which a link is slow, whose load and bytes moved
    /// are given by the second.
    fn slow(load: impl Fn(u64) -> u64, moved: impl Fn(u64) -> u64) -> Vec<u64> {
        let (mut progress, begin) = (Progress::default(), Instant::now());
        let timeo = Duration::from_secs(TIMEO);
        let mut is_slow = |second| {
            let now = begin + Duration::from_secs(second);
            progress.is_slow(now, moved(second), load(second), timeo)
        };
        let all = (0..3600).filter(|second| is_slow(*second));
        all.filter(|second| *second >= TIMEO).collect()
    }

    #[test]
    fn a_link_is_slow_while_less_moves_than_there_is_to_do() {
        let always: Vec<_> = (TIMEO..3600).collect();
        // A call of a MiB, of which a byte moves each ten seconds.
        assert_eq!(slow(|_| MIB, |second| 200 + second / 10), always);
        // 64 calls of a MiB at any time, and 512 KiB in a second.
        assert_eq!(slow(|_| 64 * MIB, |second| second * MIB / 2), always);
    }

    #[test]
    fn the_last_of_many_calls_is_not_late() {
        // 100 calls of a MiB, and a MiB in a second.
        let left = |second: u64| 100_u64.saturating_sub(second) * MIB;
        let found = slow(left, |second| second.min(100) * MIB);
        assert!(
            (TIMEO..100).all(|second| found.contains(&second)),
            "{found:?}"
        );
    }

    #[test]
    fn a_call_that_others_overtake_is_late() {
        assert!(slow(|_| MIB, |second| second * MIB).is_empty());
        assert!(slow(|_| 0, |second| second * 200).is_empty());
    }

    #[test]
    fn a_link_on_which_nothing_moves_is_not_slow() {
        assert!(slow(|_| MIB, |_| 0).is_empty());
        for stop in [100, 1000] {
            let found = slow(|_| MIB, |second| second.min(stop));
            let last = *found.last().unwrap();
            assert!((stop..stop + TIMEO).contains(&last), "{stop}: {last}");
        }
    }
}
