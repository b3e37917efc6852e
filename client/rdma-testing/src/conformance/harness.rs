//! The two ends of a connection, each with a thread that polls it.

use nfsrdma_rdma::{
    Armed, Buf, BufMut, Completion, CompletionQueue, ConnectParams, Connection, Error, Exposure,
    Handle, Instant, Invalidation, Memory, Pool, Provider, QueuePair, RemoteSegment, Result, Segs,
    Wait, WorkId, WorkRequest,
};
use parking_lot::{Condvar, Mutex};
use rustix::buffer::spare_capacity;
use rustix::event::Timespec;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use smallvec::smallvec;
use std::net::SocketAddr;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// Time after which a case fails if an expected event has not happened.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Size of the Receives that are posted from the beginning, in bytes.
pub(super) const RECEIVE_SIZE: usize = 4096;
/// Number of these Receives.
pub(super) const RECEIVES: usize = 16;

/// A provider to test, and an address at which it can listen.
pub struct Bench<'a> {
    pub(super) provider: &'a dyn Provider,
    pub(super) at: SocketAddr,
}

impl std::fmt::Debug for Bench<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Bench({} at {})", self.provider.name(), self.at)
    }
}

impl<'a> Bench<'a> {
    /// `at` is an address the provider can listen on and connect to, with port 0.
    pub fn new(provider: &'a dyn Provider, at: SocketAddr) -> Self {
        Bench { provider, at }
    }

    /// Parameters with a separate pool.
    pub(super) fn params(&self) -> ConnectParams {
        ConnectParams {
            pool: Pool::new(16 << 20).unwrap(),
            private_data: Vec::new(),
            send_depth: 64,
            recv_depth: 64,
            reads_out: 4,
            reads_in: 4,
            receive_buffers: RECEIVES,
            receive_size: RECEIVE_SIZE,
            timeout: PATIENCE,
            local: None,
        }
    }

    /// Makes a connection with the parameters of both sides. The connecting side comes first.
    pub(super) fn connect(
        &self,
        connector: &ConnectParams,
        acceptor: &ConnectParams,
    ) -> (Connection, Connection) {
        let listener = self.provider.listen(self.at).unwrap();
        let addr = listener.local_addr();
        std::thread::scope(|scope| {
            let connecting = scope.spawn(|| self.provider.connect(addr, connector));
            let accepting = scope.spawn(|| {
                let incoming = listener.accept()?;
                incoming.accept(acceptor)
            });
            let connected = connecting.join().unwrap();
            if connected.is_err() {
                listener.close();
            }
            let accepted = accepting.join().unwrap();
            match (connected, accepted) {
                (Ok(a), Ok(b)) => (a, b),
                (a, b) => panic!("connect: {a:?}, accept: {b:?}"),
            }
        })
    }

    /// A connection over which the connecting side, which comes first, has sent a message, as MPA
    /// requires (RFC 5044 section 7.1.2).
    pub(super) fn pair(&self) -> (End, End) {
        self.pair_with(self.params(), self.params())
    }

    pub(super) fn pair_with(&self, a: ConnectParams, b: ConnectParams) -> (End, End) {
        let (connector, acceptor) = self.connect(&a, &b);
        // This tests both ways to wait.
        let a = End::in_event_loop(connector, a.pool);
        let b = End::new(acceptor, b.pool);
        a.send(b"hello");
        let (id, data) = b.receive();
        assert_eq!(data, b"hello");
        assert!(id.0 < RECEIVES as u64, "the first Receives have names");
        (a, b)
    }
}

#[derive(Default)]
struct Shared {
    happened: Vec<Completion>,
    ended: Option<Error>,
    /// How often a poll has returned `ended`.
    told: usize,
    stop: bool,
}

type Watched = Arc<(Mutex<Shared>, Condvar)>;

/// A Send that invalidates nothing.
pub(super) fn send(id: WorkId, data: Segs<Buf>, signaled: bool) -> WorkRequest {
    WorkRequest::Send {
        id,
        data,
        invalidate: None,
        signaled,
    }
}

/// One end of a connection.
pub(super) struct End {
    pub(super) qp: Arc<dyn QueuePair>,
    pub(super) pool: Pool,
    shared: Watched,
    poller: Option<JoinHandle<()>>,
    next: AtomicU64,
}

impl End {
    pub(super) fn new(connection: Connection, pool: Pool) -> Self {
        Self::polled(connection, pool, None)
    }

