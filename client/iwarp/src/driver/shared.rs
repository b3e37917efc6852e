//! The state that the posting threads and the completion thread of a connection share.
//!
//! The locks `state` (queues), `receives` and `stags` are held briefly. `tx` is held while sending,
//! and nobody waits for it: a thread that finds it taken leaves its work to the holder.

mod queue_pair;

pub(crate) use queue_pair::IwarpQueuePair;

use super::region::{Region, Sink};
use crate::proto::host::{Host, PendingRead};
use crate::proto::nudge::Nudge;
use crate::proto::queue::SendQueue;
use crate::proto::segment::{Segmenter, Slices};
use crate::proto::stag::{Access, Denied, StagTable};
use crate::wire::rdmap::ReadRequest;
use nfsrdma_rdma::{
    BufMut, Capabilities, Completion, Error, EventFd, Instant, Memory, WorkId, WorkRequest,
};
use parking_lot::Mutex;
use smallvec::smallvec;
use socket2::SockRef;
use std::collections::VecDeque;
use std::io;
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// How many bytes of FPDUs are cut ahead of the socket.
const FILL_BYTES: usize = 512 * 1024;
/// How many pieces are cut ahead, and slices per system call (the kernel accepts 1024).
const FILL_PIECES: usize = 900;
const MAX_SLICES: usize = 1024;

pub(crate) struct State {
    pub(crate) queue: SendQueue,
    /// Completions of work requests, which count against the depth until they are polled.
    pub(crate) work_done: VecDeque<Completion>,
    /// All other completions.
    pub(crate) other_done: VecDeque<Completion>,
    pub(crate) nudge: Option<Nudge>,
    pub(crate) ended: Option<Error>,
    /// Whether nobody polls any more.
    pub(crate) abandoned: bool,
}

impl State {
    //= RFC 5041, Section 6.2.1
    //# If the Local Peer ULP indicates graceful teardown, the DDP layer on the Local Peer
    //# SHOULD ensure that all ULP data would be transferred before the underlying LLP Stream
    //# and Connection are torn down, and any further data transfer requests by the Local Peer
    //# ULP MUST return an error.
    /// Completes what was posted after the connection's end.
    fn flush_if_ended(&mut self) {
        if self.ended.is_some() {
            self.queue.flush(&mut self.work_done);
            if self.abandoned {
                self.queue.polled(self.work_done.len());
                self.work_done.clear();
            }
        }
    }
}

pub(crate) struct Receives {
    pub(crate) posted: VecDeque<(WorkId, BufMut)>,
    /// Includes the Receive that is being filled.
    pub(crate) used: usize,
    pub(crate) depth: usize,
    pub(crate) closed: bool,
}

struct Tx {
    segmenter: Segmenter,
    done: Vec<crate::proto::queue::Token>,
    failed: bool,
}

pub(crate) struct Shared {
    pub(crate) socket: TcpStream,
    pub(crate) event: EventFd,
    capabilities: Capabilities,
    local: SocketAddr,
    peer: SocketAddr,
    pub(crate) state: Mutex<State>,
    pub(crate) receives: Mutex<Receives>,
    stags: Mutex<StagTable<Arc<Region>>>,
    tx: Mutex<Tx>,
    /// Whether a thread has left work for the holder of `tx`.
    tx_pending: AtomicBool,
    /// Whether the socket was full; the completion thread continues when it is writable.
    pub(crate) tx_blocked: AtomicBool,
    /// Whether a Terminate is to be sent instead of the rest of the message being cut.
    pub(crate) tx_abandon: AtomicBool,
    /// Whether the Terminate was written to the socket.
    pub(crate) tx_terminated: AtomicBool,
    /// Whether the completion thread sleeps, or is about to.
    pub(crate) sleeping: AtomicBool,
    /// Whether [`nfsrdma_rdma::QueuePair::wake`] was called.
    pub(crate) woken: AtomicBool,
    /// Set when [`nfsrdma_rdma::QueuePair::disconnect`] was called, or sending failed.
    pub(crate) closing: Mutex<Option<Error>>,
    pub(crate) is_closing: AtomicBool,
}

