//! Calls from servers of locks: GRANTED, and NSM's report of a restart.
//!
//! The client does not depend on them. GRANTED makes a waiting owner repeat its LOCK at once, and
//! only the answer to that counts. A reported restart makes the mount reclaim its locks, which
//! changes nothing if the server did not restart. So a forged, late or repeated call costs one call
//! to the server. A missing one costs time: waiting owners poll, and a restart is also noticed by
//! the end of the connection, a changed verifier or the answers to LOCK.
//!
//! The port is opened with the first lock, provided that servers can find it: the rpcbind of this
//! machine runs, or an option gives the port. Servers ask that rpcbind for NLM version 4 and for
//! NSM. Both stay registered for whoever has them already: the kernel's lockd, rpc.statd, or
//! another mount, which passes calls on ([`others`]). When that mount has ended, the next one
//! registers itself.
//!
//! rpc.statd calls back by a program and version of its caller's choice, and asks the same rpcbind
//! for the port. Linux's accepts only NLM's program and procedure 16, which the kernel uses; but
//! the version is free, and a version of our own keeps the kernel's call-backs apart from ours.
//!
//! GRANTED is answered with GRANTED if an owner of this mount waits for the lock or has it. The
//! answer DENIED makes servers release the lock, so it is given only if no mount of this machine
//! can have asked for the lock. If another mount may have, that mount answers GRANTED_MSG itself,
//! and GRANTED gets no reply: the server will call again.

mod calls;
mod listener;
mod monitor;
mod others;
mod peers;
mod rpcbind;

use calls::Request;
use listener::{Caller, Listener};
use monitor::Monitor;
use nfsrdma_rpcrdma::rpc::plain::{self, PlainError, Protocol, Target};
use nfsrdma_xdr::codec::Text;
use nfsrdma_xdr::nfs3::{FileHandle, Void};
use nfsrdma_xdr::nlm4::{self, Status, TestArgs};
use nfsrdma_xdr::nsm;
use nfsrdma_xdr::rpc::Auth;
use nfsrdma_xdr::rpcbind::NetId;
use others::{Hint, Others};
use parking_lot::Mutex;
use rpcbind::Row;
use std::fmt::Debug;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};
use tokio::sync::{Notify, Semaphore};

/// First of the versions of NLM's program that are ours. Each user of this machine has one, because
/// rpcbind lets only its user replace a registration.
const STATD_VERSIONS: u32 = 0x2000_0000;
/// Time between two checks of what is registered.
const LOOK: Duration = Duration::from_secs(60);
/// Pause before a check that another process asked for.
const LOOK_PAUSE: Duration = Duration::from_millis(500);
/// Time limit of NULL, which tells whether the program of a registration has ended.
const PROBE: Duration = Duration::from_secs(1);
/// Time limit of the calls at the end of a mount.
const END: Duration = Duration::from_secs(2);
/// Time limit of GRANTED_RES, and how many are sent at once.
const RESULT: Duration = Duration::from_secs(2);
const RESULTS: usize = 16;
/// Largest number of hints passed on in a second.
const FORWARDS: u32 = 100;

/// The receiver of call-backs.
pub trait CallbackSink: Debug + Send + Sync {
    /// The server says that it granted a lock to `svid`. Returns whether that owner waits for a
    /// lock of the file, or has one.
    fn granted(&self, svid: u32, file: &FileHandle) -> bool;

    /// The server says that it restarted.
    fn restarted(&self);
}

/// Where the server's lock manager is, for GRANTED_RES, which is a call.
pub(super) trait LockManager: Debug + Send + Sync {
    /// `None` while that is not known.
    fn place(&self) -> Option<(SocketAddr, Protocol)>;

    /// Whether calls to it are made from a privileged port.
    fn is_privileged(&self) -> bool;
}

/// The options of call-backs.
#[derive(Debug, Clone, Default)]
pub struct CallbackOptions {
    /// The port to listen at; 0 means none, `None` any port if rpcbind runs on this machine.
    pub port: Option<u16>,
    /// The directory of the file with the monitor's state number.
    pub dir: Option<PathBuf>,
}

/// Receives the calls of a mount's server. Runs in tokio.
#[derive(Debug)]
pub struct Callbacks {
    server: IpAddr,
    port: Option<u16>,
    uid: u32,
    statd_version: u32,
    monitor: Monitor,
    lock_manager: Weak<dyn LockManager>,
    sink: OnceLock<Weak<dyn CallbackSink>>,
    /// Set with the first lock.
    others: OnceLock<Others>,
    begun: AtomicBool,
    ended: AtomicBool,
    /// Notified when the registrations have to be checked.
    look: Notify,
    /// The port it listens at.
    listening: Mutex<Option<u16>>,
    results: Arc<Semaphore>,
    /// When the current second began, and how many hints it has had.
    forwards: Mutex<Option<(Instant, u32)>>,
    last_state: Mutex<Option<u32>>,
}

