//! Connecting, from TCP to full operation: the initiator's side, and what both sides share.
//!
//! After connect(2) the initiator sends an MPA Request with the upper layer's private data, and
//! reads the MPA Reply (RFC 5044 section 7.1); `proto::handshake` evaluates both. These frames are
//! exchanged in blocking mode under one deadline, and not a byte after the Reply is read, because
//! an FPDU may follow. [`establish`] then makes the two halves of the connection. The responder may
//! send only after the initiator's first FPDU: the RTR message if both agreed on one (RFC 6581
//! section 9.2), otherwise whatever the upper layer sends first. A responder that does not know
//! revision 2 is asked once more with revision 1.

use super::poller::IwarpCompletionQueue;
use super::retransmission::set_longest_pause;
use super::shared::{IwarpQueuePair, Setup, Shared};
use crate::options::{Fpdu, IwarpOptions};
use crate::proto::handshake::{self, Agreed, FrameReader, Terms};
use crate::proto::nudge::Nudge;
use crate::proto::queue::{Message, SendQueue};
use crate::proto::rx::Receiver;
use crate::proto::segment::{MAX_FPDU, Segmenter, Slices};
use crate::proto::terminate::Fault;
use crate::wire::mpa::{Frame, FrameError, FrameKind};
use crate::wire::rdmap::TerminateCode;
use nfsrdma_rdma::{
    BufMut, Capabilities, ConnectParams, Connection, Error, Handshakes, Instant, Protection,
    Result, WorkId,
};
use rustix::net::sockopt::set_socket_linger;
use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};
use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

/// Largest message: the limit of both the 32-bit message offset and verbs.
const MAX_MESSAGE: usize = i32::MAX as usize;
/// Largest number of buffers in one exposure; one STag covers a list of any length.
const MAX_SEGMENTS: usize = 4096;
/// Longest time between two retransmissions, in milliseconds: so long after an outage TCP goes on at the latest.
const LONGEST_PAUSE: i32 = 2000;

pub(crate) fn connect(
    options: &IwarpOptions,
    handshakes: &Handshakes,
    peer: SocketAddr,
    params: &ConnectParams,
) -> Result<Connection> {
    let deadline = Instant::now() + params.timeout;
    let receives = params.take_receives()?;
    let mut terms = Terms {
        crc: options.crc,
        revision: if options.mpa_revision >= 2 { 2 } else { 1 },
        peer_to_peer: options.peer_to_peer,
        reads_in: params.reads_in,
        reads_out: params.reads_out,
    };
    let (mut stream, reply) = loop {
        let mut stream = open(options, peer, params.local, deadline)?;
        let under_way = handshakes.begin();
        let reply = ask(&mut stream, &terms, &params.private_data, deadline);
        drop(under_way);
        // RFC 6581 section 10: a responder without enhanced set-up closes the connection over an
        // enhanced request, and the initiator may try again without. Older softiwarp rejects with
        // its own revision instead.
        let unenhanced = match &reply {
            Ok(reply) => reply.reject && reply.revision < terms.revision,
            Err(error) => matches!(error, Error::Refused(_)),
        };
        if !unenhanced || terms.revision == 1 {
            break (stream, reply.map_err(of_greeting)?);
        }
        tracing::debug!(%peer, "not connected with MPA revision 2: trying revision 1");
        terms.revision = 1;
    };
    let agreed = match handshake::conclude(&terms, &reply) {
        Ok(agreed) => agreed,
        Err(unacceptable) => {
            if let Some(code) = unacceptable.terminate {
                // RFC 6581 section 8: a Terminate tells the responder the reason.
                let bytes = terminate_bytes(code, terms.crc || reply.crc, reply.markers);
                let _ = write_frame(&mut stream, &bytes, deadline);
            }
            return Err(unacceptable.error);
        }
    };
    let request = handshake::request(&terms, &params.private_data);
    let greeting = [request.to_bytes(), reply.to_bytes()];
    // As with a queue pair, nothing is sent after the end, be it of the connection or of the process. TCP would go on
    // with what the peer has not got, and on a path that is mended it would arrive after the same call was made again.
    let _ = set_socket_linger(&stream, Some(Duration::ZERO));
    let role = Role::Initiator;
    let connection = establish(
        options,
        params,
        stream,
        role,
        agreed,
        receives,
        reply.private_data,
    )?;
    Ok(Connection {
        greeting: Some(greeting),
        ..connection
    })
}

/// Opens the TCP connection, from the address `local` if there is one.
fn open(
    options: &IwarpOptions,
    peer: SocketAddr,
    local: Option<IpAddr>,
    deadline: Instant,
) -> Result<TcpStream> {
    let socket = Socket::new(Domain::for_address(peer), Type::STREAM, Some(Protocol::TCP))
        .map_err(|e| Error::local("cannot make a TCP socket", e))?;
    // Before connecting, because the TCP window scale is negotiated then.
    tune(&socket, options);
    if let Some(local) = local {
        socket
            .bind(&SocketAddr::new(local, 0).into())
            .map_err(|e| Error::local(format!("cannot connect from {local}"), e))?;
    }
    time_left(deadline)
        .and_then(|left| socket.connect_timeout(&peer.into(), left))
        .map_err(|e| connect_error(e, peer))?;
    let stream = TcpStream::from(socket);
    stream
        .set_nonblocking(false)
        .and_then(|()| stream.set_nodelay(true))
        .map_err(|e| Error::local("cannot set up the socket", e))?;
    Ok(stream)
}

