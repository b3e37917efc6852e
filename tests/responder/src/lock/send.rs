//! Calls of the server to its clients: callbacks, results, notifications. Each has its own socket
//! and a thread of those for such calls, because a client may be slow or absent.

use nfsrdma_xdr::codec::{Decode, Decoder, Encode, Encoder, Text};
use nfsrdma_xdr::procedure::Procedure;
use nfsrdma_xdr::record::{self, RecordReader};
use nfsrdma_xdr::rpc::{self, Auth, Call};
use nfsrdma_xdr::rpcbind::{
    Binding, Mapping, NetId, STRING_MAX, portmap, protocol, rpcb, universal_address,
};
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

/// How long one call may take.
const TIMEOUT: Duration = Duration::from_secs(5);
/// The pause before a datagram is sent again.
const UDP_PAUSE: Duration = Duration::from_secs(1);
/// Largest reply that is accepted, in bytes.
const MAX_REPLY: usize = 16 * 1024;

fn misbehaved(error: impl ToString) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error.to_string())
}

/// A procedure of a client's program, by its numbers.
#[derive(Debug, Clone, Copy)]
pub(super) struct Target {
    pub(super) address: SocketAddr,
    pub(super) udp: bool,
    pub(super) program: u32,
    pub(super) version: u32,
    pub(super) procedure: u32,
}

impl Target {
    pub(super) fn of<P: Procedure>(address: SocketAddr, udp: bool) -> Self {
        Target {
            address,
            udp,
            program: P::PROGRAM,
            version: P::VERSION,
            procedure: P::NUMBER,
        }
    }
}

/// Makes one call with encoded arguments, and returns its encoded results.
pub(super) fn call(target: &Target, args: &[u8]) -> io::Result<Vec<u8>> {
    let xid = getrandom::u32().map_err(|e| io::Error::other(e.to_string()))?;
    let mut message = Encoder::default();
    Call {
        xid,
        program: target.program,
        version: target.version,
        procedure: target.procedure,
        credential: Auth::None,
        verifier: Auth::None,
    }
    .encode(&mut message);
    let mut message = message.into_vec();
    message.extend_from_slice(args);
    let until = Instant::now() + TIMEOUT;
    let reply = match target.udp {
        true => datagram(target.address, xid, &message, until)?,
        false => stream(target.address, xid, &message, until)?,
    };
    let mut from = Decoder::new(&reply);
    let header = rpc::Reply::decode(&mut from).map_err(misbehaved)?;
    match header.is_success() {
        true => Ok(from.rest().to_vec()),
        false => Err(misbehaved(format!("{:?}", header.body))),
    }
}

/// The port of the target's program by the client's rpcbind; `None` if it is not registered.
pub(super) fn look_up(target: &Target) -> io::Result<Option<u16>> {
    let address = SocketAddr::new(target.address.ip(), nfsrdma_xdr::rpcbind::PORT);
    if address.is_ipv4() {
        let asked = Mapping {
            program: target.program,
            version: target.version,
            protocol: match target.udp {
                true => protocol::UDP,
                false => protocol::TCP,
            },
            port: 0,
        };
        let at = Target::of::<portmap::Getport>(address, target.udp);
        let results = call(&at, &asked.to_xdr())?;
        let port = u32::decode(&mut Decoder::new(&results)).map_err(misbehaved)?;
        let port = u16::try_from(port).map_err(misbehaved)?;
        return Ok((port != 0).then_some(port));
    }
    let netid = match target.udp {
        true => NetId::Udp6,
        false => NetId::Tcp6,
    };
    let own = universal_address(&address);
    let asked = Binding {
        program: target.program,
        version: target.version,
        netid: Text(netid.name().as_bytes()),
        address: Text(own.as_bytes()),
        owner: Text(b""),
    };
    let at = Target::of::<rpcb::Getaddr<4>>(address, target.udp);
    let results = call(&at, &asked.to_xdr())?;
    let found = Text::<STRING_MAX>::decode(&mut Decoder::new(&results)).map_err(misbehaved)?;
    Ok(netid.parse_address(found.0).map(|address| address.port()))
}

fn left(until: Instant) -> io::Result<Duration> {
    match until.saturating_duration_since(Instant::now()) {
        Duration::ZERO => Err(io::ErrorKind::TimedOut.into()),
        left => Ok(left),
    }
}

fn answers(message: &[u8], xid: u32) -> bool {
    message.get(..4) == Some(&xid.to_be_bytes()[..])
}

fn stream(to: SocketAddr, xid: u32, message: &[u8], until: Instant) -> io::Result<Vec<u8>> {
    let mut socket = TcpStream::connect_timeout(&to, left(until)?)?;
    socket.set_write_timeout(Some(left(until)?))?;
    let mark = record::mark(message.len(), true);
    socket.write_all(&[&mark[..], message].concat())?;
    let mut reader = RecordReader::new(MAX_REPLY, 64);
    let mut piece = [0; 4096];
    loop {
        socket.set_read_timeout(Some(left(until)?))?;
        let mut input = match socket.read(&mut piece)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            len => &piece[..len],
        };
        while !input.is_empty() {
            let record = reader.read(&mut input).map_err(misbehaved)?;
            if let Some(record) = record.filter(|record| answers(record, xid)) {
                return Ok(record);
            }
        }
    }
}

fn datagram(to: SocketAddr, xid: u32, message: &[u8], until: Instant) -> io::Result<Vec<u8>> {
    let any: IpAddr = match to {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind(SocketAddr::new(any, 0))?;
    socket.connect(to)?;
    let mut reply = vec![0; MAX_REPLY];
    loop {
        socket.send(message)?;
        let resend = Instant::now() + left(until)?.min(UDP_PAUSE);
        while let Ok(pause) = left(resend) {
            socket.set_read_timeout(Some(pause))?;
            match socket.recv(&mut reply) {
                Ok(len) if answers(&reply[..len], xid) => {
                    reply.truncate(len);
                    return Ok(reply);
                }
                Ok(_) => {}
                Err(e)
                    if matches!(
                        e.kind(),
                        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
                    ) => {}
                Err(e) => return Err(e),
            }
        }
    }
}
