//! The traits that a provider implements.
//!
//! **Ownership is the memory protection.** Memory given to the peer is moved into an [`Exposure`]
//! and is returned only after the handle is invalid, so no safe code can read bytes that a peer may
//! still write, or change bytes that it may still read (RFC 8166 section 4.4.1). The same holds for
//! work requests: buffers are moved in and returned in completions. A provider's own tables hold
//! [`KeepAlive`](crate::buf::KeepAlive)s, so that memory whose owner was dropped too early does not
//! return to the pool while a peer can access it.
//!
//! **Threads.** A [`QueuePair`] is shared: any thread may post. A [`CompletionQueue`] has one
//! owner, the connection's completion thread or an event loop. A soft provider receives inside
//! [`CompletionQueue::poll`], so that the thread that reads the socket also handles the completion.
//! A provider never calls back.

use crate::{Buf, BufMut, Error, Instant, Pool, Result};
use smallvec::SmallVec;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

/// Largest private data that every transport carries, in bytes, with a request, an acceptance or a
/// rejection. More is [`Error::Misuse`]. (InfiniBand's connection request leaves this much after
/// the CM's own header; MPA carries more.)
pub const PRIVATE_DATA_MAX: usize = 56;

/// A gather or scatter list; up to two elements need no allocation. With more it would be moved by a
/// call of memcpy(3) each time that a request or a completion is passed on.
pub type Segs<T> = SmallVec<[T; 2]>;

/// A remote access key: the STag of iWARP, the R_key of InfiniBand, the handle of an
/// RPC-over-RDMA segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Handle(pub u32);

//= RFC 8166, Section 2.3.2
//# The RPC-over-RDMA version 1 protocol assumes that each region of registered memory MUST be
//# identified with a steering tag of no more than 32 bits and memory addresses of up to 64 bits in
//# length.
/// A range of a peer's memory, or of ours as the peer names it: `length` bytes from `offset` in the
/// address space of `handle`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RemoteSegment {
    /// The key of the memory.
    pub handle: Handle,
    /// Length in bytes.
    pub length: u32,
    /// Address of the first byte.
    pub offset: u64,
}

/// A number that the caller gives to a work request, returned in its completion.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WorkId(pub u64);

/// Memory to make accessible to the peer.
#[derive(Debug)]
pub enum Memory {
    /// The peer may write it (RDMA Write), and nothing else.
    Sink(Segs<BufMut>),
    /// The peer may read it (RDMA Read), and nothing else.
    Source(Segs<Buf>),
}

impl Memory {
    /// Total length in bytes.
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

/// Memory that the peer can access at this moment, and the segments that name it.
///
/// It is made by [`QueuePair::expose`] and ended by [`QueuePair::invalidate`], which returns the
/// memory. Only a provider may drop an exposure instead; that leaks the handle until the connection
/// ends, and only then does the memory return to the pool.
pub struct Exposure {
    segments: Segs<RemoteSegment>,
    memory: Memory,
}

impl Exposure {
    /// For providers: an exposure of `memory` by `segments`, which cover it in order.
    pub fn new(segments: Segs<RemoteSegment>, memory: Memory) -> Self {
        Exposure { segments, memory }
    }

    /// The segments to send to the peer: they cover the memory in order and without a gap.
    pub fn segments(&self) -> &[RemoteSegment] {
        &self.segments
    }

