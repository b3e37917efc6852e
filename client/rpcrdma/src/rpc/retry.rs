//! When a call is retried, and when a server counts as not responding: `timeo`, `retrans`, `hard`,
//! `soft` and `softerr` of nfs(5), as they work over connections. A retry is made on a new connection,
//! never on the one that the call was sent on. Each transmission has `timeo` more than the one before,
//! also after the major timeout, `timeo * (retrans + 1)`: Linux's client then begins again with
//! `timeo`, but it may leave the connection. Here, a call whose data takes longer than that on a slow
//! link would never end.

use crate::options::Recovery;
use nfsrdma_rdma::Instant;
use std::time::Duration;

/// Longest time between retries (nfs(5): "the maximum timeout allowed is 600 seconds").
const LONGEST: Duration = Duration::from_secs(600);

/// The retry options of a mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetryPolicy {
    pub timeo: Duration,
    pub retrans: u32,
    pub recovery: Recovery,
}

impl RetryPolicy {
    /// The major timeout, as Linux computes it: how long a call of a `soft` mount lasts without a
    /// reply, and after which time the server of a `hard` one counts as not responding.
    pub fn patience(&self) -> Duration {
        let all = self.timeo.saturating_mul(self.retrans.saturating_add(1));
        all.min(LONGEST)
    }
}

/// The deadlines of one call.
#[derive(Debug, Clone, Copy)]
pub struct Retry {
    /// When its major timeout began.
    since: Instant,
    /// How long after that it is retried.
    deadline: Duration,
    interval: Duration,
    was_sent: bool,
    is_late: bool,
}

/// The result of [`Retry::check`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expiry {
    /// There is time left.
    NotYet,
    /// The call timed out: retry it on a new connection.
    Retry,
    /// Like `Retry`; the server also counts as not responding.
    NotResponding,
    /// Like `NotResponding`; the call fails.
    GiveUp,
}

impl Retry {
    /// Starts the time of a call made at `now`.
    pub fn new(policy: &RetryPolicy, now: Instant) -> Self {
        let interval = policy.timeo.min(LONGEST);
        Retry {
            since: now,
            deadline: interval,
            interval,
            was_sent: false,
            is_late: false,
        }
    }

    /// The call is sent at `now`. Its time starts anew at the first transmission, because time
    /// spent waiting for a credit is not time without a reply. Later transmissions do not restart
    /// it; otherwise a call to a server that ends each connection would never time out.
    pub fn sent(&mut self, policy: &RetryPolicy, now: Instant) {
        if !self.was_sent {
            let (was_sent, is_late) = (true, self.is_late);
            *self = Retry {
                was_sent,
                is_late,
                ..Retry::new(policy, now)
            };
        }
    }

    /// There is no connection for the call: waiting for one is time without a reply.
    pub fn unconnected(&mut self) {
        self.was_sent = true;
    }

    /// Whether its major timeout has passed.
    pub fn is_late(&self) -> bool {
        self.is_late
    }

    /// Compares `now` with the deadlines, and moves the one that has passed.
    pub fn check(&mut self, policy: &RetryPolicy, now: Instant) -> Expiry {
        let waited = now.saturating_duration_since(self.since);
        let over = match self.is_late {
            true => self.deadline,
            false => policy.patience(),
        };
        if waited < over.min(self.deadline) {
            return Expiry::NotYet;
        }
        // "After each retransmission, the timeout is increased by timeo".
        self.interval = (self.interval + policy.timeo).min(LONGEST);
        self.deadline = waited + self.interval;
        if waited < over {
            return Expiry::Retry;
        }
        self.is_late = true;
        match policy.recovery {
            Recovery::Hard => Expiry::NotResponding,
            Recovery::Soft | Recovery::SoftErr => Expiry::GiveUp,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `timeo` is in seconds.
    fn policy(recovery: Recovery, retrans: u32, timeo: u64) -> RetryPolicy {
        RetryPolicy {
            timeo: Duration::from_secs(timeo),
            retrans,
            recovery,
        }
    }

    /// Seconds after which each expiry comes, in virtual time.
    fn run(recovery: Recovery, retrans: u32, timeo: u64, seconds: u64) -> Vec<(u64, Expiry)> {
        let policy = policy(recovery, retrans, timeo);
        let start = Instant::now();
        let mut retry = Retry::new(&policy, start);
        (0..=seconds)
            .filter_map(
                |second| match retry.check(&policy, start + Duration::from_secs(second)) {
                    Expiry::NotYet => None,
                    expiry => Some((second, expiry)),
                },
            )
            .collect()
    }

    /// Linux: 180 seconds with `timeo=600,retrans=2`, and ten minutes at most.
    #[test]
    fn soft_gives_up_after_the_major_timeout() {
        let expected = [(60, Expiry::Retry), (180, Expiry::GiveUp)];
        assert_eq!(run(Recovery::Soft, 2, 60, 200), expected);
        assert_eq!(run(Recovery::SoftErr, 0, 5, 9), [(5, Expiry::GiveUp)]);
    }

    #[test]
    fn patience_is_when_a_call_gives_up() {
        let all = [(2, 60), (0, 5), (0, 900), (3, 1), (4, 250), (2, 600)];
        for (retrans, timeo) in all.into_iter().chain([(u32::MAX, 1)]) {
            let policy = policy(Recovery::Soft, retrans, timeo);
            let seconds = policy.patience().as_secs();
            assert!(seconds <= 600);
            let over = run(Recovery::Soft, retrans, timeo, seconds);
            assert_eq!(over.last(), Some(&(seconds, Expiry::GiveUp)), "{policy:?}");
        }
    }

    #[test]
    fn time_in_the_queue_is_no_time_without_a_reply() {
        let policy = policy(Recovery::Soft, 0, 60);
        let start = Instant::now();
        let mut retry = Retry::new(&policy, start);
        let after = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(retry.check(&policy, after(59)), Expiry::NotYet);
        retry.sent(&policy, after(59));
        assert_eq!(retry.check(&policy, after(118)), Expiry::NotYet);
        assert_eq!(retry.check(&policy, after(119)), Expiry::GiveUp);
    }

    #[test]
    fn a_server_that_ends_each_connection_is_given_up() {
        let policy = policy(Recovery::Soft, 2, 60);
        let start = Instant::now();
        let mut retry = Retry::new(&policy, start);
        let given_up = (0..3600).find(|&second| {
            let now = start + Duration::from_secs(second);
            if second % 11 == 0 {
                retry.sent(&policy, now);
            }
            retry.check(&policy, now) == Expiry::GiveUp
        });
        assert_eq!(given_up, Some(policy.patience().as_secs()));
    }

    #[test]
    fn time_without_a_connection_is_time_without_a_reply() {
        let policy = policy(Recovery::Soft, 1, 60);
        let start = Instant::now();
        let mut retry = Retry::new(&policy, start);
        let after = |seconds| start + Duration::from_secs(seconds);
        retry.unconnected();
        assert_eq!(retry.check(&policy, after(60)), Expiry::Retry);
        retry.sent(&policy, after(100));
        assert!(!retry.is_late());
        assert_eq!(retry.check(&policy, after(120)), Expiry::GiveUp);
        assert!(retry.is_late());
    }

    #[test]
    fn hard_never_gives_up() {
        let all = run(Recovery::Hard, 1, 250, 1500);
        let expected = [
            (250, Expiry::Retry),
            (500, Expiry::NotResponding),
            (1100, Expiry::NotResponding),
        ];
        assert_eq!(all, expected);
    }
}
