//! The transport to one server: its connection slots, one thread for time-outs, and the way in for
//! calls. It survives its connections, as Linux's `rpc_xprt` does.
//!
//! [`Engine::call`] assigns the XID, encodes the call, picks the slot that sends it, and returns a
//! future, without waiting for the server. The call is encoded once (but for those under RPCSEC_GSS,
//! [`super::secured`]): each retransmission has the same bytes and the same XID, so that the server's duplicate request cache recognises it. If none
//! of the registered buffers kept for this is free, the bytes stay in ordinary memory until the
//! call is sent. An event loop that polls a connection prefers that one for its calls, so that the
//! thread that sends a call also receives its reply ([`super::event_loop`]).

use super::call::{CallFuture, Payload, plain_header};
use super::calls::{Calls, New};
use super::counters::Procedures;
use super::event_loop::Driver;
use super::link::Link;
use super::marshal::{Marshaller, encoded};
use super::memory::{Blocks, registered_if_kept};
use super::paths::Paths;
use super::polling::home;
use super::secured::Secured;
use super::session::{ConnectError, Established};
use super::shared::{Logs, Shared};
use super::timer::{Sleep, Timer};
use crate::exec;
use crate::options::{Path, Program, TransportOptions};
use crate::protocol::{Shape, Thresholds};
use crate::rpc::{RetryPolicy, Xids};
use crate::security::Context;
use crate::stats::{Stats, Waits};
use crate::sync::thread;
use crate::tap::{Tap, caller};
use nfsrdma_rdma::buf::MAX_BLOCK;
use nfsrdma_rdma::{Capabilities, Instant, Pool, Provider};
use nfsrdma_xdr::codec::Encoder;
use nfsrdma_xdr::rpc::{Auth, CallTemplate};
use nfsrdma_xdr::rpcrdma::MIN_HEADER_LEN;
use nfsrdma_xdr::rpcsec_gss::Procedure as SecuredProcedure;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Calls with more payload than this count as bulk, in bytes.
const BULK: u64 = 16 * 1024;
/// Size of small registered buffers, in bytes.
const SMALL: usize = 4096;

/// A call to make.
#[derive(Debug)]
pub struct Request {
    /// Which counter of [`Stats`] the call belongs to: the number of a procedure of the transport's
    /// [`Program`]. The program's number of procedures, and any number that has no counter, stands
    /// for other programs; the numbers in between are those of `side_procedures`.
    pub procedure: usize,
    /// Largest encoded length of the results without the DDP-eligible one, in bytes.
    pub max_results: usize,
    /// Largest length of the DDP-eligible result, in bytes.
    pub max_ddp_result: usize,
    pub payload: Payload,
}

/// The properties of a connection.
#[derive(Debug, Clone)]
pub struct SessionInfo {
    pub thresholds: Thresholds,
    pub capabilities: Capabilities,
    /// Credits the server grants at this moment.
    pub credits: u32,
}

/// The transport to one server, with its `nconnect` connection slots.
pub struct Engine {
    shared: Arc<Shared>,
    links: Vec<Arc<Link>>,
    timer: Arc<Timer>,
    sequence: AtomicU64,
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine")
            .field("server", &self.shared.server)
            .field("peer", &self.shared.peer)
            .field("connections", &self.links.len())
            .finish_non_exhaustive()
    }
}

/// The path of each connection slot.
fn taken_in_turn(peer: SocketAddr, options: &TransportOptions) -> Vec<Path> {
    let only = [Path { peer, local: None }];
    let all = match &options.paths[..] {
        [] => &only,
        paths => paths,
    };
    let slots = options.nconnect.max(1) as usize;
    all.iter().copied().cycle().take(slots).collect()
}

