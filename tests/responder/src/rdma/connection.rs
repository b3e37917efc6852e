//! One RPC-over-RDMA connection. Its completion thread receives calls, reads their Read chunks, and
//! executes the short calls. Workers execute the long ones, and send the replies themselves.

use super::odd::{self, Odd};
use super::plan::{self, CallPlan, Intake, Limits, ReadChunk, Targets};
use crate::rpc::{HEADROOM, Message, Outcome, Peer, Placed, Reply, Service, Weight};
use crate::workers::Workers;
use nfsrdma_rdma::{
    Buf, BufMut, Completion, CompletionQueue, Error, Handle, Pool, QueuePair, Segs, Wait, WorkId,
    WorkRequest,
};
use nfsrdma_xdr::codec::{Encode, padding};
use nfsrdma_xdr::rpcrdma::Header;
use parking_lot::Mutex;
use std::cell::Cell;
use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

/// The first work ID of RDMA Reads. Receives have smaller ones.
const FIRST_READ: u64 = 1 << 32;

/// Longest time for which replies to calls that came together are collected, to be sent together.
const PATIENCE: Duration = Duration::from_micros(100);

thread_local! {
    /// Whether replies of this thread are collected until it has executed all received calls.
    static TOGETHER: Cell<bool> = const { Cell::new(false) };
}

/// The parameters of a connection, as they were negotiated.
#[derive(Debug, Clone, Copy)]
pub(super) struct Terms {
    pub(super) limits: Limits,
    /// Longest reply in a Send, in bytes.
    pub(super) inline: usize,
    /// Whether both sides support Send With Invalidate.
    pub(super) invalidate: bool,
    /// Whether only the connection's own thread may post, and never takes another identity: see
    /// [`super::Settings::apart`].
    pub(super) apart: bool,
    pub(super) odd: Odd,
    pub(super) wtmax: usize,
}

/// The part of a connection that its threads share.
pub(super) struct Shared {
    pub(super) queue_pair: Arc<dyn QueuePair>,
    pub(super) pool: Pool,
    pub(super) service: Arc<Service>,
    pub(super) workers: Arc<Workers>,
    pub(super) terms: Terms,
    pub(super) peer: Peer,
    pub(super) outbox: Outbox,
}

/// Work that other threads leave for the connection's own thread.
pub(super) struct Outbox {
    home: ThreadId,
    letters: Mutex<Vec<Letter>>,
}

enum Letter {
    Receive(WorkId, BufMut),
    Post(Vec<WorkRequest>),
    Disconnect,
}

impl Outbox {
    /// The outbox of the calling thread.
    pub(super) fn new() -> Self {
        Outbox {
            home: thread::current().id(),
            letters: Mutex::default(),
        }
    }
}

/// A received message. Its Receive is posted again before the reply is sent, so that each credit
/// always has one.
struct Received {
    id: WorkId,
    buf: BufMut,
    len: usize,
}

/// A call whose Read chunks were read completely.
struct Call {
    received: Received,
    plan: CallPlan,
    message: Vec<BufMut>,
    argument: Vec<BufMut>,
}

/// A call whose RDMA Reads have not all completed.
struct Pending {
    received: Received,
    plan: CallPlan,
    /// One buffer for each segment, those of the message before those of the argument.
    pulled: Vec<Option<BufMut>>,
    left: usize,
}

/// Polls completions until the connection ends, and returns the reason.
pub(super) fn run(shared: &Arc<Shared>, mut completions: Box<dyn CompletionQueue>) -> Error {
    let mut intake = Taking {
        shared: shared.clone(),
        pending: HashMap::new(),
        reads: HashMap::new(),
        next: FIRST_READ,
    };
    let mut out = Vec::new();
    loop {
        let polled = completions.poll(&mut out, Wait::Forever);
        let mut first = Instant::now();
        let several = out.len() > 1;
        TOGETHER.set(several);
        for completion in out.drain(..) {
            //= RFC 8166, Section 4.5.4
            //# If a Responder is unable to construct and transmit an RPC Reply or RPC-over-RDMA
            //# error message, the Responder MUST close the connection to signal to the Requester
            //# that a reply was lost.
            if let Err(error) = intake.completed(completion) {
                shared.close(&error);
            }
            // A reply must not wait long for calls that came after its own.
            if several && first.elapsed() > PATIENCE {
                shared.queue_pair.kick();
                first = Instant::now();
            }
        }
        TOGETHER.set(false);
        if several {
            shared.queue_pair.kick();
        }
        shared.deliver();
        if let Err(error) = polled {
            drop(intake);
            shared.outlive();
            return error;
        }
    }
}

