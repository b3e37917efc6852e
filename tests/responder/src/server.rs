//! A running server: its listeners, its connections, and how they end.

use crate::fs::FileSystem;
use crate::lock::{self, LockService};
use crate::rdma;
use crate::rpc::{AclCalls, Failing, Hangup, Ports, Script, Security, Service};
use crate::tcp;
use crate::udp;
use crate::workers::Workers;
use nfsrdma_rdma::{Listener, Provider, QueuePair};
use parking_lot::{Condvar, Mutex};
use std::collections::HashMap;
use std::io;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long connections may take to end.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);
/// Open files that nobody used for this time are closed.
const IDLE: Duration = Duration::from_secs(3);

/// The settings of the server, with its addresses.
#[derive(Debug, Clone)]
pub struct Settings {
    /// `None` if RDMA is not served. Port 0 takes a free port.
    pub rdma_address: Option<SocketAddr>,
    pub nfs_address: Option<SocketAddr>,
    pub mount_address: Option<SocketAddr>,
    pub portmap_address: Option<SocketAddr>,
    pub locks: lock::Settings,
    /// Whether NFS_ACL is not served.
    pub no_acl: bool,
    pub rdma: rdma::Settings,
    pub workers: usize,
    pub max_connections: usize,
    /// The size of the duplicate-request cache, in calls.
    pub drc: usize,
    /// The calls that fail.
    pub failing: Vec<Failing>,
    pub security: Arc<Security>,
}

enum Live {
    Tcp(TcpStream),
    Rdma(Arc<dyn QueuePair>),
    /// The connection is not accepted yet.
    Beginning,
}

#[derive(Default)]
struct Connections {
    /// The connections with the addresses of their peers, where these are known.
    live: HashMap<u64, (Option<SocketAddr>, Live)>,
    next: u64,
    stopping: bool,
}

struct Shared {
    service: Arc<Service>,
    workers: Arc<Workers>,
    settings: Settings,
    connections: Mutex<Connections>,
    ended: Condvar,
}

/// A handle by which the server can be controlled.
#[derive(Clone)]
pub struct Remote {
    shared: Arc<Shared>,
}

impl std::fmt::Debug for Remote {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Remote")
    }
}

impl Remote {
    /// The exported file system.
    pub fn fs(&self) -> &FileSystem {
        &self.shared.service.fs
    }

    /// The commands about calls.
    pub fn script(&self) -> &Script {
        &self.shared.service.script
    }

    /// The counters of NFS_ACL.
    pub fn acl_calls(&self) -> &AclCalls {
        &self.shared.service.acl_calls
    }

    /// What is demanded of calls.
    pub fn security(&self) -> &Security {
        &self.shared.service.security
    }

    /// The lock manager.
    pub fn locks(&self) -> &LockService {
        &self.shared.service.locks
    }

    /// Ends all connections. Clients may make new ones.
    pub fn disconnect(&self) {
        self.shared.disconnect(|_| true);
    }

    /// Does what clients notice of a restart: UNSTABLE data in memory, the duplicate-request cache,
    /// contexts, locks and connections are lost, and the write verifier changes. The clock does not.
    pub fn restart(&self) -> io::Result<()> {
        self.fs().restart()?;
        self.shared.service.forget_calls();
        self.shared.service.locks.restart();
        self.disconnect();
        Ok(())
    }
}

/// A running server. Dropping it does not stop it; [`Server::stop`] does.
pub struct Server {
    shared: Arc<Shared>,
    rdma: Option<Arc<dyn Listener>>,
    tcp: Vec<SocketAddr>,
    udp: Vec<SocketAddr>,
    threads: Vec<JoinHandle<()>>,
    ports: Ports,
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server")
            .field("ports", &self.ports)
            .finish_non_exhaustive()
    }
}

impl Server {
    /// Starts to serve `fs`. `provider` is the RDMA provider.
    pub fn start(
        fs: FileSystem,
        settings: Settings,
        provider: Option<Arc<dyn Provider>>,
    ) -> io::Result<Self> {
        let locks = LockService::start(settings.locks.clone())?;
        let mut service = Service::new(fs, locks, settings.drc, &settings.failing);
        service.with_acl = !settings.no_acl;
        service.security = settings.security.clone();
        let service = Arc::new(service);
        let workers = Arc::new(Workers::start(settings.workers)?);
        let shared = Arc::new(Shared {
            service,
            workers,
            settings,
            connections: Mutex::default(),
            ended: Condvar::new(),
        });
        let connections = Arc::downgrade(&shared);
        shared.service.hang_up_by(Hangup(Box::new(move |peer| {
            if let Some(shared) = connections.upgrade() {
                shared.disconnect(|remote| remote == Some(peer));
            }
        })));
        let mut server = Server {
            shared,
            rdma: None,
            tcp: Vec::new(),
            udp: Vec::new(),
            threads: Vec::new(),
            ports: Ports::default(),
        };
        match server.listen(provider) {
            Ok(()) => Ok(server),
            Err(error) => {
                server.stop();
                Err(error)
            }
        }
    }