impl Callbacks {
    pub(super) fn new(
        server: IpAddr,
        lock_manager: Weak<dyn LockManager>,
        options: CallbackOptions,
        uid: u32,
    ) -> Arc<Self> {
        let statd_version = STATD_VERSIONS | (uid & (STATD_VERSIONS - 1));
        Arc::new(Callbacks {
            server: server.to_canonical(),
            port: options.port,
            uid,
            statd_version,
            monitor: Monitor::new(server, statd_version, options.dir),
            lock_manager,
            sink: OnceLock::new(),
            others: OnceLock::new(),
            begun: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            look: Notify::new(),
            listening: Mutex::default(),
            results: Arc::new(Semaphore::new(RESULTS)),
            forwards: Mutex::default(),
            last_state: Mutex::default(),
        })
    }

    /// Sets the receiver of call-backs.
    pub fn set_sink(&self, sink: Weak<dyn CallbackSink>) {
        let _ = self.sink.set(sink);
    }

    /// A process of this machine that had locks has ended without releasing them: makes the server
    /// forget them, unless another program of this machine may have locks. Must precede the first
    /// lock.
    pub async fn notify_crash(&self) -> bool {
        self.monitor.notify_crash().await
    }

    /// The NSM state number of this machine.
    pub(super) fn state(&self) -> u32 {
        self.monitor.state()
    }

    /// Goes on as a process that has died, which had locks and told the server this state number.
    pub(super) fn resume(self: &Arc<Self>, state: u32) {
        self.monitor.set_state(state);
        let this = self.clone();
        tokio::spawn(async move { this.before_lock().await });
    }

    /// To be called before each LOCK: starts listening, and has the server monitored. The first
    /// call may take a few seconds.
    pub(super) async fn before_lock(self: &Arc<Self>) {
        if !self.begun.swap(true, Ordering::AcqRel) {
            self.begin();
        }
        self.monitor.ensure().await;
    }

    fn begin(self: &Arc<Self>) {
        match Others::join(self.uid) {
            Ok((others, socket)) => {
                let _ = self.others.set(others);
                tokio::spawn(hear_others(Arc::downgrade(self), socket));
            }
            Err(error) => tracing::debug!(%error, "no name among the mounts with locks"),
        }
        if self.port != Some(0) {
            tokio::spawn(keep_registered(Arc::downgrade(self)));
        }
    }

    /// No lock is held or asked for: stops monitoring, if `still` confirms it.
    pub(super) async fn idle(&self, still: &(dyn Fn() -> bool + Send + Sync)) {
        self.monitor.stop(self.alone(), still).await;
    }

    /// The mount ends: removes its registrations and stops monitoring.
    pub(super) async fn end(&self) {
        self.ended.store(true, Ordering::Release);
        self.look.notify_waiters();
        if !self.begun.load(Ordering::Acquire) {
            return;
        }
        let unmonitor = tokio::time::timeout(END, self.monitor.stop(self.alone(), || true));
        let unregister = async {
            let port = *self.listening.lock();
            if let (Some(port), Ok(rows)) = (port, rpcbind::dump().await) {
                for row in rows.into_iter().filter(|row| self.is_mine(row, port)) {
                    let _ = rpcbind::unset(row).await;
                }
            }
            if let Some(others) = self.others.get() {
                others.send(&Hint::Vacant).await;
            }
        };
        // In parallel, because each may wait for another daemon.
        let _ = tokio::join!(unmonitor, tokio::time::timeout(END, unregister));
    }

    async fn alone(&self) -> bool {
        match self.others.get() {
            Some(others) => others.alone().await,
            None => true,
        }
    }

    fn is_mine(&self, row: &Row, port: u16) -> bool {
        row.port == port && (row.program == nlm4::PROGRAM || row.program == nsm::PROGRAM)
    }

    /// The registrations that there should be, in groups.
    fn wanted(&self, listener: &Listener, own_monitor: bool) -> Vec<Vec<Row>> {
        let mut groups = vec![(nlm4::PROGRAM, nlm4::VERSION, true)];
        if own_monitor {
            groups.push((nsm::PROGRAM, nsm::VERSION, true));
        } else {
            groups.push((nlm4::PROGRAM, self.statd_version, false));
        }
        let netids = |tcp: bool| {
            NetId::ALL.into_iter().filter(move |netid| match netid {
                NetId::Udp => true,
                NetId::Tcp => tcp,
                NetId::Udp6 => listener.ipv6,
                NetId::Tcp6 => listener.ipv6 && tcp,
                NetId::Rdma | NetId::Rdma6 => false,
            })
        };
        let rows = |(program, version, tcp)| {
            let row = |netid| Row {
                program,
                version,
                netid,
                port: listener.port,
            };
            netids(tcp).map(row).collect()
        };
        groups.into_iter().map(rows).collect()
    }

