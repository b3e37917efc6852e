//! A provider with faults, or like another device, for tests of the users of providers.
//!
//! [`Faulty`] wraps any provider and follows a [`Plan`], which says what fails and when, counted in
//! calls of each connection, and in what its [`Device`] differs from that of the wrapped provider.

use nfsrdma_rdma::{
    BufMut, Capabilities, Completion, CompletionQueue, ConnectParams, Connection, Error, Exposure,
    Handle, Instant, Invalidation, Listener, Memory, Protection, Provider, QueuePair, Result, Segs,
    Wait, WorkId, WorkRequest,
};
use parking_lot::Mutex;
use smallvec::smallvec;
use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// When something fails. The events of one kind and one connection are counted from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum When {
    #[default]
    Never,
    /// At the event with this number.
    At(u64),
    /// At every event whose number plus one is a multiple of this.
    Every(u64),
}

/// The properties in which devices differ. By default they are those of soft-iWARP.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Device {
    /// Whether one handle covers a list of buffers, or one buffer only.
    pub scatter_handle: bool,
    /// Whether Send with Invalidate is supported.
    pub remote_invalidate: bool,
    /// Whether an invalidation takes a work request, as memory windows do.
    pub posted_invalidation: bool,
    /// Largest number of buffers in one exposure.
    pub max_segments: usize,
}

impl Default for Device {
    fn default() -> Self {
        Device {
            scatter_handle: true,
            remote_invalidate: true,
            posted_invalidation: false,
            max_segments: 256,
        }
    }
}

/// What fails.
#[derive(Debug, Clone, Default)]
pub struct Plan {
    /// The device that the outgoing connections seem to have.
    pub device: Device,
    /// The calls of `connect`, counted from 0, that fail because this machine has no route.
    pub no_route: Range<u64>,
    /// The connection drops after this work request was posted; the peer may have received it.
    pub drop_after_post: When,
    /// Completions are delayed for this long, in order.
    pub delay: Duration,
    /// `expose` fails with [`Error::Local`] and returns the memory.
    pub fail_expose: When,
    /// `expose` drops the connection and fails with [`Error::LinkLost`].
    pub drop_at_expose: When,
    /// `post` fails with [`Error::QueueFull`] at this work request.
    pub queue_full: When,
    /// Unless this is zero, the connection drops before such a failure, which is returned so much
    /// later.
    pub queue_full_late: Duration,
}

/// A provider whose outgoing connections follow a plan. Accepted connections have no faults; to
/// disturb both sides, wrap the peer's provider, too.
pub struct Faulty<P> {
    inner: P,
    plan: Plan,
    connects: AtomicU64,
}

impl<P: Provider> Faulty<P> {
    /// Wraps `inner`.
    pub fn new(inner: P, plan: Plan) -> Self {
        Faulty {
            inner,
            plan,
            connects: AtomicU64::new(0),
        }
    }
}

impl<P: Provider> fmt::Debug for Faulty<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Faulty")
            .field("inner", &self.inner)
            .field("plan", &self.plan)
            .finish_non_exhaustive()
    }
}

/// Counts the events of one kind.
struct Counter {
    when: When,
    next: AtomicU64,
}

impl Counter {
    fn new(when: When) -> Self {
        let next = AtomicU64::new(0);
        Counter { when, next }
    }

    /// Counts an event. Returns whether it fails.
    fn strikes(&self) -> bool {
        let n = self.next.fetch_add(1, Ordering::Relaxed);
        match self.when {
            When::Never => false,
            When::At(at) => n == at,
            When::Every(period) => period > 0 && (n + 1).is_multiple_of(period),
        }
    }
}

impl<P: Provider> Provider for Faulty<P> {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn remote_invalidate(&self) -> bool {
        self.plan.device.remote_invalidate && self.inner.remote_invalidate()
    }

    fn connect(&self, peer: SocketAddr, params: &ConnectParams) -> Result<Connection> {
        let n = self.connects.fetch_add(1, Ordering::Relaxed);
        if self.plan.no_route.contains(&n) {
            let error = ErrorKind::NetworkUnreachable.into();
            return Err(Error::local("injected fault: connect", error));
        }
        let connection = self.inner.connect(peer, params)?;
        let plan = &self.plan;
        let inner = connection.queue_pair;
        let invalidated = Arc::new(Mutex::new(Some(Vec::new())));
        let queue_pair = Arc::new(FaultyPair {
            capabilities: plan.device.seen_in(inner.capabilities()),
            posted_invalidation: plan.device.posted_invalidation,
            inner,
            parts: Mutex::default(),
            invalidated: invalidated.clone(),
            drop_after_post: Counter::new(plan.drop_after_post),
            fail_expose: Counter::new(plan.fail_expose),
            drop_at_expose: Counter::new(plan.drop_at_expose),
            queue_full: Counter::new(plan.queue_full),
            queue_full_late: plan.queue_full_late,
            posting: Mutex::new(()),
        });
        Ok(Connection {
            queue_pair,
            completions: Box::new(FaultyQueue {
                inner: connection.completions,
                invalidated,
                delay: plan.delay,
                late: VecDeque::new(),
                ended: None,
            }),
            peer_private_data: connection.peer_private_data,
            greeting: connection.greeting,
        })
    }

