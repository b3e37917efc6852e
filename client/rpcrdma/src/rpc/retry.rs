//! When a call is retried, and when a server counts as not responding: `timeo`, `retrans`, `hard`,
//! `soft` and `softerr` of nfs(5), as they work over connections. The backoff is linear, and a
//! retry is made on a new connection, never on the one that the call was sent on.

use crate::options::Recovery;
use std::time::{Duration, Instant};

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
    /// How long a call without a reply lasts under `soft` and `softerr`.
    pub fn patience(&self) -> Duration {
        let mut sum = Duration::ZERO;
        let mut interval = self.timeo.min(LONGEST);
        for retry in 0..=self.retrans {
            if interval == LONGEST || interval.is_zero() {
                let left = (self.retrans - retry).saturating_add(1);
                return sum.saturating_add(interval.saturating_mul(left));
            }
            sum += interval;
            interval = (interval + self.timeo).min(LONGEST);
        }
        sum
    }
}

/// The deadline and the number of retries of one call.
#[derive(Debug, Clone, Copy)]
pub struct Retry {
    deadline: Instant,
    interval: Duration,
    retries: u32,
    was_sent: bool,
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
    /// Like `NotResponding`; the call also fails.
    GiveUp,
}

impl Retry {
    /// Starts the time of a call made at `now`.
    pub fn new(policy: &RetryPolicy, now: Instant) -> Self {
        let interval = policy.timeo.min(LONGEST);
        Retry {
            deadline: now + interval,
            interval,
            retries: 0,
            was_sent: false,
        }
    }

    /// The call is sent at `now`. Its time starts anew at the first transmission, because time
    /// spent waiting for a credit is not time without a reply. Later transmissions do not restart
    /// it; otherwise a call to a server that ends each connection would never time out.
    pub fn sent(&mut self, now: Instant) {
        if !self.was_sent {
            self.was_sent = true;
            self.deadline = now + self.interval;
        }
    }

    /// Compares `now` with the deadline, and moves the deadline if it has passed.
    pub fn check(&mut self, policy: &RetryPolicy, now: Instant) -> Expiry {
        if now < self.deadline {
            return Expiry::NotYet;
        }
        self.retries = self.retries.saturating_add(1);
        // "After each retransmission, the timeout is increased by timeo".
        self.interval = (self.interval + policy.timeo).min(LONGEST);
        self.deadline = now + self.interval;
        match (self.retries > policy.retrans, policy.recovery) {
            (false, _) => Expiry::Retry,
            (true, Recovery::Hard) => Expiry::NotResponding,
            (true, Recovery::Soft | Recovery::SoftErr) => Expiry::GiveUp,
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

    #[test]
    fn soft_gives_up_after_retrans_retries() {
        let expected = [
            (60, Expiry::Retry),
            (180, Expiry::Retry),
            (360, Expiry::GiveUp),
        ];
        assert_eq!(run(Recovery::Soft, 2, 60, 400), expected);
        assert_eq!(run(Recovery::SoftErr, 0, 5, 9), [(5, Expiry::GiveUp)]);
    }

    #[test]
    fn patience_is_when_a_call_gives_up() {
        for (retrans, timeo) in [(2, 60), (0, 5), (0, 900), (3, 1), (4, 250), (2, 600)] {
            let policy = policy(Recovery::Soft, retrans, timeo);
            let seconds = policy.patience().as_secs();
            let over = run(Recovery::Soft, retrans, timeo, seconds);
            assert_eq!(over.last(), Some(&(seconds, Expiry::GiveUp)), "{policy:?}");
        }
        let long = RetryPolicy {
            timeo: Duration::from_millis(100),
            retrans: u32::MAX,
            recovery: Recovery::Soft,
        };
        assert!(long.patience() > LONGEST.saturating_mul(u32::MAX - 6001));
    }

    #[test]
    fn time_in_the_queue_is_no_time_without_a_reply() {
        let policy = policy(Recovery::Soft, 0, 60);
        let start = Instant::now();
        let mut retry = Retry::new(&policy, start);
        let after = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(retry.check(&policy, after(59)), Expiry::NotYet);
        retry.sent(after(59));
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
                retry.sent(now);
            }
            retry.check(&policy, now) == Expiry::GiveUp
        });
        assert_eq!(given_up, Some(policy.patience().as_secs()));
    }

    #[test]
    fn hard_never_gives_up_and_backs_off_to_ten_minutes() {
        let all = run(Recovery::Hard, 1, 300, 3000);
        let expected = [
            (300, Expiry::Retry),
            (900, Expiry::NotResponding),
            (1500, Expiry::NotResponding),
            (2100, Expiry::NotResponding),
            (2700, Expiry::NotResponding),
        ];
        assert_eq!(all, expected);
    }
}
