//! The events that listeners get: connections made and lost, calls sent and ended, messages in
//! both directions, and how many events did not fit the listener's queue.

use nfsrdma_xdr::rpcrdma::ChunkLists;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// Something that happened, or that the listener missed.
#[derive(Debug, Clone)]
pub enum Event {
    /// A connection was made. Connections that exist when listening begins are reported first.
    Connected(Arc<Connected>),
    Disconnected(Arc<Disconnected>),
    /// A call is being sent.
    Sent(Arc<Sent>),
    /// A call is over.
    Ended(Arc<Ended>),
    /// An RPC-over-RDMA message is being sent.
    Outgoing(Outgoing),
    /// An RPC-over-RDMA message was received, after the RDMA operations that it reports.
    Incoming(Box<Incoming>),
    /// This many events did not fit the listener's queue.
    Lost(u64),
}

/// A connection that was made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Connected {
    /// Number of the connection; the connections of a mount are numbered from 1.
    pub connection: u64,
    /// Which of the mount's `nconnect` connections it is, from 0.
    pub slot: usize,
    pub time: SystemTime,
    /// The provider's name.
    pub provider: &'static str,
    pub local: SocketAddr,
    pub peer: SocketAddr,
    /// Private data sent and received when connecting.
    pub own_private_data: Vec<u8>,
    pub peer_private_data: Vec<u8>,
    /// The messages that set the connection up, if the provider knows them.
    pub greeting: Option<[Vec<u8>; 2]>,
}

impl Connected {
    pub(super) fn cost(&self) -> usize {
        let greeting = self.greeting.iter().flatten().map(Vec::len);
        self.own_private_data.len() + self.peer_private_data.len() + greeting.sum::<usize>()
    }
}

/// The end of a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Disconnected {
    pub connection: u64,
    pub slot: usize,
    pub time: SystemTime,
    pub why: String,
    /// Calls in flight when the connection ended.
    pub calls: usize,
}

/// One transmission of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sent {
    /// When it was sent; if `transport` is `None`, when the call was made.
    pub time: SystemTime,
    pub xid: u32,
    /// The process on whose behalf it is made ([`caller`](super::caller)), or 0 if there is none.
    pub pid: u32,
    /// The procedure's number in the transport's program; for other programs, the number of
    /// procedures of that program.
    pub procedure: usize,
    /// The beginning of the RPC message, without the DDP-eligible argument.
    pub head: Box<[u8]>,
    /// Bytes of the DDP-eligible argument.
    pub argument: usize,
    /// `None` if the call was never sent, or was sent before anybody listened.
    pub transport: Option<Transmission>,
}

/// How and where a call was sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Transmission {
    pub connection: u64,
    pub slot: usize,
    /// Number of this transmission of the call, from 1.
    pub transmission: u32,
    /// Bytes of the message: transport header and what is inline.
    pub message: usize,
    /// The chunks offered.
    pub chunks: ChunkLists,
    pub credits_in_use: u32,
    pub credits_granted: u32,
}

/// A call that is over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ended {
    pub time: SystemTime,
    /// Its last transmission.
    pub sent: Arc<Sent>,
    pub outcome: Outcome,
    /// From the call to its last transmission.
    pub queued: Duration,
    /// From the last transmission to the end.
    pub round_trip: Duration,
    /// RPC message bytes of the reply, payload included.
    pub received: usize,
    /// Bytes of `received` that came in the Write chunk.
    pub placed: usize,
}

/// How a call ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The procedure ran. The value is the first word of its results, which is the status in
    /// programs that have one (NFS, MOUNT), or 0 if there are no results.
    Status(u32),
    /// The server answered, but did not run the procedure, or the answer was invalid.
    Refused(String),
    /// There was no answer.
    Failed(String),
}

impl Outcome {
    pub fn is_error(&self) -> bool {
        *self != Outcome::Status(0)
    }
}

/// A message that was posted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outgoing {
    pub connection: u64,
    pub time: SystemTime,
    pub message: Data,
}

/// A message received, with the chunk data that belong to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Incoming {
    pub connection: u64,
    pub time: SystemTime,
    pub message: Data,
    /// The handle that the Send With Invalidate named.
    pub invalidated: Option<u32>,
    /// The chunks offered with the call that it answers.
    pub offer: ChunkLists,
    /// The Read chunk of the answered call, which the server could read.
    pub read: Option<Data>,
    /// The bytes that the server says it wrote into the Write chunk, and into the Reply chunk.
    pub written: Option<Data>,
    pub reply: Option<Data>,
}

/// Bytes, of which perhaps only the first are kept.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Data {
    pub bytes: Box<[u8]>,
    /// How many bytes there were.
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
