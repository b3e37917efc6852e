//! Waking a responder that overlooked the first call.
//!
//! Linux siw can miss the wake-up for bytes that reach it while it still finishes its accept:
//! the first Send then lies in its socket until more bytes come. A zero-length RDMA Write,
//! legal at any time (RFC 5040 section 5.1), is such bytes and means nothing else.

use std::time::{Duration, Instant};

/// How long to wait for an answer to the first Send.
pub const PATIENCE: Duration = Duration::from_millis(100);

/// One per connection, on the initiator's side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Nudge {
    /// Nothing was sent yet.
    Idle,
    /// A Send went out; if nothing has arrived by then, nudge.
    Armed(Instant),
    /// Something was received, or the nudge was given.
    Done,
}

impl Nudge {
    /// A Send was started.
    pub fn on_send(&mut self, now: Instant) {
        if *self == Nudge::Idle {
            *self = Nudge::Armed(now + PATIENCE);
        }
    }

    /// Bytes of the peer arrived.
    pub fn on_received(&mut self) {
        *self = Nudge::Done;
    }

    /// When to ask [`Nudge::is_due`] again.
    pub fn deadline(&self) -> Option<Instant> {
        match self {
            Nudge::Armed(at) => Some(*at),
            _ => None,
        }
    }

    /// Whether to send the nudge now; says so once.
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
