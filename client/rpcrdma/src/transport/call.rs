//! A call under way ([`Call`]), its reply, and the slot in which its caller waits ([`Slot`]).
//!
//! A call has one owner at each moment: the queue of a connection slot, the `Requester` of a
//! connection, or the thread that is sending or completing it. It keeps what a retransmission
//! needs: the encoded message, the payload, and the deadlines and counts that decide when it fails.
//! A caller that drops its [`CallFuture`] abandons the call, but its buffers stay with the
//! transport until the reply arrives or the connection ends, because the server may still access
//! them.

use super::memory::ReplyBytes;
use super::record::Record;
use super::secured::Secured;
use super::suspect::Suspicion;
use crate::error::{Error, ProtocolError, Result};
use crate::protocol::{self, Discard, Shape};
use crate::rpc::{Retry, accepted};
use crate::sync::Mutex;
use nfsrdma_rdma::contract::Segs;
use nfsrdma_rdma::{Buf, BufMut, Exposure, Instant};
use nfsrdma_xdr::codec::{Decode, Decoder, Encoder};
use nfsrdma_xdr::procedure::Procedure;
use nfsrdma_xdr::rpc::{self, AuthStat};
use nfsrdma_xdr::rpcrdma::{ChunkLists, MIN_HEADER_LEN, VERSION};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

/// Bulk data of a call.
#[derive(Debug, Default)]
pub enum Payload {
    #[default]
    None,
    /// The DDP-eligible argument.
    Source(Segs<Buf>),
    /// The buffers for the DDP-eligible result.
    Sink(Segs<BufMut>),
}

impl Payload {
    /// Length in bytes.
    pub fn len(&self) -> usize {
        match self {
            Payload::None => 0,
            Payload::Source(bufs) => bufs.iter().map(|b| b.len()).sum(),
            Payload::Sink(bufs) => bufs.iter().map(|b| b.len()).sum(),
        }
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The sink buffers; empty for other payloads.
    pub fn into_sink(self) -> Segs<BufMut> {
        match self {
            Payload::Sink(bufs) => bufs,
            Payload::None | Payload::Source(_) => Segs::new(),
        }
    }
}

/// The RPC reply to a call.
#[derive(Debug)]
pub struct Reply {
    pub xid: u32,
    pub(super) bytes: ReplyBytes,
    /// Bytes that the server put into the sinks by RDMA Write; `None` if the result is inline.
    pub placed: Option<u32>,
    /// The payload of the call.
    pub payload: Payload,
    /// When the call was made.
    pub started: Instant,
    /// Whether the call was sent more than once, so that the server may have run it before.
    pub retransmitted: bool,
}

impl Reply {
    /// The RPC message, without the data that are `placed`.
    pub fn message(&self) -> &[u8] {
        self.bytes.as_slice()
    }

    /// Why the server refused to authenticate the caller, if it did.
    pub fn refusal(&self) -> Option<AuthStat> {
        let header = rpc::Reply::from_xdr(self.message()).ok()?;
        match header.body {
            rpc::ReplyBody::Denied(rpc::Denial::AuthError(status)) => Some(status),
            _ => None,
        }
    }

    /// The first word of the results, which is the status in many programs. `None` if the server
    /// did not run the procedure, or there are no results.
    pub fn first_word(&self) -> Option<u32> {
        let mut from = match self.usual_results() {
            Some(results) => Decoder::new(results),
            None => {
                let mut from = Decoder::new(self.message());
                let header = rpc::Reply::decode(&mut from).ok()?;
                accepted(&header.body).ok()?;
                from
            }
        };
        from.u32().ok()
    }

