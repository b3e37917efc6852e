//! Credits, registrations and reconnecting: the transport over a provider that ends connections at
//! any moment, and delivers completions in any permitted order.

use nfsrdma_rdma::contract::Segs;
use nfsrdma_rdma::{
    BufMut, Capabilities, Completion, CompletionQueue, ConnectParams, Connection, Error, Exposure,
    Handle, Invalidation, Listener, Memory, Pool, Protection, Provider, QueuePair, RemoteSegment,
    Result, Wait, WorkId, WorkRequest,
};
use nfsrdma_rpcrdma::options::{Program, TransportOptions};
use nfsrdma_rpcrdma::transport::{Engine, Payload, Request};
use nfsrdma_rpcrdma::{error, exec};
use nfsrdma_shuttle::{Condvar, Mutex};
use nfsrdma_xdr::codec::Encode;
use nfsrdma_xdr::rpcrdma::{Body, ChunkLists, Header};
use shuttle::rand::{Rng, thread_rng};
use shuttle::thread;
use std::collections::{HashMap, HashSet, VecDeque};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

const PROGRAM: Program = Program {
    number: 100_003,
    version: 3,
    procedures: &[],
    side_procedures: &[],
};
const CREDITS: u32 = 3;
const BULK: usize = 8192;

fn somewhere() -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, 20049))
}

/// The server, and all connections to it.
#[derive(Debug, Default)]
struct Net {
    state: Mutex<NetState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct NetState {
    /// The calls that arrived, each with its connection.
    calls: VecDeque<(Arc<Wire>, Vec<u8>)>,
    /// The RPC message of each XID: a retransmission must have the same bytes.
    messages: HashMap<u32, Vec<u8>>,
    /// Handles that are open on any connection, with the XID that offered them.
    open: HashMap<u32, u32>,
    handles: u32,
    /// The number of connections that the server is still to end.
    hangups: u32,
    stopped: bool,
}

/// One connection.
#[derive(Debug)]
struct Wire {
    net: Arc<Net>,
    capabilities: Capabilities,
    state: Mutex<WireState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct WireState {
    receives: VecDeque<BufMut>,
    done: VecDeque<Completion>,
    /// The XIDs that arrived on this connection.
    seen: HashSet<u32>,
    in_flight: u32,
    /// The largest grant, which is 1 before the first reply.
    granted: u32,
    ended: bool,
    woken: bool,
}

impl Wire {
    fn end(&self) {
        let mut state = self.state.lock();
        if !state.ended {
            state.ended = true;
            let flushed = std::mem::take(&mut state.receives);
            state
                .done
                .extend(flushed.into_iter().map(|buf| Completion::Flushed {
                    id: WorkId(0),
                    memory: Some(Memory::Sink(Segs::from_iter([buf]))),
                }));
        }
        drop(state);
        self.changed.notify_all();
    }

    /// Delivers a message to the requester, which must have a Receive for it.
    fn deliver(&self, message: &[u8], granted: u32) {
        let mut state = self.state.lock();
        if state.ended {
            return;
        }
        let mut buf = state.receives.pop_front().expect("a Receive for the reply");
        buf[..message.len()].copy_from_slice(message);
        state.in_flight -= 1;
        state.granted = state.granted.max(granted.clamp(1, CREDITS));
        state.done.push_back(Completion::Received {
            id: WorkId(0),
            buf,
            len: message.len(),
            invalidated: None,
        });
        drop(state);
        self.changed.notify_all();
    }
}

/// The posting half.
struct Pair(Arc<Wire>);

impl QueuePair for Pair {
    fn capabilities(&self) -> &Capabilities {
        &self.0.capabilities
    }

    fn local_addr(&self) -> SocketAddr {
        somewhere()
    }

    fn peer_addr(&self) -> SocketAddr {
        somewhere()
    }

    fn post_receive(&self, id: WorkId, buf: BufMut) -> Result<()> {
        let mut state = self.0.state.lock();
        if state.ended {
            let memory = Some(Memory::Sink(Segs::from_iter([buf])));
            state.done.push_back(Completion::Flushed { id, memory });
        } else {
            state.receives.push_back(buf);
        }
        Ok(())
    }

    fn post(&self, batch: &mut Vec<WorkRequest>) -> Result<()> {
        for request in batch.drain(..) {
            let WorkRequest::Send { data, .. } = request else {
                panic!("a requester only sends");
            };
            let bytes: Vec<u8> = data.iter().flat_map(|buf| buf.to_vec()).collect();
            let Ok((header, start)) = Header::parse(&bytes) else {
                panic!("a call without a header");
            };
            let mut state = self.0.state.lock();
            if state.ended {
                continue;
            }
            assert!(state.seen.insert(header.xid), "sent twice on a connection");
            state.in_flight += 1;
            assert!(state.in_flight <= state.granted.max(1), "beyond the grant");
            assert!(
                state.receives.len() >= state.in_flight as usize,
                "a reply has no Receive"
            );
            // In one step, because the handles may go once the connection ends.
            let mut net = self.0.net.state.lock();
            let message = bytes[start..].to_vec();
            let first = net.messages.entry(header.xid).or_insert(message.clone());
            assert_eq!(*first, message, "a call sent again is another");
            let chunks = header.chunks().expect("a call has chunk lists");
            let reads = chunks.reads.iter().map(|read| read.target.handle);
            let lists = chunks.writes.iter().chain(&chunks.reply);
            let writes = lists.flat_map(|list| list.segments.iter().map(|s| s.handle));
            let offered: Vec<u32> = reads.chain(writes).collect();
            for handle in offered {
                let owner = net.open.get_mut(&handle).expect("a handle that is open");
                *owner = header.xid;
            }
            net.calls.push_back((self.0.clone(), bytes));
            drop(net);
            self.0.net.changed.notify_all();
        }
        Ok(())
    }

