//! State machines without I/O: bytes and time come in as arguments.
//!
//! * [`handshake`]: MPA requests and replies, for both sides.
//! * [`rx`]: a byte stream becomes placed payload and events; [`host`] is the interface it uses.
//! * [`queue`] and [`segment`]: work requests become FPDUs.
//! * [`stag`]: which memory the peer may access.
//! * [`nudge`]: what to do about a peer that overlooks the first call.

pub mod handshake;
pub mod host;
pub mod nudge;
pub mod queue;
pub mod rx;
pub mod segment;
pub mod stag;
pub mod terminate;
