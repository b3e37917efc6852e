//! RDMA with libibverbs and librdmacm: InfiniBand, RoCE and iWARP cards, and the kernel's software
//! devices rdma_rxe and siw.
//!
//! Each connection has a reliable queue pair, a protection domain and a completion queue. The
//! buffer pool is registered once for local use. Memory for the peer is opened for one request by a
//! type 2 memory window, or by a registration if the device has no windows or is rdma_rxe.
//! Connection events are handled by the thread that polls for completions, when it sleeps.

mod cm;
mod device_fds;
mod error;
mod pair;
mod poll;
mod sys;
mod wait;
mod work;
mod wr;

use crate::cm::{Ask, Channel, Id};
pub use crate::error::NoWay;
use crate::error::local;
use crate::pair::{Core, Poster};
use crate::poll::Poller;
use crate::sys::{Depths, Device, Domain, Pair, Queue, Region, Remote};
use crate::wait::readable;
use crate::work::{Sizes, Work};
use nfsrdma_rdma::{
    Capabilities, ConnectParams, Connection, Error, EventFd, Handshakes, Incoming, Instant,
    Listener, PRIVATE_DATA_MAX, Protection, Provider, Result,
};
use parking_lot::Mutex;
use std::fmt;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// Gather elements of one request. No caller uses more; a device that has fewer says so.
const SGE: usize = 16;
/// Largest number of buffers in one exposure.
const SEGMENTS: usize = 256;

/// How to protect memory against the peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Choice {
    /// Memory windows if the device has them, else a registration for each request. A registration
    /// also on rdma_rxe, which does not check the bounds of its windows.
    #[default]
    Best,
    /// Memory windows; connecting fails if the device has none.
    Window,
    /// A registration for each request.
    Registration,
}

/// The verbs provider.
#[derive(Debug, Clone, Default)]
pub struct Verbs {
    choice: Choice,
    handshakes: Arc<Handshakes>,
}

impl Verbs {
    /// A provider with the best protection that the device has.
    pub fn new() -> Self {
        Self::default()
    }

    /// A provider with this protection.
    pub fn with_protection(choice: Choice) -> Self {
        Verbs {
            choice,
            handshakes: Arc::default(),
        }
    }

    /// The name of the device that reaches `peer`, without connecting.
    pub fn reaches(
        &self,
        peer: SocketAddr,
        timeout: Duration,
    ) -> std::result::Result<String, NoWay> {
        let id = Channel::new().and_then(|channel| Id::new(&channel));
        let id = id.map_err(NoWay::unusable)?;
        id.resolve(peer, None, Instant::now() + timeout)
            .map_err(|error| NoWay::unreachable(peer, error))?;
        let device = Device::of(&id).map_err(NoWay::unusable)?;
        Ok(device.name)
    }

    /// Whether to use memory windows, and the protection of a connection.
    fn protection(&self, device: &Device) -> Result<(bool, Protection)> {
        let windows = match self.choice {
            Choice::Best => device.windows > 0 && !device.soft_roce,
            Choice::Window if device.windows == 0 => {
                return Err(Error::local(
                    format!(
                        "{} has no type 2 memory windows; let it choose",
                        device.name
                    ),
                    std::io::ErrorKind::Unsupported.into(),
                ));
            }
            Choice::Window => true,
            Choice::Registration => false,
        };
        let protection = match windows {
            true => Protection::Window,
            false => Protection::Registration,
        };
        Ok((windows, protection))
    }

    /// Makes everything that a connection needs on this side, including posted Receives.
    fn prepare(&self, id: Arc<Id>, params: &ConnectParams, most: Reads) -> Result<Draft> {
        let receives = params.take_receives()?;
        let device = Device::of(&id)?;
        let domain = Domain::new(id.clone())?;
        let (windows, protection) = self.protection(&device)?;
        let (base, capacity) = (params.pool.base().as_ptr(), params.pool.capacity());
        params.pool.keep_resident();
        // SAFETY: the pool's mapping lives as long as the Core, which holds the pool and drops the
        // region first; its bytes are shared by the rules of Buf and BufMut.
        let arena = unsafe { Region::register(&domain, base, capacity, Remote::Nothing, windows) };
        let arena = arena.map_err(|error| {
            let what = format!("cannot register the buffer pool of {capacity} bytes for RDMA");
            local(&what, error)
        })?;
        // Room for a binding and an invalidation with each request, and for requests of several
        // parts; further requests wait in the backlog.
        let slots = (4 * params.send_depth + 16).min(device.max_qp_wr).max(2);
        let receive_slots = params.recv_depth.max(1);
        if receive_slots > device.max_qp_wr {
            return Err(Error::Misuse("more Receives than the RDMA device holds"));
        }
        let sge = SGE.min(device.max_sge).max(1);
        let entries = (slots + receive_slots + 1).min(device.max_cqe.max(1));
        let queue = Arc::new(Queue::new(id.clone(), &device, entries)?);
        let depths = Depths {
            send: slots,
            receive: receive_slots,
            sge,
        };
        let pair = Pair::new(&domain, &queue, depths)?;
        let sizes = Sizes {
            slots,
            signal_every: (params.send_depth / 2).clamp(1, 16),
            receives: receive_slots,
        };
        let event = EventFd::new()
            .map_err(|error| Error::local("no descriptor left for waking a thread", error))?;
        let reads = Reads {
            out: params.reads_out.min(device.max_reads_out).min(most.out),
            into: params.reads_in.min(device.max_reads_in).min(most.into),
        };
        let mut draft = Draft {
            core: Core {
                work: Mutex::new(Work::new(pair, sizes)),
                queue,
                arena,
                domain,
                id,
                pool: params.pool.clone(),
                capabilities: Capabilities {
                    scatter_handle: false,
                    remote_invalidate: windows,
                    protection,
                    max_message: device.max_message,
                    max_reads_out: reads.out,
                    max_reads_in: reads.into,
                    max_segments: SEGMENTS,
                    description: String::new(),
                },
                device,
                sge,
                send_depth: params.send_depth,
                local: UNKNOWN,
                peer: UNKNOWN,
                reason: Mutex::new(None),
                event,
                woken: AtomicBool::new(false),
            },
            reads,
        };
        for (id, mut buf) in receives {
            let sge = wr::Sge {
                at: buf.as_mut_ptr() as u64,
                len: buf.len() as u32,
                lkey: draft.core.arena.lkey(),
            };
            // SAFETY: the buffer belongs to the pool, whose region outlives the queue pair.
            let accepted = unsafe { draft.core.work.get_mut().receive(id, buf, sge) };
            accepted.ok_or(Error::QueueFull)?;
        }
        Ok(draft)
    }
}