impl Engine {
    /// Connects to `peer`, which serves `program`, or by the paths of the options, and blocks until
    /// the first connection is up. The other connections are made in the background. `server` is the name for the log.
    pub fn connect(
        provider: Arc<dyn Provider>,
        peer: SocketAddr,
        server: &str,
        program: Program,
        options: &TransportOptions,
        pool: Pool,
    ) -> Result<Arc<Self>, ConnectError> {
        let engine = Self::unconnected(provider, peer, server, program, options, pool)?;
        let (first, established) = engine.first()?;
        engine.links[first].install(&established);
        engine.begin(Some((first, established)))
    }

    /// The first connection, by the first path that lives; its slot. The error is that of the first
    /// path.
    fn first(&self) -> Result<(usize, Established), ConnectError> {
        let error = match self.links[0].establish() {
            Ok(established) => return Ok((0, established)),
            Err(error) => error,
        };
        for (slot, link) in self.links.iter().enumerate() {
            let tried = self.links[..slot].iter().any(|of| of.path == link.path);
            if !tried && let Ok(established) = link.establish() {
                return Ok((slot, established));
            }
        }
        Err(error)
    }

    /// As [`Engine::connect`], but every connection is made in the background, as often as it takes.
    /// Calls wait for it as they do when a connection is lost.
    pub fn resume(
        provider: Arc<dyn Provider>,
        peer: SocketAddr,
        server: &str,
        program: Program,
        options: &TransportOptions,
        pool: Pool,
    ) -> Result<Arc<Self>, ConnectError> {
        Self::unconnected(provider, peer, server, program, options, pool)?.begin(None)
    }

    fn unconnected(
        provider: Arc<dyn Provider>,
        peer: SocketAddr,
        server: &str,
        program: Program,
        options: &TransportOptions,
        pool: Pool,
    ) -> Result<Arc<Self>, ConnectError> {
        let calls = (options.credits * options.nconnect) as usize;
        let heads = Blocks::new(pool.clone(), SMALL, 2 * calls + 64);
        let headers = Blocks::new(pool.clone(), SMALL, calls + 16);
        let wrapped = Blocks::new(pool.clone(), MAX_BLOCK, 1);
        // Allocate these now: sending must not depend on what the page cache leaves over.
        for (blocks, number) in [(&heads, calls.min(256) + 8), (&headers, calls.min(256) + 8)] {
            let warm: Vec<_> = (0..number).map_while(|_| blocks.take()).collect();
            warm.into_iter().for_each(|buf| blocks.give(buf));
        }
        let mut zeros = pool.alloc(4).ok_or_else(|| {
            nfsrdma_rdma::Error::local(
                "the buffer pool is empty; ask for a larger cache",
                std::io::ErrorKind::OutOfMemory.into(),
            )
        })?;
        zeros.fill(0);
        let policy = RetryPolicy {
            timeo: options.timeo,
            retrans: options.retrans,
            recovery: options.recovery,
        };
        let paths = taken_in_turn(peer, options);
        let shared = Arc::new(Shared {
            provider,
            peer,
            server: server.to_owned(),
            program,
            marshaller: Marshaller {
                pool,
                heads,
                headers,
                wrapped,
                zeros: zeros.freeze(),
                style: options.write_chunk,
            },
            credits: options.credits.max(1),
            inline: options.inline,
            reads_in: options.reads_in,
            several_paths: paths[1..].iter().any(|path| *path != paths[0]),
            connect_timeout: options.connect_timeout,
            policy,
            calls: Calls::new(policy, calls),
            procedures: Procedures::new(&program),
            tap: Arc::default(),
            xids: Xids::new(),
            unresponsive: AtomicBool::new(false),
            late: AtomicU64::new(0),
            lost: AtomicU64::new(0),
            log: Logs::default(),
        });
        let links: Vec<_> = paths
            .into_iter()
            .enumerate()
            .map(|(slot, path)| Link::new(shared.clone(), slot, path))
            .collect();
        Ok(Arc::new(Engine {
            shared,
            links,
            timer: Arc::new(Timer::default()),
            sequence: AtomicU64::new(0),
        }))
    }