    /// For providers: the memory, after its handles became invalid. (To describe it to the
    /// device, take the addresses before it is moved in: [`BufMut::as_mut_ptr`],
    /// [`Buf::as_raw_ptr`].)
    ///
    /// # Safety
    /// Every handle must be invalid and no access by the peer under way: the owner of the memory
    /// may then read a sink and change a source.
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

/// The result of [`QueuePair::invalidate`].
#[derive(Debug)]
pub enum Invalidation {
    /// The handles are invalid; this is the memory.
    Done(Memory),
    /// The memory will be returned by a [`Completion::Invalidated`] with the same id.
    Posted,
}

/// Work for the send queue. Requests are started in the order of posting. RFC 5040 section 5.5
/// defines what a peer may observe of that order: a Send is received after all earlier Writes were
/// placed; a Read may complete later than requests posted after it.
///
/// Lists may have any length and may contain empty buffers. An unsignaled request never completes,
/// not even as flushed.
#[derive(Debug)]
pub enum WorkRequest {
    /// A message for one Receive of the peer. `invalidate` names a handle of the *peer* to be
    /// invalidated with it (Send with Invalidate). The provider keeps `data` as long as it needs
    /// them. Completes only if `signaled`.
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
    /// RDMA Read of `source` into all of `sink`, which must have the same length. Always completes
    /// with [`Completion::Read`], which returns the sink.
    Read {
        id: WorkId,
        sink: Segs<BufMut>,
        source: RemoteSegment,
    },
}

/// A completion. Each posted request that has a completion gets exactly one, even if the connection
/// ends before ([`Completion::Flushed`]).
#[derive(Debug)]
pub enum Completion {
    /// A signaled Send is done; its buffers are free.
    Sent { id: WorkId },
    /// A signaled RDMA Write is done locally.
    Written { id: WorkId },
    /// An RDMA Read has filled its sink.
    Read { id: WorkId, sink: Segs<BufMut> },
    /// A Send of the peer filled the first `len` bytes of a Receive. `invalidated` is the handle of
    /// ours that it named; it is already invalid.
    Received {
        id: WorkId,
        buf: BufMut,
        len: usize,
        invalidated: Option<Handle>,
    },
    /// An invalidation that was [`Invalidation::Posted`] is done.
    Invalidated { id: WorkId, memory: Memory },
    /// The connection ended before the request was done. `memory` is that of the Read, Receive or
    /// invalidation.
    Flushed { id: WorkId, memory: Option<Memory> },
}

/// How long [`CompletionQueue::poll`] may wait for the first completion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    No,
    Until(Instant),
    Forever,
}

/// How a provider protects memory against a peer (RFC 8166 section 8.1, RFC 5042).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protection {
    /// A new unpredictable handle for each RPC, which is cheap (soft provider, fast registration).
    Handle,
    /// A type 2 memory window bound and invalidated for each RPC.
    Window,
    /// A registration for each RPC, which is as safe but slow.
    Registration,
}

/// The properties of a connection.
#[derive(Debug, Clone)]
pub struct Capabilities {
    /// Whether one handle can cover a list of buffers (then [`Exposure::segments`] has one
    /// segment); otherwise each buffer has its own handle.
    pub scatter_handle: bool,
    /// Whether the peer may invalidate our handles by Send with Invalidate.
    pub remote_invalidate: bool,
    pub protection: Protection,
    /// Largest Send, in bytes.
    pub max_message: usize,
    /// How many of our RDMA Reads may be outstanding (ORD), as negotiated.
    pub max_reads_out: u32,
    /// How many RDMA Reads of the peer we serve at once (IRD), as negotiated.
    pub max_reads_in: u32,
    /// Largest number of segments of one [`QueuePair::expose`].
    pub max_segments: usize,
    /// One line for users: link, device, CRC, MPA revision, FPDU size.
    pub description: String,
}

/// The parameters for connecting or accepting.
#[derive(Debug, Clone)]
pub struct ConnectParams {
    /// The pool of all memory that the connection uses.
    pub pool: Pool,
    /// Sent to the peer with the connection request or acceptance; at most [`PRIVATE_DATA_MAX`]
    /// bytes.
    pub private_data: Vec<u8>,
    /// How many work requests may be posted at once; further ones fail with [`Error::QueueFull`]. A
    /// signaled request counts until its completion was polled, an unsignaled one until it is done.
    pub send_depth: usize,
    /// How many Receives may be posted at once.
    pub recv_depth: usize,
    /// How many RDMA Reads we want to issue at once (ORD); 0 for a requester.
    pub reads_out: u32,
    /// How many RDMA Reads of the peer we can serve at once (IRD); knfsd refuses 0.
    pub reads_in: u32,
    /// How many Receives to post before the peer can send, at most `recv_depth`. The provider
    /// allocates their buffers from `pool`; their ids are `WorkId(0)` and up.
    pub receive_buffers: usize,
    /// Size of each of `receive_buffers`, in bytes.
    pub receive_size: usize,
    /// Time limit of connecting or accepting.
    pub timeout: Duration,
    /// Where to connect from: an address of this machine; `None` leaves it to the routes. Accepting
    /// ignores it.
    pub local: Option<IpAddr>,
}