const UNKNOWN: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED), 0);

/// Numbers of RDMA Reads at once.
#[derive(Debug, Clone, Copy)]
struct Reads {
    out: u32,
    into: u32,
}

/// A connection that is not yet established.
struct Draft {
    core: Core,
    reads: Reads,
}

impl Draft {
    fn finish(mut self, reads: Reads, peer_private_data: Vec<u8>) -> Connection {
        let core = &mut self.core;
        core.local = core.id.local_addr().unwrap_or(UNKNOWN);
        core.peer = core.id.peer_addr().unwrap_or(UNKNOWN);
        let capabilities = &mut core.capabilities;
        capabilities.max_reads_out = reads.out;
        capabilities.max_reads_in = reads.into;
        capabilities.description = format!(
            "{} {} port {}, reads in {} out {}",
            if core.device.iwarp {
                "iWARP"
            } else {
                "InfiniBand or RoCE"
            },
            core.device.name,
            core.id.port(),
            reads.into,
            reads.out,
        );
        let core = Arc::new(self.core);
        Connection {
            queue_pair: Arc::new(Poster(core.clone())),
            completions: Box::new(Poller::new(core)),
            peer_private_data,
            greeting: None,
        }
    }
}

impl Provider for Verbs {
    fn name(&self) -> &'static str {
        "verbs"
    }

    fn connect(&self, peer: SocketAddr, params: &ConnectParams) -> Result<Connection> {
        params.check()?;
        let id = Arc::new(Id::new(&Channel::new()?)?);
        id.resolve(peer, params.local, Instant::now() + params.timeout)?;
        let most = Reads {
            out: u32::MAX,
            into: u32::MAX,
        };
        let draft = self.prepare(id.clone(), params, most)?;
        let ask = Ask {
            private_data: &params.private_data,
            reads_in: draft.reads.into,
            reads_out: draft.reads.out,
        };
        let under_way = self.handshakes.begin();
        // The time limit is for the peer; locking a large pool before takes seconds.
        let answer = id.connect(ask, Instant::now() + params.timeout);
        drop(under_way);
        let answer = match answer {
            Ok(answer) => answer,
            Err(error) => {
                // Ending an unanswered iWARP connection takes as long as the transport's own
                // time-out (10 s on siw). The caller need not wait for that, unless no thread can be
                // made: then the end of the closure ends the connection.
                if draft.core.device.iwarp && matches!(error, Error::TimedOut(_)) {
                    let _ = std::thread::Builder::new().spawn(move || drop((draft, id)));
                }
                return Err(error);
            }
        };
        // On InfiniBand these are the peer's limits for us. iWARP providers return what was
        // negotiated, with the names exchanged.
        let (out, into) = match draft.core.device.iwarp {
            true => (answer.reads_in, answer.reads_out),
            false => (answer.reads_out, answer.reads_in),
        };
        let reads = Reads {
            out: draft.reads.out.min(out),
            into: draft.reads.into.min(into),
        };
        Ok(draft.finish(reads, answer.private_data))
    }

    fn await_answers(&self) -> bool {
        self.handshakes.wait()
    }

    fn listen(&self, at: SocketAddr) -> Result<Box<dyn Listener>> {
        let channel = Channel::new()?;
        let id = Id::new(&channel)?;
        id.listen(at)?;
        let local = id.local_addr().unwrap_or(at);
        let closed = EventFd::new()
            .map_err(|error| Error::local("no descriptor left for waking a thread", error))?;
        Ok(Box::new(VerbsListener {
            provider: self.clone(),
            id: Mutex::new(Some(id)),
            channel,
            local,
            closed,
        }))
    }
}

