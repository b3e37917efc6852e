//! A provider with faults, for tests of the users of providers.
//!
//! [`Faulty`] wraps any provider and follows a [`Plan`], which says what fails and when, counted in
//! calls and completions of each connection. A plan with a seed uses a deterministic generator, so
//! that a failing run can be repeated.

use nfsrdma_rdma::{
    BufMut, Capabilities, Completion, CompletionQueue, ConnectParams, Connection, Error, Exposure,
    Invalidation, Listener, Memory, Provider, QueuePair, Result, Wait, WorkId, WorkRequest,
};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::fmt;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// When something fails. The events of one kind and one connection are counted from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum When {
    #[default]
    Never,
    /// At the event with this number.
    At(u64),
    /// At every event whose number plus one is a multiple of this.
    Every(u64),
    /// At every event from this number on.
    From(u64),
    /// With a probability of one in this number, determined by the plan's seed.
    Chance(u64),
}

/// What a call of [`Provider::connect`] returns instead of connecting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConnectFault {
    /// [`Error::Refused`].
    Refuse,
    /// [`Error::TimedOut`], without waiting.
    TimeOut,
    /// [`Error::Local`], as if a device or memory were missing.
    Local,
}

/// What fails.
#[derive(Debug, Clone, Default)]
pub struct Plan {
    /// Seed of [`When::Chance`] and of the choice of corrupted bits.
    pub seed: u64,
    /// The results of the first calls of `connect`, in order; later calls connect.
    pub connects: Vec<Option<ConnectFault>>,
    /// The connection drops before this work request is posted, so that it is flushed.
    pub drop_before_post: When,
    /// The connection drops after this work request was posted; the peer may have received it.
    pub drop_after_post: When,
    /// The connection drops instead of this completion. A Receive is then completed as flushed: its
    /// message is lost.
    pub drop_at_completion: When,
    /// Completions are delayed for this long, in order.
    pub delay: Duration,
    /// One bit of this received message is inverted.
    pub corrupt_receive: When,
    /// `expose` fails with [`Error::Local`] and returns the memory.
    pub fail_expose: When,
    /// `expose` drops the connection and fails with [`Error::LinkLost`].
    pub drop_at_expose: When,
    /// `post_receive` fails with [`Error::Local`].
    pub fail_post_receive: When,
    /// `post` fails with [`Error::QueueFull`] at this work request.
    pub queue_full: When,
    /// Unless this is zero, the connection drops before such a failure, which is returned so much
    /// later.
    pub queue_full_late: Duration,
    /// Bytes that are taken from the connection's pool while it lives.
    pub hold_pool_bytes: usize,
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

    /// How often `connect` was called.
    pub fn connects(&self) -> u64 {
        self.connects.load(Ordering::Relaxed)
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
    seed: u64,
}

impl Counter {
    fn new(when: When, plan: &Plan, connection: u64, kind: u64) -> Self {
        Counter {
            when,
            next: AtomicU64::new(0),
            seed: mix(plan.seed ^ mix(connection) ^ mix(kind << 32)),
        }
    }

    /// Counts an event. Returns whether it fails.
    fn strikes(&self) -> bool {
        let n = self.next.fetch_add(1, Ordering::Relaxed);
        match self.when {
            When::Never => false,
            When::At(at) => n == at,
            When::Every(period) => period > 0 && (n + 1).is_multiple_of(period),
            When::From(from) => n >= from,
            When::Chance(one_in) => one_in > 0 && self.random(n).is_multiple_of(one_in),
        }
    }

    fn random(&self, n: u64) -> u64 {
        mix(self.seed ^ mix(n))
    }
}

/// The first random number of a seed. Each event has its own generator, so that its result does not
/// depend on the order in which threads count events.
fn mix(seed: u64) -> u64 {
    fastrand::Rng::with_seed(seed).u64(..)
}

fn injected(what: &str) -> Error {
    Error::local(
        format!("injected fault: {what}"),
        ErrorKind::OutOfMemory.into(),
    )
}

struct Faults {
    before_post: Counter,
    after_post: Counter,
    completion: Counter,
    corrupt: Counter,
    expose: Counter,
    drop_at_expose: Counter,
    post_receive: Counter,
    queue_full: Counter,
    queue_full_late: Duration,
    delay: Duration,
    dropped: AtomicBool,
    /// Buffers that are held so that the pool is short of memory.
    _held: Vec<BufMut>,
}

impl<P: Provider> Provider for Faulty<P> {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn remote_invalidate(&self) -> bool {
        self.inner.remote_invalidate()
    }