/// The arguments of [`Shared::new`].
pub(crate) struct Setup {
    pub(crate) socket: TcpStream,
    pub(crate) capabilities: Capabilities,
    pub(crate) local: SocketAddr,
    pub(crate) peer: SocketAddr,
    pub(crate) queue: SendQueue,
    pub(crate) segmenter: Segmenter,
    pub(crate) nudge: Option<Nudge>,
    pub(crate) receives: VecDeque<(WorkId, BufMut)>,
    pub(crate) recv_depth: usize,
}

impl Shared {
    pub(crate) fn new(setup: Setup) -> io::Result<Self> {
        Ok(Shared {
            socket: setup.socket,
            event: EventFd::new()?,
            capabilities: setup.capabilities,
            local: setup.local,
            peer: setup.peer,
            state: Mutex::new(State {
                queue: setup.queue,
                work_done: VecDeque::new(),
                other_done: VecDeque::new(),
                nudge: setup.nudge,
                ended: None,
                abandoned: false,
            }),
            receives: Mutex::new(Receives {
                used: setup.receives.len(),
                posted: setup.receives,
                depth: setup.recv_depth,
                closed: false,
            }),
            stags: Mutex::default(),
            tx: Mutex::new(Tx {
                segmenter: setup.segmenter,
                done: Vec::new(),
                failed: false,
            }),
            tx_pending: AtomicBool::new(false),
            tx_blocked: AtomicBool::new(false),
            tx_abandon: AtomicBool::new(false),
            tx_terminated: AtomicBool::new(false),
            sleeping: AtomicBool::new(false),
            woken: AtomicBool::new(false),
            closing: Mutex::new(None),
            is_closing: AtomicBool::new(false),
        })
    }

    /// Sends what the socket accepts now. Can be called by any thread, and never blocks.
    pub(crate) fn pump(&self) {
        self.tx_pending.store(true, Ordering::SeqCst);
        loop {
            let Some(mut tx) = self.tx.try_lock() else {
                return;
            };
            while self.tx_pending.swap(false, Ordering::SeqCst) {
                self.send(&mut tx);
            }
            drop(tx);
            if !self.tx_pending.load(Ordering::SeqCst) {
                return;
            }
        }
    }

    //= RFC 5040, Section 6.1
    //# Once in RDMA enabled mode, an implementation MUST send only RDMA Messages across the
    //# transport Stream until the RDMAP Stream is torn down.
    fn send(&self, tx: &mut Tx) {
        // Whoever posts after the queue was found empty calls `pump` afterwards.
        let mut more = true;
        loop {
            if more && tx.segmenter.is_empty() {
                if self.tx_abandon.load(Ordering::SeqCst) {
                    tx.segmenter.abandon_open();
                }
                more = tx.segmenter.fill(FILL_BYTES, FILL_PIECES, || {
                    self.state.lock().queue.next_message()
                });
            }
            if tx.failed {
                tx.segmenter.clear();
                return;
            }
            if tx.segmenter.is_empty() {
                self.tx_blocked.store(false, Ordering::SeqCst);
                return;
            }
            let mut slices = Slices::new();
            let (total, responses) = tx.segmenter.gather(&mut slices, MAX_SLICES);
            if responses > 0 {
                self.state.lock().queue.handing_over(responses);
            }
            let socket = SockRef::from(&self.socket);
            let sent = match &slices[..] {
                [one] => socket.send_with_flags(one, libc::MSG_NOSIGNAL),
                several => socket.send_vectored_with_flags(several, libc::MSG_NOSIGNAL),
            };
            drop(slices);
            let sent = match sent {
                Ok(n) => n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => 0,
                Err(e) => {
                    //= RFC 5041, Section 3
                    //# The LLP MUST ensure that, if it accepts a DDP Segment, it will transfer it
                    //# reliably to the receiver or return with an error stating that the transfer
                    //# failed to complete.
                    // What the peer sent before it closed must still be read, so the completion
                    // thread ends the connection after that.
                    tx.failed = true;
                    tx.segmenter.clear();
                    self.tx_blocked.store(false, Ordering::SeqCst);
                    self.close(Error::LinkLost(e.to_string()));
                    return;
                }
            };
            self.advance(tx, sent, responses > 0);
            if sent < total {
                // Once it knows, it waits for room; told again by its own attempts, it would never sleep.
                if !self.tx_blocked.swap(true, Ordering::SeqCst) {
                    self.notify();
                }
                return;
            }
        }
    }