    fn listen(&mut self, provider: Option<Arc<dyn Provider>>) -> io::Result<()> {
        let settings = self.shared.settings.clone();
        if let (Some(address), Some(provider)) = (settings.rdma_address, provider) {
            let listener: Arc<dyn Listener> = provider
                .listen(address)
                .map_err(|e| io::Error::other(format!("cannot listen on {address}: {e}")))?
                .into();
            self.ports.rdma = Some(listener.local_addr().port());
            self.rdma = Some(listener.clone());
            let shared = self.shared.clone();
            self.spawn("rdma-listen", move || accept_rdma(&shared, &*listener))?;
        }
        self.ports.nfs = self.listen_tcp(settings.nfs_address)?;
        self.ports.acl = self.ports.nfs.filter(|_| !settings.no_acl);
        self.ports.mount = self.listen_tcp(settings.mount_address)?.or(self.ports.nfs);
        self.ports.portmap = self.listen_tcp(settings.portmap_address)?;
        self.ports.portmap_udp = self.listen_udp(settings.portmap_address, self.ports.portmap);
        if self.shared.service.locks.is_on() {
            self.ports.lock = self.ports.nfs;
            self.ports.lock_udp = self.listen_udp(settings.nfs_address, self.ports.lock);
            let locks = self.shared.service.locks.clone();
            self.spawn("locks", move || locks.run())?;
        }
        // Nobody else sets them.
        let _ = self.shared.service.ports.set(self.ports);
        let shared = self.shared.clone();
        self.spawn("janitor", move || tidy(&shared))
    }

    fn listen_tcp(&mut self, address: Option<SocketAddr>) -> io::Result<Option<u16>> {
        let Some(address) = address else {
            return Ok(None);
        };
        let listener = TcpListener::bind(address)
            .map_err(|e| io::Error::new(e.kind(), format!("cannot listen on {address}: {e}")))?;
        let local = listener.local_addr()?;
        self.tcp.push(local);
        let shared = self.shared.clone();
        self.spawn("tcp-listen", move || accept_tcp(&shared, &listener))?;
        Ok(Some(local.port()))
    }

    /// Listens over UDP at the port that the same programs have over TCP. If another program has
    /// that port over UDP, UDP is not served.
    fn listen_udp(&mut self, address: Option<SocketAddr>, port: Option<u16>) -> Option<u16> {
        let mut address = address?;
        address.set_port(port?);
        let listening = UdpSocket::bind(address).and_then(|socket| {
            let local = socket.local_addr()?;
            let shared = self.shared.clone();
            self.spawn("udp", move || {
                if let Err(error) = udp::serve(&socket, &shared.service, || shared.stopping()) {
                    tracing::warn!(%error, "no more datagrams");
                }
            })?;
            Ok(local)
        });
        match listening {
            Ok(local) => {
                self.udp.push(local);
                Some(local.port())
            }
            Err(error) => {
                tracing::warn!(%error, %address, "not served over UDP");
                None
            }
        }
    }

    fn spawn(&mut self, name: &str, run: impl FnOnce() + Send + 'static) -> io::Result<()> {
        let thread = std::thread::Builder::new().name(name.into()).spawn(run)?;
        self.threads.push(thread);
        Ok(())
    }

    /// The ports on which the server listens.
    pub fn ports(&self) -> Ports {
        self.ports
    }

    /// A handle to control the server.
    pub fn remote(&self) -> Remote {
        Remote {
            shared: self.shared.clone(),
        }
    }

    /// The service that executes calls.
    pub fn service(&self) -> &Arc<Service> {
        &self.shared.service
    }

    /// Ends all connections and threads. Calls under way are finished, but their replies may be
    /// lost.
    pub fn stop(mut self) {
        {
            let mut connections = self.shared.connections.lock();
            connections.stopping = true;
            for (_, live) in connections.live.values() {
                live.end();
            }
        }
        self.shared.ended.notify_all();
        if let Some(rdma) = &self.rdma {
            rdma.close();
        }
        for address in &self.tcp {
            // This wakes accept(), which then notices the end.
            let _ = TcpStream::connect_timeout(address, Duration::from_secs(1));
        }
        for address in &self.udp {
            // This wakes the thread that receives datagrams.
            wake_receiver(*address);
        }
        self.shared.service.locks.stop();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
        self.shared.workers.stop();
        let until = Instant::now() + STOP_TIMEOUT;
        let mut connections = self.shared.connections.lock();
        while !connections.live.is_empty() {
            if self
                .shared
                .ended
                .wait_until(&mut connections, until)
                .timed_out()
            {
                tracing::warn!(left = connections.live.len(), "connections did not end");
                return;
            }
        }
    }
}

/// Sends a datagram to a socket of this process, whatever address it is bound to.
fn wake_receiver(mut address: SocketAddr) {
    if address.ip().is_unspecified() {
        address.set_ip(match address {
            SocketAddr::V4(_) => std::net::Ipv4Addr::LOCALHOST.into(),
            SocketAddr::V6(_) => std::net::Ipv6Addr::LOCALHOST.into(),
        });
    }
    let any = SocketAddr::new(address.ip(), 0);
    if let Ok(socket) = UdpSocket::bind(any) {
        let _ = socket.send_to(&[], address);
    }
}

