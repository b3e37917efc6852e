//! The traits a provider implements.
//!
//! **Ownership is the memory protection.** Memory given to the peer is moved into an
//! [`Exposure`] and comes back only after the handle is invalid, so no safe code can look at
//! bytes a peer may still write, or change bytes it may still read (RFC 8166 section 4.4.1).
//! The same holds for work requests: buffers are moved in and come back in completions.
//! A provider's own tables hold [`KeepAlive`](crate::buf::KeepAlive)s, so that memory whose
//! owner was dropped too early does not return to the pool while a peer can reach it.
//!
//! **Threads.** [`QueuePair`] is shared: any thread posts. [`CompletionQueue`] has one
//! owner, the connection's completion thread or an event loop; a soft provider does its
//! receiving inside [`CompletionQueue::poll`], so that the thread that reads the socket is the
//! one that handles the completion. A provider never calls back.

use crate::{Buf, BufMut, Error, Pool, Result};
use smallvec::SmallVec;
use std::fmt;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Private data that every transport carries, in bytes: with a request, an acceptance or a
/// rejection. (InfiniBand's connection request leaves this much after the CM's own header;
/// MPA carries more.) More is [`Error::Misuse`].
pub const PRIVATE_DATA_MAX: usize = 56;

/// A gather or scatter list; four fit without allocation.
pub type Segs<T> = SmallVec<[T; 4]>;

/// A remote access key: the STag of iWARP, the R_key of InfiniBand, the handle of an
/// RPC-over-RDMA segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Handle(pub u32);

//= RFC 8166, Section 2.3.2
//# The RPC-over-RDMA version 1 protocol assumes that each region of registered memory MUST be
//# identified with a steering tag of no more than 32 bits and memory addresses of up to 64 bits in
//# length.
/// Memory of a peer (or, seen from the peer, of ours): `length` bytes from `offset` in the
/// address space of `handle`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RemoteSegment {
    /// The key.
    pub handle: Handle,
    /// Bytes.
    pub length: u32,
    /// Address of the first byte.
    pub offset: u64,
}

/// The caller's name for a work request, returned in its completion.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WorkId(pub u64);

/// Memory to make accessible to the peer.
#[derive(Debug)]
pub enum Memory {
    /// The peer may write (RDMA Write), nothing else.
    Sink(Segs<BufMut>),
    /// The peer may read (RDMA Read), nothing else.
    Source(Segs<Buf>),
}