    fn expose(&self, memory: Memory) -> std::result::Result<Exposure, (Error, Memory)> {
        if self.0.state.lock().ended {
            return Err((Error::LinkLost("ended".into()), memory));
        }
        let mut net = self.0.net.state.lock();
        net.handles += 1;
        let handle = net.handles;
        net.open.insert(handle, 0);
        let segment = RemoteSegment {
            handle: Handle(handle),
            length: memory.len() as u32,
            offset: 0,
        };
        Ok(Exposure::new(Segs::from_iter([segment]), memory))
    }

    fn invalidate(&self, id: WorkId, exposure: Exposure) -> Invalidation {
        let handle = exposure.segments()[0].handle.0;
        let owner = self.0.net.state.lock().open.remove(&handle);
        assert!(owner.is_some(), "invalidated twice");
        // SAFETY: only the requester ever accesses this memory.
        let memory = unsafe { exposure.into_memory() };
        if thread_rng().gen_bool(0.5) {
            return Invalidation::Done(memory);
        }
        let mut state = self.0.state.lock();
        let completion = match state.ended {
            false => Completion::Invalidated { id, memory },
            true => Completion::Flushed {
                id,
                memory: Some(memory),
            },
        };
        state.done.push_back(completion);
        drop(state);
        self.0.changed.notify_all();
        Invalidation::Posted
    }

    fn wake(&self) {
        self.0.state.lock().woken = true;
        self.0.changed.notify_all();
    }

    fn disconnect(&self) {
        self.0.end();
    }
}

struct Completions(Arc<Wire>);

impl CompletionQueue for Completions {
    fn poll(&mut self, out: &mut Vec<Completion>, wait: Wait) -> Result<()> {
        let mut state = self.0.state.lock();
        loop {
            if !state.done.is_empty() {
                // Some of them: the rest is for the next poll.
                let all = state.ended || thread_rng().gen_bool(0.5);
                let count = if all { state.done.len() } else { 1 };
                out.extend(state.done.drain(..count));
                if !state.ended {
                    return Ok(());
                }
            }
            if state.ended {
                return Err(Error::LinkLost("the peer hung up".into()));
            }
            if std::mem::take(&mut state.woken) || wait == Wait::No {
                return Ok(());
            }
            self.0.changed.wait(&mut state);
        }
    }
}

impl Drop for Completions {
    fn drop(&mut self) {
        self.0.end();
        self.0.state.lock().done.clear();
    }
}

#[derive(Debug)]
struct Wires(Arc<Net>);

impl Provider for Wires {
    fn name(&self) -> &'static str {
        "model"
    }

    fn connect(&self, _: SocketAddr, _: &ConnectParams) -> Result<Connection> {
        thread::yield_now();
        let wire = Arc::new(Wire {
            net: self.0.clone(),
            capabilities: Capabilities {
                scatter_handle: true,
                remote_invalidate: false,
                protection: Protection::Handle,
                max_message: 1 << 16,
                max_reads_out: 0,
                max_reads_in: 1,
                max_segments: 16,
                description: String::new(),
            },
            state: Mutex::default(),
            changed: Condvar::new(),
        });
        Ok(Connection {
            queue_pair: Arc::new(Pair(wire.clone())),
            completions: Box::new(Completions(wire)),
            peer_private_data: Vec::new(),
            greeting: None,
        })
    }

