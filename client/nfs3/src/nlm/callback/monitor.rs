//! The NSM client: it learns that the server has restarted, and notifies it of our own restarts.
//!
//! Where rpc.statd runs on this machine, it does both: SM_MON makes it watch the server, and record
//! that it must notify the server when this machine restarts. The server is given by its address,
//! and the client's name is the address that the server sees, so that the entry differs from the
//! kernel's, which has the name of this machine. All mounts share one entry, so only the last one
//! that has locks sends SM_UNMON.
//!
//! Where no rpc.statd runs, the mount is its own monitor. It answers SM_NOTIFY ([`super`]), and has
//! a state number, which is kept in a file once a server was told. It sends SM_NOTIFY when it finds
//! that a process of this machine has ended with locks (`Journal`). SM_NOTIFY makes the server
//! forget all locks of this address, so it is sent only before this mount takes its first lock, if
//! no other mount of this network namespace has had one, and if no rpc.statd runs: without
//! rpc.statd the kernel's NFS client holds no locks at a server.
//!
//! All of this is bounded in time, and locks work without it: without a monitor a restart of the
//! server is noticed later, and after a crash of this machine the server keeps what it had granted
//! until the next mount unlocks it.

use super::others::any_mount_with_locks;
use super::rpcbind::{self, Row};
use crate::mount::locate::{self, Service};
use nfsrdma_rpcrdma::rpc::plain::{self, PlainError, Protocol, Target};
use nfsrdma_xdr::codec::Text;
use nfsrdma_xdr::nfs3::Void;
use nfsrdma_xdr::nlm4;
use nfsrdma_xdr::nsm::{
    self, Callback, HostName, Mon, Monitor as MonitorArgs, MonitorId, Outcome, Private, Stat,
    StateChange, Unmon,
};
use nfsrdma_xdr::rpc::Auth;
use nfsrdma_xdr::rpcbind::NetId;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Time limit of one call to rpc.statd.
const STATD: Duration = Duration::from_secs(3);
/// Time limit of each of the two calls that notify a server.
const NOTIFY: Duration = Duration::from_secs(3);
/// Pause after rpc.statd failed or refused a request.
const AGAIN: Duration = Duration::from_secs(60);
/// How long a mount waits while another one notifies a server.
const TURN_LIMIT: Duration = Duration::from_secs(10);
const FILE_NAME: &str = "nsm";
const HEAD: &str = "nfsrdma nsm 1";
/// Longest state file that is read, in bytes.
const FILE_MAX: u64 = 4096;

#[derive(Debug, Default)]
struct MonitorState {
    /// Whether it is known if rpc.statd runs.
    looked: bool,
    /// The port of rpc.statd, if it runs.
    statd: Option<u16>,
    not_before: Option<Instant>,
}

/// The NSM client of a mount.
#[derive(Debug)]
pub(super) struct Monitor {
    server: IpAddr,
    /// The server's address and ours, as text.
    peer: String,
    name: String,
    version: u32,
    file: Option<PathBuf>,
    state: AtomicU32,
    monitored: AtomicBool,
    inner: tokio::sync::Mutex<MonitorState>,
}

/// The address of this machine on the route to a server.
fn own_address(server: IpAddr) -> Option<IpAddr> {
    let any = match server {
        IpAddr::V4(_) => SocketAddr::from(([0, 0, 0, 0], 0)),
        IpAddr::V6(_) => SocketAddr::from(([0; 16], 0)),
    };
    let socket = UdpSocket::bind(any).ok()?;
    // Connecting a UDP socket sends nothing.
    socket.connect((server, nfsrdma_xdr::rpcbind::PORT)).ok()?;
    Some(socket.local_addr().ok()?.ip())
}

fn statd_at(port: u16) -> Target {
    Target {
        address: (Ipv4Addr::LOCALHOST, port).into(),
        protocol: Protocol::Udp,
        privileged: true,
        timeout: STATD,
    }
}

/// The state number of the monitor at `port`, if it serves others, as no mount of ours does.
async fn stat(port: u16) -> Option<u32> {
    let name = HostName {
        name: Text(b"127.0.0.1"),
    };
    let result = plain::call::<Stat, _>(&statd_at(port), Auth::None, &name, |res| res).await;
    let res = result.ok()?;
    (res.outcome == Outcome::Success).then_some(res.state)
}

impl Monitor {
    pub(super) fn new(server: IpAddr, version: u32, dir: Option<PathBuf>) -> Self {
        let server = server.to_canonical();
        let own = own_address(server).map(|address| address.to_string());
        Monitor {
            server,
            peer: server.to_string(),
            name: own.unwrap_or_else(crate::mount::identity::machine_name),
            version,
            file: dir.map(|dir| dir.join(FILE_NAME)),
            state: AtomicU32::new(0),
            monitored: AtomicBool::new(false),
            inner: tokio::sync::Mutex::default(),
        }
    }

