//! One connection: two sides under one lock.
//!
//! Sends and Writes are executed when they are posted, but Reads when their side polls, so that a
//! Read completes after Sends that were posted later, as on a real device.

use super::options::Options;
use super::region::{Refusal, Regions};
use nfsrdma_rdma::{
    Armed, Buf, BufMut, Capabilities, Completion, CompletionQueue, ConnectParams, Error, EventFd,
    Exposure, Handle, Invalidation, Memory, Protection, QueuePair, RemoteSegment, Result, Segs,
    Wait, WorkId, WorkRequest,
};
use parking_lot::{Condvar, Mutex};
use smallvec::smallvec;
use std::collections::VecDeque;
use std::fmt;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Instant;

/// One side of a connection.
pub(super) struct Side {
    receives: VecDeque<(WorkId, BufMut)>,
    /// Requests accepted but not started, because a Read before them would exceed the limit.
    stalled: VecDeque<WorkRequest>,
    /// RDMA Reads that are under way.
    reads: VecDeque<(WorkId, Segs<BufMut>, RemoteSegment)>,
    completions: VecDeque<Completion>,
    regions: Regions,
    /// Number of work requests that count against `send_depth`.
    posted: usize,
    send_depth: usize,
    recv_depth: usize,
    max_reads_out: usize,
    ended: Option<Error>,
    /// Whether a poll has returned the flushed completions or `ended`.
    told: bool,
    woken: bool,
    /// Whether the completion queue was dropped, so that nobody fetches completions.
    unpolled: bool,
}

impl Side {
    /// Makes a side with its Receives posted, before the peer knows of it.
    pub(super) fn new(params: &ConnectParams) -> Result<Self> {
        Ok(Side {
            receives: params.take_receives()?.into(),
            stalled: VecDeque::new(),
            reads: VecDeque::new(),
            completions: VecDeque::new(),
            regions: Regions::default(),
            posted: 0,
            send_depth: params.send_depth,
            recv_depth: params.recv_depth,
            max_reads_out: 0,
            ended: None,
            told: false,
            woken: false,
            unpolled: false,
        })
    }

    fn complete(&mut self, completion: Completion) {
        if !self.unpolled {
            self.completions.push_back(completion);
        }
    }

    fn flush_request(&mut self, request: WorkRequest) {
        match request {
            WorkRequest::Send { id, signaled, .. } | WorkRequest::Write { id, signaled, .. } => {
                if signaled {
                    self.complete(Completion::Flushed { id, memory: None });
                }
            }
            WorkRequest::Read { id, sink, .. } => self.complete(Completion::Flushed {
                id,
                memory: Some(Memory::Sink(sink)),
            }),
        }
    }

    fn end(&mut self, error: Error) {
        self.ended = Some(error);
        self.regions.invalidate_all();
        for (id, sink, _) in std::mem::take(&mut self.reads) {
            let memory = Some(Memory::Sink(sink));
            self.complete(Completion::Flushed { id, memory });
        }
        for request in std::mem::take(&mut self.stalled) {
            self.flush_request(request);
        }
        for (id, buf) in std::mem::take(&mut self.receives) {
            let memory = Some(Memory::Sink(smallvec![buf]));
            self.complete(Completion::Flushed { id, memory });
        }
    }

    /// Moves the completions to `out`.
    fn deliver(&mut self, out: &mut Vec<Completion>) {
        for completion in self.completions.drain(..) {
            match &completion {
                Completion::Sent { .. } | Completion::Written { .. } | Completion::Read { .. } => {
                    self.posted -= 1;
                }
                // Nothing is counted after the end of the connection.
                Completion::Flushed { .. } => {}
                Completion::Received { .. } | Completion::Invalidated { .. } => {}
            }
            out.push(completion);
        }
    }
}

/// Wakes a side, in whichever way it waits.
struct Bell {
    condvar: Condvar,
    event: EventFd,
}

impl Bell {
    fn new() -> Self {
        Bell {
            condvar: Condvar::new(),
            event: EventFd::new().expect("a test has a descriptor to spare"),
        }
    }

    fn notify_all(&self) {
        self.condvar.notify_all();
        self.event.notify();
    }
}

/// Both sides. Side 0 has connected, side 1 has accepted.
struct Link {
    sides: Mutex<[Side; 2]>,
    something: [Bell; 2],
    options: Options,
}

