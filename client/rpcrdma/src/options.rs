//! The options of the RPC transport, and the program that it serves.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

/// How a DDP-eligible argument that does not fit inline is sent to the server.
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

/// The RPC program that a transport is for. Calls of other programs can use the same transport;
/// they share one counter, except the `side_procedures`.
#[derive(Debug, Clone, Copy)]
pub struct Program {
    pub number: u32,
    pub version: u32,
    /// The names of its procedures, by their numbers; procedure 0 does nothing (RFC 5531
    /// section 12).
    pub procedures: &'static [&'static str],
    /// Names of procedures of other programs that have a counter each. The first has the number
    /// `procedures.len() + 1`, because `procedures.len()` stands for all other programs.
    pub side_procedures: &'static [&'static str],
}

/// One of the ways to the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Path {
    pub peer: SocketAddr,
    /// The address of this machine to connect from; `None` leaves it to the routes.
    pub local: Option<IpAddr>,
}

/// `10.0.0.1:20049 from 10.0.0.8`, or without the address of this machine.
impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.local {
            Some(local) => write!(f, "{} from {local}", self.peer),
            None => self.peer.fmt(f),
        }
    }
}

/// How calls are transported.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TransportOptions {
    /// Largest message sent or received without chunks, in bytes: a multiple of 1024 from 1024 to
    /// 262144. In each direction the smaller of this and the server's value is used (RFC 8797).
    pub inline: u32,
    /// Largest number of calls in flight on one connection, 1 to 1024. The server may grant fewer.
    pub credits: u32,
    pub write_chunk: WriteChunk,
    /// Time without a reply before a call is retried on a new connection. At each retry of a call
    /// the time grows by this value, up to ten minutes (nfs(5), in deciseconds there).
    pub timeo: Duration,
    /// Retries before a server counts as not responding.
    pub retrans: u32,
    pub recovery: Recovery,
    /// Connections to the server: 1 to 16.
    pub nconnect: u32,
    /// The ways to the server that the connections take in turn. If there are none, all go to the
    /// address that is connected to, from any.
    pub paths: Vec<Path>,
    /// Time limit of each connection attempt.
    pub connect_timeout: Duration,
    /// How many RDMA Reads of the server are served at once (IRD), at least 1.
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
            paths: Vec::new(),
            connect_timeout: Duration::from_secs(10),
            reads_in: 16,
        }
    }
}