    fn connect(&self, peer: SocketAddr, params: &ConnectParams) -> Result<Connection> {
        let n = self.connects.fetch_add(1, Ordering::Relaxed);
        let fault = usize::try_from(n)
            .ok()
            .and_then(|n| self.plan.connects.get(n).copied().flatten());
        match fault {
            Some(ConnectFault::Refuse) => return Err(Error::Refused(Vec::new())),
            Some(ConnectFault::TimeOut) => return Err(Error::TimedOut("connecting")),
            Some(ConnectFault::Local) => return Err(injected("no device")),
            None => {}
        }
        let connection = self.inner.connect(peer, params)?;
        let plan = &self.plan;
        let counter = |when, kind| Counter::new(when, plan, n, kind);
        let mut held = Vec::new();
        let mut left = plan.hold_pool_bytes;
        while left > 0 {
            let Some(buf) = params.pool.alloc(left.min(nfsrdma_rdma::buf::MIN_BLOCK)) else {
                break;
            };
            left -= buf.len();
            held.push(buf);
        }
        let faults = Arc::new(Faults {
            before_post: counter(plan.drop_before_post, 1),
            after_post: counter(plan.drop_after_post, 2),
            completion: counter(plan.drop_at_completion, 3),
            corrupt: counter(plan.corrupt_receive, 4),
            expose: counter(plan.fail_expose, 5),
            drop_at_expose: counter(plan.drop_at_expose, 8),
            post_receive: counter(plan.fail_post_receive, 6),
            queue_full: counter(plan.queue_full, 7),
            queue_full_late: plan.queue_full_late,
            delay: plan.delay,
            dropped: AtomicBool::new(false),
            _held: held,
        });
        let queue_pair = Arc::new(FaultyPair {
            inner: connection.queue_pair,
            faults: faults.clone(),
            posting: Mutex::new(()),
        });
        Ok(Connection {
            queue_pair: queue_pair.clone(),
            completions: Box::new(FaultyQueue {
                inner: connection.completions,
                pair: queue_pair.inner.clone(),
                faults,
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

struct FaultyPair {
    inner: Arc<dyn QueuePair>,
    faults: Arc<Faults>,
    /// Keeps the order of requests while a batch is posted in parts.
    posting: Mutex<()>,
}

impl FaultyPair {
    fn drop_connection(&self) {
        self.faults.dropped.store(true, Ordering::Relaxed);
        self.inner.disconnect();
    }
}

impl QueuePair for FaultyPair {
    fn capabilities(&self) -> &Capabilities {
        self.inner.capabilities()
    }

    fn local_addr(&self) -> SocketAddr {
        self.inner.local_addr()
    }

    fn peer_addr(&self) -> SocketAddr {
        self.inner.peer_addr()
    }

    fn post_receive(&self, id: WorkId, buf: BufMut) -> Result<()> {
        if self.faults.post_receive.strikes() {
            return Err(injected("no Receive can be posted"));
        }
        self.inner.post_receive(id, buf)
    }

    fn post(&self, batch: &mut Vec<WorkRequest>) -> Result<()> {
        let _in_order = self.posting.lock();
        // One by one, so that a fault can occur between two requests of a batch.
        let mut requests = std::mem::take(batch).into_iter();
        for request in requests.by_ref() {
            if self.faults.queue_full.strikes() {
                if !self.faults.queue_full_late.is_zero() {
                    self.drop_connection();
                    std::thread::sleep(self.faults.queue_full_late);
                }
                batch.push(request);
                batch.extend(requests);
                return Err(Error::QueueFull);
            }
            if self.faults.before_post.strikes() {
                self.drop_connection();
            }
            let mut one = vec![request];
            let outcome = self.inner.post(&mut one);
            if self.faults.after_post.strikes() {
                self.drop_connection();
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
        if self.faults.expose.strikes() {
            return Err((injected("no handle to be had"), memory));
        }
        if self.faults.drop_at_expose.strikes() {
            self.drop_connection();
            return Err((Error::LinkLost("injected fault".to_owned()), memory));
        }
        self.inner.expose(memory)
    }

    fn invalidate(&self, id: WorkId, exposure: Exposure) -> Invalidation {
        self.inner.invalidate(id, exposure)
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
    pair: Arc<dyn QueuePair>,
    faults: Arc<Faults>,
    /// Delayed completions, and when they are due.
    late: VecDeque<(Instant, Completion)>,
    /// The error of the end, which is delayed, too.
    ended: Option<Error>,
}

impl FaultyQueue {
    fn disturb(&self, completion: Completion) -> Completion {
        // Flushed requests are not counted.
        if matches!(completion, Completion::Flushed { .. }) {
            return completion;
        }
        let dropped = self.faults.dropped.load(Ordering::Relaxed);
        if self.faults.completion.strikes() && !dropped {
            self.faults.dropped.store(true, Ordering::Relaxed);
            self.pair.disconnect();
            if let Completion::Received {
                id,
                buf,
                invalidated: None,
                ..
            } = completion
            {
                let memory = Some(Memory::Sink(smallvec::smallvec![buf]));
                return Completion::Flushed { id, memory };
            }
            return completion;
        }
        match completion {
            Completion::Received {
                id,
                mut buf,
                len,
                invalidated,
            } => {
                let n = self.faults.corrupt.next.load(Ordering::Relaxed);
                if self.faults.corrupt.strikes() && len > 0 {
                    let random = self.faults.corrupt.random(n ^ 0x0b17);
                    buf[(random >> 8) as usize % len] ^= 1 << (random % 8);
                }
                Completion::Received {
                    id,
                    buf,
                    len,
                    invalidated,
                }
            }
            other => other,
        }
    }
}

impl CompletionQueue for FaultyQueue {
    fn poll(&mut self, out: &mut Vec<Completion>, wait: Wait) -> Result<()> {
        let mut fresh = Vec::new();
        loop {
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
                let completion = self.disturb(completion);
                if self.faults.delay.is_zero() {
                    out.push(completion);
                } else {
                    self.late.push_back((now + self.faults.delay, completion));
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
            let gave = out.len() > before || self.faults.delay.is_zero();
            let late = matches!(wait, Wait::Until(at) if at <= now);
            if gave || woken || late || wait == Wait::No {
                return Ok(());
            }
        }
    }
}

#[cfg(test)]
mod tests;