/// Sends the MPA Request, and reads the Reply.
fn ask(
    stream: &mut TcpStream,
    terms: &Terms,
    private_data: &[u8],
    deadline: Instant,
) -> Result<Frame> {
    //= RFC 5044, Section 7.1.2
    //# When MPA is started in the Initiator mode, the MPA implementation MUST send a valid MPA
    //# Request Frame.
    let request = handshake::request(terms, private_data).to_bytes();
    write_frame(stream, &request, deadline)?;
    //= RFC 5044, Section 7.1.1
    //# Initiator mode receivers MUST check this field for the same value, and close the connection
    //# and report an error locally if any other value is detected.
    //# If the MPA receiver cannot interoperate with the received version, then it MUST close the
    //# connection and report an error locally.
    //= RFC 5044, Section 7.1.2
    //# MPA Initiator mode implementations MUST receive and validate an MPA Reply Frame.
    //# If the MPA Reply Frame is improperly formatted, the implementation MUST close the TCP
    //# connection and exit MPA.
    //# If a received "Key" does not match the expected value (see Section 7.1.1, MPA Request and
    //# Reply Frame Format) the TCP/DDP connection MUST be closed, and an error returned to the ULP.
    //= RFC 5044, Section 8
    //# In this case, the TCP connection MUST be immediately closed.
    read_frame(stream, FrameKind::Reply, deadline)
}

/// The FPDU of a Terminate on a stream that has carried no FPDU.
fn terminate_bytes(code: TerminateCode, crc: bool, markers: bool) -> Vec<u8> {
    let mut segmenter = Segmenter::new(crc, markers, MAX_FPDU);
    let mut message = Some(Message::Terminate(Fault::new(code).terminate()));
    segmenter.fill(1, 1, || message.take());
    let mut slices = Slices::new();
    segmenter.gather(&mut slices, usize::MAX);
    slices.iter().flat_map(|s| s.iter().copied()).collect()
}

/// Which side sent the MPA Request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    Initiator,
    Responder,
}

/// Sets socket options. This is best effort: the connection works without them.
pub(crate) fn tune(socket: &Socket, options: &IwarpOptions) {
    if let Some(bytes) = options.socket_buffer {
        let _ = socket.set_send_buffer_size(bytes);
        let _ = socket.set_recv_buffer_size(bytes);
    }
    if let Some(time) = options.user_timeout {
        let _ = socket.set_tcp_user_timeout(Some(time));
    }
    set_longest_pause(socket, LONGEST_PAUSE);
    if let Some(idle) = options.keepalive {
        let probe = (idle / 3).max(Duration::from_secs(1));
        let _ = socket.set_tcp_keepalive(
            &TcpKeepalive::new()
                .with_time(idle.max(Duration::from_secs(1)))
                .with_interval(probe)
                .with_retries(3),
        );
    }
}

fn connect_error(error: io::Error, peer: SocketAddr) -> Error {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => Error::Refused(Vec::new()),
        io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => Error::TimedOut("connecting"),
        io::ErrorKind::ConnectionReset | io::ErrorKind::ConnectionAborted => {
            Error::LinkLost(error.to_string())
        }
        _ => Error::local(format!("cannot connect to {peer}"), error),
    }
}

/// Maps the initiator's error before it has a reply. A listener of another protocol closes the
/// connection after the MPA request or answers in its own protocol. A silent one may be an RDMA
/// server that is busy: that remains a time-out.
fn of_greeting(error: Error) -> Error {
    match error {
        Error::Refused(_) => Error::NotRdma("it closed the connection over the MPA request".into()),
        other => other,
    }
}

/// Maps an error while frames are exchanged. A peer that closes instead of answering refuses.
fn frame_error(error: io::Error, doing: &'static str) -> Error {
    match error.kind() {
        io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => Error::TimedOut(doing),
        io::ErrorKind::UnexpectedEof
        | io::ErrorKind::ConnectionReset
        | io::ErrorKind::BrokenPipe
        | io::ErrorKind::ConnectionAborted => Error::Refused(Vec::new()),
        _ => Error::LinkLost(error.to_string()),
    }
}

fn time_left(deadline: Instant) -> io::Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return Err(io::ErrorKind::TimedOut.into());
    }
    Ok(left)
}

