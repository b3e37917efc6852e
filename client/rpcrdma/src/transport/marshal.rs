//! Marshalling: from a [`Call`] to the Send that carries it.
//!
//! `plan` decides by the sizes of call and reply which chunks the call needs (RFC 8166 section
//! 3.5). The memory of each chunk is registered for this transmission alone (`QueuePair::expose`),
//! and the transport header with these chunks is encoded. The Send is a list of buffers, so that no
//! payload is copied: first the header, then the call unless it is in a Position Zero Read chunk,
//! then argument and padding if they are inline. If a list is too long for the device or for the
//! header, its data are gathered into one buffer, or received into one buffer and copied at the
//! end.
//!
//! A call that cannot be marshalled, because memory is short or the connection has ended, is
//! returned with the registrations made so far; they must be invalidated before it is sent again.

use super::call::{Call, Payload, plain_header};
use super::counters::{LinkCounters, count};
use super::memory::{Blocks, registered};
use super::secured::{NotSealed, Room};
use crate::error::LocalError;
use crate::options::WriteChunk;
use crate::protocol::{CallForm, Plan, PlanError, Segments, Thresholds, plan};
use crate::sync::thread_cell;
use nfsrdma_rdma::contract::Segs;
use nfsrdma_rdma::{
    Buf, Capabilities, Error, Exposure, Memory, Pool, QueuePair, RemoteSegment, WorkId, WorkRequest,
};
use nfsrdma_xdr::codec::{Encode, Encoder, padding};
use nfsrdma_xdr::rpcrdma::{Body, ChunkLists, Header, ReadSegment, Segment, WriteChunk as Chunk};
use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// What all connections of a transport share for marshalling.
#[derive(Debug)]
pub(super) struct Marshaller {
    pub(super) pool: Pool,
    /// Buffers for encoded calls.
    pub(super) heads: Arc<Blocks>,
    /// Buffers for transport headers.
    pub(super) headers: Arc<Blocks>,
    /// One buffer for wrapped data, if calls have privacy. Without it, dirty data that fill the pool
    /// could never be written.
    pub(super) wrapped: Arc<Blocks>,
    /// At least three zero bytes, for XDR padding.
    pub(super) zeros: Buf,
    pub(super) style: WriteChunk,
}

/// A call ready to be posted.
pub(super) struct Prepared {
    pub(super) call: Box<Call>,
    pub(super) send: WorkRequest,
}

/// A call that cannot be sent. Its registrations are to be invalidated first.
pub(super) struct MarshalError {
    pub(super) call: Box<Call>,
    pub(super) why: NotSent,
}

/// Why a call cannot be sent.
pub(super) enum NotSent {
    /// The connection is gone; the call waits for the next one.
    NoConnection,
    /// This machine lacks memory or registrations; the call is tried again, when others return
    /// theirs.
    NoMemory(String),
    /// The call fails.
    Error(LocalError),
}

impl From<Error> for NotSent {
    fn from(error: Error) -> Self {
        use std::io::ErrorKind;
        match &error {
            Error::LinkLost(_) | Error::PeerMisbehaved(_) | Error::PeerReported(_) => {
                NotSent::NoConnection
            }
            Error::QueueFull => NotSent::NoMemory(error.to_string()),
            Error::Local { error: cause, .. } => {
                let transient = matches!(
                    cause.kind(),
                    // ENOMEM, EAGAIN, EINTR, and ENOSPC: the device's table of regions is full.
                    ErrorKind::OutOfMemory
                        | ErrorKind::WouldBlock
                        | ErrorKind::Interrupted
                        | ErrorKind::StorageFull
                );
                match transient {
                    true => NotSent::NoMemory(error.to_string()),
                    false => NotSent::Error(error.into()),
                }
            }
            Error::Misuse(_) | Error::TimedOut(_) | Error::Refused(_) | Error::NotRdma(_) => {
                NotSent::Error(error.into())
            }
        }
    }
}

