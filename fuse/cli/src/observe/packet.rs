//! Builds packets that Wireshark dissects by itself from messages and RDMA operations: Ethernet, IP
//! and TCP, with MPA, DDP and RDMAP (RFC 5044, 5041, 5040) in it, for every provider.
//!
//! It is iWARP and not InfiniBand for this reason: Wireshark recognises MPA by the first two frames
//! of the connection, and then finds RPC-over-RDMA without any setting. For an InfiniBand connection
//! it needs the messages of the communication manager, which this program does not have. The MPA
//! frames are those that were on the wire; for a connection that had none they are made from the
//! private data, of revision 1. Only the flag for markers is left out, as the packets have none.

use super::frame::Connected;
use etherparse::{Ethernet2Header, IpNumber, Ipv4Header, Ipv6Header, TcpHeader, ether_type};
use nfsrdma_iwarp::wire::ddp::{QN_READ_REQUEST, QN_SEND, Tagged, Untagged};
use nfsrdma_iwarp::wire::mpa::{Crc, Frame, FrameHeader, FrameKind, fpdu_len, padding};
use nfsrdma_iwarp::wire::rdmap::{Opcode, ReadRequest};
use nfsrdma_rpcrdma::tap::{Data, Incoming};
use nfsrdma_xdr::rpcrdma::Segment;
use std::net::{IpAddr, SocketAddr};
use std::time::SystemTime;

/// Payload of one DDP segment of a Send: the whole message, if an IPv4 packet has room for it.
const SEND: usize = 64_000;
/// Payload of one DDP segment of an RDMA Write or Read.
const TAGGED: usize = 32 << 10;
/// MAC addresses of both ends, which are locally administered ones.
const CLIENT: [u8; 6] = [2, 0, 0, 0, 0, 1];
const SERVER: [u8; 6] = [2, 0, 0, 0, 0, 2];

/// The comment of packets of RDMA operations.
const RECONSTRUCTED: &str = "put together from the chunk lists of the call and its reply";
/// The comment of packets of the connection itself.
const MADE_UP: &str = "made from what both sides said while connecting";
/// The comment of MPA frames that were on the wire.
const AS_IT_WAS: &str = "as it was on the wire, but for the flag for markers";

/// One packet, which may be cut.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Packet {
    pub(super) time: SystemTime,
    pub(super) bytes: Vec<u8>,
    /// The length of the whole packet, in bytes.
    pub(super) length: usize,
    pub(super) comment: Option<&'static str>,
}

/// The sender of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum From {
    Client,
    Server,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Flags {
    syn: bool,
    ack: bool,
    psh: bool,
    fin: bool,
}

/// The next sequence numbers of one direction: of TCP, and of its messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Direction {
    next: u32,
    sends: u32,
    reads: u32,
}

/// Turns the events of a connection into packets.
#[derive(Debug)]
pub(super) struct Conversation {
    local: SocketAddr,
    peer: SocketAddr,
    client: Direction,
    server: Direction,
    /// The last STag made up for a destination of RDMA Reads, since no message has the real ones.
    sinks: u32,
    /// Whether one side asked for CRCs.
    crc: bool,
    packets: Vec<Packet>,
}

/// Converts both addresses to the same family.
fn same_family(a: SocketAddr, b: SocketAddr) -> (SocketAddr, SocketAddr) {
    let (plain_a, plain_b) = (a.ip().to_canonical(), b.ip().to_canonical());
    let mapped = |ip: IpAddr| match ip {
        IpAddr::V4(v4) => IpAddr::V6(v4.to_ipv6_mapped()),
        IpAddr::V6(_) => ip,
    };
    let (ip_a, ip_b) = match (plain_a, plain_b) {
        (IpAddr::V4(_), IpAddr::V4(_)) | (IpAddr::V6(_), IpAddr::V6(_)) => (plain_a, plain_b),
        _ => (mapped(plain_a), mapped(plain_b)),
    };
    (
        SocketAddr::new(ip_a, a.port()),
        SocketAddr::new(ip_b, b.port()),
    )
}