    fn listen(&self, _: SocketAddr) -> Result<Box<dyn Listener>> {
        Err(Error::Misuse("a model has no listeners"))
    }
}

/// The server's thread: answers, or hangs up before or after that.
fn serve(net: &Net) {
    loop {
        let mut state = net.state.lock();
        let (wire, call) = loop {
            if state.stopped {
                return;
            }
            let waiting = state.calls.len();
            if waiting > 0 {
                let which = thread_rng().gen_range(0..waiting);
                match state.calls.remove(which) {
                    Some(call) => break call,
                    None => continue,
                }
            }
            net.changed.wait(&mut state);
        };
        let hangup = state.hangups > 0 && thread_rng().gen_bool(0.4);
        state.hangups -= u32::from(hangup);
        drop(state);
        if hangup && thread_rng().gen_bool(0.5) {
            wire.end();
            continue;
        }
        let Ok((header, _)) = Header::parse(&call) else {
            continue;
        };
        let writes = header.chunks().map(|chunks| chunks.writes.clone());
        let lists = ChunkLists {
            writes: writes.unwrap_or_default(),
            ..ChunkLists::default()
        };
        let granted = thread_rng().gen_range(0..6);
        let mut reply = Header::new(header.xid, granted, Body::Msg(lists)).to_xdr();
        reply.extend(header.xid.to_be_bytes());
        reply.extend(1u32.to_be_bytes());
        wire.deliver(&reply, granted);
        if hangup {
            wire.end();
        }
    }
}

/// A running engine, its server, and what has to be left at the end.
struct World {
    net: Arc<Net>,
    server: thread::JoinHandle<()>,
    engine: Arc<Engine>,
    pool: Pool,
}

impl World {
    fn new(hangups: u32) -> World {
        let net = Arc::new(Net::default());
        net.state.lock().hangups = hangups;
        let serving = net.clone();
        let server = thread::spawn(move || serve(&serving));
        let options = TransportOptions {
            credits: CREDITS,
            timeo: Duration::from_secs(3600),
            ..TransportOptions::default()
        };
        let pool = match Pool::new(4 << 20) {
            Ok(pool) => pool,
            Err(error) => panic!("{error}"),
        };
        let provider = Arc::new(Wires(net.clone()));
        let engine = Engine::connect(
            provider,
            somewhere(),
            "server",
            PROGRAM,
            &options,
            pool.clone(),
        );
        let engine = match engine {
            Ok(engine) => engine,
            Err(error) => panic!("{error}"),
        };
        World {
            net,
            server,
            engine,
            pool,
        }
    }

    /// Ends everything; all memory is in the pool again.
    fn end(self) {
        self.engine.shut_down();
        drop(self.engine);
        while self.pool.free_bytes() < self.pool.capacity() {
            thread::yield_now();
        }
        let mut state = self.net.state.lock();
        assert!(state.open.is_empty(), "a registration that nobody ended");
        state.stopped = true;
        drop(state);
        self.net.changed.notify_all();
        assert!(self.server.join().is_ok());
    }
}

/// One call of a random kind.
fn request(pool: &Pool) -> Request {
    let bulk = || pool.alloc(BULK).expect("the pool is large enough");
    let payload = match thread_rng().gen_range(0..3) {
        0 => Payload::None,
        1 => Payload::Source(Segs::from_iter([bulk().freeze()])),
        _ => Payload::Sink(Segs::from_iter([bulk()])),
    };
    let max_ddp_result = match &payload {
        Payload::Sink(_) => BULK,
        Payload::None | Payload::Source(_) => 0,
    };
    Request {
        procedure: 0,
        max_results: 64,
        max_ddp_result,
        payload,
    }
}

fn call(engine: &Engine, net: &Net, pool: &Pool) -> error::Result<()> {
    let request = request(pool);
    let sink = matches!(request.payload, Payload::Sink(_));
    let mut sent = 0;
    let reply = exec::block_on(engine.call(request, |xid, out| {
        sent = xid;
        out.u32(xid);
        out.u32(0);
        out.u64(u64::from(xid) * 3);
    }))?;
    assert_eq!(reply.xid, sent, "the reply to another call");
    let open = net.state.lock().open.values().any(|xid| *xid == sent);
    assert!(!open, "answered, and its memory is still open");
    assert_eq!(reply.placed, sink.then_some(BULK as u32));
    let back = reply.payload.into_sink();
    assert_eq!(back.len(), usize::from(sink), "the caller's buffer is gone");
    Ok(())
}

/// Every call gets its reply, whatever connections end meanwhile: sent at most once on each,
/// within the credits, and with all its registrations over before the caller goes on.
pub fn calls_survive_lost_connections() {
    // Two make a call suspected, and sent alone. A third over the same call would put it off
    // for a time, and the scheduler knows no time.
    let world = World::new(2);
    let callers: Vec<_> = (0..3)
        .map(|_| {
            let (engine, net) = (world.engine.clone(), world.net.clone());
            let pool = world.pool.clone();
            thread::spawn(move || {
                for _ in 0..2 {
                    if let Err(error) = call(&engine, &net, &pool) {
                        panic!("a call failed: {error}");
                    }
                }
            })
        })
        .collect();
    for caller in callers {
        assert!(caller.join().is_ok());
    }
    world.end();
}

/// Callers go away, or are freed by the shutdown; nothing of theirs stays.
pub fn shutdown_frees_everything() {
    let world = World::new(1);
    let callers: Vec<_> = (0..3)
        .map(|number| {
            let (engine, net) = (world.engine.clone(), world.net.clone());
            let pool = world.pool.clone();
            thread::spawn(move || {
                for _ in 0..2 {
                    if number == 0 {
                        // Abandoned at once.
                        drop(engine.call(request(&pool), |xid, out| {
                            out.u32(xid);
                            out.u32(0);
                        }));
                        continue;
                    }
                    match call(&engine, &net, &pool) {
                        Ok(()) | Err(error::Error::Cancelled) => {}
                        Err(error) => panic!("a call failed: {error}"),
                    }
                }
            })
        })
        .collect();
    thread::yield_now();
    world.engine.shut_down();
    for caller in callers {
        assert!(caller.join().is_ok());
    }
    world.end();
}
