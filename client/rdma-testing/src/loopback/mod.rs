//! RDMA inside one process, for tests: the whole contract without sockets or devices.
//!
//! A [`Loopback`] is a separate network, which its clones share. Properties in which devices differ
//! are [`Options`], so that a caller can be tested with each of them.

mod link;
mod options;
mod region;

pub use options::Options;

use link::Side;
use nfsrdma_rdma::{
    ConnectParams, Connection, Error, Incoming, Listener, PRIVATE_DATA_MAX, Provider, Result,
};
use parking_lot::{Condvar, Mutex};
use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The in-process provider.
#[derive(Clone, Default)]
pub struct Loopback {
    options: Options,
    network: Arc<Mutex<Network>>,
}

#[derive(Default)]
struct Network {
    listeners: HashMap<SocketAddr, Arc<Queue>>,
    /// Number of ports assigned so far to those that did not ask for a particular one.
    ports: u16,
}

/// First port that is assigned.
const EPHEMERAL: u16 = 32768;

impl Network {
    fn port(&mut self) -> u16 {
        let port = EPHEMERAL + self.ports;
        self.ports = (self.ports + 1) % (u16::MAX - EPHEMERAL);
        port
    }
}

/// The connection requests of one listener.
struct Queue {
    state: Mutex<(VecDeque<Request>, bool)>,
    something: Condvar,
}

/// A request on its way from the connecting to the accepting side.
struct Request {
    from: SocketAddr,
    params: ConnectParams,
    answer: Arc<Answer>,
}

struct Answer {
    state: Mutex<State>,
    something: Condvar,
}

enum State {
    /// The connecting side waits, and has posted its Receives.
    Waiting(Box<Side>),
    Answered(Result<Connection>),
    /// Nobody waits any more.
    Over,
}

impl Loopback {
    /// A new network with the default options.
    pub fn new() -> Self {
        Self::default()
    }

    /// A new network with other options.
    pub fn with_options(options: Options) -> Self {
        Loopback {
            options,
            ..Self::default()
        }
    }

    fn on_the_wire(&self, private_data: &[u8]) -> Vec<u8> {
        let mut data = private_data.to_vec();
        if self.options.pad_private_data && !data.is_empty() {
            data.resize(PRIVATE_DATA_MAX, 0);
        }
        data
    }
}

impl fmt::Debug for Loopback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Loopback")
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

impl Provider for Loopback {
    fn name(&self) -> &'static str {
        "loopback"
    }

    fn remote_invalidate(&self) -> bool {
        self.options.remote_invalidate
    }

    fn connect(&self, peer: SocketAddr, params: &ConnectParams) -> Result<Connection> {
        let deadline = Instant::now() + params.timeout;
        let side = Side::new(params)?;
        let (queue, from) = {
            let mut network = self.network.lock();
            let queue = network.listeners.get(&peer).cloned();
            let from = SocketAddr::new(params.local.unwrap_or(peer.ip()), network.port());
            (queue.ok_or(Error::Refused(Vec::new()))?, from)
        };
        let answer = Arc::new(Answer {
            state: Mutex::new(State::Waiting(Box::new(side))),
            something: Condvar::new(),
        });
        {
            let mut state = queue.state.lock();
            let (requests, closed) = &mut *state;
            if *closed {
                return Err(Error::Refused(Vec::new()));
            }
            requests.push_back(Request {
                from,
                params: params.clone(),
                answer: answer.clone(),
            });
        }
        queue.something.notify_one();
        let mut state = answer.state.lock();
        while let State::Waiting(_) = *state {
            if answer
                .something
                .wait_until(&mut state, deadline)
                .timed_out()
            {
                break;
            }
        }
        match std::mem::replace(&mut *state, State::Over) {
            State::Answered(outcome) => outcome,
            State::Waiting(_) | State::Over => Err(Error::TimedOut("connecting")),
        }
    }

    fn listen(&self, local: SocketAddr) -> Result<Box<dyn Listener>> {
        let mut network = self.network.lock();
        let mut addr = local;
        if local.port() == 0 {
            // Try each port once.
            for _ in EPHEMERAL..u16::MAX {
                addr.set_port(network.port());
                if !network.listeners.contains_key(&addr) {
                    break;
                }
            }
        }
        if network.listeners.contains_key(&addr) {
            return Err(Error::local(
                format!("cannot listen on {addr}; choose another port"),
                std::io::ErrorKind::AddrInUse.into(),
            ));
        }
        let queue = Arc::new(Queue {
            state: Mutex::default(),
            something: Condvar::new(),
        });
        network.listeners.insert(addr, queue.clone());
        Ok(Box::new(LoopbackListener {
            provider: self.clone(),
            addr,
            queue,
        }))
    }
}