    /// This machine's state number; 0 before it is known.
    pub(super) fn state(&self) -> u32 {
        self.state.load(Ordering::Relaxed)
    }

    /// Before anything asks for it.
    pub(super) fn set_state(&self, state: u32) {
        self.state.store(state, Ordering::Relaxed);
    }

    fn id(&self) -> MonitorId<'_> {
        MonitorId {
            name: Text(self.peer.as_bytes()),
            callback: Callback {
                name: Text(self.name.as_bytes()),
                program: nlm4::PROGRAM,
                version: self.version,
                procedure: super::calls::STATUS_PROCEDURE,
            },
        }
    }

    /// Looks for rpc.statd among the registrations. Returns whether it runs.
    pub(super) async fn look(&self, rows: &[Row]) -> bool {
        let mut inner = self.inner.lock().await;
        self.look_locked(&mut inner, rows).await
    }

    async fn look_locked(&self, inner: &mut MonitorState, rows: &[Row]) -> bool {
        let is_it = |row: &&Row| {
            row.program == nsm::PROGRAM && row.version == nsm::VERSION && row.netid == NetId::Udp
        };
        let port = rows.iter().find(is_it).map(|row| row.port);
        if inner.looked && port == inner.statd {
            return inner.statd.is_some();
        }
        let state = match port {
            Some(port) => stat(port).await,
            None => None,
        };
        let statd = port.filter(|_| state.is_some());
        if let Some(state) = state {
            self.state.store(state, Ordering::Relaxed);
        }
        if inner.looked && statd != inner.statd {
            // It was started or restarted: send SM_MON with the next lock.
            self.monitored.store(false, Ordering::SeqCst);
            inner.not_before = None;
        }
        inner.looked = true;
        inner.statd = statd;
        statd.is_some()
    }

    /// Has the server monitored. Called before each lock.
    pub(super) async fn ensure(&self) {
        if self.monitored.load(Ordering::SeqCst) {
            return;
        }
        let mut inner = self.inner.lock().await;
        let wait = inner.not_before.is_some_and(|at| at > Instant::now());
        if wait || self.monitored.load(Ordering::SeqCst) {
            return;
        }
        if !inner.looked {
            let rows = rpcbind::dump().await.unwrap_or_default();
            self.look_locked(&mut inner, &rows).await;
        }
        let Some(port) = inner.statd else {
            self.begin_alone().await;
            self.monitored.store(true, Ordering::SeqCst);
            return;
        };
        let args = MonitorArgs {
            id: self.id(),
            private: Private(*b"nfsrdma mount\0\0\0"),
        };
        let why = match plain::call::<Mon, _>(&statd_at(port), Auth::None, &args, |res| res).await {
            Ok(res) if res.outcome == Outcome::Success => {
                tracing::debug!(server = %self.peer, state = res.state, "SM_MON");
                self.state.store(res.state, Ordering::Relaxed);
                self.monitored.store(true, Ordering::SeqCst);
                return;
            }
            Ok(_) => "it refuses".to_owned(),
            Err(error) => error.to_string(),
        };
        if inner.not_before.is_none() {
            tracing::warn!(
                "rpc.statd of this machine does not monitor {}: {why}; if this machine crashes, its locks stay until it mounts again",
                self.peer
            );
        }
        inner.not_before = Some(Instant::now() + AGAIN);
        inner.looked = false;
    }

    /// Stops monitoring the server if this mount is `alone` and then `still` confirms it. Both are asked
    /// when no lock can begin.
    pub(super) async fn stop(&self, alone: impl Future<Output = bool>, still: impl Fn() -> bool) {
        let inner = self.inner.lock().await;
        if !self.monitored.swap(false, Ordering::SeqCst) {
            return;
        }
        let Some(port) = inner.statd else { return };
        if !alone.await || !still() {
            self.monitored.store(true, Ordering::SeqCst);
            return;
        }
        let id = self.id();
        let result = plain::call::<Unmon, _>(&statd_at(port), Auth::None, &id, |_| ()).await;
        tracing::debug!(server = %self.peer, ?result, "SM_UNMON");
    }

    /// Prepares the first lock without rpc.statd.
    async fn begin_alone(&self) {
        if self.state() == 0 {
            let mut file = self.file.as_deref().and_then(|path| File::open(path).ok());
            if let Some(file) = &file {
                // Waits while another mount makes the server forget the locks of this machine.
                let _ = turn(file).await;
            }
            let known = file.as_mut().and_then(read);
            let state = known.unwrap_or_else(|| next_state(0, SystemTime::now()));
            self.state.store(state, Ordering::Relaxed);
        }
    }

    /// See [`super::Callbacks::notify_crash`].
    pub(super) async fn notify_crash(&self) -> bool {
        let mut inner = self.inner.lock().await;
        let rows = rpcbind::dump().await.unwrap_or_default();
        if self.look_locked(&mut inner, &rows).await {
            tracing::debug!("rpc.statd runs: it tells servers of a restart of this machine");
            return false;
        }
        let told = match &self.file {
            Some(path) => self.notify_by(path).await,
            None => Err("there is no place for this machine's state".to_owned()),
        };
        match &told {
            Ok(state) => {
                tracing::info!(state, "told {} that this machine lost its locks", self.peer)
            }
            Err(why) => tracing::info!("{} is not told of lost locks: {why}", self.peer),
        }
        told.is_ok()
    }

    async fn notify_by(&self, path: &Path) -> Result<u32, String> {
        let mut file = open(path).map_err(|error| error.to_string())?;
        // No other mount begins to lock meanwhile.
        turn(&file).await.map_err(|error| error.to_string())?;
        if any_mount_with_locks() {
            return Err("other mounts of this machine have locks".to_owned());
        }
        let state = next_state(read(&mut file).unwrap_or(0), SystemTime::now());
        write(&mut file, state).map_err(|error| error.to_string())?;
        self.state.store(state, Ordering::Relaxed);
        let sent = self.send_notify(state).await;
        sent.map_err(|error| error.to_string())?;
        Ok(state)
    }

    async fn send_notify(&self, state: u32) -> Result<(), PlainError> {
        let service = Service {
            program: nsm::PROGRAM,
            version: nsm::VERSION,
        };
        let port = locate::port_of(self.server, service, Protocol::Udp, NOTIFY).await?;
        let target = Target {
            address: SocketAddr::new(self.server, port.ok_or(PlainError::NoProgram)?),
            protocol: Protocol::Udp,
            privileged: true,
            timeout: NOTIFY,
        };
        let change = StateChange {
            name: Text(self.name.as_bytes()),
            state,
        };
        let none = |_: Void| ();
        plain::call::<nsm::Notify, _>(&target, Auth::None, &change, none).await
    }
}