    /// The results behind the most frequent header, which says that the server ran the procedure, and
    /// has a verifier of AUTH_NONE. `None` for any other header.
    fn usual_results(&self) -> Option<&[u8]> {
        // REPLY, MSG_ACCEPTED, AUTH_NONE of no bytes, SUCCESS (RFC 5531 section 9).
        const SUCCESS: [u8; 20] = [0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        let (xid, rest) = self.message().split_first_chunk::<4>()?;
        let (header, results) = rest.split_first_chunk::<20>()?;
        (*xid == self.xid.to_be_bytes() && *header == SUCCESS).then_some(results)
    }

    /// Decodes the results; an error unless the server ran the procedure.
    pub fn results<P: Procedure>(&self) -> Result<P::Res<'_>> {
        let usual = self.usual_results();
        let bytes = usual.unwrap_or_else(|| self.message());
        let mut from = match self.placed {
            Some(placed) => Decoder::with_placed(bytes, placed),
            None => Decoder::new(bytes),
        };
        let undecodable = |error| {
            Error::PeerMisbehaved(ProtocolError::Reply {
                procedure: P::NAME,
                error,
            })
        };
        if usual.is_none() {
            let header = rpc::Reply::decode(&mut from).map_err(undecodable)?;
            if header.xid != self.xid {
                return Err(Error::PeerMisbehaved(ProtocolError::Xid));
            }
            accepted(&header.body)?;
        }
        // Bytes after the results are ignored: some servers leave the padding of data that they
        // sent in a Write chunk in the stream.
        P::Res::decode(&mut from).map_err(undecodable)
    }
}

/// The memory registrations of a call.
#[derive(Debug, Default)]
pub(super) struct Registrations {
    /// The call itself, or its argument.
    pub(super) source: Option<Exposure>,
    /// The sink of the DDP-eligible result.
    pub(super) sink: Option<Exposure>,
    /// The Reply chunk.
    pub(super) reply: Option<Exposure>,
}

impl Registrations {
    /// Whether the server has no access to memory.
    pub(super) fn are_none(&self) -> bool {
        self.source.is_none() && self.sink.is_none() && self.reply.is_none()
    }
}

/// A call. Its owner is whoever processes it next: the waiting queue, the state machine of a
/// connection, or the thread that sends it. They pass it on in a box, because it is large, and
/// [`Calls`](super::calls::Calls) keeps the box for another call.
#[derive(Debug)]
pub(super) struct Call {
    pub(super) xid: u32,
    /// The process on whose behalf it is made, or 0 if there is none.
    pub(super) pid: u32,
    /// Number of its counter.
    pub(super) procedure: usize,
    /// The transport header for a call without chunks ([`plain_header`]), and behind it the encoded
    /// call without the DDP-eligible argument. They are the same in each transmission.
    pub(super) message: Buf,
    /// The bytes of `message`, while there is no registered memory for them.
    pub(super) unregistered: Option<Box<[u8]>>,
    /// Its properties without security.
    pub(super) shape: Shape,
    pub(super) payload: Payload,
    /// If it is made under RPCSEC_GSS. Then `message` is made for each transmission.
    pub(super) secured: Option<Box<Secured>>,
    pub(super) slot: Arc<Slot>,
    pub(super) retry: Retry,
    pub(super) started: Instant,
    /// Time of the last transmission.
    pub(super) sent: Option<Instant>,
    /// Transmissions so far, each on a different connection.
    pub(super) transmissions: u32,
    /// Position in the order of calls, kept across connections.
    pub(super) sequence: u64,
    /// Whether there was no memory for it when it was to be sent.
    pub(super) starved: bool,
    /// Whether its retries are used up: it is to be failed, not sent again.
    pub(super) given_up: bool,
    /// How far the call is suspected of ending connections.
    pub(super) suspicion: Suspicion,
    /// Why a reply was discarded, and the transmission that it answered; the first one for each.
    pub(super) discarded: Option<(Discard, u32)>,
    /// What listeners get of its last transmission, if there were listeners.
    pub(super) record: Option<Box<Record>>,
    /// The chunks that the server was offered in the current transmission.
    pub(super) offer: ChunkLists,
    /// The memory that the current transmission lets the server access.
    pub(super) registrations: Registrations,
    /// Whether the Write chunk is a separate buffer, to be copied into the call's sinks.
    pub(super) bounced: bool,
    /// The transport header of the current transmission, kept for reuse.
    pub(super) header: Option<Buf>,
}

impl protocol::Record for Box<Call> {
    fn offer(&self) -> &ChunkLists {
        &self.offer
    }
}

/// Encodes the header of a call without chunks, whose whole message follows it.
pub(super) fn plain_header(xid: u32, credits: u32, to: &mut Encoder) {
    //= RFC 8166, Section 4.2.1
    //# This XID MUST be the same as the XID in the RPC message.
    // XVCP: then RDMA_MSG and three empty lists, all of which are zero.
    let mut header = [0; MIN_HEADER_LEN];
    let (words, _) = header.as_chunks_mut();
    for (word, value) in words.iter_mut().zip([xid, VERSION, credits]) {
        *word = value.to_be_bytes();
    }
    to.opaque_fixed(&header);
}

impl Call {
    /// The encoded call without the DDP-eligible argument; empty while it is not registered.
    pub(super) fn head(&self) -> &[u8] {
        self.message.get(MIN_HEADER_LEN..).unwrap_or_default()
    }

