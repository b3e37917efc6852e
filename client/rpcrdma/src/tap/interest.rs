//! What listeners ask for, each and all together.

use super::event::{Ended, Sent};
use std::time::Duration;

const CALLS: u32 = 1;
const MESSAGES: u32 = 2;

/// The kinds of events that at least one listener wants at this moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Wanted(pub(super) u32);

impl Wanted {
    pub fn is_nothing(self) -> bool {
        self.0 == 0
    }

    pub fn calls(self) -> bool {
        self.0 & CALLS != 0
    }

    pub fn messages(self) -> bool {
        self.0 & MESSAGES != 0
    }
}

/// Which calls a listener wants reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Filter {
    /// Bit `n` selects procedure `n` of the transport's program; the bit after its last procedure
    /// selects calls of other programs. Bit 31 also stands for all higher numbers.
    pub procedures: u32,
    /// Only calls that end with an error.
    pub errors: bool,
    /// Only calls that take at least this long, queueing included.
    pub slow: Duration,
    /// Report calls also when they are sent, not only when they end.
    pub transmissions: bool,
}

impl Default for Filter {
    fn default() -> Self {
        Filter {
            procedures: u32::MAX,
            errors: false,
            slow: Duration::ZERO,
            transmissions: false,
        }
    }
}

impl Filter {
    pub(super) fn procedure(&self, procedure: usize) -> bool {
        self.procedures >> procedure.min(31) & 1 != 0
    }

    /// Whether a transmission passes the filter. Retransmissions pass without being asked for.
    pub(super) fn sent(&self, sent: &Sent) -> bool {
        let again = sent.transport.as_ref().is_some_and(|t| t.transmission > 1);
        (self.transmissions || again) && self.procedure(sent.procedure)
    }

    pub(super) fn ended(&self, ended: &Ended) -> bool {
        self.procedure(ended.sent.procedure)
            && (!self.errors || ended.outcome.is_error())
            && ended.queued + ended.round_trip >= self.slow
    }
}

/// What a listener asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Interest {
    /// [`Event::Sent`](super::Event::Sent) and [`Event::Ended`](super::Event::Ended).
    Calls(Filter),
    /// [`Event::Outgoing`](super::Event::Outgoing) and [`Event::Incoming`](super::Event::Incoming),
    /// with at most this many bytes of each message and each chunk.
    Messages { limit: usize },
}

impl Interest {
    pub(super) fn bit(&self) -> u32 {
        match self {
            Interest::Calls(_) => CALLS,
            Interest::Messages { .. } => MESSAGES,
        }
    }
}