struct VerbsListener {
    provider: Verbs,
    /// Holds the address, until the device is removed.
    id: Mutex<Option<Id>>,
    channel: Arc<Channel>,
    local: SocketAddr,
    /// Notified once, and never cleared.
    closed: EventFd,
}

impl fmt::Debug for VerbsListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "VerbsListener({})", self.local)
    }
}

impl Listener for VerbsListener {
    fn local_addr(&self) -> SocketAddr {
        self.local
    }

    fn accept(&self) -> Result<Box<dyn Incoming>> {
        loop {
            let fds = [self.closed.as_fd(), self.channel.as_fd()];
            let [closed, _] = readable(fds, None)
                .map_err(|error| Error::LinkLost(format!("cannot wait: {error}")))?;
            if closed {
                return Err(Error::LinkLost("the listener was closed".to_owned()));
            }
            let event = self
                .channel
                .next()
                .map_err(|error| local("cannot listen by RDMA any more", error))?;
            match event {
                Some(event) if event.is_request() => {
                    let id = match Id::of_request(&event, &self.channel) {
                        Ok(id) => Arc::new(id),
                        // The peer has gone, or there is no descriptor: a later one may succeed.
                        Err(error) => {
                            tracing::warn!(%error, "a connection request is dropped");
                            continue;
                        }
                    };
                    return Ok(Box::new(VerbsIncoming {
                        provider: self.provider.clone(),
                        reads: Reads {
                            out: event.reads_out,
                            into: event.reads_in,
                        },
                        private_data: event.private_data,
                        id: Some(id),
                    }));
                }
                Some(event) if event.is_removal() => {
                    // The kernel waits until nobody has the device open.
                    drop(self.id.lock().take());
                    return Err(Error::LinkLost("the RDMA device was removed".to_owned()));
                }
                // Another thread took the event, or it belongs to a request that is not accepted
                // yet.
                _ => {}
            }
        }
    }

    fn close(&self) {
        self.closed.notify();
    }
}

struct VerbsIncoming {
    provider: Verbs,
    reads: Reads,
    private_data: Vec<u8>,
    /// `None` after it was answered.
    id: Option<Arc<Id>>,
}

impl Incoming for VerbsIncoming {
    fn peer_addr(&self) -> SocketAddr {
        let addr = self.id.as_ref().and_then(|id| id.peer_addr());
        addr.unwrap_or(UNKNOWN)
    }

    fn request(&mut self, _timeout: Duration) -> Result<Vec<u8>> {
        Ok(self.private_data.clone())
    }

    fn accept(mut self: Box<Self>, params: &ConnectParams) -> Result<Connection> {
        let id = self
            .id
            .clone()
            .ok_or(Error::Misuse("a request is answered once"))?;
        // After an error `self` is dropped, which rejects.
        let draft = self.provider.prepare(id.clone(), params, self.reads)?;
        let reads = draft.reads;
        self.id = None;
        let ask = Ask {
            private_data: &params.private_data,
            reads_in: reads.into,
            reads_out: reads.out,
        };
        id.accept(ask, Instant::now() + params.timeout)?;
        Ok(draft.finish(reads, std::mem::take(&mut self.private_data)))
    }

    fn reject(mut self: Box<Self>, private_data: &[u8]) {
        let len = private_data.len().min(PRIVATE_DATA_MAX);
        if let Some(id) = self.id.take() {
            id.reject(&private_data[..len]);
        }
    }
}

impl Drop for VerbsIncoming {
    fn drop(&mut self) {
        if let Some(id) = self.id.take() {
            id.reject(&[]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nfsrdma_rdma::Pool;

    /// On a machine without RDMA, each operation reports that and names the remedy. (With a device,
    /// the test is the conformance suite: `examples/verbs-conformance.rs`.)
    #[test]
    fn without_a_device_every_way_in_names_the_remedy() {
        if std::path::Path::new("/dev/infiniband/rdma_cm").exists() {
            println!("skipped: this machine has RDMA");
            return;
        }
        let provider = Verbs::new();
        let peer = SocketAddr::from(([127, 0, 0, 1], 20049));
        let params = ConnectParams {
            pool: Pool::new(1).unwrap(),
            private_data: Vec::new(),
            send_depth: 4,
            recv_depth: 4,
            reads_out: 0,
            reads_in: 4,
            receive_buffers: 4,
            receive_size: 4096,
            timeout: Duration::from_secs(5),
            local: None,
        };
        let errors = [
            provider.connect(peer, &params).err(),
            provider.listen(peer).err(),
            provider
                .reaches(peer, params.timeout)
                .map_err(|no| {
                    assert!(no.reason().contains("RDMA") || no.reason().contains("/dev/"));
                    no.error
                })
                .err(),
        ];
        for error in errors {
            assert!(matches!(error, Some(Error::Local { .. })), "{error:?}");
            let text = error.map(|error| error.to_string()).unwrap_or_default();
            assert!(text.contains("transport=iwarp"), "{text}");
        }
        assert_eq!(params.pool.free_bytes(), params.pool.capacity());
    }
}