/// Makes the two ends of a new connection.
pub(super) fn join(
    options: &Options,
    (mut connector, connector_params, connector_addr): (Side, &ConnectParams, SocketAddr),
    (mut acceptor, acceptor_params, acceptor_addr): (Side, &ConnectParams, SocketAddr),
) -> [(Arc<dyn QueuePair>, Box<dyn CompletionQueue>); 2] {
    // Like MPA's enhanced set-up (RFC 6581 section 9): a side issues no more Reads than the peer
    // serves.
    let forth = connector_params.reads_out.min(acceptor_params.reads_in);
    let back = acceptor_params.reads_out.min(connector_params.reads_in);
    connector.max_reads_out = forth as usize;
    acceptor.max_reads_out = back as usize;
    let link = Arc::new(Link {
        sides: Mutex::new([connector, acceptor]),
        something: [Bell::new(), Bell::new()],
        options: options.clone(),
    });
    [
        (0, connector_addr, acceptor_addr, forth, back),
        (1, acceptor_addr, connector_addr, back, forth),
    ]
    .map(|(me, local, peer, max_reads_out, max_reads_in)| {
        let end = End {
            link: link.clone(),
            me,
            local,
            peer,
            capabilities: Capabilities {
                scatter_handle: options.scatter_handle,
                remote_invalidate: options.remote_invalidate,
                protection: if options.posted_invalidation {
                    Protection::Window
                } else {
                    Protection::Handle
                },
                max_message: options.max_message,
                max_reads_out,
                max_reads_in,
                max_segments: options.max_segments,
                description: format!("loopback in the process, {local} to {peer}"),
            },
        };
        let poller = Poller {
            link: link.clone(),
            me,
        };
        (
            Arc::new(end) as Arc<dyn QueuePair>,
            Box::new(poller) as Box<dyn CompletionQueue>,
        )
    })
}

impl Link {
    /// Ends the connection, unless it has ended before.
    fn end(&self, sides: &mut [Side; 2], me: usize, mine: Error, peers: Error) {
        if sides[me].ended.is_none() {
            sides[me].end(mine);
            sides[1 - me].end(peers);
            self.something[0].notify_all();
            self.something[1].notify_all();
        }
    }

    /// `me` did something that its peer does not allow; the peer's device detects and reports it.
    fn violation(&self, sides: &mut [Side; 2], me: usize, what: Refusal) {
        self.end(
            sides,
            me,
            Error::PeerReported(format!("remote operation failed: {what}")),
            Error::PeerMisbehaved(what.to_owned()),
        );
    }

    /// Executes a request when it is its turn. On a violation it is flushed like the others.
    fn begin(&self, sides: &mut [Side; 2], me: usize, request: WorkRequest) {
        let (mine, peer) = both(sides, me);
        let outcome = match &request {
            WorkRequest::Send {
                data, invalidate, ..
            } => deliver_send(peer, data, *invalidate, self.options.remote_invalidate),
            WorkRequest::Write { source, target, .. } => peer
                .regions
                .write(*target, source.iter().map(|buf| &buf[..])),
            WorkRequest::Read { .. } => Ok(()),
        };
        if let Err(what) = outcome {
            mine.stalled.push_front(request);
            return self.violation(sides, me, what);
        }
        match request {
            WorkRequest::Send { id, signaled, .. } => {
                if signaled {
                    mine.complete(Completion::Sent { id });
                } else {
                    mine.posted -= 1;
                }
                self.something[1 - me].notify_all();
            }
            WorkRequest::Write { id, signaled, .. } => {
                if signaled {
                    mine.complete(Completion::Written { id });
                } else {
                    mine.posted -= 1;
                }
            }
            WorkRequest::Read { id, sink, source } => mine.reads.push_back((id, sink, source)),
        }
        self.something[me].notify_all();
    }

    /// Starts stalled requests as far as the limit of outstanding Reads allows.
    fn advance(&self, sides: &mut [Side; 2], me: usize) {
        while sides[me].ended.is_none() {
            let mine = &mut sides[me];
            let full = mine.reads.len() >= mine.max_reads_out;
            match mine.stalled.front() {
                None => return,
                Some(WorkRequest::Read { .. }) if full => return,
                Some(_) => {
                    let request = mine.stalled.pop_front().expect("it has a front");
                    self.begin(sides, me, request);
                }
            }
        }
    }
}