    /// Starts the threads.
    fn begin(
        self: Arc<Self>,
        first: Option<(usize, Established)>,
    ) -> Result<Arc<Self>, ConnectError> {
        match self.spawn_threads(first) {
            Ok(()) => Ok(self),
            Err(error) => {
                self.shut_down();
                Err(nfsrdma_rdma::Error::local("cannot start a thread", error).into())
            }
        }
    }

    fn spawn_threads(&self, mut first: Option<(usize, Established)>) -> std::io::Result<()> {
        for (index, link) in self.links.iter().enumerate() {
            let first = first.take_if(|(slot, _)| *slot == index);
            let first = first.map(|(_, established)| established);
            let (link, links) = (link.clone(), self.links.clone());
            thread::Builder::new()
                .name(format!("nfsrdma-link-{index}"))
                .spawn(move || link.run(first, &links))?;
        }
        let (timer, links, shared) = (self.timer.clone(), self.links.clone(), self.shared.clone());
        let period =
            (self.shared.policy.timeo / 8).clamp(Duration::from_millis(10), Duration::from_secs(1));
        thread::Builder::new()
            .name("nfsrdma-timer".to_owned())
            .spawn(move || {
                let taken: Vec<_> = links.iter().map(|link| link.path).collect();
                let mut paths = Paths::new(&taken, Instant::now());
                timer.run(period, |now| {
                    links.iter().for_each(|link| link.check_time(now));
                    if shared.several_paths {
                        let silent = paths.tick(now, links.iter().map(|link| link.seen()));
                        for (link, silent) in links.iter().zip(silent) {
                            link.path_is_silent(silent);
                        }
                        links.iter().for_each(|link| link.leave_if_down(&links));
                    }
                    shared.check_logs(now);
                });
            })?;
        Ok(())
    }

    /// Makes a call. `encode` writes the whole RPC message with the XID that it gets, except for
    /// the contents and padding of a source payload. The call is sent or queued when this returns;
    /// dropping the future abandons it.
    pub fn call(&self, request: Request, encode: impl FnOnce(u32, &mut Encoder)) -> CallFuture {
        let started = exec::now();
        let xid = self.shared.xids.take();
        let marshaller = &self.shared.marshaller;
        let encode = |to: &mut Encoder| {
            plain_header(xid, self.shared.credits, to);
            encode(xid, to);
        };
        // If no kept buffer is free, the connection registers the bytes when it sends the call.
        let (message, unregistered, len) = encoded(encode, |bytes| {
            let len = bytes.len() - MIN_HEADER_LEN;
            match registered_if_kept(&marshaller.heads, bytes) {
                Some(message) => (message, None, len),
                None => (marshaller.no_bytes(), Some(bytes.into()), len),
            }
        });
        let argument = match &request.payload {
            Payload::Source(_) => request.payload.len(),
            Payload::None | Payload::Sink(_) => 0,
        };
        self.begin_call(New {
            xid,
            pid: caller::current(),
            procedure: request.procedure,
            shape: Shape {
                head: len,
                argument,
                reducible: argument > 0,
                max_results: request.max_results,
                max_ddp_result: request.max_ddp_result,
            },
            message,
            unregistered,
            payload: request.payload,
            secured: None,
            started,
            sequence: self.sequence.fetch_add(1, Relaxed),
        })
    }

    /// Like [`Engine::call`], under RPCSEC_GSS with `context`. `encode` writes the message under
    /// AUTH_NONE.
    pub fn call_secured(
        &self,
        request: Request,
        context: &Arc<Context>,
        encode: impl FnOnce(u32, &mut Encoder),
    ) -> CallFuture {
        self.secured(request, context, SecuredProcedure::Data, encode)
    }

    /// Sets memory aside for the data of calls with privacy.
    pub fn prepare_for_privacy(&self) {
        let wrapped = &self.shared.marshaller.wrapped;
        if let Some(buf) = wrapped.take() {
            wrapped.give(buf);
        }
    }

