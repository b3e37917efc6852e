//! The options of the RPC transport, and the program that it serves.

use std::time::Duration;

/// How a DDP-eligible argument that does not fit inline is handed to the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum WriteChunk {
    /// `pz`: the whole call in a Position Zero Read chunk (RFC 8166 section 3.5.3).
    #[default]
    PositionZero,
    /// `reduced`: the data alone in a Read chunk at their position (section 3.4.5).
    Reduced,
}

/// What a call does when the server does not answer (`hard`, `soft`, `softerr` of nfs(5)).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Recovery {
    /// Wait for ever.
    #[default]
    Hard,
    /// Fail with EIO after `retrans` retries.
    Soft,
    /// Fail with ETIMEDOUT after `retrans` retries.
    SoftErr,
}

/// The RPC program that a transport is for. Calls of other programs can go the same way; they
/// are counted together, but for the `side_procedures`.
#[derive(Debug, Clone, Copy)]
pub struct Program {
    pub number: u32,
    pub version: u32,
    /// The names of its procedures, by their numbers; procedure 0 does nothing (RFC 5531
    /// section 12).
    pub procedures: &'static [&'static str],
    /// Names of procedures of other programs that are counted each by itself: the first has the
    /// number after the one that stands for all others.
    pub side_procedures: &'static [&'static str],
}

/// How calls are transported.
#[derive(Debug, Clone)]
pub struct TransportOptions {
    /// Largest message sent or received without chunks, in bytes: a multiple of 1024 from
    /// 1024 to 262144. The smaller of this and the server's counts (RFC 8797).
    pub inline: u32,
    /// Calls in flight on one connection, at most: 1 to 1024. The server grants.
    pub credits: u32,
    pub write_chunk: WriteChunk,
    /// Time without an answer before a call is retried on a new connection; grows by itself
    /// at each retry, up to ten minutes (nfs(5), in deciseconds there).
    pub timeo: Duration,
    /// Retries before a server counts as not responding.
    pub retrans: u32,
    pub recovery: Recovery,
    /// Connections to the server: 1 to 16.
    pub nconnect: u32,
    /// For each connection attempt.
    pub connect_timeout: Duration,
    /// RDMA Reads of the server served at a time (IRD), at least 1.
    pub reads_in: u32,
}

impl Default for TransportOptions {
    fn default() -> Self {
        TransportOptions {
            inline: 4096,
            credits: 64,
            write_chunk: WriteChunk::default(),
            timeo: Duration::from_secs(60),
            retrans: 2,
            recovery: Recovery::default(),
            nconnect: 1,
            connect_timeout: Duration::from_secs(10),
            reads_in: 16,
        }
    }
}