fn both(sides: &mut [Side; 2], me: usize) -> (&mut Side, &mut Side) {
    let [a, b] = sides;
    if me == 0 { (a, b) } else { (b, a) }
}

fn deliver_send(
    peer: &mut Side,
    data: &Segs<Buf>,
    invalidate: Option<Handle>,
    remote_inv: bool,
) -> std::result::Result<(), Refusal> {
    let len: usize = data.iter().map(|buf| buf.len()).sum();
    // RFC 5041 section 7.2: no buffer for the MSN, or message too long for the buffer.
    let Some((_, buf)) = peer.receives.front() else {
        return Err("a Send with no Receive posted");
    };
    if len > buf.len() {
        return Err("a Send longer than the Receive");
    }
    if let Some(handle) = invalidate {
        if !remote_inv {
            return Err("handles cannot be invalidated remotely");
        }
        peer.regions.invalidate_remotely(handle)?;
    }
    let (id, mut buf) = peer.receives.pop_front().expect("it has a front");
    let mut at = 0;
    for bytes in data {
        buf[at..at + bytes.len()].copy_from_slice(bytes);
        at += bytes.len();
    }
    peer.complete(Completion::Received {
        id,
        buf,
        len,
        invalidated: invalidate,
    });
    Ok(())
}

/// The posting half of one end.
struct End {
    link: Arc<Link>,
    me: usize,
    local: SocketAddr,
    peer: SocketAddr,
    capabilities: Capabilities,
}

impl End {
    fn check(&self, request: &WorkRequest) -> Result<()> {
        match request {
            WorkRequest::Send { data, .. } => {
                if data.iter().map(|b| b.len()).sum::<usize>() > self.capabilities.max_message {
                    return Err(Error::Misuse("a Send larger than max_message"));
                }
            }
            WorkRequest::Write { source, target, .. } => {
                if source.iter().map(|b| b.len()).sum::<usize>() != target.length as usize {
                    return Err(Error::Misuse(
                        "a Write whose target is not as long as its source",
                    ));
                }
            }
            WorkRequest::Read { sink, source, .. } => {
                if sink.iter().map(|b| b.len()).sum::<usize>() != source.length as usize {
                    return Err(Error::Misuse(
                        "a Read whose sink is not as long as its source",
                    ));
                }
                if self.capabilities.max_reads_out == 0 {
                    return Err(Error::Misuse("a Read where none was negotiated"));
                }
            }
        }
        Ok(())
    }
}

impl QueuePair for End {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn local_addr(&self) -> SocketAddr {
        self.local
    }

    fn peer_addr(&self) -> SocketAddr {
        self.peer
    }

    fn post_receive(&self, id: WorkId, buf: BufMut) -> Result<()> {
        let mut sides = self.link.sides.lock();
        let mine = &mut sides[self.me];
        if mine.ended.is_some() {
            let memory = Some(Memory::Sink(smallvec![buf]));
            mine.complete(Completion::Flushed { id, memory });
            self.link.something[self.me].notify_all();
            return Ok(());
        }
        if mine.receives.len() >= mine.recv_depth {
            return Err(Error::QueueFull);
        }
        mine.receives.push_back((id, buf));
        Ok(())
    }

    fn post(&self, batch: &mut Vec<WorkRequest>) -> Result<()> {
        let mut sides = self.link.sides.lock();
        let mine = &mut sides[self.me];
        let ended = mine.ended.is_some();
        let mut accepted = 0;
        let mut outcome = Ok(());
        for request in batch.iter() {
            outcome = self.check(request);
            if outcome.is_ok() && !ended && mine.posted >= mine.send_depth {
                outcome = Err(Error::QueueFull);
            }
            if outcome.is_err() {
                break;
            }
            mine.posted += 1;
            accepted += 1;
        }
        for request in batch.drain(..accepted) {
            if ended {
                mine.flush_request(request);
            } else {
                mine.stalled.push_back(request);
            }
        }
        if ended {
            self.link.something[self.me].notify_all();
        } else {
            self.link.advance(&mut sides, self.me);
        }
        outcome
    }