impl Live {
    fn end(&self) {
        match self {
            Live::Tcp(socket) => {
                let _ = socket.shutdown(Shutdown::Both);
            }
            Live::Rdma(queue_pair) => queue_pair.disconnect(),
            Live::Beginning => {}
        }
    }
}

/// An entry in the list of connections, which is removed when this is dropped.
struct Place {
    shared: Arc<Shared>,
    id: u64,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.shared.connections.lock().live.remove(&self.id);
        self.shared.ended.notify_all();
    }
}

impl Shared {
    fn stopping(&self) -> bool {
        self.connections.lock().stopping
    }

    /// Adds a connection; `None` if there are too many, or if the server is stopping.
    fn enter(self: &Arc<Self>, peer: Option<SocketAddr>, live: Live) -> Option<Place> {
        let mut connections = self.connections.lock();
        if connections.stopping {
            return None;
        }
        if connections.live.len() >= self.settings.max_connections {
            tracing::warn!("too many connections; refusing one");
            return None;
        }
        let id = connections.next;
        connections.next += 1;
        connections.live.insert(id, (peer, live));
        Some(Place {
            shared: self.clone(),
            id,
        })
    }

    /// Records the queue pair by which a connection can be ended.
    fn began(&self, id: u64, peer: SocketAddr, queue_pair: Arc<dyn QueuePair>) {
        let mut connections = self.connections.lock();
        if connections.stopping {
            queue_pair.disconnect();
        }
        connections
            .live
            .insert(id, (Some(peer), Live::Rdma(queue_pair)));
    }

    /// Ends the connections of the peers for which `meant` is true.
    fn disconnect(&self, meant: impl Fn(Option<SocketAddr>) -> bool) {
        for (peer, live) in self.connections.lock().live.values() {
            if meant(*peer) {
                live.end();
            }
        }
    }
}

fn accept_rdma(shared: &Arc<Shared>, listener: &dyn Listener) {
    loop {
        let incoming = match listener.accept() {
            Ok(incoming) => incoming,
            Err(error) => {
                if !shared.stopping() {
                    tracing::error!(%error, "no more RDMA connections");
                }
                return;
            }
        };
        let Some(place) = shared.enter(None, Live::Beginning) else {
            continue;
        };
        let peer = incoming.peer_addr();
        let shared = shared.clone();
        // Each peer has a thread from its first byte on, so that a slow one delays nobody else.
        let spawned = std::thread::Builder::new()
            .name(format!("rdma-{}", peer.port()))
            .spawn(move || {
                // Move the whole entry, or only its id would be copied and the entry dropped.
                let place = place;
                let settings = shared.settings.rdma;
                let result =
                    rdma::serve(incoming, &shared.service, &shared.workers, &settings, |q| {
                        shared.began(place.id, peer, q);
                    });
                match result {
                    Ok(()) => tracing::debug!(%peer, "RDMA connection ended"),
                    Err(error) => tracing::info!(%peer, %error, "RDMA connection ended"),
                }
            });
        if let Err(error) = spawned {
            tracing::warn!(%error, "no thread for an RDMA connection");
        }
    }
}

fn accept_tcp(shared: &Arc<Shared>, listener: &TcpListener) {
    loop {
        let (socket, peer) = match listener.accept() {
            Ok(accepted) => accepted,
            Err(error) => {
                if shared.stopping() {
                    return;
                }
                tracing::warn!(%error, "cannot accept a connection now");
                std::thread::sleep(Duration::from_millis(100));
                continue;
            }
        };
        if shared.stopping() {
            return;
        }
        let Ok(handle) = socket.try_clone() else {
            continue;
        };
        let Some(place) = shared.enter(Some(peer), Live::Tcp(handle)) else {
            continue;
        };
        let shared = shared.clone();
        let spawned = std::thread::Builder::new()
            .name(format!("tcp-{}", peer.port()))
            .spawn(move || {
                let _place = place;
                let rdma = &shared.settings.rdma;
                let calls = 32;
                let limits = tcp::Limits {
                    record: rdma.wtmax as usize + 8192,
                    calls,
                    memory: calls * (rdma.rtmax as usize).next_power_of_two().max(4096),
                };
                let result = tcp::serve(socket, &shared.service, &shared.workers, limits);
                tracing::debug!(%peer, error = ?result.err(), "TCP connection ended");
            });
        if let Err(error) = spawned {
            tracing::warn!(%error, "no thread for a TCP connection");
        }
    }
}

/// Closes idle files periodically.
fn tidy(shared: &Shared) {
    let mut connections = shared.connections.lock();
    while !connections.stopping {
        shared
            .ended
            .wait_for(&mut connections, Duration::from_secs(1));
        parking_lot::MutexGuard::unlocked(&mut connections, || shared.service.fs.close_idle(IDLE));
    }
}