/// The state of the completion thread.
struct Taking {
    shared: Arc<Shared>,
    pending: HashMap<u64, Pending>,
    /// Maps an RDMA Read to its call and segment.
    reads: HashMap<u64, (u64, usize)>,
    next: u64,
}

impl Taking {
    fn completed(&mut self, completion: Completion) -> Result<(), Error> {
        match completion {
            Completion::Received { id, buf, len, .. } => self.received(Received { id, buf, len }),
            Completion::Read { id, sink } => self.pulled(id, sink),
            Completion::Flushed { id, .. } => {
                if let Some((call, _)) = self.reads.remove(&id.0) {
                    self.pending.remove(&call);
                }
                Ok(())
            }
            Completion::Sent { .. } | Completion::Written { .. } => Ok(()),
            Completion::Invalidated { .. } => Ok(()),
        }
    }

    fn received(&mut self, received: Received) -> Result<(), Error> {
        let limits = &self.shared.terms.limits;
        match plan::intake(&received.buf[..received.len], limits) {
            Intake::Discard => self.shared.post_again(received),
            Intake::Answer(header) => self.shared.send_header(received, &header, None),
            Intake::Call(plan) => {
                if plan.message.is_none() && plan.argument.is_none() {
                    self.shared.start(Call {
                        received,
                        plan: *plan,
                        message: Vec::new(),
                        argument: Vec::new(),
                    })
                } else {
                    self.pull(received, *plan)
                }
            }
        }
    }

    /// Starts the RDMA Reads of a call.
    fn pull(&mut self, received: Received, plan: CallPlan) -> Result<(), Error> {
        let shared = &self.shared;
        if shared.queue_pair.capabilities().max_reads_out == 0 {
            // The peer offers Read chunks, but cannot serve RDMA Reads.
            let header = Header::err_chunk(plan.xid, shared.terms.limits.credits);
            return shared.send_header(received, &header, plan.targets.handle);
        }
        let call = self.next;
        let mut batch = Vec::new();
        for segment in segments(&plan) {
            let Some(sink) = shared.pool.alloc(segment.length as usize) else {
                return Err(Error::Misuse("a peer with more calls than credits"));
            };
            self.reads.insert(self.next, (call, batch.len()));
            batch.push(WorkRequest::Read {
                id: WorkId(self.next),
                sink: [sink].into_iter().collect(),
                source: segment,
            });
            self.next += 1;
        }
        if batch.is_empty() {
            // The chunks only have empty segments.
            return self.pulled_all(Pending {
                received,
                plan,
                pulled: Vec::new(),
                left: 0,
            });
        }
        let left = batch.len();
        self.pending.insert(
            call,
            Pending {
                received,
                plan,
                pulled: (0..left).map(|_| None).collect(),
                left,
            },
        );
        shared.post(batch)
    }

    fn pulled(&mut self, id: WorkId, sink: Segs<BufMut>) -> Result<(), Error> {
        let Some((call, segment)) = self.reads.remove(&id.0) else {
            return Ok(());
        };
        let Some(pending) = self.pending.get_mut(&call) else {
            return Ok(());
        };
        pending.pulled[segment] = sink.into_iter().next();
        pending.left -= 1;
        if pending.left > 0 {
            return Ok(());
        }
        match self.pending.remove(&call) {
            Some(pending) => self.pulled_all(pending),
            None => Ok(()),
        }
    }

    fn pulled_all(&mut self, pending: Pending) -> Result<(), Error> {
        let of_message = pending
            .plan
            .message
            .as_ref()
            .map_or(0, |chunk| chunk.segments.len());
        let mut message: Vec<BufMut> = pending.pulled.into_iter().flatten().collect();
        let argument = message.split_off(of_message.min(message.len()));
        let mut call = Call {
            received: pending.received,
            plan: pending.plan,
            message,
            argument,
        };
        if call.is_in_pieces() {
            let pieces: Vec<&[u8]> = call.message.iter().map(|piece| &piece[..]).collect();
            call.message = vec![self.shared.joined(&pieces)?];
        }
        self.shared.start(call)
    }
}