    fn advance(&self, tx: &mut Tx, sent: usize, responses: bool) {
        let Tx {
            segmenter, done, ..
        } = tx;
        segmenter.advance(sent, done);
        if done.is_empty() && !responses {
            return;
        }
        let mut state = self.state.lock();
        let state = &mut *state;
        // In one step with the completed messages: otherwise the peer's next request, which may
        // follow a response at once, could exceed the limit in between.
        state.queue.handed_over();
        for token in done.drain(..) {
            if token == crate::proto::queue::Token::Terminate {
                self.tx_terminated.store(true, Ordering::SeqCst);
            }
            state.queue.sent(token);
        }
        state.queue.complete(&mut state.work_done);
        if !state.work_done.is_empty() {
            self.notify();
        }
    }

    /// Wakes the completion thread if it sleeps.
    pub(crate) fn notify(&self) {
        if self.sleeping.load(Ordering::SeqCst) {
            self.event.notify();
        }
    }

    /// Asks the completion thread to end the connection.
    pub(crate) fn close(&self, error: Error) {
        self.closing.lock().get_or_insert(error);
        self.is_closing.store(true, Ordering::SeqCst);
        self.notify();
    }

    /// Removes all STags and waits for writers.
    pub(crate) fn close_stags(&self) {
        let regions = self.stags.lock().close();
        for region in regions {
            end(&region);
        }
    }

    //= RFC 5040, Section 7
    //# For a specific LLP connection, when all Streams are either gracefully torn down or are
    //# labeled as erroneous Streams, the LLP connection MUST be torn down.
    //= RFC 5041, Section 3
    //# For a specific LLP Connection, when all LLP Streams are either gracefully torn down or are
    //# labeled as erroneous LLP Streams, the LLP Connection MUST be torn down.
    //= RFC 5041, Section 6.2.1
    //# Following this event, when the Local Peer ULP requests graceful teardown, DDP MUST indicate
    //# to the LLP that it SHOULD perform a graceful close of the other half of the LLP Stream.
    /// Ends the connection and flushes everything. Called by the completion thread, the only one
    /// that writes into exposed memory.
    pub(crate) fn end(&self, error: Error, partial: Option<(WorkId, BufMut)>) {
        self.close_stags();
        let _ = self.socket.shutdown(Shutdown::Both);
        // Lock order: state, then receives.
        let mut state = self.state.lock();
        let state = &mut *state;
        if state.ended.is_some() {
            return;
        }
        tracing::debug!(peer = %self.peer, %error, "connection ended");
        state.ended = Some(error);
        state.nudge = None;
        state.queue.flush(&mut state.work_done);
        let mut receives = self.receives.lock();
        receives.closed = true;
        let posted = std::mem::take(&mut receives.posted);
        for (id, buf) in partial.into_iter().chain(posted) {
            state.other_done.push_back(flushed_receive(id, buf));
        }
    }

    /// Moves completions to `out`.
    pub(crate) fn take_completions(&self, out: &mut Vec<Completion>) {
        let mut state = self.state.lock();
        let state = &mut *state;
        let received = state.other_done.len();
        if !state.work_done.is_empty() {
            state.queue.polled(state.work_done.len());
            out.extend(state.work_done.drain(..));
        }
        if received > 0 {
            let receives = state
                .other_done
                .iter()
                .filter(|c| !matches!(c, Completion::Invalidated { .. }))
                .count();
            let mut posted = self.receives.lock();
            posted.used = posted.used.saturating_sub(receives);
            drop(posted);
            out.extend(state.other_done.drain(..));
        }
    }

