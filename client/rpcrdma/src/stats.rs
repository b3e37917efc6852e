//! Counters of a client, as plain numbers.
//!
//! The transport counts in atomics; a [`Stats`] is a snapshot of them.

use crate::options::Path;
use std::net::SocketAddr;
use std::time::Duration;

/// Buckets of a latency histogram. Bucket `i` counts calls that took less than `2^i` microseconds
/// and at least half of that; the last one counts all longer calls.
pub const LATENCY_BUCKETS: usize = 28;

/// Counters of one client since it was mounted.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Stats {
    /// One entry for each procedure of the program, by number, then the side procedures.
    pub procedures: Vec<ProcedureStats>,
    pub connections: Vec<ConnectionStats>,
    pub waits: Waits,
}

/// The time after which a call that has not ended counts as one that waits.
pub const LONG_WAIT: Duration = Duration::from_secs(10);

/// The calls that have not ended for [`LONG_WAIT`] or longer, at this moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Waits {
    pub calls: u64,
    /// The time since the first of them was made; zero if there are none.
    pub oldest: Duration,
}

impl Waits {
    /// Those of calls of these ages.
    pub fn of(ages: impl Iterator<Item = Duration>) -> Waits {
        let long = ages.filter(|age| *age >= LONG_WAIT);
        long.fold(Waits::default(), |all, oldest| {
            all.and(Waits { calls: 1, oldest })
        })
    }

    /// These and others.
    #[must_use]
    pub fn and(self, other: Waits) -> Waits {
        Waits {
            calls: self.calls + other.calls,
            oldest: self.oldest.max(other.oldest),
        }
    }
}

/// Counters of one procedure.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ProcedureStats {
    pub name: &'static str,
    /// Completed calls, with any outcome.
    pub calls: u64,
    /// Completed calls without a reply. The program's client adds those whose status is an error.
    pub errors: u64,
    /// Errors by the name of their status, filled in by the program's client.
    pub statuses: Vec<(&'static str, u64)>,
    /// Transmissions of a call after its first.
    pub retransmits: u64,
    /// How often a call timed out (`timeo`).
    pub timeouts: u64,
    /// RPC message bytes sent, payload included; only first transmissions count.
    pub bytes_sent: u64,
    /// RPC message bytes received, payload included.
    pub bytes_received: u64,
    /// Time from the call to its completion, summed over all calls.
    pub total_time: Duration,
    /// Time before the last transmission, summed over all calls: waiting for a credit or a
    /// connection, and earlier transmissions.
    pub queue_time: Duration,
    /// Time after the last transmission, summed over all calls.
    pub round_trip_time: Duration,
    pub latency: [u64; LATENCY_BUCKETS],
}

/// Counters of one connection slot, over all connections it has had.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ConnectionStats {
    /// Whether the slot has a connection at this moment.
    pub connected: bool,
    /// Addresses of both ends, while it is connected.
    pub local: Option<SocketAddr>,
    pub peer: Option<SocketAddr>,
    /// Its way to the server; `None` in the counters of no connection.
    pub path: Option<Path>,
    /// Whether the server could not be heard on that path lately, so that others are used.
    pub silent: bool,
    /// The provider's description of the link; empty while it is not connected.
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
    /// Memory registrations made.
    pub exposures: u64,
    /// Bytes registered.
    pub exposed_bytes: u64,
    /// Bytes that the server wrote by RDMA Write: Write and Reply chunks of answered calls.
    pub rdma_write_bytes: u64,
    /// Bytes offered in Read chunks of answered calls, for the server's RDMA Reads.
    pub rdma_read_bytes: u64,
    /// Registrations ended by this side, including those whose handle the server had invalidated.
    pub local_invalidations: u64,
    /// Handles the server invalidated (Send With Invalidate).
    pub remote_invalidations: u64,
    /// Registrations that are open at this moment; zero when the mount is idle.
    pub open_registrations: u64,
    pub retransmits: u64,
    /// How often the time of a call ran out.
    pub timeouts: u64,
    /// Messages discarded silently (RFC 8166 section 4.5).
    pub discards: u64,
    /// Calls that an RDMA_ERROR ended.
    pub rdma_errors: u64,
    /// Replies discarded because their chunks are not those offered; their calls time out.
    pub violations: u64,
}