impl Memory {
    /// Bytes in all.
    pub fn len(&self) -> usize {
        match self {
            Memory::Sink(bufs) => bufs.iter().map(|b| b.len()).sum(),
            Memory::Source(bufs) => bufs.iter().map(|b| b.len()).sum(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Memory the peer can reach at this moment, and the segments that name it.
///
/// Made by [`QueuePair::expose`], ended by [`QueuePair::invalidate`]. The memory stays
/// inside until then. Dropping an exposure instead is allowed only for the provider, and
/// leaks the handle until the connection ends; the memory returns to the pool then.
pub struct Exposure {
    segments: Segs<RemoteSegment>,
    memory: Memory,
}

impl Exposure {
    /// For providers: an exposure of `memory` by `segments`, which cover it in order.
    pub fn new(segments: Segs<RemoteSegment>, memory: Memory) -> Self {
        Exposure { segments, memory }
    }

    /// What to tell the peer: the memory in order, with no gap.
    pub fn segments(&self) -> &[RemoteSegment] {
        &self.segments
    }

    /// For providers: the memory, after its handles became invalid. (To describe it to the
    /// device, take the addresses before it is moved in: [`BufMut::as_mut_ptr`],
    /// [`Buf::as_raw_ptr`].)
    ///
    /// # Safety
    /// Every handle is invalid and no access of the peer is under way: who holds the memory
    /// may read a sink and change a source.
    pub unsafe fn into_memory(self) -> Memory {
        self.memory
    }
}

impl fmt::Debug for Exposure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Exposure")
            .field("segments", &self.segments)
            .finish_non_exhaustive()
    }
}

/// What became of an invalidation.
#[derive(Debug)]
pub enum Invalidation {
    /// The handles are invalid; here is the memory.
    Done(Memory),
    /// A [`Completion::Invalidated`] with the id will bring the memory.
    Posted,
}

/// Work for the send queue. Requests are started in the order posted; see RFC 5040
/// section 5.5 for what a peer may observe of the order: a Send is received after all earlier
/// Writes were placed; a Read may be done later than what was posted after it.
///
/// Lists may be of any length and hold empty buffers; an unsignaled request never completes,
/// not even when it is flushed.
#[derive(Debug)]
pub enum WorkRequest {
    /// One message into one Receive of the peer; `invalidate` names a handle of the *peer*
    /// to invalidate with it (Send With Invalidate). The provider keeps `data` as long as it
    /// needs them. A completion is given only if `signaled`.
    Send {
        id: WorkId,
        data: Segs<Buf>,
        invalidate: Option<Handle>,
        signaled: bool,
    },
    /// RDMA Write of all of `source` to `target`, whose length must be the same.
    Write {
        id: WorkId,
        source: Segs<Buf>,
        target: RemoteSegment,
        signaled: bool,
    },
    /// RDMA Read of `source` into all of `sink` (same length). Always completes with
    /// [`Completion::Read`], which brings the sink back.
    Read {
        id: WorkId,
        sink: Segs<BufMut>,
        source: RemoteSegment,
    },
}

/// What has happened. Everything posted that owes a completion gets exactly one, also when
/// the connection ends ([`Completion::Flushed`]).
#[derive(Debug)]
pub enum Completion {
    /// A signaled Send is done: its buffers are free again.
    Sent { id: WorkId },
    /// A signaled RDMA Write is done locally.
    Written { id: WorkId },
    /// An RDMA Read has filled its sink.
    Read { id: WorkId, sink: Segs<BufMut> },
    /// A Send of the peer filled the first `len` bytes of a Receive. `invalidated` is the
    /// handle (of ours) that came with it; it is invalid already.
    Received {
        id: WorkId,
        buf: BufMut,
        len: usize,
        invalidated: Option<Handle>,
    },
    /// An invalidation that was [`Invalidation::Posted`] is done.
    Invalidated { id: WorkId, memory: Memory },
    /// The connection ended before the request was done. `memory` is what Read, Receive or
    /// invalidation owed.
    Flushed { id: WorkId, memory: Option<Memory> },
}

/// How long [`CompletionQueue::poll`] may wait for the first completion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    No,
    Until(Instant),
    Forever,
}

/// How well a provider keeps a peer away from memory (RFC 8166 section 8.1, RFC 5042).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protection {
    /// A fresh unpredictable handle for each RPC, cheap (soft provider, fast registration).
    Handle,
    /// A type 2 memory window bound and invalidated for each RPC.
    Window,
    /// A registration for each RPC: as safe, and slow.
    Registration,
    /// Regions open for the connection's life: only on request.
    Connection,
}

/// What a connection can do.
#[derive(Debug, Clone)]
pub struct Capabilities {
    /// Whether one handle can cover a list of buffers ([`Exposure::segments`] then has one
    /// segment), or each buffer takes a handle.
    pub scatter_handle: bool,
    /// Whether the peer may invalidate our handles by Send With Invalidate.
    pub remote_invalidate: bool,
    pub protection: Protection,
    /// Largest Send, in bytes.
    pub max_message: usize,
    /// RDMA Reads of ours that may be outstanding (ORD), after negotiation.
    pub max_reads_out: u32,
    /// RDMA Reads of the peer we serve at a time (IRD), after negotiation.
    pub max_reads_in: u32,
    /// Segments of exposed memory of one [`QueuePair::expose`], at most.
    pub max_segments: usize,
    /// One line for people: link, device, CRC, MPA revision, FPDU size.
    pub description: String,
}

/// What to connect or accept with.
#[derive(Debug, Clone)]
pub struct ConnectParams {
    /// Where all memory of the connection comes from.
    pub pool: Pool,
    /// Sent to the peer with the connection request or its acceptance: at most
    /// [`PRIVATE_DATA_MAX`] bytes.
    pub private_data: Vec<u8>,
    /// Work requests that may be posted at a time; [`Error::QueueFull`] beyond. A signaled
    /// one counts until its completion was polled, an unsignaled one until it is done.
    pub send_depth: usize,
    /// Receives that may be posted at a time.
    pub recv_depth: usize,
    /// RDMA Reads we mean to issue at a time (ORD): 0 for a requester.
    pub reads_out: u32,
    /// RDMA Reads of the peer we are ready to serve at a time (IRD); knfsd refuses 0.
    pub reads_in: u32,
    /// Receives to post before the peer can send, at most `recv_depth`. The provider takes
    /// their buffers from `pool` and names them `WorkId(0)` and up.
    pub receive_buffers: usize,
    /// Size of each of `receive_buffers`, in bytes.
    pub receive_size: usize,
    /// For the whole of connecting or accepting.
    pub timeout: Duration,
}