    /// An end that waits for the descriptors of its connection, if the provider has them.
    pub(super) fn in_event_loop(connection: Connection, pool: Pool) -> Self {
        let event_loop = connection.completions.descriptors().map(EventLoop::new);
        Self::polled(connection, pool, event_loop)
    }

    fn polled(connection: Connection, pool: Pool, mut event_loop: Option<EventLoop>) -> Self {
        let shared = Watched::default();
        let poller = std::thread::spawn({
            let shared = shared.clone();
            let mut queue = connection.completions;
            move || {
                poll(&shared, |out, wait| match &mut event_loop {
                    Some(event_loop) if wait != Wait::No => event_loop.poll(queue.as_mut(), out),
                    _ => queue.poll(out, wait),
                });
            }
        });
        End {
            qp: connection.queue_pair,
            pool,
            shared,
            poller: Some(poller),
            next: AtomicU64::new(1000),
        }
    }

    pub(super) fn id(&self) -> WorkId {
        WorkId(self.next.fetch_add(1, Ordering::Relaxed))
    }

    /// A buffer that contains `data`.
    pub(super) fn buf(&self, data: &[u8]) -> Buf {
        self.filled(data).freeze()
    }

    pub(super) fn filled(&self, data: &[u8]) -> BufMut {
        let mut buf = self.alloc(data.len());
        buf.copy_from_slice(data);
        buf
    }

