//! The port at which the server's lock manager and rpc.statd call this mount: the same number for
//! UDP and TCP.
//!
//! Both sockets are served by tokio tasks, which hold the service by a weak reference and end with
//! it. Since anybody can call, these are bounded: the length of a call, the number of TCP
//! connections, and the time in which a connection has to complete its next call.

use nfsrdma_rpcrdma::rpc::plain::Protocol;
use nfsrdma_xdr::record::{self, RecordReader};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// Longest call, in bytes: a header with full credential and verifier, and GRANTED with its four
/// opaques. Longer calls are not accepted.
const CALL_MAX: usize = 8 * 1024;
/// Largest number of TCP connections; further ones wait.
const CONNECTIONS: usize = 16;
/// Time after which a connection without a call is closed.
const IDLE: Duration = Duration::from_secs(60);
/// Pause after accept(2) failed, for example for lack of descriptors.
const PAUSE: Duration = Duration::from_secs(1);
/// How many ports are tried until one is free for both protocols.
const TRIES: u32 = 16;

/// The sender of a call.
#[derive(Debug, Clone, Copy)]
pub(super) struct Caller {
    pub(super) address: SocketAddr,
    pub(super) protocol: Protocol,
}

impl Caller {
    fn new(address: SocketAddr, protocol: Protocol) -> Self {
        let ip = address.ip().to_canonical();
        Caller {
            address: SocketAddr::new(ip, address.port()),
            protocol,
        }
    }

    /// Whether the caller is a program of this machine with a privileged port.
    pub(super) fn is_local_and_privileged(&self) -> bool {
        self.address.ip().is_loopback() && self.address.port() < 1024
    }
}

/// The handler of calls.
pub(super) trait Service: Send + Sync + 'static {
    /// Whether to serve a TCP connection of this caller.
    fn may_connect(&self, from: Caller) -> impl Future<Output = bool> + Send;

    /// Handles a call and returns its reply; `None` if it gets none.
    fn answer(
        self: Arc<Self>,
        message: &[u8],
        from: Caller,
    ) -> impl Future<Output = Option<Vec<u8>>> + Send;
}

/// Both sockets; they are closed when it is dropped.
#[derive(Debug)]
pub(super) struct Listener {
    pub(super) port: u16,
    /// Whether it listens on IPv6, too.
    pub(super) ipv6: bool,
    _tasks: JoinSet<()>,
}

async fn bind_at(ip: IpAddr, port: u16) -> io::Result<(UdpSocket, TcpListener)> {
    let udp = UdpSocket::bind((ip, port)).await?;
    let tcp = TcpListener::bind((ip, udp.local_addr()?.port())).await?;
    Ok((udp, tcp))
}

async fn bind(ip: IpAddr, port: Option<u16>) -> io::Result<(UdpSocket, TcpListener)> {
    let mut tries = 1;
    loop {
        match bind_at(ip, port.unwrap_or(0)).await {
            // The port is free for UDP but not for TCP.
            Err(error)
                if error.kind() == io::ErrorKind::AddrInUse && port.is_none() && tries < TRIES =>
            {
                tries += 1;
            }
            result => return result,
        }
    }
}

impl Listener {
    /// Listens at `port`, or at a free port.
    pub(super) async fn start<S: Service>(port: Option<u16>, to: &Arc<S>) -> io::Result<Self> {
        let (ipv6, (udp, tcp)) = match bind(Ipv6Addr::UNSPECIFIED.into(), port).await {
            Ok(both) => (true, both),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => return Err(error),
            // This machine has no IPv6.
            Err(_) => (false, bind(Ipv4Addr::UNSPECIFIED.into(), port).await?),
        };
        let port = tcp.local_addr()?.port();
        let mut tasks = JoinSet::new();
        tasks.spawn(datagrams(udp, Arc::downgrade(to)));
        tasks.spawn(connections(tcp, Arc::downgrade(to)));
        Ok(Listener {
            port,
            ipv6,
            _tasks: tasks,
        })
    }
}

async fn datagrams<S: Service>(socket: UdpSocket, to: Weak<S>) {
    let mut buffer = vec![0; CALL_MAX];
    loop {
        match socket.recv_from(&mut buffer).await {
            Ok((len, from)) => {
                let Some(to) = to.upgrade() else { return };
                let from_udp = Caller::new(from, Protocol::Udp);
                if let Some(reply) = to.answer(&buffer[..len], from_udp).await {
                    // The caller repeats its call if this is lost.
                    let _ = socket.try_send_to(&reply, from);
                }
            }
            // An error of an earlier reply. The pause avoids a busy loop.
            Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
        }
    }
}

async fn connections<S: Service>(listener: TcpListener, to: Weak<S>) {
    let room = Arc::new(Semaphore::new(CONNECTIONS));
    let mut served = JoinSet::new();
    loop {
        let place = room.clone().acquire_owned().await;
        while served.try_join_next().is_some() {}
        match listener.accept().await {
            Ok((stream, from)) => {
                let to = to.clone();
                served.spawn(async move {
                    converse(stream, Caller::new(from, Protocol::Tcp), &to).await;
                    drop(place);
                });
            }
            Err(_) => tokio::time::sleep(PAUSE).await,
        }
    }
}

async fn converse<S: Service>(mut stream: TcpStream, from: Caller, to: &Weak<S>) {
    match to.upgrade() {
        Some(to) if to.may_connect(from).await => {}
        _ => return,
    }
    let mut reader = RecordReader::new(CALL_MAX, 16);
    let mut piece = [0; 4096];
    // Limits the time of a whole call, so that single bytes do not keep the connection.
    let mut until = Instant::now() + IDLE;
    loop {
        let Ok(Ok(len @ 1..)) = tokio::time::timeout_at(until, stream.read(&mut piece)).await
        else {
            return;
        };
        let mut input = &piece[..len];
        while !input.is_empty() {
            let call = match reader.read(&mut input) {
                Ok(Some(call)) => call,
                Ok(None) => continue,
                Err(_) => return,
            };
            until = Instant::now() + IDLE;
            let reply = match to.upgrade() {
                Some(to) => to.answer(&call, from).await,
                None => return,
            };
            let Some(reply) = reply else { continue };
            let framed = [&record::mark(reply.len(), true)[..], &reply].concat();
            let written = tokio::time::timeout(IDLE, stream.write_all(&framed)).await;
            if !matches!(written, Ok(Ok(()))) {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Nobody;

    impl Service for Nobody {
        async fn may_connect(&self, _: Caller) -> bool {
            true
        }

        async fn answer(self: Arc<Self>, _: &[u8], _: Caller) -> Option<Vec<u8>> {
            None
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_byte_now_and_then_keeps_no_place() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let mut peer = TcpStream::connect(listener.local_addr().unwrap())
            .await
            .unwrap();
        let (stream, from) = listener.accept().await.unwrap();
        let to = Arc::new(Nobody);
        let weak = Arc::downgrade(&to);
        let served = tokio::spawn(async move {
            converse(stream, Caller::new(from, Protocol::Tcp), &weak).await;
        });
        // The record mark of 256 bytes.
        for byte in [0x80, 0, 1, 0] {
            let _ = peer.write_all(&[byte]).await;
            tokio::time::sleep(IDLE * 2 / 3).await;
        }
        assert!(served.is_finished());
    }
}