    /// Registers the groups that nobody else has registered.
    async fn register(&self, listener: &Listener) -> Result<(), PlainError> {
        let rows = rpcbind::dump().await?;
        let own_monitor = !self.monitor.look(&rows).await;
        for group in self.wanted(listener, own_monitor) {
            let Some(first) = group.first() else { continue };
            let same = |row: &&Row| row.program == first.program && row.version == first.version;
            let (mine, others): (Vec<Row>, Vec<Row>) = rows
                .iter()
                .filter(same)
                .partition(|row| row.port == listener.port);
            if !self.all_gone(&others).await {
                continue;
            }
            for row in others {
                let _ = rpcbind::unset(row).await;
            }
            for row in group {
                if !mine.contains(&row) && !rpcbind::set(row).await? {
                    tracing::debug!(?row, "rpcbind does not register it");
                }
            }
        }
        Ok(())
    }

    /// Whether all programs of these registrations have ended without removing them.
    async fn all_gone(&self, rows: &[Row]) -> bool {
        for row in rows {
            let target = Target {
                address: (Ipv4Addr::LOCALHOST, row.port).into(),
                protocol: match row.netid {
                    NetId::Udp | NetId::Udp6 => Protocol::Udp,
                    _ => Protocol::Tcp,
                },
                privileged: false,
                timeout: PROBE,
            };
            let none = |_: Void| ();
            let answer = match row.program {
                nsm::PROGRAM => {
                    plain::call::<nsm::Null, _>(&target, Auth::None, &Void {}, none).await
                }
                _ => plain::call::<nlm4::Null, _>(&target, Auth::None, &Void {}, none).await,
            };
            if !matches!(answer, Err(PlainError::Unreachable(_))) {
                return false;
            }
        }
        true
    }

    fn is_known(&self, from: Caller) -> bool {
        let ip = from.address.ip();
        ip == self.server || ip.is_loopback()
    }

    fn sink(&self) -> Option<Arc<dyn CallbackSink>> {
        self.sink.get()?.upgrade()
    }

    /// The answer to GRANTED; `None` if another mount may have to answer.
    async fn granted(&self, from: Caller, args: &TestArgs<'_>, message: bool) -> Option<Status> {
        let (server, lock) = (from.address.ip(), &args.lock);
        let mine = server == self.server;
        if mine
            && self
                .sink()
                .is_some_and(|sink| sink.granted(lock.svid, &lock.file))
        {
            return Some(Status::Granted);
        }
        let hint = Hint::Granted {
            server,
            svid: lock.svid,
            file: lock.file,
            cookie: message.then(|| args.cookie.0.to_vec()),
        };
        let passed_on = self.forward(&hint).await;
        // A mount that began just now may have asked for the lock.
        (mine && !passed_on && self.alone().await).then_some(Status::Denied)
    }

    async fn forward(&self, hint: &Hint) -> bool {
        let Some(others) = self.others.get() else {
            return false;
        };
        let count = {
            let mut forwards = self.forwards.lock();
            let now = Instant::now();
            let (since, count) = match *forwards {
                Some((since, count)) if since + Duration::from_secs(1) > now => (since, count),
                _ => (now, 0),
            };
            *forwards = Some((since, count + 1));
            count
        };
        count < FORWARDS && others.send(hint).await
    }

    /// SM_NOTIFY: the caller restarted.
    async fn notified(&self, from: Caller, state: u32) {
        let server = from.address.ip();
        if server == self.server && self.last_state.lock().replace(state) == Some(state) {
            // It is repeated until it is answered.
            return;
        }
        tracing::debug!(%server, state, "SM_NOTIFY");
        self.restarted(server).await;
    }

    async fn restarted(&self, server: IpAddr) {
        self.take(&Hint::Restarted { server });
        self.forward(&Hint::Restarted { server }).await;
    }

    /// Handles a hint of any origin. Returns whether to accept GRANTED_MSG.
    fn take(&self, hint: &Hint) -> bool {
        match hint {
            Hint::Granted {
                server, svid, file, ..
            } if *server == self.server => {
                let sink = self.sink();
                return sink.is_some_and(|sink| sink.granted(*svid, file));
            }
            Hint::Restarted { server } if *server == self.server => {
                if let Some(sink) = self.sink() {
                    sink.restarted();
                }
            }
            Hint::Vacant => self.look.notify_one(),
            Hint::Granted { .. } | Hint::Restarted { .. } => {}
        }
        false
    }