    /// Allocates a buffer of `len` bytes; waits until completions have freed memory.
    pub(super) fn alloc(&self, len: usize) -> BufMut {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(buf) = self.pool.alloc(len) {
                return buf;
            }
            assert!(Instant::now() < deadline, "the pool stays empty");
            std::thread::yield_now();
        }
    }

    pub(super) fn post(&self, request: WorkRequest) {
        self.qp.post(&mut vec![request]).unwrap();
    }

    /// Sends `data` and waits for the completion.
    pub(super) fn send(&self, data: &[u8]) {
        let id = self.id();
        self.post(send(id, smallvec![self.buf(data)], true));
        self.sent(id);
    }

    /// Waits for the completion of a Send.
    pub(super) fn sent(&self, id: WorkId) {
        self.wait(
            "the completion of a Send",
            |c| matches!(c, Completion::Sent { id: done } if *done == id),
        );
    }

    /// Posts a Send that invalidates a handle of the peer.
    pub(super) fn send_invalidating(&self, handle: Handle, data: &[u8]) {
        self.post(WorkRequest::Send {
            id: WorkId(1),
            data: smallvec![self.buf(data)],
            invalidate: Some(handle),
            signaled: true,
        });
    }

    /// Waits for a message, posts its Receive again, and returns its bytes.
    pub(super) fn receive(&self) -> (WorkId, Vec<u8>) {
        let (id, data, invalidated) = self.receive_any();
        assert_eq!(invalidated, None);
        (id, data)
    }

    pub(super) fn receive_any(&self) -> (WorkId, Vec<u8>, Option<Handle>) {
        let received = self.wait("a message", |c| matches!(c, Completion::Received { .. }));
        let Completion::Received {
            id,
            buf,
            len,
            invalidated,
        } = received
        else {
            unreachable!("it was matched");
        };
        let data = buf[..len].to_vec();
        // It is flushed if the connection has ended.
        self.qp.post_receive(id, buf).unwrap();
        (id, data, invalidated)
    }

    /// Waits for a completion and takes it.
    pub(super) fn wait(&self, what: &str, which: impl Fn(&Completion) -> bool) -> Completion {
        let deadline = Instant::now() + PATIENCE;
        let (lock, changed) = &*self.shared;
        let mut shared = lock.lock();
        loop {
            if let Some(at) = shared.happened.iter().position(&which) {
                return shared.happened.remove(at);
            }
            let late = changed
                .wait_for(&mut shared, deadline - Instant::now())
                .timed_out();
            assert!(
                !late,
                "waited for {what}; have {:?}, end {:?}",
                shared.happened, shared.ended
            );
        }
    }

    /// Waits until polls have returned an error `times` times.
    pub(super) fn ended(&self, times: usize) -> Error {
        let deadline = Instant::now() + PATIENCE;
        let (lock, changed) = &*self.shared;
        let mut shared = lock.lock();
        while shared.told < times {
            let late = changed
                .wait_for(&mut shared, deadline - Instant::now())
                .timed_out();
            assert!(!late, "the connection does not end");
        }
        shared.ended.clone().unwrap()
    }

    pub(super) fn has_ended(&self) -> bool {
        self.shared.0.lock().ended.is_some()
    }

    /// Takes the completions that nobody waited for.
    pub(super) fn rest(&self) -> Vec<Completion> {
        std::mem::take(&mut self.shared.0.lock().happened)
    }

    /// Exposes memory and tells the peer: a handle may be used by a peer that has received a Send
    /// posted after the handle was made.
    pub(super) fn expose(&self, peer: &End, memory: Memory) -> Exposure {
        let exposure = self.qp.expose(memory).map_err(|(error, _)| error).unwrap();
        self.send(b"exposed");
        assert_eq!(peer.receive().1, b"exposed");
        exposure
    }

    /// Exposes sinks of these lengths, filled with `fill`.
    pub(super) fn expose_sink(&self, peer: &End, lens: &[usize], fill: u8) -> Exposure {
        let buf = |&len| {
            let mut buf = self.alloc(len);
            buf.fill(fill);
            buf
        };
        self.expose(peer, Memory::Sink(lens.iter().map(buf).collect()))
    }

    /// Exposes `data` as a source, in buffers of these lengths (whose sum is the length of `data`).
    pub(super) fn expose_source(&self, peer: &End, lens: &[usize], mut data: &[u8]) -> Exposure {
        let buf = |&len: &usize| {
            let (now, later) = data.split_at(len);
            data = later;
            self.buf(now)
        };
        self.expose(peer, Memory::Source(lens.iter().map(buf).collect()))
    }

    /// Ends an exposure, in the way the provider does it, and returns its bytes.
    pub(super) fn take_back(&self, exposure: Exposure) -> Vec<u8> {
        let id = self.id();
        let memory = match self.qp.invalidate(id, exposure) {
            Invalidation::Done(memory) => memory,
            Invalidation::Posted => {
                match self.wait("an invalidation", |c| match c {
                    Completion::Invalidated { id: done, .. }
                    | Completion::Flushed { id: done, .. } => *done == id,
                    _ => false,
                }) {
                    Completion::Invalidated { memory, .. }
                    | Completion::Flushed {
                        memory: Some(memory),
                        ..
                    } => memory,
                    other => panic!("an invalidation owes its memory: {other:?}"),
                }
            }
        };
        bytes(&memory)
    }

    /// Writes `data` to `targets`, segment by segment, and waits for the completions.
    pub(super) fn write(&self, targets: &[RemoteSegment], mut data: &[u8]) {
        for target in targets {
            let (now, later) = data.split_at(target.length as usize);
            data = later;
            let id = self.id();
            self.post(WorkRequest::Write {
                id,
                source: smallvec![self.buf(now)],
                target: *target,
                signaled: true,
            });
            self.wait(
                "the completion of a Write",
                |c| matches!(c, Completion::Written { id: done } if *done == id),
            );
        }
    }

    /// Reads from `sources`, segment by segment.
    pub(super) fn read(&self, sources: &[RemoteSegment]) -> Vec<u8> {
        let mut data = Vec::new();
        for source in sources {
            let id = self.id();
            self.post(WorkRequest::Read {
                id,
                sink: smallvec![self.alloc(source.length as usize)],
                source: *source,
            });
            let done = self.wait(
                "an RDMA Read",
                |c| matches!(c, Completion::Read { id: done, .. } if *done == id),
            );
            let Completion::Read { sink, .. } = done else {
                unreachable!("it was matched");
            };
            data.extend(sink.iter().flat_map(|buf| buf.iter()));
        }
        data
    }

    /// Stops the poller and drops this end.
    pub(super) fn close(mut self) {
        self.shut();
    }

    fn shut(&mut self) {
        self.qp.disconnect();
        self.shared.0.lock().stop = true;
        self.shared.1.notify_all();
        if let Some(poller) = self.poller.take() {
            if !std::thread::panicking() {
                self.ended(1);
                let outcome = poller.join();
                assert!(outcome.is_ok(), "the poller panicked");
            }
            self.shared.0.lock().happened.clear();
        }
    }
}

impl Drop for End {
    fn drop(&mut self) {
        self.shut();
    }
}

/// An event loop that waits for the descriptors of a connection.
struct EventLoop {
    epoll: OwnedFd,
    hung_up: bool,
}