pub(crate) fn write_frame(stream: &mut TcpStream, bytes: &[u8], deadline: Instant) -> Result<()> {
    time_left(deadline)
        .and_then(|left| stream.set_write_timeout(Some(left)))
        .and_then(|()| stream.write_all(bytes))
        .map_err(|e| frame_error(e, "sending the MPA frame"))
}

/// Reads one frame and not a byte more. The deadline also holds for a peer that sends single bytes.
pub(crate) fn read_frame(
    stream: &mut TcpStream,
    kind: FrameKind,
    deadline: Instant,
) -> Result<Frame> {
    let mut reader = FrameReader::new(kind);
    let doing = match kind {
        FrameKind::Request => "waiting for the MPA request",
        FrameKind::Reply => "waiting for the MPA reply",
    };
    let mut buf = [0; 512];
    loop {
        let want = reader.want().min(buf.len());
        let n = time_left(deadline)
            .and_then(|left| stream.set_read_timeout(Some(left)))
            .and_then(|()| stream.read(&mut buf[..want]));
        let n = match n {
            Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            other => other,
        }
        .map_err(|e| frame_error(e, doing))?;
        match reader.feed(&buf[..n]) {
            Ok(Some(frame)) => return Ok(frame),
            Ok(None) => {}
            Err(FrameError::Key) if kind == FrameKind::Reply => {
                let what = "it answered the MPA request in another protocol".to_owned();
                return Err(Error::NotRdma(what));
            }
            Err(e) => return Err(Error::PeerMisbehaved(e.to_string())),
        }
    }
}

fn stays_here(local: SocketAddr, peer: SocketAddr) -> bool {
    peer.ip().to_canonical().is_loopback() || local.ip() == peer.ip()
}

/// Enters full operation: makes the two halves of the connection.
pub(crate) fn establish(
    options: &IwarpOptions,
    params: &ConnectParams,
    stream: TcpStream,
    role: Role,
    agreed: Agreed,
    receives: Vec<(WorkId, BufMut)>,
    peer_private_data: Vec<u8>,
) -> Result<Connection> {
    let set_up = |e| Error::local("cannot set up the socket", e);
    stream.set_nonblocking(true).map_err(set_up)?;
    let ends = stream
        .local_addr()
        .and_then(|local| Ok((local, stream.peer_addr()?)));
    let (local, peer) = ends.map_err(|e| Error::LinkLost(e.to_string()))?;
    let here = stays_here(local, peer);
    let max_fpdu = match options.fpdu {
        Fpdu::Bytes(n) => n,
        Fpdu::Largest => MAX_FPDU,
        Fpdu::Auto if here => MAX_FPDU,
        Fpdu::Auto => SockRef::from(&stream)
            .tcp_mss()
            .map_or(1460, |mss| mss as usize),
    };
    let segmenter = Segmenter::new(agreed.crc, agreed.markers, max_fpdu);
    let description = format!(
        "soft-iWARP over TCP {local} - {peer}, MPA revision {}, CRC {}, {}FPDUs of {} bytes",
        agreed.revision,
        if agreed.crc { "on" } else { "off" },
        if agreed.markers { "markers sent, " } else { "" },
        segmenter.max_fpdu(),
    );
    let capabilities = Capabilities {
        scatter_handle: true,
        remote_invalidate: true,
        protection: Protection::Handle,
        max_message: MAX_MESSAGE,
        //= RFC 5040, Section 6.1
        //# The RDMAP layer MUST provide the maximum number of outstanding, inbound RDMA Read
        //# Requests per RDMAP Stream direction that were negotiated between the ULP and the Local
        //# Peer's RDMAP layer.
        //# The RDMAP layer MUST provide the maximum number of outstanding, outbound RDMA Read
        //# Requests for the RDMAP Stream direction that were negotiated between the ULP and the
        //# Local Peer's RDMAP layer.
        max_reads_out: agreed.reads_out,
        max_reads_in: agreed.reads_in,
        max_segments: MAX_SEGMENTS,
        description,
    };
    let mut queue = SendQueue::new(
        params.send_depth,
        agreed.reads_out as usize,
        role == Role::Responder,
    );
    if let (Role::Initiator, Some(rtr)) = (role, agreed.rtr) {
        queue.post_rtr(rtr);
    }
    let shared = Shared::new(Setup {
        socket: stream,
        capabilities,
        local,
        peer,
        queue,
        segmenter,
        nudge: (role == Role::Initiator).then_some(Nudge::Idle),
        receives: receives.into(),
        recv_depth: params.recv_depth,
    })
    .map_err(|e| Error::local("cannot make an eventfd", e))?;
    let shared = Arc::new(shared);
    shared.pump();
    //= RFC 5044, Section 7.1
    //# A DDP endpoint MUST be "bound" to the MPA connection at entry to this phase.
    let rx = Receiver::new(agreed.crc, agreed.reads_in as usize);
    Ok(Connection {
        queue_pair: Arc::new(IwarpQueuePair(shared.clone())),
        completions: Box::new(IwarpCompletionQueue::new(shared, rx, options.spin)),
        peer_private_data,
        greeting: None,
    })
}
