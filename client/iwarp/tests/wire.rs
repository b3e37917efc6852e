//! The driver against a peer that sends plain bytes: what is sent, and how connections end.

use nfsrdma_iwarp::proto::nudge::PATIENCE;
use nfsrdma_iwarp::wire::mpa::Crc;
use nfsrdma_iwarp::wire::rdmap::{Terminate, TerminateCode};
use nfsrdma_iwarp::{IwarpOptions, IwarpProvider};
use nfsrdma_rdma::*;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use smallvec::smallvec;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread::{self, JoinHandle};
use std::time::Duration;

pub(crate) const LIMIT: Duration = Duration::from_secs(20);
/// Flag `S`, revision 2, IRD 0, ORD 16.
const REPLY: &[u8] = b"MPA ID Rep Frame\x10\x02\x00\x04\x00\x00\x00\x10";
/// Flag `S`, revision 2, IRD 16, ORD 0, private data "hi".
pub(crate) const REQUEST: &[u8] = b"MPA ID Req Frame\x10\x02\x00\x06\x00\x10\x00\x00hi";
/// A zero-length RDMA Write without CRC.
const EMPTY_WRITE: [u8; 20] = [
    0, 14, 0xc1, 0x40, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
];

pub(crate) fn any() -> SocketAddr {
    "127.0.0.1:0".parse().unwrap()
}

pub(crate) fn params() -> ConnectParams {
    ConnectParams {
        pool: Pool::new(4 << 20).unwrap(),
        private_data: b"data".to_vec(),
        send_depth: 16,
        recv_depth: 16,
        reads_out: 0,
        reads_in: 16,
        receive_buffers: 2,
        receive_size: 1024,
        timeout: LIMIT,
        local: None,
    }
}

pub(crate) fn read<const N: usize>(socket: &mut TcpStream) -> [u8; N] {
    let mut bytes = [0; N];
    socket.read_exact(&mut bytes).unwrap();
    bytes
}

pub(crate) fn provider() -> IwarpProvider {
    IwarpProvider::new(IwarpOptions::default())
}

/// A plain socket as the peer of who connects to the address; what it does is done by a thread.
fn peer<T: Send + 'static>(
    work: impl FnOnce(TcpStream) -> T + Send + 'static,
) -> (SocketAddr, JoinHandle<T>) {
    let listener = TcpListener::bind(any()).unwrap();
    let at = listener.local_addr().unwrap();
    let thread = thread::spawn(move || {
        let (socket, _) = listener.accept().unwrap();
        socket.set_read_timeout(Some(LIMIT)).unwrap();
        work(socket)
    });
    (at, thread)
}

fn rest(mut socket: TcpStream) -> Vec<u8> {
    let mut all = Vec::new();
    socket.read_to_end(&mut all).unwrap();
    all
}

/// Our provider as the initiator, connected to a plain socket.
fn connected() -> (Connection, TcpStream) {
    connected_with(IwarpOptions::default())
}

fn connected_with(options: IwarpOptions) -> (Connection, TcpStream) {
    let (at, peer) = peer(|mut socket| {
        assert_eq!(
            &read::<28>(&mut socket),
            b"MPA ID Req Frame\x10\x02\x00\x08\x00\x10\x00\x00data"
        );
        socket.write_all(REPLY).unwrap();
        socket
    });
    let connection = IwarpProvider::new(options).connect(at, &params());
    (connection.unwrap(), peer.join().unwrap())
}

/// Our provider as the responder; also returns the reply that the initiator gets.
fn accepted(request: &[u8]) -> (Connection, TcpStream, Vec<u8>) {
    let listener = provider().listen(any()).unwrap();
    let mut socket = TcpStream::connect(listener.local_addr()).unwrap();
    socket.set_read_timeout(Some(LIMIT)).unwrap();
    socket.write_all(request).unwrap();
    let connection = listener.accept().unwrap().accept(&params()).unwrap();
    let head: [u8; 20] = read(&mut socket);
    let mut body = vec![0; usize::from(head[19])];
    socket.read_exact(&mut body).unwrap();
    let reply = [&head[..], &body].concat();
    (connection, socket, reply)
}