impl EventLoop {
    fn new(descriptors: Segs<BorrowedFd<'_>>) -> Self {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        let edge = EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET;
        for descriptor in descriptors {
            epoll::add(&epoll, descriptor, EventData::new_u64(0), edge).unwrap();
        }
        EventLoop {
            epoll,
            hung_up: false,
        }
    }

    /// Waits until there may be completions, and takes them.
    fn poll(&mut self, queue: &mut dyn CompletionQueue, out: &mut Vec<Completion>) -> Result<()> {
        let armed = match self.hung_up {
            true => Armed::Ready,
            false => queue.arm(),
        };
        if let Armed::Idle(until) = armed {
            let left = until.map(|at| at.saturating_duration_since(Instant::now()));
            let timeout = left.map(|left| Timespec {
                tv_sec: left.as_secs() as i64,
                tv_nsec: i64::from(left.subsec_nanos().div_ceil(1_000_000)) * 1_000_000,
            });
            let mut events = Vec::with_capacity(4);
            let waited = epoll::wait(&self.epoll, spare_capacity(&mut events), timeout.as_ref());
            assert!(matches!(waited, Ok(_) | Err(Errno::INTR)), "{waited:?}");
            queue.disarm();
            let end = EventFlags::RDHUP | EventFlags::HUP | EventFlags::ERR;
            self.hung_up = events.iter().any(|event| {
                let flags = event.flags;
                flags.intersects(end)
            });
        }
        queue.poll(out, Wait::No)
    }
}

fn poll(shared: &Watched, mut poll_queue: impl FnMut(&mut Vec<Completion>, Wait) -> Result<()>) {
    let (lock, changed) = &**shared;
    let mut out = Vec::new();
    let mut wait = Wait::Forever;
    loop {
        let outcome = poll_queue(&mut out, wait);
        let mut shared = lock.lock();
        shared.happened.append(&mut out);
        if let Err(error) = outcome {
            let first = shared.ended.get_or_insert_with(|| error.clone());
            assert_eq!(first.to_string(), error.to_string(), "one reason");
            shared.told += 1;
            wait = Wait::No;
            changed.notify_all();
            if shared.stop {
                return;
            }
            // Only `stop` and further posts can happen now.
            changed.wait_for(&mut shared, Duration::from_millis(5));
        }
        changed.notify_all();
    }
}

/// Closes both ends, and checks that all memory returns to both pools.
pub(super) fn finish(a: End, b: End) {
    let pools = [a.pool.clone(), b.pool.clone()];
    a.close();
    b.close();
    for pool in pools {
        all_returned(&pool);
    }
}

/// Waits until all memory has returned to the pool.
pub(super) fn all_returned(pool: &Pool) {
    let deadline = Instant::now() + PATIENCE;
    while pool.free_bytes() != pool.capacity() {
        assert!(
            Instant::now() < deadline,
            "{} bytes did not return to the pool",
            pool.capacity() - pool.free_bytes()
        );
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Pseudo-random bytes, which reveal misplaced data.
pub(super) fn pattern(len: usize, seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; len];
    fastrand::Rng::with_seed(seed).fill(&mut bytes);
    bytes
}

/// The bytes of an exposed memory, in order.
pub(super) fn bytes(memory: &Memory) -> Vec<u8> {
    match memory {
        Memory::Sink(bufs) => bufs.iter().flat_map(|buf| buf.to_vec()).collect(),
        Memory::Source(bufs) => bufs.iter().flat_map(|buf| buf.to_vec()).collect(),
    }
}

/// The part `from..from + len` of the memory that `segments` name in order.
pub(super) fn part(segments: &[RemoteSegment], from: usize, len: usize) -> Segs<RemoteSegment> {
    let (mut skip, mut left) = (from as u64, len as u64);
    let mut parts = Segs::new();
    for segment in segments {
        let skipped = skip.min(u64::from(segment.length));
        skip -= skipped;
        let length = left.min(u64::from(segment.length) - skipped);
        left -= length;
        if length > 0 {
            parts.push(RemoteSegment {
                handle: segment.handle,
                length: length as u32,
                offset: segment.offset + skipped,
            });
        }
    }
    assert_eq!((skip, left), (0, 0), "the part is inside");
    if parts.is_empty() {
        parts.push(RemoteSegment {
            length: 0,
            ..segments[0]
        });
    }
    parts
}