    fn listen(&self, local: SocketAddr) -> Result<Box<dyn Listener>> {
        self.inner.listen(local)
    }
}

impl Device {
    fn seen_in(&self, inner: &Capabilities) -> Capabilities {
        Capabilities {
            scatter_handle: self.scatter_handle,
            remote_invalidate: self.remote_invalidate && inner.remote_invalidate,
            protection: match self.posted_invalidation {
                true => Protection::Window,
                false => inner.protection,
            },
            max_segments: self.max_segments.min(inner.max_segments),
            ..inner.clone()
        }
    }
}

/// Invalidations that are done and not polled, and `None` once nobody polls any more.
type Invalidated = Arc<Mutex<Option<Vec<(WorkId, Memory)>>>>;

struct FaultyPair {
    inner: Arc<dyn QueuePair>,
    capabilities: Capabilities,
    posted_invalidation: bool,
    drop_after_post: Counter,
    fail_expose: Counter,
    drop_at_expose: Counter,
    queue_full: Counter,
    queue_full_late: Duration,
    /// The exposures of single buffers, by the first handle of what the caller knows as one.
    parts: Mutex<HashMap<Handle, Vec<Exposure>>>,
    invalidated: Invalidated,
    /// Keeps the order of requests while a batch is posted in parts.
    posting: Mutex<()>,
}

/// The memory of each buffer.
fn split(memory: Memory) -> Vec<Memory> {
    match memory {
        Memory::Sink(bufs) => {
            let bufs = bufs.into_iter();
            bufs.map(|buf| Memory::Sink(smallvec![buf])).collect()
        }
        Memory::Source(bufs) => {
            let bufs = bufs.into_iter();
            bufs.map(|buf| Memory::Source(smallvec![buf])).collect()
        }
    }
}

fn join(parts: impl IntoIterator<Item = Memory>) -> Memory {
    let joined = parts.into_iter().reduce(|mut all, part| {
        match (&mut all, part) {
            (Memory::Sink(all), Memory::Sink(bufs)) => all.extend(bufs),
            (Memory::Source(all), Memory::Source(bufs)) => all.extend(bufs),
            _ => unreachable!("an exposure has one kind of memory"),
        }
        all
    });
    joined.expect("an exposure has a buffer")
}

impl FaultyPair {
    /// A handle for each buffer.
    #[allow(clippy::result_large_err, reason = "the memory has to come back")]
    fn expose_each(&self, memory: Memory) -> std::result::Result<Exposure, (Error, Memory)> {
        let mut parts = Vec::new();
        let mut rest = split(memory).into_iter();
        while let Some(one) = rest.next() {
            match self.inner.expose(one) {
                Ok(part) => parts.push(part),
                Err((error, one)) => {
                    let exposed = parts.into_iter().map(|part| self.withdraw(part));
                    let memory = join(exposed.chain([one]).chain(rest));
                    return Err((error, memory));
                }
            }
        }
        let segments = parts.iter().flat_map(Exposure::segments).copied();
        let segments: Segs<_> = segments.collect();
        self.parts.lock().insert(segments[0].handle, parts);
        Ok(Exposure::new(segments, Memory::Sink(Segs::new())))
    }

    fn withdraw(&self, exposure: Exposure) -> Memory {
        match self.inner.invalidate(WorkId(0), exposure) {
            Invalidation::Done(memory) => memory,
            Invalidation::Posted => unreachable!("soft-iWARP invalidates at once"),
        }
    }
}

impl QueuePair for FaultyPair {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn local_addr(&self) -> SocketAddr {
        self.inner.local_addr()
    }

    fn peer_addr(&self) -> SocketAddr {
        self.inner.peer_addr()
    }

    fn post_receive(&self, id: WorkId, buf: BufMut) -> Result<()> {
        self.inner.post_receive(id, buf)
    }