    /// The same in registered memory.
    pub(super) fn registered_head(&self) -> Buf {
        self.message.slice(MIN_HEADER_LEN..)
    }

    /// The properties of the call as it is sent.
    pub(super) fn wire(&self) -> &Shape {
        match &self.secured {
            None => &self.shape,
            Some(secured) => secured.shape(),
        }
    }

    /// The pieces that follow the head in the message.
    pub(super) fn argument(&self) -> &[Buf] {
        match (&self.secured, &self.payload) {
            (Some(secured), _) if secured.protects_body() => secured.tail(),
            (_, Payload::Source(bufs)) => bufs,
            (_, Payload::None | Payload::Sink(_)) => &[],
        }
    }

    /// Payload bytes, sent or received.
    pub(super) fn payload_len(&self) -> u64 {
        (self.shape.argument + self.shape.max_ddp_result) as u64
    }

    /// A reply to this transmission was discarded. Returns whether one to the transmission before
    /// was discarded for the same reason: then it is not the connection that spoils the replies.
    pub(super) fn is_discarded_again(&mut self, why: Discard) -> bool {
        match self.discarded {
            Some((_, transmission)) if transmission == self.transmissions => false,
            before => {
                self.discarded = Some((why, self.transmissions));
                before.is_some_and(|(before, _)| before == why)
            }
        }
    }
}

/// Where a caller waits for its reply: a oneshot channel that needs no allocation of its own.
#[derive(Debug)]
pub(super) struct Slot {
    state: Mutex<State>,
}

#[derive(Debug)]
enum State {
    Waiting(Option<Waker>),
    Done(Result<Reply>),
    Taken,
    /// The caller dropped its future.
    Abandoned,
}

impl Slot {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Slot {
            state: Mutex::new(State::Waiting(None)),
        })
    }

    /// Makes the slot of an ended call that of a new one.
    pub(super) fn reset(&mut self) {
        *self.state.get_mut() = State::Waiting(None);
    }

    /// Passes the result to the caller, if it still waits.
    pub(super) fn complete(&self, result: Result<Reply>) {
        let mut state = self.state.lock();
        if let State::Waiting(waker) = &mut *state {
            let waker = waker.take();
            *state = State::Done(result);
            drop(state);
            if let Some(waker) = waker {
                waker.wake();
            }
        }
    }

    /// Marks the slot as having no caller, or no caller any more.
    pub(super) fn abandon(&self) {
        let mut state = self.state.lock();
        // Most callers have taken their reply.
        if matches!(*state, State::Taken) {
            return;
        }
        let old = std::mem::replace(&mut *state, State::Abandoned);
        drop(state);
        drop(old);
    }

    pub(super) fn is_abandoned(&self) -> bool {
        matches!(*self.state.lock(), State::Abandoned)
    }
}

/// The future of a call's reply. Dropping it abandons the call.
#[derive(Debug)]
pub struct CallFuture(pub(super) Arc<Slot>);

impl Future for CallFuture {
    type Output = Result<Reply>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.0.state.lock();
        match &mut *state {
            State::Waiting(waker) => {
                match waker {
                    Some(old) if old.will_wake(context.waker()) => {}
                    _ => *waker = Some(context.waker().clone()),
                }
                Poll::Pending
            }
            State::Done(result) => {
                let result = std::mem::replace(result, Err(Error::Cancelled));
                *state = State::Taken;
                Poll::Ready(result)
            }
            State::Taken | State::Abandoned => Poll::Ready(Err(Error::Cancelled)),
        }
    }
}

impl Drop for CallFuture {
    fn drop(&mut self) {
        self.0.abandon();
    }
}