thread_cell! {
    static SCRATCH: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Encodes into this thread's scratch space and passes the bytes to `with`.
pub(super) fn encoded<T>(encode: impl FnOnce(&mut Encoder), with: impl FnOnce(&[u8]) -> T) -> T {
    SCRATCH.with_borrow_mut(|scratch| {
        scratch.clear();
        let mut encoder = Encoder::new(std::mem::take(scratch));
        encode(&mut encoder);
        let result = with(encoder.as_slice());
        *scratch = encoder.into_vec();
        result
    })
}

fn segment(remote: &RemoteSegment) -> Segment {
    Segment {
        handle: remote.handle.0,
        length: remote.length,
        offset: remote.offset,
    }
}

fn chunk(exposure: &Exposure) -> Chunk {
    let mut chunk = Chunk::default();
    for remote in exposure.segments() {
        chunk.segments.push(segment(remote));
    }
    chunk
}

fn read_chunk(position: usize, exposure: &Exposure) -> impl Iterator<Item = ReadSegment> + '_ {
    exposure.segments().iter().map(move |remote| ReadSegment {
        position: position as u32,
        target: segment(remote),
    })
}

/// The non-empty buffers.
fn filled(bufs: &[Buf]) -> Segs<Buf> {
    let mut filled = Segs::new();
    for buf in bufs.iter().filter(|buf| !buf.is_empty()) {
        filled.push(buf.clone());
    }
    filled
}

impl Marshaller {
    fn no_buffers() -> NotSent {
        NotSent::NoMemory("the buffer pool is empty; a larger cache would help".to_owned())
    }

    /// An empty buffer.
    pub(super) fn no_bytes(&self) -> Buf {
        self.zeros.slice(..0)
    }

    /// One buffer with all bytes of `bufs`.
    fn gather(&self, bufs: &[Buf]) -> Option<Buf> {
        let mut all = self.pool.alloc(bufs.iter().map(|b| b.len()).sum())?;
        let mut at = 0;
        for buf in bufs {
            all[at..at + buf.len()].copy_from_slice(buf);
            at += buf.len();
        }
        Some(all.freeze())
    }

    /// Registers the memory of the chunks and marshals the header, which requests `credits`.
    pub(super) fn prepare(
        &self,
        mut call: Box<Call>,
        queue_pair: &dyn QueuePair,
        thresholds: &Thresholds,
        credits: u32,
        counters: &LinkCounters,
    ) -> Result<Prepared, MarshalError> {
        if let Some(bytes) = &call.unregistered {
            let Some(message) = registered(&self.heads, &self.pool, bytes) else {
                let why = Self::no_buffers();
                return Err(MarshalError { call, why });
            };
            call.message = message;
            call.unregistered = None;
        }
        if let Some(secured) = &mut call.secured {
            let data: &[Buf] = match &call.payload {
                Payload::Source(bufs) => bufs,
                Payload::None | Payload::Sink(_) => &[],
            };
            let mut to = Encoder::with_capacity(self.heads.size());
            plain_header(call.xid, credits, &mut to);
            let room = Room {
                pool: &self.pool,
                short: &self.headers,
                long: &self.wrapped,
            };
            let sealed = secured.seal(data, &mut to, &room);
            let message = match sealed {
                Ok(()) => registered(&self.heads, &self.pool, to.as_slice()),
                Err(NotSealed::NoMemory) => None,
                Err(NotSealed::Broken(broken)) => {
                    let why = NotSent::Error(broken.into());
                    return Err(MarshalError { call, why });
                }
            };
            let Some(message) = message else {
                let why = Self::no_buffers();
                return Err(MarshalError { call, why });
            };
            call.message = message;
        }
        if self.is_plain(&call, thresholds) {
            count(&counters.inline_calls);
            call.offer = ChunkLists::default();
            let mut data = Segs::new();
            data.push(call.message.clone());
            let send = send(call.xid, data);
            return Ok(Prepared { call, send });
        }
        match self.expose(&mut call, queue_pair, thresholds, counters) {
            Ok((plan, argument)) => match self.marshal(&mut call, &plan, argument, credits) {
                Some(send) => Ok(Prepared { call, send }),
                None => Err(MarshalError {
                    call,
                    why: Self::no_buffers(),
                }),
            },
            Err(why) => Err(MarshalError { call, why }),
        }
    }

    /// Whether the call has no bulk data, and neither it nor its largest reply needs a chunk: most calls. Its
    /// header and it are one buffer already.
    fn is_plain(&self, call: &Call, thresholds: &Thresholds) -> bool {
        let shape = call.wire();
        let bulk = shape.argument > 0 || shape.max_ddp_result > 0;
        let plan = |shape| plan(shape, &Segments::default(), thresholds, self.style);
        !bulk
            && plan(shape).is_ok_and(|plan| plan.call == CallForm::Inline && plan.reply_chunk == 0)
    }