/// All segments to read, those of the message before those of the argument.
fn segments(plan: &CallPlan) -> Vec<nfsrdma_rdma::RemoteSegment> {
    let chunk = |chunk: &Option<ReadChunk>| {
        chunk
            .as_ref()
            .map_or(Vec::new(), |chunk| chunk.segments.clone())
    };
    let mut all = chunk(&plan.message);
    all.extend(chunk(&plan.argument));
    all
}

impl Call {
    /// Calls `with` with the RPC message. The data of a Long Call may stay in the pieces into which
    /// it was read. `None` if the pieces are not the RPC message of the header.
    fn with_message<T>(&self, with: impl FnOnce(Message<'_>) -> T) -> Option<T> {
        if self.plan.message.is_none() {
            let inline = &self.received.buf[self.plan.inline.clone()];
            return Some(with(self.message_of(inline)));
        }
        let first: &[u8] = self.message.first().map_or(&[], |piece| piece);
        // The XIDs must be equal (RFC 8166 sections 4.2.1 and 4.5.2).
        if first.get(..4) != Some(&self.plan.xid.to_be_bytes()[..]) {
            return None;
        }
        if self.message.len() == 1 {
            return Some(with(self.message_of(first)));
        }
        let (position, data) = self.split_write()?;
        Some(with(Message {
            bytes: &first[..position],
            placed: Some(Placed {
                data: &data,
                position,
            }),
        }))
    }

    /// Where the data of a Long Call begin that is a WRITE, and their pieces.
    fn split_write(&self) -> Option<(usize, Vec<&[u8]>)> {
        let first = self
            .message
            .first()
            .filter(|_| self.plan.argument.is_none())?;
        let (head, mut left) = crate::rpc::split_write(first)?;
        let rest = self.message[1..].iter().map(|piece| &piece[..]);
        let mut data = Vec::with_capacity(self.message.len());
        for piece in std::iter::once(&first[head..]).chain(rest) {
            let part = piece.len().min(left);
            data.push(&piece[..part]);
            left -= part;
        }
        (left == 0).then_some((head, data))
    }

    /// Whether the message must be joined.
    fn is_in_pieces(&self) -> bool {
        self.message.len() > 1 && self.split_write().is_none()
    }

    fn message_of<'a>(&'a self, bytes: &'a [u8]) -> Message<'a> {
        Message {
            bytes,
            placed: None,
        }
    }

    fn with_placed<T>(&self, with: impl FnOnce(Message<'_>) -> T) -> Option<T> {
        let Some(chunk) = &self.plan.argument else {
            return self.with_message(with);
        };
        let slices: Vec<&[u8]> = self.argument.iter().map(|p| &p[..]).collect();
        self.with_message(|message| {
            with(Message {
                bytes: message.bytes,
                placed: Some(Placed {
                    data: &slices,
                    position: chunk.position,
                }),
            })
        })
    }
}

impl Shared {
    /// Executes a call here, or on a worker.
    fn start(self: &Arc<Self>, call: Call) -> Result<(), Error> {
        let weight = call.with_placed(|message| self.service.weigh(&message));
        match weight.unwrap_or(Weight::Light) {
            Weight::Light if !self.terms.apart => self.execute(call),
            Weight::Light | Weight::Heavy => {
                let shared = self.clone();
                self.workers.submit(move || {
                    if let Err(error) = shared.execute(call) {
                        shared.close(&error);
                    }
                });
                Ok(())
            }
        }
    }

    /// Does the work that other threads have left.
    fn deliver(&self) {
        // The lock is not held, because this may take long.
        let letters = std::mem::take(&mut *self.outbox.letters.lock());
        for letter in letters {
            let outcome = match letter {
                Letter::Receive(id, buf) => self.queue_pair.post_receive(id, buf),
                Letter::Post(mut batch) => self.queue_pair.post(&mut batch),
                Letter::Disconnect => {
                    self.queue_pair.disconnect();
                    Ok(())
                }
            };
            if let Err(error) = outcome {
                self.close(&error);
            }
        }
    }

    /// Leaves a letter to the connection's thread. Returns it if the caller may do the work itself.
    fn leave(&self, letter: Letter) -> Option<Letter> {
        if !self.terms.apart || thread::current().id() == self.outbox.home {
            return Some(letter);
        }
        self.outbox.letters.lock().push(letter);
        self.queue_pair.wake();
        None
    }

    /// Waits until no other thread has a reference to the connection. The last owner releases its
    /// resources, which only the connection's thread may do.
    fn outlive(self: &Arc<Self>) {
        while self.terms.apart && Arc::strong_count(self) > 1 {
            thread::sleep(Duration::from_millis(1));
        }
    }

    fn close(&self, error: &Error) {
        tracing::warn!(%error, peer = %self.peer.remote, "closing the connection");
        self.disconnect();
    }

    fn disconnect(&self) {
        if self.leave(Letter::Disconnect).is_some() {
            self.queue_pair.disconnect();
        }
    }

    fn post(&self, batch: Vec<WorkRequest>) -> Result<(), Error> {
        match self.leave(Letter::Post(batch)) {
            Some(Letter::Post(batch)) if TOGETHER.get() => {
                let mut requests = batch.into_iter();
                requests.try_for_each(|request| self.queue_pair.post_later(request))
            }
            Some(Letter::Post(mut batch)) => self.queue_pair.post(&mut batch),
            _ => Ok(()),
        }
    }

    fn execute(self: &Arc<Self>, mut call: Call) -> Result<(), Error> {
        let odd = &self.terms.odd;
        let procedure = match odd.is_any() {
            true => call
                .with_message(|message| odd::procedure(message.bytes))
                .flatten(),
            false => None,
        };
        if odd.position_zero_limit && call.plan.message.is_some() {
            odd::overrun(&mut call.message, self.terms.wtmax);
        }
        let alloc = |len| self.pool.alloc(len);
        let outcome = call
            .with_placed(|message| self.service.handle(self.peer, message, &alloc))
            .unwrap_or(Outcome::BadChunks);
        let Call { received, plan, .. } = call;
        match outcome {
            Outcome::Reply(reply) => {
                let targets = &plan.targets;
                let (reply, inline) = odd.change(procedure, targets, reply, self.terms.inline);
                self.reply_within(Some(received), plan.xid, targets, reply, inline)
            }
            Outcome::Discard => self.post_again(received),
            Outcome::BadChunks => {
                let header = Header::err_chunk(plan.xid, self.terms.limits.credits);
                self.send_header(received, &header, plan.targets.handle)
            }
            Outcome::InProgress(key, seal) => {
                self.post_again(received)?;
                let shared = self.clone();
                self.service.wait(&key, seal, move |reply| {
                    let sent = reply.is_some_and(|reply| {
                        shared.reply(None, plan.xid, &plan.targets, reply).is_ok()
                    });
                    // The end of the connection tells the client (section 4.5.4).
                    if !sent {
                        shared.disconnect();
                    }
                });
                Ok(())
            }
        }
    }

    fn post_again(&self, received: Received) -> Result<(), Error> {
        match self.leave(Letter::Receive(received.id, received.buf)) {
            Some(Letter::Receive(id, buf)) => self.queue_pair.post_receive(id, buf),
            _ => Ok(()),
        }
    }

    /// Sends a reply. After an error, no reply can be made, and the caller closes the connection.
    fn reply(
        &self,
        received: Option<Received>,
        xid: u32,
        targets: &Targets,
        reply: Reply,
    ) -> Result<(), Error> {
        self.reply_within(received, xid, targets, reply, self.terms.inline)
    }

    /// Sends a reply with this inline threshold.
    fn reply_within(
        &self,
        received: Option<Received>,
        xid: u32,
        targets: &Targets,
        reply: Reply,
        inline: usize,
    ) -> Result<(), Error> {
        let credits = self.terms.limits.credits;
        let head = &reply.head[HEADROOM..];
        let payload = reply.payload.as_ref().map(|payload| payload.len());
        let rest: usize = reply.rest.iter().map(|part| part.len()).sum();
        let planned = plan::reply(xid, credits, targets, head.len() + rest, payload, inline);
        let Ok(plan) = planned else {
            tracing::debug!(xid, "the reply does not fit the chunks offered");
            let header = Header::err_chunk(xid, credits).to_xdr();
            return self.send(received, Vec::new(), &[&header], targets.handle);
        };
        let mut batch = Vec::with_capacity(plan.payload.len() + plan.message.len() + 1);
        if let Some(payload) = &reply.payload {
            for push in &plan.payload {
                batch.push(WorkRequest::Write {
                    id: WorkId(0),
                    source: [payload.slice(push.range.clone())].into_iter().collect(),
                    target: push.target,
                    signaled: false,
                });
            }
        }
        let inline_payload = reply.payload.as_ref().filter(|_| plan.payload_inline);
        let pad = inline_payload.map_or(0, |payload| padding(payload.len()));
        let tail = &[0; 3][..pad];
        if plan.inline {
            let data: &[u8] = inline_payload.map_or(&[], |payload| payload);
            let mut parts = vec![&plan.header, head, data, tail];
            parts.extend(reply.rest.iter().map(|part| &part[..]));
            return self.send(received, batch, &parts, targets.handle);
        }
        // The RPC message in pieces, of which only the head is copied.
        let mut pieces = vec![self.copy(&[head])?];
        pieces.extend(inline_payload.cloned());
        if pad > 0 {
            pieces.push(self.copy(&[tail])?);
        }
        pieces.extend(reply.rest);
        for push in &plan.message {
            batch.push(WorkRequest::Write {
                id: WorkId(0),
                source: cut(&pieces, push.range.clone()),
                target: push.target,
                signaled: false,
            });
        }
        self.send(received, batch, &[&plan.header], targets.handle)
    }

    fn send_header(
        &self,
        received: Received,
        header: &Header,
        handle: Option<Handle>,
    ) -> Result<(), Error> {
        self.send(Some(received), Vec::new(), &[&header.to_xdr()], handle)
    }

    /// Posts the Receive again, then `batch`, and a Send of `parts`.
    fn send(
        &self,
        received: Option<Received>,
        mut batch: Vec<WorkRequest>,
        parts: &[&[u8]],
        handle: Option<Handle>,
    ) -> Result<(), Error> {
        let message = self.copy(parts)?;
        if let Some(received) = received {
            self.post_again(received)?;
        }
        batch.push(WorkRequest::Send {
            id: WorkId(0),
            data: [message].into_iter().collect(),
            // One handle can be invalidated, and only if it is the only handle of the call.
            //= RFC 8797, Section 4.1
            //# Each RDMA Send with Invalidate MUST invalidate an STag associated only with the
            //# Transaction ID (XID) in the rdma_xid field of the RPC-over-RDMA Transport Header it
            //# carries.
            //# When either peer on a connection clears this flag, the responder MUST use only RDMA
            //# Send when transmitting RPC Replies.
            invalidate: handle.filter(|_| self.terms.invalidate),
            signaled: false,
        });
        self.post(batch)
    }

    fn copy(&self, parts: &[&[u8]]) -> Result<Buf, Error> {
        self.joined(parts).map(BufMut::freeze)
    }

    fn joined(&self, parts: &[&[u8]]) -> Result<BufMut, Error> {
        let len = parts.iter().map(|p| p.len()).sum();
        let mut buf = self.pool.alloc(len).ok_or_else(|| {
            Error::local(
                "no memory left for a message",
                io::ErrorKind::OutOfMemory.into(),
            )
        })?;
        let mut at = 0;
        for part in parts {
            buf[at..at + part.len()].copy_from_slice(part);
            at += part.len();
        }
        Ok(buf)
    }
}

/// The bytes `range` of the concatenated `pieces`.
fn cut(pieces: &[Buf], range: std::ops::Range<usize>) -> Segs<Buf> {
    let mut out = Segs::new();
    let mut at = 0;
    for piece in pieces {
        let from = range.start.clamp(at, at + piece.len());
        let to = range.end.clamp(at, at + piece.len());
        if from < to {
            out.push(piece.slice(from - at..to - at));
        }
        at += piece.len();
    }
    out
}