impl ConnectParams {
    /// Whether the numbers make sense together.
    pub fn check(&self) -> Result<()> {
        if self.private_data.len() > PRIVATE_DATA_MAX {
            return Err(Error::Misuse(
                "more private data than every transport carries",
            ));
        }
        if self.receive_buffers > self.recv_depth {
            return Err(Error::Misuse("more Receives than recv_depth"));
        }
        Ok(())
    }

    /// For providers: [`ConnectParams::check`], and the Receives to post before the peer can
    /// send, under the names they have to have.
    pub fn take_receives(&self) -> Result<Vec<(WorkId, BufMut)>> {
        self.check()?;
        (0..self.receive_buffers)
            .map(|id| {
                let buf = self.pool.alloc(self.receive_size).ok_or_else(|| {
                    Error::local(
                        format!(
                            "the buffer pool has no room for {} Receives of {} bytes; \
                             ask for a larger cache",
                            self.receive_buffers, self.receive_size
                        ),
                        std::io::ErrorKind::OutOfMemory.into(),
                    )
                })?;
                Ok((WorkId(id as u64), buf))
            })
            .collect()
    }
}

/// A connection as two ends of one thing: many post, one polls.
pub struct Connection {
    pub queue_pair: Arc<dyn QueuePair>,
    pub completions: Box<dyn CompletionQueue>,
    /// What the peer sent with its request or acceptance. Some transports pad it with zeros.
    pub peer_private_data: Vec<u8>,
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection")
            .field("capabilities", self.queue_pair.capabilities())
            .finish_non_exhaustive()
    }
}

/// Something that makes connections.
pub trait Provider: Send + Sync + fmt::Debug {
    /// `iwarp`, `verbs`, `loopback`.
    fn name(&self) -> &'static str;

    /// Whether connections of this provider will have [`Capabilities::remote_invalidate`]: it
    /// must be announced while connecting (RFC 8797), before there is a connection to ask.
    fn remote_invalidate(&self) -> bool {
        false
    }

    /// Connects; blocks for at most `params.timeout`. A peer that does not listen or that
    /// rejects is [`Error::Refused`], silence is [`Error::TimedOut`].
    fn connect(&self, peer: SocketAddr, params: &ConnectParams) -> Result<Connection>;

    /// Listens. Port 0 takes a free one ([`Listener::local_addr`] tells).
    fn listen(&self, local: SocketAddr) -> Result<Box<dyn Listener>>;
}

/// A listening endpoint. Shared, so that one thread may close what another waits on.
pub trait Listener: Send + Sync {
    fn local_addr(&self) -> SocketAddr;

    /// Waits for somebody to connect. Nothing of the peer's first message needs to have
    /// arrived yet; `Err` ends the listener ([`Error::LinkLost`] after [`Listener::close`]).
    fn accept(&self) -> Result<Box<dyn Incoming>>;

    /// Makes `accept` return an error, now and later.
    fn close(&self);
}

/// Somebody who has begun to connect. Handled on a thread of its own: a slow peer delays
/// nobody else. Dropping it rejects.
pub trait Incoming: Send {
    fn peer_addr(&self) -> SocketAddr;

    /// Waits for the whole connection request and gives its private data (padded with zeros
    /// by some transports); may be asked again.
    fn request(&mut self, timeout: Duration) -> Result<Vec<u8>>;

    /// Accepts the request (waiting for the whole of it if [`Incoming::request`] did not);
    /// `params.reads_in` and `reads_out` are upper limits for what the peer asked for.
    /// The connecting side sends first: post nothing before something was received from it
    /// (RFC 5044 section 7.1.2).
    fn accept(self: Box<Self>, params: &ConnectParams) -> Result<Connection>;

    /// Refuses it.
    fn reject(self: Box<Self>, private_data: &[u8]);
}

/// The posting half of a connection.
pub trait QueuePair: Send + Sync {
    fn capabilities(&self) -> &Capabilities;
    fn local_addr(&self) -> SocketAddr;
    fn peer_addr(&self) -> SocketAddr;