impl Conversation {
    /// Begins a connection, with the packets that establish it.
    pub(super) fn new(connected: &Connected) -> Self {
        let (local, peer) = same_family(connected.local, connected.peer);
        let mut conversation = Conversation {
            local,
            peer,
            client: Direction::default(),
            server: Direction::default(),
            sinks: 0,
            crc: false,
            packets: Vec::new(),
        };
        conversation.begin(connected);
        conversation
    }

    /// The packets built since the last call.
    pub(super) fn take(&mut self) -> Vec<Packet> {
        std::mem::take(&mut self.packets)
    }

    fn begin(&mut self, connected: &Connected) {
        let time = connected.time;
        let [syn, ack] = [
            Flags {
                syn: true,
                ..Flags::default()
            },
            Flags {
                ack: true,
                ..Flags::default()
            },
        ];
        let both = Flags { syn: true, ..ack };
        let made_up = Some(MADE_UP);
        self.packet(From::Client, time, syn, &[], 0, made_up);
        self.packet(From::Server, time, both, &[], 0, made_up);
        self.packet(From::Client, time, ack, &[], 0, made_up);
        let (frames, comment) = match greeting(connected) {
            Some(frames) => (frames, AS_IT_WAS),
            None => (made_up_frames(connected), MADE_UP),
        };
        self.crc = frames.iter().any(|frame| frame.crc);
        for (from, frame) in [From::Client, From::Server].into_iter().zip(frames) {
            let push = Flags { psh: true, ..ack };
            let bytes = frame.to_bytes();
            self.packet(from, time, push, &bytes, bytes.len(), Some(comment));
        }
    }

    /// Adds the end of the connection.
    pub(super) fn end(&mut self, time: SystemTime) {
        let fin = Flags {
            fin: true,
            ack: true,
            ..Flags::default()
        };
        self.packet(From::Client, time, fin, &[], 0, None);
        self.packet(From::Server, time, fin, &[], 0, None);
    }

    /// Adds a message that was sent.
    pub(super) fn outgoing(&mut self, time: SystemTime, message: &Data) {
        self.send(From::Client, time, message, None);
    }

    /// Adds a message that was received, after the RDMA Reads and Writes of the server.
    pub(super) fn incoming(&mut self, incoming: &Incoming) {
        let (time, offer) = (incoming.time, &incoming.offer);
        if let Some(data) = &incoming.read {
            let segments = offer.reads.iter().map(|read| &read.target);
            for (segment, part) in parts(segments, data) {
                self.read(time, segment, &part);
            }
        }
        let writes = [
            (offer.writes.first(), incoming.written.clone().map(padded)),
            (offer.reply.as_ref(), incoming.reply.clone()),
        ];
        for (chunk, data) in writes {
            if let (Some(chunk), Some(data)) = (chunk, data) {
                for (segment, part) in parts(&chunk.segments, &data) {
                    let to = (segment.handle, segment.offset);
                    self.tagged(From::Server, Opcode::Write, time, to, &part);
                }
            }
        }
        self.send(From::Server, time, &incoming.message, incoming.invalidated);
    }

    fn send(&mut self, from: From, time: SystemTime, message: &Data, invalidate: Option<u32>) {
        let direction = self.direction(from);
        direction.sends = direction.sends.wrapping_add(1);
        let msn = direction.sends;
        for (offset, part, last) in pieces(message, SEND) {
            let header = Untagged {
                last,
                opcode: match invalidate {
                    Some(_) => Opcode::SendInvalidate,
                    None => Opcode::Send,
                },
                invalidate: invalidate.unwrap_or(0),
                queue: QN_SEND,
                msn,
                offset: offset as u32,
            };
            self.fpdu(from, time, &header.emit(), &part, None);
        }
    }