    /// Plans a call with `arguments` and `sinks` buffers. Also returns whether the arguments and
    /// the sinks have to be one buffer each, because the device or the header has no room for so
    /// many.
    fn plan_call(
        &self,
        call: &Call,
        capabilities: &Capabilities,
        thresholds: &Thresholds,
        arguments: usize,
        sinks: usize,
    ) -> Result<(Plan, bool, bool), NotSent> {
        let shape = call.wire();
        let mut bounce_source = arguments + 2 > capabilities.max_segments;
        let mut bounce_sink = sinks > capabilities.max_segments;
        loop {
            let of = |bufs: usize| match (capabilities.scatter_handle, bufs) {
                (true, n) => n.min(1),
                (false, n) => n,
            };
            let arguments = if bounce_source { 1 } else { arguments };
            let segments = Segments {
                message: of(1 + arguments + usize::from(padding(shape.argument) > 0)),
                argument: of(arguments),
                result: if bounce_sink { 1 } else { of(sinks) },
            };
            match plan(shape, &segments, thresholds, self.style) {
                Ok(plan) => return Ok((plan, bounce_source, bounce_sink)),
                // The header does not fit: use one buffer instead of many.
                Err(PlanError::TooManySegments) if !(bounce_source && bounce_sink) => {
                    bounce_source = true;
                    bounce_sink = true;
                }
                Err(error) => return Err(NotSent::Error(error.into())),
            }
        }
    }

    /// Registers the memory of the chunks. Returns the plan and the buffers of the argument.
    fn expose(
        &self,
        call: &mut Call,
        queue_pair: &dyn QueuePair,
        thresholds: &Thresholds,
        counters: &LinkCounters,
    ) -> Result<(Plan, Segs<Buf>), NotSent> {
        let capabilities = queue_pair.capabilities();
        let mut argument = filled(call.argument());
        let sinks = match &call.payload {
            Payload::Sink(bufs) => bufs.len(),
            Payload::None | Payload::Source(_) => 0,
        };
        let (plan, bounce_source, bounce_sink) =
            self.plan_call(call, capabilities, thresholds, argument.len(), sinks)?;
        if bounce_source && plan.call != CallForm::Inline && argument.len() > 1 {
            argument = Segs::from_iter([self.gather(&argument).ok_or_else(Self::no_buffers)?]);
        }
        #[allow(clippy::result_large_err, reason = "the memory has to come back")]
        let open = |memory: Memory| -> Result<Exposure, (NotSent, Memory)> {
            let bytes = memory.len() as u64;
            let exposure = queue_pair
                .expose(memory)
                .map_err(|(error, memory)| (error.into(), memory))?;
            count(&counters.exposures);
            count(&counters.open_registrations);
            counters.exposed_bytes.fetch_add(bytes, Relaxed);
            Ok(exposure)
        };
        let source: Option<Segs<Buf>> = match plan.call {
            CallForm::Inline => None,
            //= RFC 8166, Section 3.4.5.2
            //# If the sender chooses not to include roundup padding in the chunk, the chunk's total
            //# length MUST be the same as the encoded length of the data item.
            CallForm::Reduced => Some(argument.clone()),
            CallForm::PositionZero => {
                //= RFC 8166, Section 3.5.3
                //# As these chunks contain a Payload stream, such chunks MUST include appropriate
                //# XDR roundup padding to maintain proper XDR alignment of their contents.
                let pad = padding(call.wire().argument);
                let mut all: Segs<Buf> = Segs::from_iter([call.registered_head()]);
                all.extend(argument.iter().cloned());
                all.extend((pad > 0).then(|| self.zeros.slice(..pad)));
                Some(all)
            }
        };
        if let Some(source) = source {
            let exposure = open(Memory::Source(source)).map_err(|(error, _)| error)?;
            call.registrations.source = Some(exposure);
        }
        if plan.write_chunk {
            // It belongs to one transmission: another connection may have room for all segments.
            call.bounced = bounce_sink && sinks > 1;
            let sink = if call.bounced {
                let all = self.pool.alloc(call.payload.len());
                Segs::from_iter([all.ok_or_else(Self::no_buffers)?])
            } else {
                std::mem::take(&mut call.payload).into_sink()
            };
            match open(Memory::Sink(sink)) {
                Ok(exposure) => call.registrations.sink = Some(exposure),
                Err((error, memory)) => {
                    if let (Memory::Sink(bufs), false) = (memory, call.bounced) {
                        call.payload = Payload::Sink(bufs);
                    }
                    return Err(error);
                }
            }
        }
        if plan.reply_chunk > 0 {
            let buf = self.pool.alloc(plan.reply_chunk);
            let sink = Segs::from_iter([buf.ok_or_else(Self::no_buffers)?]);
            let exposure = open(Memory::Sink(sink)).map_err(|(error, _)| error)?;
            call.registrations.reply = Some(exposure);
        }
        match plan.call {
            CallForm::Inline => count(&counters.inline_calls),
            CallForm::Reduced => count(&counters.read_chunks),
            CallForm::PositionZero => count(&counters.position_zero_chunks),
        }
        if plan.write_chunk {
            count(&counters.write_chunks);
        }
        if plan.reply_chunk > 0 {
            count(&counters.reply_chunks);
        }
        Ok((plan, argument))
    }