    fn expose(&self, memory: Memory) -> std::result::Result<Exposure, (Error, Memory)> {
        let (count, empty) = match &memory {
            Memory::Sink(bufs) => (bufs.len(), bufs.iter().any(|b| b.is_empty())),
            Memory::Source(bufs) => (bufs.len(), bufs.iter().any(|b| b.is_empty())),
        };
        if empty || count == 0 {
            return Err((Error::Misuse("an exposure of no bytes"), memory));
        }
        if memory.len() > u32::MAX as usize || count > self.capabilities.max_segments {
            return Err((Error::Misuse("an exposure of too much"), memory));
        }
        let mut sides = self.link.sides.lock();
        let mine = &mut sides[self.me];
        let exposed = mine
            .regions
            .expose(memory, self.capabilities.scatter_handle)
            .map_err(|(error, memory)| (Error::local("no random handle to be had", error), memory));
        if mine.ended.is_some() {
            mine.regions.invalidate_all();
        }
        exposed
    }

    fn invalidate(&self, id: WorkId, exposure: Exposure) -> Invalidation {
        let mut sides = self.link.sides.lock();
        let mine = &mut sides[self.me];
        let memory = mine.regions.invalidate(exposure);
        if !self.link.options.posted_invalidation || mine.unpolled {
            return Invalidation::Done(memory);
        }
        mine.complete(if mine.ended.is_some() {
            let memory = Some(memory);
            Completion::Flushed { id, memory }
        } else {
            Completion::Invalidated { id, memory }
        });
        self.link.something[self.me].notify_all();
        Invalidation::Posted
    }

    fn wake(&self) {
        self.link.sides.lock()[self.me].woken = true;
        self.link.something[self.me].notify_all();
    }

    fn disconnect(&self) {
        self.link.end(
            &mut self.link.sides.lock(),
            self.me,
            Error::LinkLost("disconnected".to_owned()),
            Error::LinkLost("the peer disconnected".to_owned()),
        );
    }
}

impl fmt::Debug for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.capabilities.description)
    }
}

/// The polling half of one end.
struct Poller {
    link: Arc<Link>,
    me: usize,
}

impl Poller {
    /// Executes the Reads that are under way, and the requests that waited for them.
    fn progress(&self, sides: &mut [Side; 2]) {
        while let Some((id, mut sink, source)) = sides[self.me].reads.pop_front() {
            let (mine, peer) = both(sides, self.me);
            match peer.regions.read(source, &mut sink) {
                Ok(()) => {
                    mine.complete(Completion::Read { id, sink });
                    self.link.advance(sides, self.me);
                }
                Err(what) => {
                    mine.reads.push_front((id, sink, source));
                    self.link.violation(sides, self.me, what);
                }
            }
        }
    }
}

impl CompletionQueue for Poller {
    fn poll(&mut self, out: &mut Vec<Completion>, wait: Wait) -> Result<()> {
        let mut sides = self.link.sides.lock();
        loop {
            self.progress(&mut sides);
            let mine = &mut sides[self.me];
            let before = out.len();
            mine.deliver(out);
            let woken = std::mem::take(&mut mine.woken);
            match &mine.ended {
                Some(error) => {
                    // What was flushed with the end is returned first, but only once, so that a
                    // caller that keeps posting gets the error, too.
                    let first = !std::mem::replace(&mut mine.told, true);
                    if first && out.len() > before {
                        return Ok(());
                    }
                    return Err(error.clone());
                }
                _ if woken || out.len() > before => return Ok(()),
                _ => {}
            }
            let something = &self.link.something[self.me];
            match wait {
                Wait::No => return Ok(()),
                Wait::Until(at) if Instant::now() >= at => return Ok(()),
                Wait::Until(at) => drop(something.condvar.wait_until(&mut sides, at)),
                Wait::Forever => something.condvar.wait(&mut sides),
            }
        }
    }

    fn descriptors(&self) -> Option<Segs<BorrowedFd<'_>>> {
        Some(smallvec![self.link.something[self.me].event.as_fd()])
    }

    fn arm(&mut self) -> Armed {
        let mut sides = self.link.sides.lock();
        self.progress(&mut sides);
        let mine = &sides[self.me];
        let idle = mine.completions.is_empty() && !mine.woken && mine.ended.is_none();
        match idle {
            true => Armed::Idle(None),
            false => Armed::Ready,
        }
    }
}

impl Drop for Poller {
    fn drop(&mut self) {
        let mut sides = self.link.sides.lock();
        self.link.end(
            &mut sides,
            self.me,
            Error::LinkLost("disconnected".to_owned()),
            Error::LinkLost("the peer disconnected".to_owned()),
        );
        let mine = &mut sides[self.me];
        mine.unpolled = true;
        mine.completions.clear();
    }
}