impl ConnectParams {
    /// Checks the parameters for consistency.
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

    /// For providers: [`ConnectParams::check`], and the Receives to post before the peer can send,
    /// with their ids.
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

/// The two halves of a connection: many threads post, one polls.
pub struct Connection {
    pub queue_pair: Arc<dyn QueuePair>,
    pub completions: Box<dyn CompletionQueue>,
    /// The private data of the peer's request or acceptance. Some transports pad them with zeros.
    pub peer_private_data: Vec<u8>,
    /// The messages that set the connection up, of the initiator and of the responder, as they were
    /// on the wire; only for the initiator, and only where the provider makes them itself.
    pub greeting: Option<[Vec<u8>; 2]>,
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection")
            .field("capabilities", self.queue_pair.capabilities())
            .finish_non_exhaustive()
    }
}

/// A maker of connections.
pub trait Provider: Send + Sync + fmt::Debug {
    /// `iwarp` or `verbs`.
    fn name(&self) -> &'static str;

    /// Whether connections of this provider will have [`Capabilities::remote_invalidate`]. It must
    /// be announced while connecting (RFC 8797), before there is a connection to ask.
    fn remote_invalidate(&self) -> bool {
        false
    }

    /// Connects; blocks for at most `params.timeout`. If this machine does not have `params.local`,
    /// the error is [`Error::Local`] with the kind `AddrNotAvailable`. If nobody listens or the peer rejects, the
    /// error is [`Error::Refused`]; if nobody answers, [`Error::TimedOut`].
    fn connect(&self, peer: SocketAddr, params: &ConnectParams) -> Result<Connection>;

    /// Waits, at most a second, until every peer that was asked to connect has answered; returns
    /// whether all have. For a process that is about to end: some peers bear it badly if a connection
    /// that they have not yet accepted ends ([`Handshakes`](crate::Handshakes)).
    fn await_answers(&self) -> bool {
        true
    }

    /// Listens at an address. Port 0 stands for a free one; see [`Listener::local_addr`].
    fn listen(&self, local: SocketAddr) -> Result<Box<dyn Listener>>;
}

/// A listening endpoint. It is shared, so that one thread may close it while another accepts.
pub trait Listener: Send + Sync {
    fn local_addr(&self) -> SocketAddr;

    /// Waits for a connection. The peer's first message need not have arrived yet. An error ends
    /// the listener ([`Error::LinkLost`] after [`Listener::close`]).
    fn accept(&self) -> Result<Box<dyn Incoming>>;

    /// Makes `accept` fail, now and later.
    fn close(&self);
}

/// A peer that has begun to connect. Each is handled on its own thread, so that a slow peer does
/// not delay others. Dropping it rejects the request.
pub trait Incoming: Send {
    fn peer_addr(&self) -> SocketAddr;

    /// Waits for the whole connection request and returns its private data, which some transports
    /// pad with zeros. May be called again.
    fn request(&mut self, timeout: Duration) -> Result<Vec<u8>>;

    /// Accepts the request, after waiting for all of it if [`Incoming::request`] was not called.
    /// `params.reads_in` and `reads_out` are upper limits for what the peer asked for. The
    /// connecting side sends first: post nothing before something was received from it (RFC 5044
    /// section 7.1.2).
    fn accept(self: Box<Self>, params: &ConnectParams) -> Result<Connection>;

    /// Rejects the request.
    fn reject(self: Box<Self>, private_data: &[u8]);
}

/// The posting half of a connection.
pub trait QueuePair: Send + Sync {
    fn capabilities(&self) -> &Capabilities;
    fn local_addr(&self) -> SocketAddr;
    fn peer_addr(&self) -> SocketAddr;

    /// Posts a Receive. Its completion returns `buf` with the same length. After the end of the
    /// connection the Receive is accepted and flushed.
    fn post_receive(&self, id: WorkId, buf: BufMut) -> Result<()>;