struct LoopbackListener {
    provider: Loopback,
    addr: SocketAddr,
    queue: Arc<Queue>,
}

impl Listener for LoopbackListener {
    fn local_addr(&self) -> SocketAddr {
        self.addr
    }

    fn accept(&self) -> Result<Box<dyn Incoming>> {
        let mut state = self.queue.state.lock();
        loop {
            let (requests, closed) = &mut *state;
            if *closed {
                return Err(Error::LinkLost("the listener was closed".to_owned()));
            }
            if let Some(request) = requests.pop_front() {
                return Ok(Box::new(LoopbackIncoming {
                    provider: self.provider.clone(),
                    local: self.addr,
                    request,
                }));
            }
            self.queue.something.wait(&mut state);
        }
    }

    fn close(&self) {
        let requests = {
            let mut state = self.queue.state.lock();
            state.1 = true;
            std::mem::take(&mut state.0)
        };
        self.queue.something.notify_all();
        let mut network = self.provider.network.lock();
        if let Some(queue) = network.listeners.get(&self.addr)
            && Arc::ptr_eq(queue, &self.queue)
        {
            network.listeners.remove(&self.addr);
        }
        drop(network);
        for request in requests {
            request.answer.give(Err(Error::Refused(Vec::new())));
        }
    }
}

impl Drop for LoopbackListener {
    fn drop(&mut self) {
        self.close();
    }
}

impl Answer {
    /// Answers, unless it was answered before or nobody waits.
    fn give(&self, outcome: Result<Connection>) {
        let mut state = self.state.lock();
        if let State::Waiting(_) = *state {
            *state = State::Answered(outcome);
            self.something.notify_all();
        }
    }
}

struct LoopbackIncoming {
    provider: Loopback,
    local: SocketAddr,
    request: Request,
}

impl Incoming for LoopbackIncoming {
    fn peer_addr(&self) -> SocketAddr {
        self.request.from
    }

    fn request(&mut self, _timeout: Duration) -> Result<Vec<u8>> {
        Ok(self.provider.on_the_wire(&self.request.params.private_data))
    }

    fn accept(self: Box<Self>, params: &ConnectParams) -> Result<Connection> {
        let acceptor = Side::new(params)?;
        let mut state = self.request.answer.state.lock();
        let connector = match std::mem::replace(&mut *state, State::Over) {
            State::Waiting(side) => *side,
            State::Answered(_) | State::Over => {
                return Err(Error::LinkLost("the peer gave up connecting".to_owned()));
            }
        };
        let from = self.request.from;
        let [theirs, ours] = link::join(
            &self.provider.options,
            (connector, &self.request.params, from),
            (acceptor, params, self.local),
        );
        *state = State::Answered(Ok(Connection {
            queue_pair: theirs.0,
            completions: theirs.1,
            peer_private_data: self.provider.on_the_wire(&params.private_data),
            greeting: None,
        }));
        drop(state);
        self.request.answer.something.notify_all();
        Ok(Connection {
            queue_pair: ours.0,
            completions: ours.1,
            peer_private_data: self.provider.on_the_wire(&self.request.params.private_data),
            greeting: None,
        })
    }

    fn reject(self: Box<Self>, private_data: &[u8]) {
        let data = &private_data[..private_data.len().min(PRIVATE_DATA_MAX)];
        let data = self.provider.on_the_wire(data);
        self.request.answer.give(Err(Error::Refused(data)));
    }
}

impl Drop for LoopbackIncoming {
    fn drop(&mut self) {
        self.request.answer.give(Err(Error::Refused(Vec::new())));
    }
}

/// An address to listen on, with any port.
pub const ANY: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

#[cfg(test)]
mod tests;
