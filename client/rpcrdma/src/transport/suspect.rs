//! Calls over which the server ends the connection.
//!
//! A call that is under way when the connection ends is sent again on the next one, on a hard mount
//! without limit. If the call itself is the reason (its reply is longer than our Receive, or the
//! server hangs up over it), no other call of the mount is answered either. So the call that is the
//! reason has to be found:
//!
//! | a call is | because                                              | and is                     |
//! | --------- | ---------------------------------------------------- | -------------------------- |
//! | trusted   | nothing yet                                          | sent with others           |
//! | suspected | [`LOSSES`] connections in a row ended soon after it  | sent alone, after a NULL   |
//! |           | was sent                                             | was answered               |
//! | convicted | [`STRIKES`] connections in a row ended while it was  | failed                     |
//! |           | alone like that                                      |                            |
//!
//! "Soon" means within [`SOON`]. A call is cleared of all suspicion by its reply; by a connection
//! that ended later than that, or that we ended (a time-out); and by a failed attempt to connect,
//! because then the server or the network is at fault. So a server that is down, that restarts, or
//! that cannot be reached never makes a call fail: each of the last [`STRIKES`] connections was
//! made at the first attempt, had answered a NULL, carried this call and no other, and was ended by
//! the peer within seconds. Between the trials other calls are sent. The pauses grow, so that a
//! call survives problems that last some seconds, such as a server short of memory.

use nfsrdma_rdma::Instant;
use std::time::Duration;

/// After so many connections in a row that end soon after a call was sent, the call is suspected.
pub(super) const LOSSES: u32 = 2;
/// After so many connections in a row that end over a call sent alone, the call fails.
pub(super) const STRIKES: u32 = 5;
/// A connection that ends longer than this after a call was sent did not end because of the call.
pub(super) const SOON: Duration = Duration::from_secs(10);

/// How often connections ended while a call was under way.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Suspicion {
    losses: u32,
    strikes: u32,
    /// The earliest time at which it may be sent again, alone.
    not_before: Option<Instant>,
}

/// How a connection ended, from the point of view of one of its calls.
#[derive(Debug, Clone, Copy)]
pub(super) struct ConnectionEnd {
    /// It was ended by the peer, or because of what the peer sent.
    pub(super) by_peer: bool,
    /// The call was sent alone, on a connection that had answered another call.
    pub(super) alone: bool,
    /// Time since the call was sent.
    pub(super) after: Duration,
}

/// How the call continues.
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
    /// The connection ended while the call was under way. The pauses between trials are 1, 2, 4 and
    /// 8 sixty-fourths of the mount's `timeo`, where a 64th is taken as 50 ms to 1 s.
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

    /// Over all sequences of connection ends: a call fails only after [`STRIKES`] ends while it was
    /// alone, without an end between them that clears it (a time-out, a server that took its time).
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
