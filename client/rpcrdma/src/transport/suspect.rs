//! Calls over which the server ends the connection.
//!
//! A call that is under way when the connection ends is sent again on the next one: for ever,
//! on a hard mount. If it is the call that ends them (its reply is longer than our Receive, or
//! the server hangs up over it), no other call of the mount is answered either. So the blame
//! is found out:
//!
//! | a call is | because                                              | and is                     |
//! | --------- | ---------------------------------------------------- | -------------------------- |
//! | trusted   | nothing yet                                          | sent with others           |
//! | suspected | [`LOSSES`] connections in a row ended soon after it  | sent alone, after a NULL   |
//! |           | was sent                                             | was answered               |
//! | convicted | [`STRIKES`] connections in a row ended while it was  | failed                     |
//! |           | alone like that                                      |                            |
//!
//! "Soon" is [`SOON`]. What clears a call of all suspicion: its reply; that the connection
//! ended later than that, or by us (a time-out); and a connection that could not be made,
//! because then the server or the network is what is wrong. So a server that is down, that
//! restarts, or that cannot be reached never makes a call fail: each of the last [`STRIKES`]
//! connections was made at the first attempt, had answered a NULL, carried this call and no
//! other, and was ended by the peer within seconds. Between the trials other calls go on;
//! the pauses grow, so that a trouble of some seconds (a server short of memory) is outlived.

use std::time::{Duration, Instant};

/// Connections in a row that end soon after a call was sent, until it is suspected.
pub(super) const LOSSES: u32 = 2;
/// Connections in a row that end over a call sent alone, until it fails.
pub(super) const STRIKES: u32 = 5;
/// A connection that ends longer after a call was sent did not end over it.
pub(super) const SOON: Duration = Duration::from_secs(10);

/// What a call has to do with the connections that ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Suspicion {
    losses: u32,
    strikes: u32,
    /// When it may be sent again, alone.
    not_before: Option<Instant>,
}

/// How a connection ended, as one of its calls sees it.
#[derive(Debug, Clone, Copy)]
pub(super) struct ConnectionEnd {
    /// By the peer, or because of what it sent.
    pub(super) by_peer: bool,
    /// The call was sent alone on a connection that had answered another one.
    pub(super) alone: bool,
    /// Since the call was sent.
    pub(super) after: Duration,
}

/// What becomes of the call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// To be sent again, with others.
    Trusted,
    /// To be sent again, alone.
    Suspected,
    /// To be failed.
    Convicted,
}

impl Suspicion {
    /// The connection ended with the call under way. `timeo` is the mount's: the pauses are
    /// 1, 2, 4 and 8 sixty-fourths of it.
    pub(super) fn connection_ended(
        &mut self,
        end: ConnectionEnd,
        timeo: Duration,
        now: Instant,
    ) -> Verdict {
        if !end.by_peer || end.after >= SOON {
            *self = Suspicion::default();
            return Verdict::Trusted;
        }
        self.losses += 1;
        if end.alone {
            let unit = (timeo / 64).clamp(Duration::from_millis(50), Duration::from_secs(1));
            self.not_before = Some(now + unit * (1 << self.strikes.min(STRIKES)));
            self.strikes += 1;
        }
        if self.strikes >= STRIKES {
            Verdict::Convicted
        } else if self.losses >= LOSSES {
            Verdict::Suspected
        } else {
            Verdict::Trusted
        }
    }

    /// Whether the pause before the next trial is over.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.not_before.is_none_or(|at| now >= at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEO: Duration = Duration::from_secs(60);

    fn end(by_peer: bool, alone: bool, seconds: u64) -> ConnectionEnd {
        ConnectionEnd {
            by_peer,
            alone,
            after: Duration::from_secs(seconds),
        }
    }

    #[test]
    fn a_call_that_ends_every_connection_is_isolated_and_fails() {
        let mut call = Suspicion::default();
        let mut now = Instant::now();
        let begin = now;
        let verdict = |call: &mut Suspicion, end, now| call.connection_ended(end, TIMEO, now);
        assert_eq!(
            verdict(&mut call, end(true, false, 0), now),
            Verdict::Trusted
        );
        assert_eq!(
            verdict(&mut call, end(true, false, 0), now),
            Verdict::Suspected
        );
        for strike in 1..=STRIKES {
            assert!(call.is_due(now));
            let expected = if strike < STRIKES {
                Verdict::Suspected
            } else {
                Verdict::Convicted
            };
            assert_eq!(verdict(&mut call, end(true, true, 0), now), expected);
            if strike < STRIKES {
                assert!(!call.is_due(now), "others go first");
                while !call.is_due(now) {
                    now += Duration::from_millis(100);
                }
            }
        }
        assert!(
            (14..17).contains(&(now - begin).as_secs()),
            "{:?}",
            now - begin
        );
    }

    /// Only [`STRIKES`] ends while it was alone make a call fail, with nothing between them
    /// that clears it (a time-out, a server that took its time): every sequence of ends.
    #[test]
    fn nothing_else_makes_a_call_fail() {
        let kinds = [
            end(true, true, 0),
            end(true, false, 0),
            end(true, true, 11),
            end(false, true, 0),
        ];
        let now = Instant::now();
        for sequence in 0..4usize.pow(8) {
            let mut call = Suspicion::default();
            let mut row = 0;
            for step in 0..8 {
                let kind = (sequence >> (2 * step)) & 3;
                row = match kind {
                    0 => row + 1,
                    1 => row,
                    _ => 0,
                };
                let verdict = call.connection_ended(kinds[kind], TIMEO, now);
                assert_eq!(
                    verdict == Verdict::Convicted,
                    row >= STRIKES,
                    "{sequence:#x}"
                );
                if verdict == Verdict::Convicted {
                    break;
                }
            }
        }
    }
}