    /// The reason why a request is invalid, if it is.
    fn misuse(&self, request: &WorkRequest) -> Option<&'static str> {
        match request {
            //= RFC 5041, Section 5.2
            //# The ULP Message Length MUST be less than 2^32.
            WorkRequest::Send { data, .. }
                if data.iter().map(|b| b.len()).sum::<usize>() > self.capabilities.max_message =>
            {
                Some("a Send longer than max_message")
            }
            WorkRequest::Write { source, target, .. }
                if source.iter().map(|b| b.len()).sum::<usize>() != target.length as usize =>
            {
                Some("an RDMA Write of another length than its target")
            }
            WorkRequest::Read { sink, source, .. }
                if sink.iter().map(|b| b.len()).sum::<usize>() != source.length as usize =>
            {
                Some("an RDMA Read of another length than its sink")
            }
            WorkRequest::Read { .. } if self.capabilities.max_reads_out == 0 => {
                Some("an RDMA Read on a connection with an ORD of 0")
            }
            _ => None,
        }
    }

    fn post_one(
        &self,
        state: &mut State,
        request: WorkRequest,
    ) -> std::result::Result<(), (Error, Box<WorkRequest>)> {
        if !state.queue.has_room() {
            return Err((Error::QueueFull, Box::new(request)));
        }
        if let Some(what) = self.misuse(&request) {
            return Err((Error::Misuse(what), Box::new(request)));
        }
        match request {
            WorkRequest::Send {
                id,
                data,
                invalidate,
                signaled,
            } => {
                if let Some(nudge) = &mut state.nudge {
                    nudge.on_send(Instant::now());
                    self.notify();
                }
                state
                    .queue
                    .post_send(id, data, invalidate.map(|h| h.0), signaled);
            }
            WorkRequest::Write {
                id,
                source,
                target,
                signaled,
            } => {
                state
                    .queue
                    .post_write(id, source, target.handle.0, target.offset, signaled);
            }
            WorkRequest::Read {
                id,
                mut sink,
                source,
            } => {
                let len: usize = sink.iter().map(|b| b.len()).sum();
                let region = Arc::new(Region::Sink(Sink::new(&mut sink)));
                let inserted = self
                    .stags
                    .lock()
                    .insert(Access::ReadSink, len as u64, region);
                let (sink_stag, sink_offset) = match inserted {
                    Ok(Some(names)) => names,
                    // The connection is ending: the request will be flushed.
                    Ok(None) => (0, 0),
                    Err(e) => {
                        let request = WorkRequest::Read { id, sink, source };
                        return Err((no_random(e), Box::new(request)));
                    }
                };
                state.queue.post_read(
                    id,
                    sink,
                    ReadRequest {
                        sink_stag,
                        sink_offset,
                        length: source.length,
                        source_stag: source.handle.0,
                        source_offset: source.offset,
                    },
                );
            }
        }
        Ok(())
    }

    /// The response to the oldest RDMA Read is complete.
    pub(crate) fn read_done(&self) {
        let mut state = self.state.lock();
        let state = &mut *state;
        // The sink's STag must be removed before its memory is returned.
        if let Some(read) = state.queue.pending_read()
            && let Some(region) = self.stags.lock().remove(read.stag, read.offset)
        {
            end(&region);
        }
        state.queue.read_done();
        state.queue.complete(&mut state.work_done);
    }
}

fn end(region: &Region) {
    if let Region::Sink(sink) = region {
        sink.end();
    }
}

fn flushed_receive(id: WorkId, buf: BufMut) -> Completion {
    Completion::Flushed {
        id,
        memory: Some(Memory::Sink(smallvec![buf])),
    }
}

fn no_random(error: getrandom::Error) -> Error {
    Error::local(
        "the kernel gives no random numbers",
        io::Error::other(error.to_string()),
    )
}

impl Host for Shared {
    type Region = Arc<Region>;

    fn tagged(
        &self,
        stag: u32,
        access: Access,
        offset: u64,
        len: u64,
    ) -> std::result::Result<(Arc<Region>, usize), Denied> {
        self.stags.lock().check(stag, access, offset, len)
    }

    fn take_receive(&self) -> Option<(WorkId, BufMut)> {
        self.receives.lock().posted.pop_front()
    }

    fn invalidate(&self, stag: u32) -> bool {
        let removed = self.stags.lock().remove_by_peer(stag);
        if let Some(region) = &removed {
            end(region);
        }
        removed.is_some()
    }

    fn pending_read(&self) -> Option<PendingRead> {
        self.state.lock().queue.pending_read()
    }

    fn responses_due(&self) -> usize {
        self.state.lock().queue.responses_due()
    }
}