    /// Tells the server to forget `context` (RFC 2203 section 5.4).
    pub fn destroy(&self, context: &Arc<Context>) -> CallFuture {
        let Program {
            number, version, ..
        } = self.shared.program;
        let template = CallTemplate::new(number, version, Auth::None);
        let request = Request {
            procedure: 0,
            max_results: 0,
            max_ddp_result: 0,
            payload: Payload::None,
        };
        self.secured(request, context, SecuredProcedure::Destroy, |xid, to| {
            template.encode(xid, 0, to);
        })
    }

    fn secured(
        &self,
        request: Request,
        context: &Arc<Context>,
        procedure: SecuredProcedure,
        encode: impl FnOnce(u32, &mut Encoder),
    ) -> CallFuture {
        let started = exec::now();
        let xid = self.shared.xids.take();
        let argument = match &request.payload {
            Payload::Source(_) => request.payload.len(),
            Payload::None | Payload::Sink(_) => 0,
        };
        let mut shape = Shape {
            head: 0,
            argument,
            reducible: argument > 0,
            max_results: request.max_results,
            max_ddp_result: request.max_ddp_result,
        };
        let encode = |to: &mut Encoder| encode(xid, to);
        let secured = encoded(encode, |bytes| {
            shape.head = bytes.len();
            Secured::new(context.clone(), procedure, bytes, &shape)
        });
        self.begin_call(New {
            xid,
            pid: caller::current(),
            procedure: request.procedure,
            shape,
            message: self.shared.marshaller.no_bytes(),
            unregistered: None,
            payload: request.payload,
            secured: Some(secured),
            started,
            sequence: self.sequence.fetch_add(1, Relaxed),
        })
    }

    /// Sends or queues a new call, which is large.
    #[inline(always)]
    fn begin_call(&self, new: New) -> CallFuture {
        let started = new.started;
        self.shared
            .procedures
            .get(new.procedure)
            .bytes_sent
            .fetch_add((new.shape.head + new.shape.argument) as u64, Relaxed);
        let (call, waiter) = self.shared.calls.begin(new);
        self.pick(call.shape.argument + call.shape.max_ddp_result)
            .submit(call, started);
        waiter
    }

    /// The connection for a call of `bytes` payload. On the thread of an event loop this is the
    /// loop's own, unless that is down or out of credits and another one is not, or unless the call
    /// is bulk and another connection has less payload under way. On other threads the first
    /// connection is reserved for small calls as long as there are others, so that they never wait
    /// behind bulk ones.
    fn pick(&self, bytes: usize) -> &Link {
        let links = &self.links;
        if let Some(own) = home().and_then(|slot| links.get(slot)) {
            let all = std::iter::once(own).chain(links);
            let mut able = all.filter(|link| link.has_room());
            return match bytes as u64 > BULK {
                // Of several equal connections the loop's own is chosen, because it is the first.
                true => able.min_by_key(|link| link.load.load(Relaxed)),
                false => able.next(),
            }
            .unwrap_or_else(|| self.busy_instead_of(own));
        }
        let only = links.len() == 1;
        if only || (bytes as u64 <= BULK && links[0].backlog() == (false, 0)) {
            return &links[0];
        }
        let load = |link: &Link| (link.backlog(), link.load.load(Relaxed));
        let best = links[1..].iter().min_by_key(|link| load(link));
        match best {
            Some(link) if !link.backlog().0 || links[0].backlog().0 => link,
            Some(_) | None => &links[0],
        }
    }

    /// `own`, unless it is down and others are not: a server may not accept as many connections, and
    /// then a call would wait for ever. Of those, the one with the shortest queue.
    fn busy_instead_of<'a>(&'a self, own: &'a Arc<Link>) -> &'a Arc<Link> {
        if !own.backlog().0 {
            return own;
        }
        Link::least_busy(&self.links).unwrap_or(own)
    }

    /// The connection slots, for event loops to poll.
    pub fn drivers(&self) -> Vec<Driver> {
        self.links.iter().cloned().map(Driver::new).collect()
    }