    /// Sends GRANTED_RES, over the protocol by which GRANTED_MSG came.
    fn send_result(&self, cookie: &[u8], status: Status, from: Caller) {
        let Ok(turn) = self.results.clone().try_acquire_owned() else {
            return;
        };
        let Some(lock_manager) = self.lock_manager.upgrade() else {
            return;
        };
        let Some((address, _)) = lock_manager.place() else {
            return;
        };
        let cookie = cookie.to_vec();
        tokio::spawn(async move {
            let target = Target {
                address,
                protocol: from.protocol,
                privileged: lock_manager.is_privileged(),
                timeout: RESULT,
            };
            let res = nlm4::Res {
                cookie: Text(&cookie),
                status,
            };
            let none = |_: Void| ();
            let sent = plain::call::<nlm4::GrantedResult, _>(&target, Auth::None, &res, none).await;
            if let Err(error) = sent {
                tracing::debug!(%error, "GRANTED_RES");
            }
            drop(turn);
        });
    }
}

impl listener::Service for Callbacks {
    async fn may_connect(&self, from: Caller) -> bool {
        if self.is_known(from) {
            return true;
        }
        match self.others.get() {
            // If the server of a mount that began just now is refused, it calls again.
            Some(others) => !others.probably_alone().await,
            None => false,
        }
    }

    async fn answer(self: Arc<Self>, message: &[u8], from: Caller) -> Option<Vec<u8>> {
        let known = self.is_known(from);
        let local = from.address.ip().is_loopback();
        let received = match calls::parse(message, self.statd_version, local) {
            Ok(received) => received,
            Err(reply) => return reply.filter(|_| known),
        };
        let mut granted = Status::Denied;
        let mut answered = known;
        match received.request {
            Request::Granted { args, message } => {
                let status = self.granted(from, &args, message).await;
                match status {
                    Some(status) if message => self.send_result(args.cookie.0, status, from),
                    Some(status) => granted = status,
                    None => answered &= message,
                }
            }
            Request::Notify(change) => self.notified(from, change.state).await,
            Request::Status(status) => {
                if !from.is_local_and_privileged() {
                    return None;
                }
                let name = std::str::from_utf8(status.name.0);
                if let Some(server) = name.ok().and_then(|name| name.parse().ok()) {
                    tracing::debug!(%server, state = status.state, "rpc.statd: it restarted");
                    self.restarted(server).await;
                }
            }
            Request::Null | Request::Refused(_) => {}
        }
        answered.then(|| received.reply(granted))
    }
}

/// Listens once servers can find the port, and keeps it registered.
async fn keep_registered(callbacks: Weak<Callbacks>) {
    let mut listener: Option<Listener> = None;
    loop {
        let Some(this) = callbacks.upgrade() else {
            return;
        };
        if this.ended.load(Ordering::Acquire) {
            return;
        }
        if listener.is_none() && (this.port.is_some() || rpcbind::dump().await.is_ok()) {
            match Listener::start(this.port, &this).await {
                Ok(started) => {
                    tracing::debug!(port = started.port, "servers of locks may call");
                    *this.listening.lock() = Some(started.port);
                    listener = Some(started);
                }
                Err(error) => tracing::info!(%error, "servers of locks cannot call"),
            }
        }
        if let Some(listener) = &listener
            && let Err(error) = this.register(listener).await
        {
            tracing::debug!(%error, "rpcbind of this machine");
        }
        let asked = {
            let mut look = std::pin::pin!(this.look.notified());
            look.as_mut().enable();
            if this.ended.load(Ordering::Acquire) {
                return;
            }
            // A reference is held meanwhile; the end of the mount wakes this.
            tokio::time::timeout(LOOK, look).await.is_ok()
        };
        drop(this);
        if asked {
            tokio::time::sleep(LOOK_PAUSE).await;
        }
    }
}

/// Handles the hints that other mounts pass on.
async fn hear_others(callbacks: Weak<Callbacks>, socket: UnixDatagram) {
    let Ok(socket) = tokio::net::UnixDatagram::from_std(socket) else {
        return;
    };
    let mut buffer = [0; others::MESSAGE_MAX];
    loop {
        let received = tokio::time::timeout(LOOK, socket.recv(&mut buffer)).await;
        let Some(this) = callbacks.upgrade() else {
            return;
        };
        if this.ended.load(Ordering::Acquire) {
            return;
        }
        let Ok(received) = received else { continue };
        let hint = received.ok().and_then(|len| Hint::decode(&buffer[..len]));
        let Some(hint) = hint else { continue };
        if this.take(&hint)
            && let Hint::Granted {
                cookie: Some(cookie),
                ..
            } = &hint
            && let Some(lock_manager) = this.lock_manager.upgrade()
            && let Some((address, protocol)) = lock_manager.place()
        {
            let from = Caller { address, protocol };
            this.send_result(cookie, Status::Granted, from);
        }
    }
}

#[cfg(test)]
mod tests;