    /// Starts the requests of `batch` in order and removes them from it. After the end of the
    /// connection they are accepted and flushed. After an error, `batch` contains those that were
    /// not accepted: [`Error::QueueFull`], or [`Error::Misuse`] if lengths do not match or a
    /// message exceeds [`Capabilities::max_message`]. A handle that the peer does not know, or a
    /// range or access that it does not allow, ends the connection.
    fn post(&self, batch: &mut Vec<WorkRequest>) -> Result<()>;

    /// Like [`QueuePair::post`] for one request, which is dropped after an error. The provider may defer
    /// sending until the next `post` or [`QueuePair::kick`], which the caller must call afterwards.
    fn post_later(&self, request: WorkRequest) -> Result<()> {
        self.post(&mut vec![request])
    }

    /// Sends what [`QueuePair::post_later`] deferred.
    fn kick(&self) {}

    //= RFC 8166, Section 8.1
    //# The use of an RPC-over-RDMA transport protocol MUST NOT introduce vulnerabilities to system
    //# memory contents nor to memory owned by user processes.
    /// Gives the peer access to `memory` under new handles. A [`WorkRequest::Send`] that names them may be posted at
    /// once; a peer that has received it may use them. An error returns the memory; an empty list
    /// or an empty buffer is [`Error::Misuse`]. Sinks are returned with their original lengths,
    /// whatever the peer wrote.
    #[allow(clippy::result_large_err, reason = "the memory has to come back")]
    fn expose(&self, memory: Memory) -> std::result::Result<Exposure, (Error, Memory)>;

    /// Ends the peer's access; also after the end of the connection. A handle that the peer has
    /// already invalidated costs nothing.
    ///
    /// # Panics
    /// If the exposure belongs to another queue pair, whose peer could still access the memory.
    fn invalidate(&self, id: WorkId, exposure: Exposure) -> Invalidation;

    /// Makes [`CompletionQueue::poll`] return: the call that sleeps, or else the next one.
    fn wake(&self);

    /// Ends the connection: posted work is flushed, handles become invalid, and polls at both ends
    /// return [`Error::LinkLost`]. Does not wait.
    fn disconnect(&self);
}

/// The polling half of a connection. Dropping it ends the connection and returns the memory of
/// posted work to the pool.
pub trait CompletionQueue: Send {
    /// Appends completions to `out`, waiting for the first one as `wait` allows; returns at once
    /// after [`QueuePair::wake`]. An error is the reason why the connection ended. It is returned
    /// when all work posted before has completed (`out` may grow in the same call, also with
    /// [`Wait::No`]), even to a caller that keeps posting; each later call returns it again and
    /// flushes what was posted since. The side whose peer violated the protocol gets
    /// [`Error::PeerMisbehaved`], and the peer [`Error::PeerReported`] if the transport tells it.
    fn poll(&mut self, out: &mut Vec<Completion>, wait: Wait) -> Result<()>;

    /// The descriptors that an event loop waits for, instead of a `poll` that waits. They remain
    /// the same while the connection lives, and are waited for with epoll(7), edge-triggered, for
    /// reading and writing. After an event, or when [`CompletionQueue::arm`] says so, call `poll`
    /// with [`Wait::No`]; after an event that reports the end (EPOLLRDHUP, EPOLLHUP, EPOLLERR),
    /// call it until it returns an error. `None` means that the provider has no descriptors, so
    /// that a thread has to wait in `poll`.
    fn descriptors(&self) -> Option<Segs<BorrowedFd<'_>>> {
        None
    }

    /// Prepares to wait for the descriptors: from now on all that happens on the connection makes
    /// one of them ready.
    fn arm(&mut self) -> Armed {
        Armed::Ready
    }

    /// Ends the wait: until the next [`CompletionQueue::arm`], completions need not make the
    /// descriptors ready.
    fn disarm(&mut self) {}
}

/// Whether to wait for the descriptors of a [`CompletionQueue`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Armed {
    /// There are, or may be, completions: poll first.
    Ready,
    /// Wait until this time at most (`None` means no limit), then poll.
    Idle(Option<Instant>),
}