    /// Number of calls posted and not yet flushed ([`crate::exec::deferring`]).
    pub fn deferred(&self) -> u32 {
        self.links.iter().map(|link| link.deferred()).sum()
    }

    /// Flushes the deferred calls: they are sent now.
    pub fn kick(&self) {
        self.links.iter().for_each(|link| link.kick());
    }

    /// Whether no call is under way or waits to be sent.
    pub fn is_idle(&self) -> bool {
        self.links.iter().all(|link| link.is_idle())
    }

    /// How many connections ended so far.
    pub fn lost(&self) -> u64 {
        self.shared.lost.load(Relaxed)
    }

    /// A future that ends after `time`, or at shutdown if that is earlier.
    pub fn sleep(&self, time: Duration) -> Sleep {
        self.timer.sleep(time)
    }

    /// Whether [`Engine::shut_down`] was called.
    pub fn is_shut_down(&self) -> bool {
        self.timer.is_stopped()
    }

    /// The mount's `timeo`.
    pub fn timeo(&self) -> Duration {
        self.shared.policy.timeo
    }

    /// The properties of the first connection of those that are up.
    pub fn session(&self) -> Option<SessionInfo> {
        let of = |link: &Arc<Link>| {
            let session = link.session()?;
            Some(SessionInfo {
                thresholds: session.thresholds,
                capabilities: session.queue_pair.capabilities().clone(),
                credits: link.granted(),
            })
        };
        self.links.iter().find_map(of)
    }

    /// Credits that the server grants at this moment, over all connections.
    pub fn granted(&self) -> usize {
        self.links.iter().map(|link| link.granted() as usize).sum()
    }

    /// The pool that buffers are taken from.
    pub fn pool(&self) -> &Pool {
        &self.shared.marshaller.pool
    }

    /// The provider's name.
    pub fn provider(&self) -> &'static str {
        self.shared.provider.name()
    }

    /// Where the connections report what they do.
    pub fn tap(&self) -> &Arc<Tap> {
        &self.shared.tap
    }

    /// The calls that have waited long, on all connections.
    fn waits(&self) -> Waits {
        let now = Instant::now();
        let each = self.links.iter().map(|link| link.waits(now));
        each.fold(Waits::default(), Waits::and)
    }

    /// The server's address.
    pub fn peer(&self) -> SocketAddr {
        self.shared.peer
    }

    /// The addresses by which the server is reached: the mounted one, and those of the paths.
    pub fn addresses(&self) -> Vec<IpAddr> {
        let mut all = vec![self.shared.peer.ip()];
        for link in &self.links {
            let address = link.path.peer.ip();
            if !all.contains(&address) {
                all.push(address);
            }
        }
        all
    }

    /// The server's name in the log.
    pub fn server(&self) -> &str {
        &self.shared.server
    }

    /// The mount's major timeout.
    pub fn patience(&self) -> Duration {
        self.shared.policy.patience()
    }

    /// A snapshot of the counters.
    pub fn stats(&self) -> Stats {
        Stats {
            procedures: self.shared.procedures.snapshot(),
            connections: self.links.iter().map(|link| link.snapshot()).collect(),
            waits: self.waits(),
        }
    }

    /// Ends the connections and makes them anew, because the server may have forgotten them: `why`. Calls go on.
    pub fn connect_anew(&self, why: &'static str) {
        let sessions = self.links.iter().filter_map(|link| link.session());
        sessions.for_each(|session| session.end_here(why));
    }

    /// Ends the connections and the threads. Pending and later calls fail with
    /// [`Error::Cancelled`](crate::Error::Cancelled). Waits a moment for a peer that has not answered
    /// the request to connect, because the process may end next.
    pub fn shut_down(&self) {
        self.timer.stop();
        self.links.iter().for_each(|link| link.shut_down());
        let _ = self.shared.provider.await_answers();
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.shut_down();
    }
}