    fn post(&self, batch: &mut Vec<WorkRequest>) -> Result<()> {
        let _in_order = self.posting.lock();
        // One by one, so that a fault can occur between two requests of a batch.
        let mut requests = std::mem::take(batch).into_iter();
        for request in requests.by_ref() {
            if self.queue_full.strikes() {
                if !self.queue_full_late.is_zero() {
                    self.inner.disconnect();
                    std::thread::sleep(self.queue_full_late);
                }
                batch.push(request);
                batch.extend(requests);
                return Err(Error::QueueFull);
            }
            let mut one = vec![request];
            let outcome = self.inner.post(&mut one);
            if self.drop_after_post.strikes() {
                self.inner.disconnect();
            }
            if let Err(error) = outcome {
                batch.extend(one);
                batch.extend(requests);
                return Err(error);
            }
        }
        Ok(())
    }

    fn expose(&self, memory: Memory) -> std::result::Result<Exposure, (Error, Memory)> {
        if self.fail_expose.strikes() {
            let error = ErrorKind::OutOfMemory.into();
            return Err((Error::local("injected fault: expose", error), memory));
        }
        if self.drop_at_expose.strikes() {
            self.inner.disconnect();
            return Err((Error::LinkLost("injected fault".to_owned()), memory));
        }
        let buffers = match &memory {
            Memory::Sink(bufs) => bufs.len(),
            Memory::Source(bufs) => bufs.len(),
        };
        if buffers > self.capabilities.max_segments {
            return Err((Error::Misuse("an exposure of too much"), memory));
        }
        match self.capabilities.scatter_handle || buffers == 0 {
            true => self.inner.expose(memory),
            false => self.expose_each(memory),
        }
    }

    fn invalidate(&self, id: WorkId, exposure: Exposure) -> Invalidation {
        let first = exposure.segments()[0].handle;
        let parts = self.parts.lock().remove(&first);
        let memory = match parts {
            Some(parts) => join(parts.into_iter().map(|part| self.withdraw(part))),
            None if !self.posted_invalidation => return self.inner.invalidate(id, exposure),
            None => self.withdraw(exposure),
        };
        match &mut *self.invalidated.lock() {
            Some(list) if self.posted_invalidation => list.push((id, memory)),
            _ => return Invalidation::Done(memory),
        }
        self.inner.wake();
        Invalidation::Posted
    }

    fn wake(&self) {
        self.inner.wake();
    }

    fn disconnect(&self) {
        self.inner.disconnect();
    }
}

struct FaultyQueue {
    inner: Box<dyn CompletionQueue>,
    invalidated: Invalidated,
    delay: Duration,
    /// Delayed completions, and when they are due.
    late: VecDeque<(Instant, Completion)>,
    /// The error of the end, which is delayed, too.
    ended: Option<Error>,
}

impl CompletionQueue for FaultyQueue {
    fn poll(&mut self, out: &mut Vec<Completion>, wait: Wait) -> Result<()> {
        let mut fresh = Vec::new();
        loop {
            let invalidated = self.invalidated.lock().as_mut().map(std::mem::take);
            for (id, memory) in invalidated.into_iter().flatten() {
                fresh.push(Completion::Invalidated { id, memory });
            }
            let wait = if fresh.is_empty() { wait } else { Wait::No };
            let wait = match self.late.front() {
                // Wait no longer than until a delayed completion is due.
                Some((due, _)) => match wait {
                    Wait::No => Wait::No,
                    Wait::Until(at) => Wait::Until(at.min(*due)),
                    Wait::Forever => Wait::Until(*due),
                },
                None => wait,
            };
            let outcome = match &self.ended {
                // Only delayed completions are left.
                Some(error) if !self.late.is_empty() => {
                    if let Wait::Until(at) = wait {
                        std::thread::sleep(at.saturating_duration_since(Instant::now()));
                    }
                    Err(error.clone())
                }
                _ => self.inner.poll(&mut fresh, wait),
            };
            let now = Instant::now();
            let woken = fresh.is_empty() && outcome.is_ok();
            for completion in fresh.drain(..) {
                if self.delay.is_zero() {
                    out.push(completion);
                } else {
                    self.late.push_back((now + self.delay, completion));
                }
            }
            let before = out.len();
            while self.late.front().is_some_and(|(due, _)| *due <= now) {
                out.extend(self.late.pop_front().map(|(_, completion)| completion));
            }
            match outcome {
                Err(error) if self.late.is_empty() => return Err(error),
                Err(error) => self.ended = Some(error),
                Ok(()) => {}
            }
            let gave = out.len() > before || self.delay.is_zero();
            let late = matches!(wait, Wait::Until(at) if at <= now);
            if gave || woken || late || wait == Wait::No {
                return Ok(());
            }
        }
    }
}

impl Drop for FaultyQueue {
    fn drop(&mut self) {
        *self.invalidated.lock() = None;
    }
}
