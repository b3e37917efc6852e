//! RPC over TCP and UDP with one socket for each call, for MOUNT, rpcbind, and NLM over UDP (RFC
//! 5531 sections 10 and 11).
//!
//! Such calls are rare, so no connection is kept. Over UDP a call is retransmitted until a reply
//! arrives, after pauses that double. Messages with another XID are ignored. If the target asks for
//! it, the call is made from a privileged port, provided that this process may bind one.

use nfsrdma_xdr::codec::{Decode, Decoder, Encode, Encoder};
use nfsrdma_xdr::procedure::Procedure;
use nfsrdma_xdr::record::{self, RecordReader};
use nfsrdma_xdr::rpc::{self, Auth, CallTemplate};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream, UdpSocket};
use tokio::time::timeout;

/// Largest reply accepted, in bytes: of a datagram, and of a call on a connection that stays open.
pub(super) const MAX_REPLY: usize = 64 * 1024;
/// Largest reply accepted on a connection of its own, in bytes, and in how many fragments: a server
/// may list thousands of exports. Only what has arrived takes memory.
const MAX_LIST: usize = 16 << 20;
const MAX_FRAGMENTS: usize = 16 << 10;
/// First pause before a datagram is retransmitted; it doubles each time.
const FIRST_RESEND: Duration = Duration::from_millis(500);
/// Privileged ports tried, from a random one on. Those below 665 belong to well-known services.
const PRIVILEGED: std::ops::Range<u16> = 665..1024;

/// The transport protocol of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    Tcp,
    Udp,
}

impl Protocol {
    /// `TCP` or `UDP`.
    pub const fn name(self) -> &'static str {
        match self {
            Protocol::Tcp => "TCP",
            Protocol::Udp => "UDP",
        }
    }
}

/// Where and how to call.
#[derive(Debug, Clone, Copy)]
pub struct Target {
    pub address: SocketAddr,
    pub protocol: Protocol,
    /// Whether to call from a privileged port, if this process may bind one.
    pub privileged: bool,
    /// Time limit of the whole call.
    pub timeout: Duration,
}

/// Why there is no result. Each text is the end of a sentence that names the server.
#[derive(Debug, Clone, thiserror::Error)]
pub enum PlainError {
    #[error("no answer in time")]
    TimedOut,
    /// The connection was refused, or the network reports that the host cannot be reached.
    #[error("{0}")]
    Unreachable(Unreachable),
    /// The peer ended the connection before it replied.
    #[error("connection closed by the server")]
    Closed,
    /// The server did not run the call.
    #[error("{0}")]
    Refused(String),
    /// The server does not have the program, this version of it, or the procedure.
    #[error("the program or its version is not there")]
    NoProgram,
    #[error("the answer makes no sense ({0})")]
    Misbehaved(String),
}

/// Why a port cannot be reached.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unreachable {
    /// The machine answers, but nobody listens at the port.
    #[error("connection refused")]
    Refused,
    #[error("host unreachable")]
    Host,
    #[error("network unreachable")]
    Network,
    #[error("{0}")]
    Other(String),
}

impl From<String> for Unreachable {
    fn from(why: String) -> Self {
        Unreachable::Other(why)
    }
}

impl PlainError {
    /// Whether the machine answers, but nobody listens at the port.
    pub fn is_connection_refused(&self) -> bool {
        matches!(self, PlainError::Unreachable(Unreachable::Refused))
    }

    /// Whether the call may succeed later.
    pub fn is_transient(&self) -> bool {
        matches!(
            self,
            PlainError::TimedOut | PlainError::Unreachable(_) | PlainError::Closed
        )
    }

    /// Advice for the user: what to check.
    pub fn remedy(&self) -> &'static str {
        match self {
            PlainError::Unreachable(Unreachable::Host | Unreachable::Network) => {
                "check the address, and this machine's routes with 'ip route get'"
            }
            PlainError::Unreachable(_) => "check that the service runs there",
            PlainError::TimedOut => "check the address, firewalls between, and the service",
            PlainError::Closed | PlainError::Misbehaved(_) => {
                "check the port: another service may have it"
            }
            PlainError::Refused(_) => "see the server's log",
            PlainError::NoProgram => "check that the server offers it, or the port",
        }
    }
}

