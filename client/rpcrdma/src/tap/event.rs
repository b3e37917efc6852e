//! The events that listeners get: connections made and lost, calls sent and ended, messages in
//! both directions, and how many events did not fit the listener's queue.

use nfsrdma_xdr::rpcrdma::ChunkLists;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// Something that happened, or that the listener missed.
#[derive(Debug, Clone)]
pub enum Event {
    /// A connection came up; at the beginning, one that was up already.
    Connected(Arc<Connected>),
    Disconnected(Arc<Disconnected>),
    /// A call is being sent.
    Sent(Arc<Sent>),
    /// A call is over.
    Ended(Arc<Ended>),
    /// An RPC-over-RDMA message goes out.
    Outgoing(Outgoing),
    /// One came in, after the RDMA operations it tells of.
    Incoming(Box<Incoming>),
    /// So many events did not fit the listener's queue.
    Lost(u64),
}

/// A connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Connected {
    /// Counts the connections of the mount, from 1.
    pub connection: u64,
    /// Which of the mount's `nconnect` connections it is, from 0.
    pub slot: usize,
    pub time: SystemTime,
    /// The provider's name.
    pub provider: &'static str,
    pub local: SocketAddr,
    pub peer: SocketAddr,
    /// Private data that were sent and received.
    pub own_private_data: Vec<u8>,
    pub peer_private_data: Vec<u8>,
}

impl Connected {
    pub(super) fn cost(&self) -> usize {
        self.own_private_data.len() + self.peer_private_data.len()
    }
}

/// The end of a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Disconnected {
    pub connection: u64,
    pub slot: usize,
    pub time: SystemTime,
    pub why: String,
    /// Calls that were not answered on it.
    pub calls: usize,
}

/// A call, at one of its transmissions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sent {
    /// When it was sent; without `transport`, when it was begun.
    pub time: SystemTime,
    pub xid: u32,
    /// The process on whose behalf it is made ([`caller`](super::caller)); 0: none.
    pub pid: u32,
    /// The procedure's number in the transport's program; for other programs the number after
    /// its last one.
    pub procedure: usize,
    /// The beginning of the RPC message, without the DDP-eligible argument.
    pub head: Box<[u8]>,
    /// Bytes of the DDP-eligible argument.
    pub argument: usize,
    /// `None`: it was never sent, or before anybody listened.
    pub transport: Option<Transmission>,
}

/// How a call was sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Transmission {
    pub connection: u64,
    pub slot: usize,
    /// From 1.
    pub transmission: u32,
    /// Bytes of the message: transport header and what is inline.
    pub message: usize,
    /// What is offered.
    pub chunks: ChunkLists,
    pub credits_in_use: u32,
    pub credits_granted: u32,
}

/// A call that is over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ended {
    pub time: SystemTime,
    /// Its last sending.
    pub sent: Arc<Sent>,
    pub outcome: Outcome,
    /// From its beginning to the last sending.
    pub queued: Duration,
    /// From then to the end.
    pub round_trip: Duration,
    /// RPC message bytes of the reply, payload included.
    pub received: usize,
    /// Of these, bytes that came by the Write chunk.
    pub placed: usize,
}

/// How a call ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The procedure ran: the first word of its results, which is the status where procedures
    /// have one (NFS, MOUNT), 0 where there are none.
    Status(u32),
    /// The server answered, and did not run it, or not understandably.
    Refused(String),
    /// No answer.
    Failed(String),
}

impl Outcome {
    pub fn is_error(&self) -> bool {
        *self != Outcome::Status(0)
    }
}

/// A message posted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outgoing {
    pub connection: u64,
    pub time: SystemTime,
    pub message: Data,
}

/// A message received, and the memory it is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Incoming {
    pub connection: u64,
    pub time: SystemTime,
    pub message: Data,
    /// The handle it invalidated.
    pub invalidated: Option<u32>,
    /// What was offered with the call it answers.
    pub offer: ChunkLists,
    /// What the server could read: the Read chunk of an answered call.
    pub read: Option<Data>,
    /// What the server says it wrote into the Write chunk, and into the Reply chunk.
    pub written: Option<Data>,
    pub reply: Option<Data>,
}

/// Bytes, perhaps only the first of them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Data {
    pub bytes: Box<[u8]>,
    /// How many there were.
    pub length: usize,
}

impl Data {
    /// The first `length` bytes of `pieces`, of which at most `limit` are kept.
    pub fn gather<'a>(
        pieces: impl IntoIterator<Item = &'a [u8]>,
        length: usize,
        limit: usize,
    ) -> Self {
        let mut bytes = Vec::with_capacity(length.min(limit));
        for piece in pieces {
            let room = length.min(limit) - bytes.len();
            bytes.extend_from_slice(&piece[..piece.len().min(room)]);
        }
        Data {
            bytes: bytes.into(),
            length,
        }
    }
}