    /// Posts a Receive. The completion brings `buf` back, of the same length. On a
    /// connection that ended it is accepted and flushed.
    fn post_receive(&self, id: WorkId, buf: BufMut) -> Result<()>;

    /// Starts the requests of `batch` in order and empties it. On a connection that ended
    /// they are accepted and flushed. An error leaves in `batch` what was not accepted:
    /// [`Error::QueueFull`], or [`Error::Misuse`] if lengths do not match or a message exceeds
    /// [`Capabilities::max_message`]. A handle the peer does not know, or a range or access it
    /// does not allow, ends the connection.
    fn post(&self, batch: &mut Vec<WorkRequest>) -> Result<()>;

    /// As [`QueuePair::post`], but a provider that pays for each start of sending may put it
    /// off until the next `post` or [`QueuePair::kick`], which whoever calls this owes.
    fn post_later(&self, batch: &mut Vec<WorkRequest>) -> Result<()> {
        self.post(batch)
    }

    /// Starts what [`QueuePair::post_later`] put off.
    fn kick(&self) {}

    //= RFC 8166, Section 8.1
    //# The use of an RPC-over-RDMA transport protocol MUST NOT introduce vulnerabilities to system
    //# memory contents nor to memory owned by user processes.
    /// Gives the peer access to `memory` under fresh handles (with [`Protection::Connection`]: under
    /// those of the connection's regions). A [`WorkRequest::Send`] that names them may be posted at
    /// once, and who has received it may use them. On error the memory comes back; an empty list or
    /// an empty buffer is [`Error::Misuse`]. Sinks come back with their lengths, whatever the peer
    /// wrote.
    #[allow(clippy::result_large_err, reason = "the memory has to come back")]
    fn expose(&self, memory: Memory) -> std::result::Result<Exposure, (Error, Memory)>;

    /// Ends the peer's access. Works on a connection that ended, too. If a handle was
    /// invalidated by the peer already, this costs nothing.
    ///
    /// # Panics
    /// If the exposure is of another queue pair (that pair's peer could still reach the memory).
    fn invalidate(&self, id: WorkId, exposure: Exposure) -> Invalidation;

    /// Makes [`CompletionQueue::poll`] return: the one that sleeps, or else the next one.
    fn wake(&self);

    /// Ends the connection: what is posted is flushed, handles become invalid. Both ends'
    /// polls then give [`Error::LinkLost`]. Does not wait.
    fn disconnect(&self);
}

/// The polling half of a connection. Dropping it ends the connection and returns what it
/// still owed to the pool.
pub trait CompletionQueue: Send {
    /// Appends what has happened to `out`, waiting for something as `wait` allows, and returns at
    /// once after [`QueuePair::wake`]. `Err` says why the connection ended, once everything posted
    /// before was given (`out` may grow in the same call, also with [`Wait::No`]), also to who
    /// keeps posting; it is given again at each later call, which also flushes what was posted
    /// since. The side whose peer broke a rule gets [`Error::PeerMisbehaved`]; the peer gets
    /// [`Error::PeerReported`] where the transport tells it.
    fn poll(&mut self, out: &mut Vec<Completion>, wait: Wait) -> Result<()>;

    /// The descriptors that an event loop waits for in place of a poll that waits. They are the
    /// same as long as the connection lives, and are waited for by epoll(7): edge-triggered, for
    /// reading and writing. After an event, or when [`CompletionQueue::arm`] says so, poll with
    /// [`Wait::No`]; after an event that tells of the end (EPOLLRDHUP, EPOLLHUP, EPOLLERR),
    /// again and again until it gives an error. `None`: the provider has none, and a thread of
    /// the connection's own has to wait inside `poll`.
    fn descriptors(&self) -> Option<Segs<BorrowedFd<'_>>> {
        None
    }

    /// Prepares to wait for the descriptors: from now on everything that happens makes one of
    /// them ready.
    fn arm(&mut self) -> Armed {
        Armed::Ready
    }

    /// The wait is over: nothing needs to make the descriptors ready until the next
    /// [`CompletionQueue::arm`].
    fn disarm(&mut self) {}
}

/// Whether to wait for the descriptors of a [`CompletionQueue`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Armed {
    /// Something has happened, or may have: poll first.
    Ready,
    /// Wait, until then at most (`None`: for ever), and poll.
    Idle(Option<Instant>),
}