fn end(connection: &mut Connection, out: &mut Vec<Completion>) -> Error {
    let until = Instant::now() + LIMIT;
    loop {
        if let Err(e) = connection.completions.poll(out, Wait::Until(until)) {
            return e;
        }
        assert!(Instant::now() < until, "the connection does not end");
    }
}

/// What completes first.
fn completed(connection: &mut Connection) -> Vec<Completion> {
    let (mut out, until) = (Vec::new(), Instant::now() + LIMIT);
    while out.is_empty() {
        let polled = connection.completions.poll(&mut out, Wait::Until(until));
        polled.unwrap();
        assert!(Instant::now() < until, "nothing completes");
    }
    out
}

fn send_of(data: Buf) -> WorkRequest {
    WorkRequest::Send {
        id: WorkId(1),
        data: smallvec![data],
        invalidate: None,
        signaled: true,
    }
}

/// The Sends of [`with_more_than_the_sockets_take`].
const MANY: usize = 12;

/// A connection with Sends that the buffers of both sockets do not hold, and the peer, which reads nothing.
fn with_more_than_the_sockets_take() -> (Connection, TcpStream) {
    let (connection, socket) = connected();
    let data = params().pool.alloc(2 << 20).unwrap().freeze();
    let mut batch: Vec<_> = (0..MANY).map(|_| send_of(data.clone())).collect();
    connection.queue_pair.post(&mut batch).unwrap();
    (connection, socket)
}

fn send(connection: &Connection) {
    let data = params().pool.alloc(4).unwrap().freeze();
    connection
        .queue_pair
        .post(&mut vec![send_of(data)])
        .unwrap();
}