/// The system's text of an error, without "(os error N)", which users do not need.
fn without_number(error: &io::Error) -> String {
    let text = error.to_string();
    match text.rfind(" (os error ") {
        Some(end) => text[..end].to_owned(),
        None => text,
    }
}

impl From<io::Error> for PlainError {
    fn from(error: io::Error) -> Self {
        let why = match error.kind() {
            io::ErrorKind::ConnectionRefused => Unreachable::Refused,
            io::ErrorKind::ConnectionReset | io::ErrorKind::UnexpectedEof => {
                return PlainError::Closed;
            }
            io::ErrorKind::HostUnreachable => Unreachable::Host,
            io::ErrorKind::NetworkUnreachable => Unreachable::Network,
            _ => without_number(&error).into(),
        };
        PlainError::Unreachable(why)
    }
}

/// Makes one call and passes its results to `with`.
pub async fn call<P: Procedure, T>(
    target: &Target,
    credential: Auth<'_>,
    args: &P::Args<'_>,
    with: impl FnOnce(P::Res<'_>) -> T,
) -> Result<T, PlainError> {
    let (xid, message) = encode::<P>(credential, args)?;
    let reply = answer_to(target, xid, &message, MAX_LIST).await?;
    decode::<P, T>(&reply, with)
}

/// Sends a call with this XID, and returns the reply, by TCP of at most `most` bytes.
pub(super) async fn answer_to(
    target: &Target,
    xid: u32,
    message: &[u8],
    most: usize,
) -> Result<Vec<u8>, PlainError> {
    let exchange = async {
        match target.protocol {
            Protocol::Tcp => exchange(connect(target).await?, xid, message, most).await,
            Protocol::Udp => datagram(target, xid, message).await,
        }
    };
    timeout(target.timeout, exchange)
        .await
        .map_err(|_| PlainError::TimedOut)?
}

/// An XID for a call of its own.
pub(super) fn fresh_xid() -> Result<u32, PlainError> {
    getrandom::u32().map_err(|e| PlainError::Unreachable(e.to_string().into()))
}

/// Encodes a call with a fresh XID.
pub(super) fn encode<P: Procedure>(
    credential: Auth<'_>,
    args: &P::Args<'_>,
) -> Result<(u32, Vec<u8>), PlainError> {
    let xid = fresh_xid()?;
    let mut to = Encoder::default();
    CallTemplate::new(P::PROGRAM, P::VERSION, credential).encode(xid, P::NUMBER, &mut to);
    args.encode(&mut to);
    Ok((xid, to.into_vec()))
}

/// Decodes a reply and passes its results to `with`.
pub(super) fn decode<P: Procedure, T>(
    reply: &[u8],
    with: impl FnOnce(P::Res<'_>) -> T,
) -> Result<T, PlainError> {
    let mut from = Decoder::new(reply);
    let wrong = |error| PlainError::Misbehaved(format!("{}: {error}", P::NAME));
    let header = rpc::Reply::decode(&mut from).map_err(wrong)?;
    use rpc::Accepted::{ProcUnavail, ProgMismatch, ProgUnavail};
    if let rpc::ReplyBody::Accepted(_, ProgUnavail | ProgMismatch { .. } | ProcUnavail) =
        header.body
    {
        return Err(PlainError::NoProgram);
    }
    super::accepted(&header.body).map_err(|e| PlainError::Refused(e.to_string()))?;
    Ok(with(P::Res::decode(&mut from).map_err(wrong)?))
}

/// Whether a message is the reply to `xid`.
fn answers(message: &[u8], xid: u32) -> bool {
    message.get(..4) == Some(&xid.to_be_bytes()[..])
}

/// Makes one call on a stream that is already open, such as this machine's rpcbind socket in the
/// file system.
pub async fn call_on<P: Procedure, T>(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    limit: Duration,
    args: &P::Args<'_>,
    with: impl FnOnce(P::Res<'_>) -> T,
) -> Result<T, PlainError> {
    let (xid, message) = encode::<P>(Auth::None, args)?;
    let reply = timeout(limit, exchange(stream, xid, &message, MAX_LIST))
        .await
        .map_err(|_| PlainError::TimedOut)??;
    decode::<P, T>(&reply, with)
}

async fn exchange(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    xid: u32,
    message: &[u8],
    most: usize,
) -> Result<Vec<u8>, PlainError> {
    stream.write_all(&record::mark(message.len(), true)).await?;
    stream.write_all(message).await?;
    let mut reader = RecordReader::new(most, MAX_FRAGMENTS);
    let mut piece = [0; 4096];
    loop {
        let len = stream.read(&mut piece).await?;
        if len == 0 {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
        }
        let mut input = &piece[..len];
        while !input.is_empty() {
            let record = reader
                .read(&mut input)
                .map_err(|error| PlainError::Misbehaved(error.to_string()))?;
            if let Some(record) = record.filter(|record| answers(record, xid)) {
                return Ok(record);
            }
        }
    }
}

/// Sends the call as a datagram, again and again until a reply arrives.
async fn datagram(target: &Target, xid: u32, message: &[u8]) -> Result<Vec<u8>, PlainError> {
    let socket = bind(target, |address| {
        let socket = std::net::UdpSocket::bind(address)?;
        socket.set_nonblocking(true)?;
        UdpSocket::from_std(socket)
    })?;
    socket.connect(target.address).await?;
    let mut pause = FIRST_RESEND;
    let mut reply = vec![0; MAX_REPLY];
    loop {
        socket.send(message).await?;
        let answer = async {
            loop {
                let len = socket.recv(&mut reply).await?;
                if answers(&reply[..len], xid) {
                    return Ok::<_, io::Error>(len);
                }
            }
        };
        if let Ok(len) = timeout(pause, answer).await {
            reply.truncate(len?);
            return Ok(reply);
        }
        pause *= 2;
    }
}

pub(super) async fn connect(target: &Target) -> io::Result<TcpStream> {
    // A port can be bound and still fail to connect to this peer (a connection in TIME_WAIT).
    for attempt in 0.. {
        let socket = bind(target, |address| {
            let socket = match address {
                SocketAddr::V4(_) => TcpSocket::new_v4()?,
                SocketAddr::V6(_) => TcpSocket::new_v6()?,
            };
            if address.port() != 0 {
                socket.set_reuseaddr(true)?;
                socket.bind(address)?;
            }
            Ok(socket)
        })?;
        match socket.connect(target.address).await {
            Err(error) if error.kind() == io::ErrorKind::AddrNotAvailable && attempt < 8 => {}
            result => return result,
        }
    }
    Err(io::ErrorKind::AddrNotAvailable.into())
}

/// Opens a socket at a privileged port if the target asks for it and that is permitted.
fn bind<T>(target: &Target, open: impl Fn(SocketAddr) -> io::Result<T>) -> io::Result<T> {
    let any: IpAddr = match target.address {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    if target.privileged {
        let count = PRIVILEGED.len() as u32;
        let start = getrandom::u32().unwrap_or(0) % count;
        for step in 0..count {
            let port = PRIVILEGED.start + ((start + step) % count) as u16;
            match open(SocketAddr::new(any, port)) {
                Ok(socket) => return Ok(socket),
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
                Err(_) => break,
            }
        }
    }
    open(SocketAddr::new(any, 0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use nfsrdma_xdr::codec::Text;
    use nfsrdma_xdr::mount3;
    use nfsrdma_xdr::nfs3::Void;
    use nfsrdma_xdr::rpc::{Accepted, Reply};
    use nfsrdma_xdr::rpcbind::{self, portmap};
    use tokio::net::TcpListener;

    fn answer(call: &[u8], status: Accepted, results: &[u8]) -> Vec<u8> {
        let xid = u32::from_be_bytes(call[..4].try_into().unwrap());
        [&Reply::accepted(xid, status).to_xdr()[..], results].concat()
    }

    fn target(address: SocketAddr, protocol: Protocol) -> Target {
        Target {
            address,
            protocol,
            privileged: true,
            timeout: Duration::from_secs(20),
        }
    }

    async fn getport(target: &Target) -> Result<u32, PlainError> {
        let mapping = rpcbind::Mapping {
            program: mount3::PROGRAM,
            version: mount3::VERSION,
            protocol: rpcbind::protocol::TCP,
            port: 0,
        };
        call::<portmap::Getport, _>(target, Auth::None, &mapping, |port| port).await
    }

    async fn tcp_server(answer_with: impl Fn(&[u8]) -> Vec<u8> + Send + 'static) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut call = [0; 4 + 56];
            stream.read_exact(&mut call).await.unwrap();
            stream.write_all(&answer_with(&call[4..])).await.unwrap();
        });
        address
    }

    #[tokio::test]
    async fn tcp_takes_fragments_and_skips_other_xids() {
        let address = tcp_server(|call| {
            let mut other = answer(call, Accepted::Success, &[0, 0, 0, 1]);
            other[0] ^= 0xff;
            let reply = answer(call, Accepted::Success, &[0, 0, 8, 1]);
            [
                &record::mark(other.len(), true)[..],
                &other,
                &record::mark(5, false),
                &reply[..5],
                &record::mark(reply.len() - 5, true),
                &reply[5..],
            ]
            .concat()
        })
        .await;
        let port = getport(&target(address, Protocol::Tcp)).await;
        assert_eq!(port.unwrap(), 2049);
    }

    #[tokio::test]
    async fn a_long_list_in_many_fragments_arrives_whole() {
        const EXPORTS: usize = 10_000;
        let address = tcp_server(|call| {
            let path = Text(&b"/a/directory/that/a/server/exports"[..]);
            let export = mount3::Export {
                path,
                groups: Vec::new(),
            };
            let list = mount3::Exports(vec![export; EXPORTS]).to_xdr();
            let reply = answer(call, Accepted::Success, &list);
            let fragments = reply.chunks(4096);
            let last = fragments.len() - 1;
            let marked = fragments.enumerate().map(|(number, fragment)| {
                [&record::mark(fragment.len(), number == last)[..], fragment].concat()
            });
            marked.collect::<Vec<_>>().concat()
        })
        .await;
        let target = target(address, Protocol::Tcp);
        // As long as the call that the server waits for.
        let credential = Auth::Other {
            flavor: 9,
            body: &[0; 16],
        };
        let count = |exports: mount3::Exports<'_>| exports.0.len();
        let listed = call::<mount3::ListExports, _>(&target, credential, &Void {}, count).await;
        assert_eq!(listed.unwrap(), EXPORTS);
    }

    #[tokio::test]
    async fn errors_say_whose_fault_it_was() {
        let address = tcp_server(|call| {
            let reply = answer(call, Accepted::ProgUnavail, &[]);
            [&record::mark(reply.len(), true)[..], &reply].concat()
        })
        .await;
        let result = getport(&target(address, Protocol::Tcp)).await;
        assert!(matches!(result, Err(PlainError::NoProgram)), "{result:?}");
        let address = tcp_server(|_| vec![0xff; 4]).await;
        let result = getport(&target(address, Protocol::Tcp)).await;
        assert!(
            matches!(result, Err(PlainError::Misbehaved(_))),
            "{result:?}"
        );
        let result = getport(&target(address, Protocol::Tcp)).await;
        assert!(
            matches!(result, Err(PlainError::Unreachable(_))),
            "{result:?}"
        );
    }

    #[tokio::test]
    async fn udp_sends_again() {
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let address = socket.local_addr().unwrap();
        tokio::spawn(async move {
            let mut first = [0; 100];
            let (len, _) = socket.recv_from(&mut first).await.unwrap();
            let mut again = [0; 100];
            let (_, from) = socket.recv_from(&mut again).await.unwrap();
            assert_eq!(first, again);
            let mut reply = answer(&first[..len], Accepted::Success, &[0, 0, 0, 9]);
            reply[3] ^= 1;
            socket.send_to(&reply, from).await.unwrap();
            reply[3] ^= 1;
            socket.send_to(&reply, from).await.unwrap();
        });
        let port = getport(&target(address, Protocol::Udp)).await;
        assert_eq!(port.unwrap(), 9);
    }
}