/// The next state number. It is odd, which means that the machine is up, and larger than `last`. It
/// is at least the clock, and so larger than the number in a file that was lost.
fn next_state(last: u32, now: SystemTime) -> u32 {
    let since = now.duration_since(UNIX_EPOCH).unwrap_or_default();
    let clock = (since.as_secs() & 0x7fff_ffff) as u32 | 1;
    clock.max(last.saturating_add(2) | 1)
}

/// Locks the state file against other mounts of this machine, until its descriptor is closed.
async fn turn(file: &File) -> io::Result<()> {
    let until = Instant::now() + TURN_LIMIT;
    loop {
        match file.try_lock() {
            Err(TryLockError::WouldBlock) if Instant::now() < until => {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            result => return Ok(result?),
        }
    }
}

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(path)
}

fn read(file: &mut File) -> Option<u32> {
    let mut text = String::new();
    file.seek(SeekFrom::Start(0)).ok()?;
    Read::by_ref(file)
        .take(FILE_MAX)
        .read_to_string(&mut text)
        .ok()?;
    let mut lines = text.lines();
    if lines.next() != Some(HEAD) {
        return None;
    }
    let state: u32 = lines.next()?.strip_prefix("state ")?.parse().ok()?;
    // Even numbers mean that the machine is down.
    (state % 2 == 1).then_some(state)
}

/// Writes and syncs the state number, before any server is told.
fn write(file: &mut File, state: u32) -> io::Result<()> {
    let text = format!("{HEAD}\nstate {state}\n");
    file.seek(SeekFrom::Start(0))?;
    file.write_all(text.as_bytes())?;
    file.set_len(text.len() as u64)?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_are_odd_and_grow() {
        let at = |secs| UNIX_EPOCH + Duration::from_secs(secs);
        assert_eq!(next_state(0, at(1000)), 1001);
        assert_eq!(next_state(1001, at(1000)), 1003);
        assert_eq!(next_state(1001, at(5000)), 5001);
        // The clock was set back.
        assert_eq!(next_state(5001, at(10)), 5003);
        assert_eq!(next_state(6, at(0)), 9);
        assert_eq!(next_state(u32::MAX, at(0)), u32::MAX);
    }

    #[test]
    fn a_state_is_read_as_it_was_written() {
        let random = getrandom::u64().unwrap();
        let path = std::env::temp_dir().join(format!("nfsrdma-nsm-{random:x}"));
        let mut file = open(&path).unwrap();
        assert_eq!(read(&mut file), None);
        write(&mut file, 1_000_001).unwrap();
        write(&mut file, 77).unwrap();
        assert_eq!(read(&mut file), Some(77));
        write(&mut file, 78).unwrap();
        assert_eq!(read(&mut file), None, "down");
        drop(file);
        std::fs::write(&path, "state 5\n").unwrap();
        let mut file = open(&path).unwrap();
        assert_eq!(read(&mut file), None);
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn this_machine_has_an_address_towards_itself() {
        let loopback: IpAddr = Ipv4Addr::LOCALHOST.into();
        assert_eq!(own_address(loopback), Some(loopback));
    }
}