    /// Adds an RDMA Read of the server: the request and the response.
    fn read(&mut self, time: SystemTime, segment: &Segment, data: &Data) {
        self.sinks = self.sinks.wrapping_add(1);
        let sink = self.sinks;
        let direction = self.direction(From::Server);
        direction.reads = direction.reads.wrapping_add(1);
        let header = Untagged {
            last: true,
            opcode: Opcode::ReadRequest,
            invalidate: 0,
            queue: QN_READ_REQUEST,
            msn: direction.reads,
            offset: 0,
        };
        let request = ReadRequest {
            sink_stag: sink,
            sink_offset: 0,
            length: data.length as u32,
            source_stag: segment.handle,
            source_offset: segment.offset,
        };
        let request = request.emit();
        let request = Data {
            length: request.len(),
            bytes: request.into(),
        };
        let comment = Some(RECONSTRUCTED);
        self.fpdu(From::Server, time, &header.emit(), &request, comment);
        self.tagged(From::Client, Opcode::ReadResponse, time, (sink, 0), data);
    }

    fn tagged(
        &mut self,
        from: From,
        opcode: Opcode,
        time: SystemTime,
        (stag, start): (u32, u64),
        data: &Data,
    ) {
        for (offset, part, last) in pieces(data, TAGGED) {
            let header = Tagged {
                last,
                opcode,
                stag,
                offset: start.wrapping_add(offset as u64),
            };
            self.fpdu(from, time, &header.emit(), &part, Some(RECONSTRUCTED));
        }
    }

    /// Adds a ULPDU in an FPDU in a TCP segment (RFC 5044 section 4): length, ULPDU, padding, and
    /// the CRC field, which is zero if neither side asked for CRCs.
    fn fpdu(
        &mut self,
        from: From,
        time: SystemTime,
        header: &[u8],
        payload: &Data,
        comment: Option<&'static str>,
    ) {
        let ulpdu = header.len() + payload.length;
        let mut bytes = Vec::with_capacity(fpdu_len(header.len() + payload.bytes.len()));
        bytes.extend_from_slice(&(ulpdu as u16).to_be_bytes());
        bytes.extend_from_slice(header);
        bytes.extend_from_slice(&payload.bytes);
        if payload.bytes.len() == payload.length {
            bytes.resize(bytes.len() + padding(ulpdu), 0);
            let crc = if self.crc { Crc::of(&bytes) } else { [0; 4] };
            bytes.extend_from_slice(&crc);
        }
        let flags = Flags {
            ack: true,
            psh: true,
            ..Flags::default()
        };
        self.packet(from, time, flags, &bytes, fpdu_len(ulpdu), comment);
    }

    fn direction(&mut self, from: From) -> &mut Direction {
        match from {
            From::Client => &mut self.client,
            From::Server => &mut self.server,
        }
    }

    /// Adds a TCP segment of `length` bytes, of which `bytes` are known.
    fn packet(
        &mut self,
        from: From,
        time: SystemTime,
        flags: Flags,
        bytes: &[u8],
        length: usize,
        comment: Option<&'static str>,
    ) {
        let (source, target, macs, mine, other) = match from {
            From::Client => (
                self.local,
                self.peer,
                (CLIENT, SERVER),
                self.client,
                self.server,
            ),
            From::Server => (
                self.peer,
                self.local,
                (SERVER, CLIENT),
                self.server,
                self.client,
            ),
        };
        let mut tcp = TcpHeader::new(source.port(), target.port(), mine.next, u16::MAX);
        tcp.acknowledgment_number = if flags.ack { other.next } else { 0 };
        (tcp.syn, tcp.ack, tcp.psh, tcp.fin) = (flags.syn, flags.ack, flags.psh, flags.fin);
        let over = usize::from(tcp.header_len_u16()) + length;
        let mut packet = Vec::with_capacity(80 + bytes.len());
        let ether = |kind| Ethernet2Header {
            source: macs.0,
            destination: macs.1,
            ether_type: kind,
        };
        // Nothing here is longer than SEND and its headers, so this cannot fail.
        let written = match (source.ip(), target.ip()) {
            (IpAddr::V4(source), IpAddr::V4(target)) => {
                let ip = Ipv4Header::new(
                    over as u16,
                    64,
                    IpNumber::TCP,
                    source.octets(),
                    target.octets(),
                );
                ip.is_ok_and(|ip| {
                    tcp.checksum = match bytes.len() == length {
                        true => tcp.calc_checksum_ipv4(&ip, bytes).unwrap_or(0),
                        false => 0,
                    };
                    ether(ether_type::IPV4).write(&mut packet).is_ok()
                        && ip.write(&mut packet).is_ok()
                })
            }
            (source, target) => {
                let octets = |ip| match ip {
                    IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
                    IpAddr::V6(v6) => v6.octets(),
                };
                let ip = Ipv6Header {
                    payload_length: over as u16,
                    next_header: IpNumber::TCP,
                    hop_limit: 64,
                    source: octets(source),
                    destination: octets(target),
                    ..Ipv6Header::default()
                };
                tcp.checksum = match bytes.len() == length {
                    true => tcp.calc_checksum_ipv6(&ip, bytes).unwrap_or(0),
                    false => 0,
                };
                ether(ether_type::IPV6).write(&mut packet).is_ok() && ip.write(&mut packet).is_ok()
            }
        };
        if !written || tcp.write(&mut packet).is_err() {
            return;
        }
        let headers = packet.len();
        packet.extend_from_slice(bytes);
        self.packets.push(Packet {
            time,
            bytes: packet,
            length: headers + length,
            comment,
        });
        // SYN and FIN each take a sequence number.
        let counted = length as u32 + u32::from(flags.syn) + u32::from(flags.fin);
        let direction = self.direction(from);
        direction.next = direction.next.wrapping_add(counted);
    }
}

