//! A call under way ([`Call`]), its reply, and the slot in which its caller waits ([`Slot`]).
//!
//! A call has one owner at each moment: the queue of a connection slot, the `Requester` of a
//! connection, or the thread that is sending or completing it. It keeps what a retransmission
//! needs: the encoded message, the payload, and the times and counts by which it is given up. A
//! caller that drops its [`CallFuture`] abandons the call, but its buffers stay with the transport
//! until the reply arrives or the connection ends, because the server may still access them.

use super::memory::ReplyBytes;
use super::record::Record;
use super::suspect::Suspicion;
use crate::error::{Error, ProtocolError, Result};
use crate::protocol::Shape;
use crate::rpc::{Retry, accepted};
use crate::sync::Mutex;
use nfsrdma_rdma::contract::Segs;
use nfsrdma_rdma::{Buf, BufMut};
use nfsrdma_xdr::codec::{Decode, Decoder};
use nfsrdma_xdr::procedure::Procedure;
use nfsrdma_xdr::rpc;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

/// Bulk data of a call.
#[derive(Debug, Default)]
pub enum Payload {
    #[default]
    None,
    /// The DDP-eligible argument.
    Source(Segs<Buf>),
    /// Where the DDP-eligible result goes.
    Sink(Segs<BufMut>),
}

impl Payload {
    /// Bytes.
    pub fn len(&self) -> usize {
        match self {
            Payload::None => 0,
            Payload::Source(bufs) => bufs.iter().map(|b| b.len()).sum(),
            Payload::Sink(bufs) => bufs.iter().map(|b| b.len()).sum(),
        }
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The sinks, if there are any.
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
    /// Bytes the server put into the sinks by RDMA Write; `None` if the result is inline.
    pub placed: Option<u32>,
    /// The payload of the call.
    pub payload: Payload,
    /// Whether the call was sent more than once: the server may have run it before.
    pub retransmitted: bool,
}

impl Reply {
    /// The RPC message (reduced if `placed`).
    pub fn message(&self) -> &[u8] {
        self.bytes.as_slice()
    }

    /// The first word of the results, which many programs have a status in, if the server ran
    /// the procedure and there are any.
    pub fn first_word(&self) -> Option<u32> {
        let mut from = Decoder::new(self.message());
        let header = rpc::Reply::decode(&mut from).ok()?;
        accepted(&header.body).ok()?;
        from.u32().ok()
    }

    /// The results in it, if the server ran the procedure.
    pub fn results<P: Procedure>(&self) -> Result<P::Res<'_>> {
        let mut from = match self.placed {
            Some(placed) => Decoder::with_placed(self.message(), placed),
            None => Decoder::new(self.message()),
        };
        let undecodable = |error| {
            Error::PeerMisbehaved(ProtocolError::Reply {
                procedure: P::NAME,
                error,
            })
        };
        let header = rpc::Reply::decode(&mut from).map_err(undecodable)?;
        if header.xid != self.xid {
            return Err(Error::PeerMisbehaved(ProtocolError::Xid));
        }
        accepted(&header.body)?;
        // What follows the results is left alone: some servers leave the padding of data that
        // went by a Write chunk in the stream.
        P::Res::decode(&mut from).map_err(undecodable)
    }
}

/// A call, owned by whoever has to deal with it next: the waiting queue, the state machine
/// of a connection, or the thread that sends it.
#[derive(Debug)]
pub(super) struct Call {
    pub(super) xid: u32,
    /// The process it is made for; 0: none.
    pub(super) pid: u32,
    /// Which counter it belongs to.
    pub(super) procedure: usize,
    /// The encoded RPC message without the DDP-eligible argument; the same bytes in each
    /// transmission.
    pub(super) head: Buf,
    /// The same, while there is no registered memory for it.
    pub(super) unregistered: Option<Box<[u8]>>,
    pub(super) shape: Shape,
    pub(super) payload: Payload,
    pub(super) slot: Arc<Slot>,
    pub(super) retry: Retry,
    pub(super) started: Instant,
    /// When it was transmitted last.
    pub(super) sent: Option<Instant>,
    /// Transmissions so far, each on a connection of its own.
    pub(super) transmissions: u32,
    /// Order of calls, kept across connections.
    pub(super) sequence: u64,
    /// There was no memory for it when it was to be sent.
    pub(super) starved: bool,
    /// Its retries are used up: to be failed, not sent again.
    pub(super) given_up: bool,
    /// Whether connections end over it.
    pub(super) suspicion: Suspicion,
    /// What listeners get of its last transmission, if there were any.
    pub(super) record: Option<Box<Record>>,
}

impl Call {
    /// Payload bytes, either way.
    pub(super) fn payload_len(&self) -> u64 {
        (self.shape.argument + self.shape.max_ddp_result) as u64
    }
}

/// Where a caller waits: a oneshot channel without allocation of its own.
#[derive(Debug)]
pub(super) struct Slot {
    state: Mutex<State>,
}

#[derive(Debug)]
enum State {
    Waiting(Option<Waker>),
    Done(Result<Reply>),
    Taken,
    /// The caller went away.
    Abandoned,
}

impl Slot {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Slot {
            state: Mutex::new(State::Waiting(None)),
        })
    }

    /// Gives the result to the caller, if there still is one.
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

    /// No caller waits, or none does any more.
    pub(super) fn abandon(&self) {
        let old = std::mem::replace(&mut *self.state.lock(), State::Abandoned);
        drop(old);
    }

    pub(super) fn is_abandoned(&self) -> bool {
        matches!(*self.state.lock(), State::Abandoned)
    }
}

/// Waits for a slot. Dropping it abandons the call.
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
            State::Done(_) => match std::mem::replace(&mut *state, State::Taken) {
                State::Done(result) => Poll::Ready(result),
                _ => Poll::Ready(Err(Error::Cancelled)),
            },
            State::Taken | State::Abandoned => Poll::Ready(Err(Error::Cancelled)),
        }
    }
}

impl Drop for CallFuture {
    fn drop(&mut self) {
        self.0.abandon();
    }
}