    /// Encodes the header and builds the Send: header, then (unless Position Zero) the call, then
    /// (if inline) argument and padding. `None` if there is no buffer for the header.
    fn marshal(
        &self,
        call: &mut Call,
        plan: &Plan,
        argument: Segs<Buf>,
        credits: u32,
    ) -> Option<WorkRequest> {
        let registrations = &call.registrations;
        let mut chunks = ChunkLists::default();
        if let Some(source) = &registrations.source {
            //= RFC 8166, Section 3.4.5
            //# The Position value MUST be computed from the beginning of the unreduced Payload
            //# stream, which begins at Position zero.
            //= RFC 8166, Section 3.5.3
            //# Every RDMA read segment in this chunk MUST contain zero in its Position field.
            let position = match plan.call {
                // "the XDR stream offset of that data item" (section 4.3.1.1): the argument
                // directly follows the call.
                CallForm::Reduced => call.wire().head,
                CallForm::Inline | CallForm::PositionZero => 0,
            };
            //= RFC 8166, Section 3.4.4.4
            //# Except in special cases (covered in Section 3.5.3), a chunk MUST contain exactly one
            //# XDR data item.
            chunks.reads.extend(read_chunk(position, source));
        }
        if let Some(sink) = &registrations.sink {
            chunks.writes.push(chunk(sink));
        }
        chunks.reply = registrations.reply.as_ref().map(chunk);
        //= RFC 8166, Section 4.2.4
        //# A Requester MUST NOT send an RPC-over-RDMA header with the RDMA_ERROR procedure.
        //= RFC 8166, Section 4.6.1
        //# Therefore, senders MUST NOT send RDMA_MSGP procedures.
        //= RFC 8166, Section 4.6.2
        //# Therefore, senders MUST NOT send RDMA_DONE messages.
        let body = match plan.call {
            CallForm::PositionZero => Body::NoMsg(chunks),
            CallForm::Inline | CallForm::Reduced => Body::Msg(chunks),
        };
        //= RFC 8166, Section 4.2.1
        //# This XID MUST be the same as the XID in the RPC message.
        let header = Header::new(call.xid, credits, body);
        let bytes = encoded(
            |to| header.encode(to),
            |bytes| registered(&self.headers, &self.pool, bytes),
        )?;
        let mut data: Segs<Buf> = Segs::new();
        data.push(bytes.clone());
        if plan.call != CallForm::PositionZero {
            data.push(call.registered_head());
        }
        if plan.call == CallForm::Inline && !argument.is_empty() {
            let pad = padding(call.wire().argument);
            data.extend(argument);
            data.extend((pad > 0).then(|| self.zeros.slice(..pad)));
        }
        let xid = call.xid;
        call.header = Some(bytes);
        if let Body::Msg(chunks) | Body::NoMsg(chunks) = header.body {
            call.offer = chunks;
        }
        Some(send(xid, data))
    }
}

fn send(xid: u32, data: Segs<Buf>) -> WorkRequest {
    WorkRequest::Send {
        id: WorkId(u64::from(xid)),
        data,
        invalidate: None,
        signaled: false,
    }
}

/// Posts one request; if `later`, it need not be sent before the next flush.
pub(super) fn post(
    queue_pair: &dyn QueuePair,
    request: WorkRequest,
    later: bool,
) -> nfsrdma_rdma::Result<()> {
    let posted = queue_pair.post_later(request);
    if !later {
        queue_pair.kick();
    }
    posted
}
