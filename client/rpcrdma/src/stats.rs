//! Counters of a client, as plain numbers.
//!
//! The engine counts in atomics; a [`Stats`] is what they said at one moment.

use std::net::SocketAddr;
use std::time::Duration;

/// Buckets of a latency histogram: bucket `i` counts calls that took less than
/// `2^i` microseconds and not less than half of that; the last one takes the rest.
pub const LATENCY_BUCKETS: usize = 28;

/// Counters of one client since it was mounted.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Stats {
    /// One for each procedure of the program, by number, then those that are counted apart.
    pub procedures: Vec<ProcedureStats>,
    pub connections: Vec<ConnectionStats>,
}

/// Counters of one procedure.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ProcedureStats {
    pub name: &'static str,
    /// Calls that ended, whatever the end.
    pub calls: u64,
    /// Of these, those without a reply; the program's client adds those whose results are an
    /// error.
    pub errors: u64,
    /// Of the errors, those with a status of the program, by its name; from the program's client.
    pub statuses: Vec<(&'static str, u64)>,
    /// Calls sent again on a new connection.
    pub retransmits: u64,
    /// Times a call's time ran out (`timeo`).
    pub timeouts: u64,
    /// RPC message bytes sent, payload included, first sending only.
    pub bytes_sent: u64,
    /// RPC message bytes received, payload included.
    pub bytes_received: u64,
    /// From the call to its end, all calls together.
    pub total_time: Duration,
    /// The part of it before the last sending: for a credit, for a connection, or until the
    /// call was sent again.
    pub queue_time: Duration,
    /// The part of it after the last sending, all calls together.
    pub round_trip_time: Duration,
    pub latency: [u64; LATENCY_BUCKETS],
}

/// Counters of one connection slot, over all connections it has had.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ConnectionStats {
    /// Whether it is connected at this moment.
    pub connected: bool,
    /// Both ends, while it is connected.
    pub local: Option<SocketAddr>,
    pub peer: Option<SocketAddr>,
    /// The provider's line about the link; empty while it is not connected.
    pub link: String,
    /// Inline thresholds of calls and replies, in bytes; zero while it is not connected.
    pub inline_call: u64,
    pub inline_reply: u64,
    /// Credits asked for.
    pub credits_wanted: u32,
    /// Credits the server grants at this moment, clamped.
    pub credits: u32,
    /// Calls sent and not answered at this moment.
    pub in_flight: u64,
    /// Calls that wait for a credit or for the connection at this moment.
    pub waiting: u64,
    /// Connections made, the first included.
    pub connects: u64,
    pub connect_failures: u64,
    pub sends: u64,
    pub receives: u64,
    pub inline_calls: u64,
    pub read_chunks: u64,
    pub position_zero_chunks: u64,
    pub write_chunks: u64,
    pub reply_chunks: u64,
    /// How often memory was made accessible to the server.
    pub exposures: u64,
    /// Bytes of it.
    pub exposed_bytes: u64,
    /// Bytes the server put here by RDMA Write: Write and Reply chunks of answered calls.
    pub rdma_write_bytes: u64,
    /// Bytes offered in Read chunks of answered calls, for the server's RDMA Reads.
    pub rdma_read_bytes: u64,
    /// Exposures this side ended, those the server had invalidated already included.
    pub local_invalidations: u64,
    /// Handles the server invalidated (Send With Invalidate).
    pub remote_invalidations: u64,
    /// Memory accessible to the server at this moment (open registrations); zero when idle.
    pub open_registrations: u64,
    pub retransmits: u64,
    /// How often the time of a call ran out.
    pub timeouts: u64,
    /// Messages thrown away without notice (RFC 8166 section 4.5).
    pub discards: u64,
    /// Calls ended by RDMA_ERROR.
    pub rdma_errors: u64,
    /// Replies discarded because their chunks are not those that were offered; the call waits for its time-out.
    pub violations: u64,
}