//= RFC 5040, Section 7
//= type=test
//# If an LLP does not support teardown of a [...]
//# For a specific LLP connection, when all Streams are [...]
//= RFC 5040, Section 7.1
//= type=test
//# If an error occurs at the Local Peer, the [...]
//# The Local Peer MUST send a Terminate Message for each of the following cases:
//= RFC 5041, Section 3
//= type=test
//# If an LLP does not support teardown of an [...]
//# For a specific LLP Connection, when all LLP Streams [...]
//= RFC 5041, Section 6.2.2
//= type=test
//# After indicating to the ULP a fatal error has [...]
//= RFC 5041, Section 7.1
//= type=test
//# If the DDP layer detects any of the receive [...]
//# DDP MUST silently drop any subsequent incoming DDP Segments.
//= RFC 5041, Section 8.3
//= type=test
//# If an STag is not valid on a DDP Stream, DDP MUST pass the invalid access attempt to the ULP.
//= RFC 5044, Section 8
//= type=test
//# Once MPA delivers an error of any type, it [...]
#[test]
fn a_fault_is_terminated_on_the_wire() {
    let (mut connection, mut socket) = connected();
    // An RDMA Write to an STag that does not exist.
    let mut write = vec![0, 18, 0xc1, 0x40, 1, 2, 3, 4, 0, 0, 0, 0, 0, 0, 0, 9];
    write.extend_from_slice(&[7; 4]);
    write.extend_from_slice(&[0; 4]);
    // A valid Send after it.
    write.extend_from_slice(&[0, 22, 0x41, 0x43, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
    write.extend_from_slice(&[0, 0, 0, 0, b'l', b'a', b't', b'e', 0, 0, 0, 0]);
    socket.write_all(&write).unwrap();
    let mut out = Vec::new();
    let peer = thread::spawn(move || rest(socket));
    let error = end(&mut connection, &mut out);
    assert!(matches!(error, Error::PeerMisbehaved(_)), "{error:?}");
    let flushed = |c: &Completion| matches!(c, Completion::Flushed { .. });
    assert!(out.iter().all(flushed), "the Send is dropped: {out:?}");
    assert_eq!(out.len(), 2, "both Receives come back");
    let all = peer.join().unwrap();
    // Untagged, last, Terminate, QN 2, MSN 1, MO 0.
    let header = [0x41, 0x47, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 0];
    assert_eq!(all[2..20], header);
    let terminate = Terminate::parse(&all[20..]).unwrap();
    assert_eq!(terminate.code, TerminateCode::DDP_INVALID_STAG);
    assert_eq!(terminate.segment.unwrap().0, 18);
}

//= RFC 5044, Section 8
//= type=test
//# For Error codes 2 and 3, MPA MUST NOT close the TCP connection following a reported error.
//# The following errors MUST be detected by MPA and [...]
/// A wrong CRC does not end the connection at once: the peer gets a Terminate first.
#[test]
fn a_crc_mismatch_is_terminated_on_the_wire() {
    let (at, peer) = peer(|mut socket| {
        let request: [u8; 28] = read(&mut socket);
        assert_eq!(request[16], 0x50, "asks for CRCs");
        let mut reply = REPLY.to_vec();
        reply[16] |= 0x40;
        socket.write_all(&reply).unwrap();
        let mut opens = EMPTY_WRITE;
        opens[16..].copy_from_slice(&Crc::of(&EMPTY_WRITE[..16]));
        opens[19] ^= 1;
        socket.write_all(&opens).unwrap();
        let mut all = Vec::new();
        socket.read_to_end(&mut all).unwrap();
        (all, socket)
    });
    let options = IwarpOptions {
        crc: true,
        ..IwarpOptions::default()
    };
    let begun = Instant::now();
    let mut connection = IwarpProvider::new(options).connect(at, &params()).unwrap();
    let error = end(&mut connection, &mut Vec::new());
    assert!(matches!(error, Error::PeerMisbehaved(_)), "{error:?}");
    let took = begun.elapsed();
    // The peer does not close its side, so it gets all the time it may take to read the Terminate.
    let (all, _open) = peer.join().unwrap();
    assert!(took >= Duration::from_millis(200), "{took:?}");
    assert_eq!(all[..4], [0, 22, 0x41, 0x47], "a Terminate");
    assert_eq!(all[20..24], [0x20, 0x02, 0, 0], "MPA CRC, and no headers");
    assert_eq!(all[24..], Crc::of(&all[..24]));
}

//= RFC 5044, Section 7.1.1
//= type=test
//# Initiator mode receivers MUST check this field for the [...]
//# If the MPA receiver cannot interoperate with the received [...]
//= RFC 5044, Section 7.1.2
//= type=test
//# MPA Initiator mode implementations MUST receive and validate an MPA Reply Frame.
//# If the MPA Reply Frame is improperly formatted, the [...]
//# If a received "Key" does not match the expected [...]
//= RFC 5044, Section 8
//= type=test
//# In this case, the TCP connection MUST be immediately closed.
/// For the answer of another protocol, a request instead of a reply, an unknown revision, or too
/// much private data, the connection is closed without sending another byte.
#[test]
fn a_reply_that_is_no_reply_closes_the_connection() {
    let replies: [&[u8; 24]; 4] = [
        b"HTTP/1.1 400 Bad Request",
        b"MPA ID Req Frame\x10\x02\x00\x04\x00\x00\x00\x10",
        b"MPA ID Rep Frame\x00\x03\x00\x04\x00\x00\x00\x10",
        b"MPA ID Rep Frame\x00\x02\x02\x01\x00\x00\x00\x10",
    ];
    for reply in replies {
        let (at, peer) = peer(move |mut socket| {
            read::<28>(&mut socket);
            socket.write_all(reply).unwrap();
            let mut more = Vec::new();
            // Bytes that the provider has not read turn the close into a reset.
            let ended = socket.read_to_end(&mut more);
            let reset = |e: &std::io::Error| e.kind() == std::io::ErrorKind::ConnectionReset;
            assert!(
                ended.as_ref().is_ok() || ended.as_ref().is_err_and(reset),
                "{ended:?}"
            );
            more
        });
        let error = provider().connect(at, &params()).err().unwrap();
        let expected = matches!(error, Error::NotRdma(_) | Error::PeerMisbehaved(_));
        assert!(expected, "{error:?}");
        assert_eq!(peer.join().unwrap(), b"");
    }
}

#[test]
fn a_reply_that_wants_more_reads_than_offered_is_terminated() {
    let (at, peer) = peer(|mut socket| {
        read::<28>(&mut socket);
        let mut reply = REPLY.to_vec();
        reply[23] = 17;
        socket.write_all(&reply).unwrap();
        rest(socket)
    });
    let result = provider().connect(at, &params());
    assert!(matches!(result, Err(Error::PeerMisbehaved(_))));
    let all = peer.join().unwrap();
    assert_eq!(all[..4], [0, 22, 0x41, 0x47]);
    assert_eq!(all[20..22], [0x20, 0x06], "insufficient IRD resources");
}

//= RFC 5040, Section 5.4
//= type=test
//# The RDMAP layer MUST Deliver the Terminate Message to the ULP.
#[test]
fn a_terminate_of_the_peer_is_reported() {
    let (mut connection, mut socket) = connected();
    let bytes = [
        0, 22, 0x41, 0x47, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 0, 0x12, 0x05, 0, 0, 0, 0,
        0, 0,
    ];
    socket.write_all(&bytes).unwrap();
    let error = end(&mut connection, &mut Vec::new());
    assert!(
        matches!(&error, Error::PeerReported(why) if why.contains("too long")),
        "{error:?}"
    );
}

/// Nothing precedes the first Send: no RTR message was agreed on (RFC 6581 section 9.2). siw may
/// miss that Send, and needs more bytes then (docs/INTEROP.md).
#[test]
fn a_first_send_is_the_first_fpdu_and_followed_by_a_nudge_if_unanswered() {
    let (mut connection, mut socket) = connected();
    let began = Instant::now();
    send(&connection);
    let peer = thread::spawn(move || {
        let fpdu: [u8; 28] = read(&mut socket);
        assert_eq!(fpdu[2..4], [0x41, 0x43], "a Send");
        assert_eq!(read::<20>(&mut socket), EMPTY_WRITE);
        assert!(began.elapsed() >= PATIENCE);
        socket
    });
    let mut out = Vec::new();
    while !peer.is_finished() {
        let soon = Instant::now() + Duration::from_millis(10);
        connection
            .completions
            .poll(&mut out, Wait::Until(soon))
            .unwrap();
        assert!(began.elapsed() < LIMIT, "no nudge");
    }
    peer.join().unwrap();
    assert!(matches!(out[..], [Completion::Sent { id: WorkId(1) }]));
}

//= RFC 5044, Section 7.1
//= type=test
//# A DDP endpoint MUST be "bound" to the MPA connection at entry to this phase.
//= RFC 5044, Section 7.1.1
//= type=test
//# Responder mode senders MUST set this field to the [...]
//= RFC 5044, Section 7.1.2
//= type=test
//# When MPA is started in the Responder mode, the [...]
//# MPA Responder mode implementations MUST receive and validate at [...]
#[test]
fn a_responder_answers_and_waits_for_the_first_fpdu() {
    let (mut connection, mut socket, reply) = accepted(REQUEST);
    assert_eq!(
        reply,
        b"MPA ID Rep Frame\x10\x02\x00\x08\x00\x00\x00\x00data"
    );
    assert_eq!(connection.peer_private_data, b"hi");
    assert_eq!(connection.queue_pair.capabilities().max_reads_in, 0);
    send(&connection);
    let mut out = Vec::new();
    connection.completions.poll(&mut out, Wait::No).unwrap();
    assert!(out.is_empty(), "held until the initiator's first FPDU");
    socket.set_nonblocking(true).unwrap();
    assert!(socket.read(&mut [0]).is_err(), "and nothing was sent");
    socket.set_nonblocking(false).unwrap();
    socket.write_all(&EMPTY_WRITE).unwrap();
    let out = completed(&mut connection);
    assert!(matches!(out[..], [Completion::Sent { .. }]));
    assert_eq!(read::<28>(&mut socket)[2..4], [0x41, 0x43]);
}

#[test]
fn peer_to_peer_with_each_rtr() {
    // Peer-to-peer with one RTR type each: bits 15 and 14 of IRD, 15 and 14 of ORD.
    let read_request = {
        let mut bytes = vec![
            0, 46, 0x41, 0x41, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0,
        ];
        bytes.extend_from_slice(&[0; 28 + 4]);
        bytes
    };
    let cases: [([u8; 4], Vec<u8>); 3] = [
        ([0xc0, 16, 0x00, 0], vec![0; 8]),
        ([0x80, 16, 0x80, 0], EMPTY_WRITE.to_vec()),
        ([0x80, 16, 0x40, 0], read_request),
    ];
    for (fields, rtr) in cases {
        let request = [b"MPA ID Req Frame\x10\x02\x00\x04", &fields[..]].concat();
        let (mut connection, mut socket, reply) = accepted(&request);
        assert_eq!(reply[20] & 0xc0, fields[0] & 0xc0, "agrees");
        assert_eq!(reply[22] & 0xc0, fields[2] & 0xc0, "to the same RTR");
        send(&connection);
        socket.write_all(&rtr).unwrap();
        let out = completed(&mut connection);
        assert!(matches!(out[..], [Completion::Sent { .. }]), "{out:?}");
    }
}

/// The RTR message may be an RDMA Read of no bytes (RFC 6581 section 9.2), which has a response.
#[test]
fn an_initiator_opens_the_stream_by_an_rdma_read_and_takes_its_response() {
    let (at, peer) = peer(|mut socket| {
        let request = read::<28>(&mut socket);
        assert_eq!((request[20] & 0xc0, request[22] & 0xc0), (0xc0, 0xc0));
        // Peer-to-peer by RDMA Read, IRD 1, ORD 16.
        let reply = b"MPA ID Rep Frame\x10\x02\x00\x04\x80\x01\x40\x10";
        socket.write_all(reply).unwrap();
        let rtr = read::<52>(&mut socket);
        assert_eq!(rtr[..4], [0, 46, 0x41, 0x41]);
        // The response, and a Send of no bytes.
        let mut response = EMPTY_WRITE;
        response[3] = 0x42;
        socket.write_all(&response).unwrap();
        let mut send = [0; 24];
        send[..4].copy_from_slice(&[0, 18, 0x41, 0x43]);
        send[15] = 1;
        socket.write_all(&send).unwrap();
        socket
    });
    let provider = IwarpProvider::new(IwarpOptions {
        peer_to_peer: true,
        ..IwarpOptions::default()
    });
    let mut connection = provider.connect(at, &params()).unwrap();
    let _socket = peer.join().unwrap();
    let out = completed(&mut connection);
    assert!(matches!(out[..], [Completion::Received { len: 0, .. }]));
}

/// Expects a Send of 600 bytes with markers as the first FPDU: what a peer reads that requires
/// markers (RFC 5044 section 4.3).
fn expect_marked_send(connection: &Connection, socket: &mut TcpStream, crc: bool) {
    // The first marker precedes the first FPDU; its pointer is zero.
    let mut expected = vec![0; 4];
    // 618 bytes of ULPDU: untagged, last, Send, QN 0, MSN 1, MO 0; and its data.
    expected.extend_from_slice(&[
        0x02, 0x6a, 0x41, 0x43, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0,
    ]);
    let data: Vec<u8> = (0..600).map(|n| n as u8).collect();
    let first = 512 - expected.len();
    expected.extend_from_slice(&data[..first]);
    // The second marker points back to the begin of the FPDU.
    expected.extend_from_slice(&[0, 0]);
    expected.extend_from_slice(&508u16.to_be_bytes());
    expected.extend_from_slice(&data[first..]);
    let field = if crc { Crc::of(&expected) } else { [0; 4] };
    expected.extend_from_slice(&field);

    let mut buf = params().pool.alloc(600).unwrap();
    buf.copy_from_slice(&data);
    let send = send_of(buf.freeze());
    connection.queue_pair.post(&mut vec![send]).unwrap();
    let mut got = vec![0; expected.len()];
    socket.read_exact(&mut got).unwrap();
    assert!(got == expected, "{got:02x?}\nis not\n{expected:02x?}");
    assert_eq!(got[512..516], [0x00, 0x00, 0x01, 0xfc]);
}

//= RFC 5044, Section 4.2
//= type=test
//# The format of a Marker MUST be as specified in Figure 3:
//# The Reserved field MUST be set to zero on [...]
//# The least significant two bits MUST always be set [...]
//= RFC 5044, Section 4.3
//= type=test
//# All MPA senders MUST be able to generate Markers [...]
//# When Markers are enabled (see Section 7.1, Connection Setup), [...]
//= RFC 5044, Section 7.1.1
//= type=test
//# When this bit is '1' in an MPA Request [...]
//# When set to '1' in an MPA Reply Frame, [...]
//# When '1' Markers MUST be added as described in Section 4.3, MPA Markers.
#[test]
fn a_peer_that_asks_for_markers_gets_them() {
    for crc in [false, true] {
        let (at, peer) = peer(move |mut socket| {
            let request = read::<28>(&mut socket);
            assert_eq!(
                request[16],
                if crc { 0x50 } else { 0x10 },
                "no markers for us"
            );
            let mut reply = REPLY.to_vec();
            reply[16] |= 0x80 | (request[16] & 0x40);
            socket.write_all(&reply).unwrap();
            socket
        });
        let options = IwarpOptions {
            crc,
            ..IwarpOptions::default()
        };
        let connection = IwarpProvider::new(options).connect(at, &params()).unwrap();
        let mut socket = peer.join().unwrap();
        expect_marked_send(&connection, &mut socket, crc);

        // The same with the peer as the initiator.
        let mut request = REQUEST.to_vec();
        request[16] |= if crc { 0xc0 } else { 0x80 };
        let (mut connection, mut socket, reply) = accepted(&request);
        assert_eq!(reply[16], if crc { 0x50 } else { 0x10 });
        let mut opens = EMPTY_WRITE;
        if crc {
            opens[16..].copy_from_slice(&Crc::of(&EMPTY_WRITE[..16]));
        }
        socket.write_all(&opens).unwrap();
        let until = Instant::now() + Duration::from_millis(200);
        while Instant::now() < until {
            connection
                .completions
                .poll(&mut Vec::new(), Wait::Until(until))
                .unwrap();
        }
        expect_marked_send(&connection, &mut socket, crc);
    }
}

//= RFC 5044, Section 7.1.2
//= type=test
//# If the MPA Request Frame is improperly formatted, the [...]
#[test]
fn a_slow_or_wrong_request_costs_nobody_else() {
    let listener = provider().listen(any()).unwrap();
    let mut slow = TcpStream::connect(listener.local_addr()).unwrap();
    slow.write_all(b"MPA").unwrap();
    let mut incoming = listener.accept().unwrap();
    let mut wrong = TcpStream::connect(listener.local_addr()).unwrap();
    wrong.write_all(b"GET / HTTP/1.1\r\nHost: you\r\n").unwrap();
    let result = listener.accept().unwrap().accept(&params());
    assert!(matches!(result, Err(Error::PeerMisbehaved(_))));
    wrong.set_read_timeout(Some(LIMIT)).unwrap();
    let mut more = Vec::new();
    let closed = match wrong.read_to_end(&mut more) {
        Ok(_) => true,
        Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
    };
    assert!(closed && more.is_empty(), "closed, without a word");
    let result = incoming.request(Duration::from_millis(30));
    assert!(matches!(result, Err(Error::TimedOut(_))), "{result:?}");
}

//= RFC 5041, Section 3
//= type=test
//# The LLP MUST ensure that, if it accepts a [...]
//= RFC 5041, Section 6.2.2
//= type=test
//# Thus, any of the following fatal errors on a [...]
#[test]
fn a_peer_that_resets_is_a_lost_link() {
    let (mut connection, socket) = connected();
    send(&connection);
    // Closing a socket with unread bytes resets the connection.
    let mut out = Vec::new();
    connection.completions.poll(&mut out, Wait::No).unwrap();
    drop(socket);
    let error = end(&mut connection, &mut out);
    assert!(matches!(error, Error::LinkLost(_)), "{error:?}");
}

/// Less time than a peer needs for its frame if it sends one byte every [`DRIP`].
const SHORT: Duration = Duration::from_millis(300);
const DRIP: Duration = Duration::from_millis(40);

/// Sends single bytes, until all are sent or the peer closes.
fn drip(socket: &mut TcpStream, bytes: &[u8]) {
    for byte in bytes {
        thread::sleep(DRIP);
        if socket.write_all(&[*byte]).is_err() {
            break;
        }
    }
}

#[test]
fn a_peer_that_accepts_and_never_answers_is_given_up() {
    // The kernel accepts the connection, but nobody answers.
    let listener = TcpListener::bind(any()).unwrap();
    let params = ConnectParams {
        timeout: SHORT,
        ..params()
    };
    let result = provider().connect(listener.local_addr().unwrap(), &params);
    assert!(matches!(result.err(), Some(Error::TimedOut(_))));
    assert_eq!(params.pool.free_bytes(), params.pool.capacity());
}

#[test]
fn a_frame_that_drips_gets_no_more_time() {
    let (at, dripping) = peer(|mut socket| {
        drip(&mut socket, REPLY);
        // Waits until the provider closes.
        let _ = socket.read_to_end(&mut Vec::new());
    });
    let short = ConnectParams {
        timeout: SHORT,
        ..params()
    };
    let result = provider().connect(at, &short);
    assert!(matches!(result.err(), Some(Error::TimedOut(_))));
    dripping.join().unwrap();

    let listener = provider().listen(any()).unwrap();
    let mut socket = TcpStream::connect(listener.local_addr()).unwrap();
    let peer = thread::spawn(move || {
        drip(&mut socket, REQUEST);
        let _ = socket.read_to_end(&mut Vec::new());
    });
    let result = listener.accept().unwrap().accept(&short);
    assert!(matches!(result.err(), Some(Error::TimedOut(_))));
    peer.join().unwrap();
    assert_eq!(short.pool.free_bytes(), short.pool.capacity());
}

//= RFC 5044, Section 4.1
//= type=test
//# The format of an FPDU shown below MUST be used for all MPA FPDUs.
#[test]
fn a_message_may_drip() {
    let (mut connection, mut socket) = connected();
    // A Send of 8 bytes without CRC: length, DDP and RDMAP control, queue 0, message 1.
    let mut message = vec![0, 26, 0x41, 0x43];
    message.extend([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0]);
    message.extend(b"dripping");
    message.extend([0; 4]);
    let peer = thread::spawn(move || {
        drip(&mut socket, &message);
        socket
    });
    let out = completed(&mut connection);
    let Some(Completion::Received { buf, len, .. }) = out.first() else {
        panic!("{out:?}");
    };
    assert_eq!(&buf[..*len], b"dripping");
    drop(peer.join().unwrap());
}

#[test]
fn a_peer_that_stops_reading_is_given_up_with_all_that_waits_for_it() {
    let options = IwarpOptions {
        user_timeout: Some(Duration::from_secs(1)),
        socket_buffer: Some(16 << 10),
        ..IwarpOptions::default()
    };
    let (mut connection, socket) = connected_with(options);
    let pool = Pool::new(8 << 20).unwrap();
    for _ in 0..8 {
        let send = send_of(pool.alloc(1 << 20).unwrap().freeze());
        connection.queue_pair.post(&mut vec![send]).unwrap();
    }
    let mut out = Vec::new();
    let error = end(&mut connection, &mut out);
    assert!(matches!(error, Error::LinkLost(_)), "{error:?}");
    // Two Receives and eight Sends were flushed.
    assert_eq!(out.len(), 10);
    drop((out, connection, socket));
    assert_eq!(pool.free_bytes(), pool.capacity());
}

/// The same call may have been made again on another connection by then.
#[test]
fn what_the_peer_has_not_got_is_not_sent_after_the_end() {
    let (mut connection, mut socket) = with_more_than_the_sockets_take();
    connection.queue_pair.disconnect();
    end(&mut connection, &mut Vec::new());
    drop(connection);
    let read = std::io::copy(&mut socket, &mut std::io::sink());
    assert_eq!(
        read.unwrap_err().kind(),
        std::io::ErrorKind::ConnectionReset
    );
}

#[test]
fn a_thread_that_waits_for_room_in_the_socket_is_not_woken_by_itself() {
    let (mut connection, mut socket) = with_more_than_the_sockets_take();
    let mut out = Vec::new();
    let (mut idle, until) = (0, Instant::now() + LIMIT);
    while idle < 3 {
        assert!(Instant::now() < until, "it does not come to rest");
        connection.completions.poll(&mut out, Wait::No).unwrap();
        if matches!(connection.completions.arm(), Armed::Ready) {
            connection.completions.disarm();
            continue;
        }
        idle += 1;
        let descriptors = connection.completions.descriptors().unwrap();
        let mut rung = [PollFd::new(&descriptors[1], PollFlags::IN)];
        assert_eq!(poll(&mut rung, Some(&Timespec::default())), Ok(0));
        drop(descriptors);
        connection.completions.disarm();
    }
    let peer = thread::spawn(move || std::io::copy(&mut socket, &mut std::io::sink()));
    while out.len() < MANY {
        connection
            .completions
            .poll(&mut out, Wait::Until(until))
            .unwrap();
        assert!(Instant::now() < until, "it does not go on");
    }
    drop(connection);
    // What is still in our socket is not sent after the end.
    let _ = peer.join().unwrap();
}

/// Who does not wait serves others on the same thread: a peer that breaks a rule and goes on sending
/// must not keep it until the connection has ended.
#[test]
fn a_peer_that_floods_after_a_fault_keeps_no_thread_that_does_not_wait() {
    let (mut connection, mut socket) = connected();
    let peer = thread::spawn(move || {
        // Of FPDUs that are too short.
        let bytes = vec![0; 1 << 20];
        while socket.write_all(&bytes).is_ok() {}
    });
    let until = Instant::now() + LIMIT;
    let (mut out, mut polls) = (Vec::new(), 0);
    let error = loop {
        let ready = matches!(connection.completions.arm(), Armed::Ready);
        connection.completions.disarm();
        match connection.completions.poll(&mut out, Wait::No) {
            Err(error) => break error,
            Ok(()) if ready => polls += 1,
            Ok(()) => thread::sleep(Duration::from_millis(1)),
        }
        assert!(Instant::now() < until, "the connection does not end");
    };
    assert!(matches!(error, Error::PeerMisbehaved(_)), "{error:?}");
    drop(connection);
    peer.join().unwrap();
    assert!(polls >= 5, "{polls} polls");
}