/// The MPA frames that set the connection up, without the flag for markers.
fn greeting(connected: &Connected) -> Option<[Frame; 2]> {
    let frame = |kind, bytes: &[u8]| {
        let (header, body) = bytes.split_first_chunk()?;
        let header = FrameHeader::parse(kind, header).ok()?;
        let frame = Frame::from_parts(kind, header, body)?;
        Some(Frame {
            markers: false,
            ..frame
        })
    };
    let [request, reply] = connected.greeting.as_ref()?;
    Some([
        frame(FrameKind::Request, request)?,
        frame(FrameKind::Reply, reply)?,
    ])
}

/// Frames for a connection that had none.
fn made_up_frames(connected: &Connected) -> [Frame; 2] {
    let frame = |kind, private_data: &[u8]| Frame {
        kind,
        markers: false,
        crc: false,
        reject: false,
        revision: 1,
        enhanced: None,
        private_data: private_data.to_vec(),
    };
    [
        frame(FrameKind::Request, &connected.own_private_data),
        frame(FrameKind::Reply, &connected.peer_private_data),
    ]
}

/// The bytes `at..at + length`, as far as they are known.
fn part(data: &Data, at: usize, length: usize) -> Data {
    let known = data.bytes.len();
    Data {
        bytes: data.bytes[at.min(known)..(at + length).min(known)].into(),
        length,
    }
}

/// Splits `data` into pieces of `size`, at least one: offset, bytes, whether it is the last.
fn pieces(data: &Data, size: usize) -> impl Iterator<Item = (usize, Data, bool)> + '_ {
    let number = data.length.div_ceil(size).max(1);
    (0..number).map(move |i| {
        let at = i * size;
        let length = (data.length - at).min(size);
        (at, part(data, at, length), i + 1 == number)
    })
}

/// Adds XDR padding, which a server does not write ("A Responder MUST NOT write XDR roundup padding
/// into a Write chunk", RFC 8166 section 3.4.6.2). Wireshark puts chunk and reply together as they
/// are, and takes the reply for malformed without the padding. The reply's header has the true
/// length.
fn padded(data: Data) -> Data {
    let whole = data.bytes.len() == data.length;
    let length = data.length.next_multiple_of(4);
    let mut bytes = data.bytes.into_vec();
    if whole {
        bytes.resize(length, 0);
    }
    Data {
        bytes: bytes.into(),
        length,
    }
}

/// Distributes `data` over segments, which are filled in order.
fn parts<'a>(
    segments: impl IntoIterator<Item = &'a Segment>,
    data: &Data,
) -> Vec<(&'a Segment, Data)> {
    let mut at = 0;
    let mut filled = Vec::new();
    for segment in segments {
        let length = (segment.length as usize).min(data.length - at);
        if length > 0 {
            filled.push((segment, part(data, at, length)));
            at += length;
        }
    }
    filled
}

#[cfg(test)]
mod tests;
