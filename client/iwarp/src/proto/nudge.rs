//! Waking a responder that overlooked the first call.
//!
//! Linux siw can miss the wake-up for bytes that arrive before it has completed its accept. The
//! first Send then stays in its socket until more bytes arrive. A zero-length RDMA Write provides
//! such bytes; it is legal at any time (RFC 5040 section 5.1) and has no other effect.

use nfsrdma_rdma::Instant;
use std::time::Duration;

/// How long to wait for an answer to the first Send.
pub const PATIENCE: Duration = Duration::from_millis(100);

/// The state of one connection, on the initiator's side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Nudge {
    /// Nothing was sent yet.
    Idle,
    /// A Send was sent; if nothing arrives by this time, the nudge is due.
    Armed(Instant),
    /// Something was received, or the nudge was sent.
    Done,
}

impl Nudge {
    /// A Send is being sent.
    pub fn on_send(&mut self, now: Instant) {
        if *self == Nudge::Idle {
            *self = Nudge::Armed(now + PATIENCE);
        }
    }

    /// Bytes from the peer arrived.
    pub fn on_received(&mut self) {
        *self = Nudge::Done;
    }

    /// When to call [`Nudge::is_due`] again.
    pub fn deadline(&self) -> Option<Instant> {
        match self {
            Nudge::Armed(at) => Some(*at),
            _ => None,
        }
    }

    /// Whether to send the nudge now. True at most once.
    pub fn is_due(&mut self, now: Instant) -> bool {
        let due = matches!(self, Nudge::Armed(at) if *at <= now);
        if due {
            *self = Nudge::Done;
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn once_after_silence() {
        let start = Instant::now();
        let mut nudge = Nudge::Idle;
        assert!(!nudge.is_due(start + PATIENCE * 9));
        nudge.on_send(start);
        nudge.on_send(start + PATIENCE / 2);
        assert_eq!(nudge.deadline(), Some(start + PATIENCE));
        assert!(!nudge.is_due(start + PATIENCE / 2));
        assert!(nudge.is_due(start + PATIENCE));
        assert!(!nudge.is_due(start + PATIENCE * 2));
        nudge.on_send(start + PATIENCE * 3);
        assert_eq!(nudge.deadline(), None);
    }

    #[test]
    fn not_after_an_answer() {
        let start = Instant::now();
        let mut nudge = Nudge::Idle;
        nudge.on_send(start);
        nudge.on_received();
        assert!(!nudge.is_due(start + PATIENCE * 2));
    }
}
