//! Every fault of a peer, and the Terminate for it.

use super::peer::{Got, Peer, READS};
use nfsrdma_iwarp::proto::rx::Step;
use nfsrdma_iwarp::proto::stag::Access;
use nfsrdma_iwarp::wire::ddp::{QN_READ_REQUEST, QN_SEND, QN_TERMINATE, Tagged, Untagged};
use nfsrdma_iwarp::wire::mpa::{Crc, padding};
use nfsrdma_iwarp::wire::rdmap::{Opcode, ReadRequest, Terminate, TerminateCode as Code};
use nfsrdma_rdma::Pool;

/// An FPDU with a header and a payload. With `crc` the CRC field is right, else zero.
fn fpdu(header: &[u8], payload: &[u8], crc: bool) -> Vec<u8> {
    let ulpdu = header.len() + payload.len();
    let mut bytes = (ulpdu as u16).to_be_bytes().to_vec();
    bytes.extend_from_slice(header);
    bytes.extend_from_slice(payload);
    bytes.resize(bytes.len() + padding(ulpdu), 0);
    let field = if crc { Crc::of(&bytes) } else { [0; 4] };
    bytes.extend_from_slice(&field);
    bytes
}

fn tagged(opcode: Opcode, stag: u32, offset: u64) -> [u8; 14] {
    Tagged {
        last: true,
        opcode,
        stag,
        offset,
    }
    .emit()
}

fn send() -> Untagged {
    Untagged {
        last: true,
        opcode: Opcode::Send,
        invalidate: 0,
        queue: QN_SEND,
        msn: 1,
        offset: 0,
    }
}

fn peer() -> Peer {
    let pool = Pool::new(4 << 20).unwrap();
    let peer = Peer::new(&pool, false, 1460);
    peer.post_receive(100);
    peer
}

/// Gives `bytes` to a new peer in one piece, and to another one byte by byte.
fn refuses(bytes: impl Fn(&Peer) -> Vec<u8>, code: Code) -> Terminate {
    let mut whole = peer();
    let input = bytes(&whole);
    let fault = whole.input(&input).unwrap_err();
    assert_eq!(fault.code, code);
    assert_eq!(whole.got, []);

    let mut slow = peer();
    let input = bytes(&slow);
    let mut result = Ok(());
    for byte in input {
        result = slow.input(&[byte]);
        if result.is_err() {
            break;
        }
    }
    assert_eq!(result.unwrap_err().code, code, "byte by byte");
    fault.terminate()
}

fn refuses_send(change: impl Fn(&mut Untagged), len: usize, code: Code) -> Terminate {
    let bytes = |_: &Peer| {
        let mut header = send();
        change(&mut header);
        fpdu(&header.emit(), &vec![9; len], false)
    };
    refuses(bytes, code)
}

//= RFC 5040, Section 5.3
//= type=test
//# One Send Message Type MUST consume one Untagged Buffer.
//# A zero-length Send Message Type MUST consume an Untagged Buffer at the Data Sink.
//= RFC 5040, Section 7.2
//= type=test
//# The DDP layer MUST validate all Untagged DDP Segment fields.
//= RFC 5041, Section 3
//= type=test
//# The LLP MUST NOT pass a duplicate DDP Segment [...]
//= RFC 5041, Section 7.1
//= type=test
//# For non-zero-length Untagged DDP Segments, the DDP Segment MUST [...]
#[test]
fn untagged_buffer_errors() {
    let t = refuses_send(|h| h.queue = 3, 10, Code::DDP_INVALID_QN);
    let (length, _) = t.segment.unwrap();
    assert_eq!(length, 28, "RFC 5040 Figure 10: with length and DDP header");
    assert!(t.read_request.is_none());
    refuses_send(|h| h.msn = 2, 10, Code::DDP_MSN_RANGE);
    refuses_send(|h| h.msn = 0, 10, Code::DDP_MSN_RANGE);
    refuses_send(|h| h.offset = 4, 10, Code::DDP_INVALID_MO);
    refuses_send(|_| (), 101, Code::DDP_TOO_LONG);
    // The first Send uses up the only Receive.
    let two = |_: &Peer| {
        let mut second = send();
        second.msn = 2;
        let mut bytes = fpdu(&send().emit(), b"", false);
        bytes.extend(fpdu(&second.emit(), b"", false));
        bytes
    };
    let mut whole = peer();
    let bytes = two(&whole);
    assert_eq!(whole.input(&bytes).unwrap_err().code, Code::DDP_NO_BUFFER);
    assert_eq!(whole.got, [Got::Message(vec![], None)]);
    // A Send that was delivered is not delivered again, though there is a Receive for it.
    let mut twice = peer();
    twice.post_receive(100);
    let bytes = fpdu(&send().emit(), b"once", false);
    twice.input(&bytes).unwrap();
    assert_eq!(twice.input(&bytes).unwrap_err().code, Code::DDP_MSN_RANGE);
    assert_eq!(twice.got, [Got::Message(b"once".to_vec(), None)]);
}

//= RFC 5041, Section 4.1
//= type=test
//# If the Last flag is set to one, the DDP Message payload MUST be Delivered to the ULP after:
#[test]
fn segments_of_a_send_follow_each_other() {
    let first = Untagged {
        last: false,
        ..send()
    };
    for (offset, code) in [
        (40, None),
        (39, Some(Code::DDP_INVALID_MO)),
        (44, Some(Code::DDP_INVALID_MO)),
    ] {
        let mut peer = peer();
        peer.input(&fpdu(&first.emit(), &[1; 40], false)).unwrap();
        let second = Untagged { offset, ..send() };
        let result = peer.input(&fpdu(&second.emit(), &[2; 60], false));
        assert_eq!(result.err().map(|f| f.code), code);
    }
    let mut peer = peer();
    peer.input(&fpdu(&first.emit(), &[1; 40], false)).unwrap();
    let second = Untagged {
        offset: 40,
        ..send()
    };
    let fault = peer
        .input(&fpdu(&second.emit(), &[2; 61], false))
        .unwrap_err();
    assert_eq!(fault.code, Code::DDP_TOO_LONG);
    assert!(peer.rx.take_partial().is_some(), "the Receive is not lost");
}

//= RFC 5040, Section 7.2
//= type=test
//# The DDP layer MUST validate all DDP Segment fields.
//= RFC 5041, Section 4.2
//= type=test
//# The STag MUST be valid for this DDP Stream.
//= RFC 5041, Section 7.1
//= type=test
//# For non-zero-length Tagged DDP Segments, the segment MUST be [...]
#[test]
fn tagged_buffer_errors() {
    let write = |at: fn(u32, u64) -> (u32, u64), access: Access| {
        move |peer: &Peer| {
            let (stag, base, _) = peer.expose(access, vec![0; 50]);
            let (stag, offset) = at(stag, base);
            fpdu(&tagged(Opcode::Write, stag, offset), &[1; 50], false)
        }
    };
    let w = Access::Write;
    let t = refuses(write(|s, b| (s ^ 1, b), w), Code::DDP_INVALID_STAG);
    assert_eq!(t.segment.unwrap().0, 64);
    refuses(write(|s, b| (s, b + 1), w), Code::DDP_BASE_OR_BOUNDS);
    refuses(write(|s, b| (s, b - 1), w), Code::DDP_BASE_OR_BOUNDS);
    refuses(write(|s, _| (s, u64::MAX - 10), w), Code::DDP_TO_WRAP);
    // Only an RDMA Read Request, or a Send that invalidates, causes a remote protection error of
    // RDMAP (RFC 5040 Figure 10).
    for other in [Access::Read, Access::ReadSink] {
        let t = refuses(write(|s, b| (s, b), other), Code::DDP_INVALID_STAG);
        assert!(t.segment.is_some() && t.read_request.is_none());
    }
}

//= RFC 5040, Section 5.1
//= type=test
//# A valid RDMA Write Message MUST NOT be delivered [...]
//= RFC 5041, Section 5.2
//= type=test
//# Only the DDP Control and RsvdULP Fields MUST be valid for a zero-length Tagged DDP Segment.
//# The STag and TO fields MUST NOT be checked for a zero-length Tagged DDP Message.
#[test]
fn zero_length_writes_name_nothing() {
    let mut peer = peer();
    peer.input(&fpdu(&tagged(Opcode::Write, 0, 0), b"", false))
        .unwrap();
    assert_eq!(peer.rx.fpdus(), 1);
    assert_eq!(peer.got, [], "nobody is told");
}

//= RFC 5040, Section 7.2
//= type=test
//# The RDMA OpCode MUST be valid.
//# The RDMA Version MUST be valid.
//= RFC 5041, Section 4.1
//= type=test
//# The value of DV MUST be the same for all the DDP Segments transmitted or received on a DDP
//# Stream.
#[test]
fn versions_and_opcodes() {
    let with = |byte: usize, value: u8, header: Vec<u8>| {
        move |_: &Peer| {
            let mut header = header.clone();
            header[byte] = value;
            fpdu(&header, &[0; 8], false)
        }
    };
    let untagged = send().emit().to_vec();
    let write = tagged(Opcode::Write, 0, 0).to_vec();
    refuses(with(0, 0x42, untagged.clone()), Code::DDP_UNTAGGED_VERSION);
    refuses(with(0, 0xc0, write.clone()), Code::DDP_TAGGED_VERSION);
    refuses(with(1, 0x83, untagged.clone()), Code::RDMAP_INVALID_VERSION);
    for opcode in 8..16 {
        let code = Code::RDMAP_UNEXPECTED_OPCODE;
        refuses(with(1, 0x40 | opcode, untagged.clone()), code);
        refuses(with(1, 0x40 | opcode, write.clone()), code);
    }
    // An opcode with the wrong model, and with the wrong queue.
    refuses(with(1, 0x43, write.clone()), Code::RDMAP_UNEXPECTED_OPCODE);
    refuses(
        with(1, 0x40, untagged.clone()),
        Code::RDMAP_UNEXPECTED_OPCODE,
    );
    refuses_send(
        |h| h.queue = QN_READ_REQUEST,
        4,
        Code::RDMAP_UNEXPECTED_OPCODE,
    );
    // A Read Response without a request.
    refuses(with(1, 0x42, write), Code::RDMAP_UNEXPECTED_OPCODE);
}

#[test]
fn lengths_too_small_for_a_header() {
    for len in [1u16, 13] {
        let bytes = move |_: &Peer| {
            let mut bytes = len.to_be_bytes().to_vec();
            bytes.resize(40, 0);
            bytes
        };
        refuses(bytes, Code::DDP_LOCAL_CATASTROPHIC);
    }
    // An untagged header cut to the length of a tagged one.
    let bytes = |_: &Peer| fpdu(&send().emit()[..14], b"", false);
    refuses(bytes, Code::DDP_LOCAL_CATASTROPHIC);
}

//= RFC 5040, Section 5.3
//= type=test
//# When the Send with Invalidate and Send with Solicited [...]
//= RFC 5040, Section 7.2
//= type=test
//# The Invalidate STag MUST be valid.
#[test]
fn invalidating_what_is_not_there() {
    let t = refuses_send(
        |h| {
            h.opcode = Opcode::SendInvalidate;
            h.invalidate = 77;
        },
        4,
        Code::RDMAP_CANNOT_INVALIDATE,
    );
    assert!(t.segment.is_some());
}

fn request(peer: &Peer, change: impl Fn(&mut ReadRequest)) -> Vec<u8> {
    let (source_stag, source_offset, _) = peer.expose(Access::Read, vec![0; 50]);
    let mut request = ReadRequest {
        sink_stag: 1,
        sink_offset: 2,
        length: 50,
        source_stag,
        source_offset,
    };
    change(&mut request);
    fpdu(&read_header(1).emit(), &request.emit(), false)
}

fn read_header(msn: u32) -> Untagged {
    Untagged {
        opcode: Opcode::ReadRequest,
        queue: QN_READ_REQUEST,
        msn,
        ..send()
    }
}

//= RFC 5040, Section 5.2.1
//= type=test
//# If the Data Source receives a non-zero-length RDMA Read [...]
//# MUST NOT validate the Data Source STag and Data [...]
//# MUST respond with a zero-length RDMA Read Response Message.
//= RFC 5040, Section 7.2
//= type=test
//# The Data Source STag MUST be valid.
//# The Data Source Tagged Offset MUST fall in the [...]
//# The sum of the Data Source Tagged Offset and the RDMA Read Message Size MUST fall [...]
//# The sum of the Data Source Tagged Offset and the RDMA Read Message Size MUST NOT [...]
#[test]
fn read_requests() {
    let t = refuses(
        |p| request(p, |r| r.source_stag ^= 1),
        Code::RDMAP_INVALID_STAG,
    );
    assert!(t.segment.is_some() && t.read_request.is_some());
    refuses(
        |p| request(p, |r| r.length += 1),
        Code::RDMAP_BASE_OR_BOUNDS,
    );
    refuses(
        |p| request(p, |r| r.source_offset = u64::MAX),
        Code::RDMAP_TO_WRAP,
    );
    refuses(
        |p| {
            let (stag, ..) = p.expose(Access::Write, vec![0; 50]);
            request(p, move |r| r.source_stag = stag)
        },
        Code::RDMAP_ACCESS_RIGHTS,
    );
    let raw = |header: Untagged, len| move |_: &Peer| fpdu(&header.emit(), &vec![0; len], false);
    refuses(raw(read_header(2), 28), Code::DDP_MSN_RANGE);
    refuses(raw(read_header(1), 29), Code::DDP_TOO_LONG);
    refuses(raw(read_header(1), 27), Code::RDMAP_CATASTROPHIC_STREAM);
    let begun = Untagged {
        last: false,
        ..read_header(1)
    };
    refuses(raw(begun, 28), Code::RDMAP_CATASTROPHIC_STREAM);
    // A request of zero length is not validated (RFC 5040 section 5.2.1), but answered.
    let mut peer = peer();
    let bytes = request(&peer, |r| {
        r.length = 0;
        r.source_stag = 0;
    });
    peer.input(&bytes).unwrap();
    assert_eq!(peer.side.queue.borrow().responses_due(), 1);
}

//= RFC 5040, Section 5.2.1
//= type=test
//# One RDMA Read Request Message MUST consume one Untagged Buffer.
//= RFC 5040, Section 5.2.2
//= type=test
//# The Data Source MUST ensure that a sufficient number [...]
//= RFC 5040, Section 6.1
//= type=test
//# For inbound RDMA Read Requests, the RDMAP layer MUST [...]
#[test]
fn more_read_requests_than_negotiated() {
    let mut peer = peer();
    let header = |n: usize| read_header(n as u32).emit();
    for n in 1..=READS {
        peer.input(&fpdu(&header(n), &[0; 28], false)).unwrap();
    }
    let fault = peer
        .input(&fpdu(&header(READS + 1), &[0; 28], false))
        .unwrap_err();
    assert_eq!(fault.code, Code::DDP_NO_BUFFER);
}

/// RFC 5040 section 6.1 limits outstanding requests. A request whose whole response is on the wire
/// does not count: the peer may have the response, and its next request may arrive before the
/// system call that sent the response returns.
#[test]
fn a_read_request_may_follow_the_last_byte_of_a_response() {
    let header = |n: usize| read_header(n as u32).emit();
    let full = || {
        let mut peer = peer();
        for n in 1..=READS {
            peer.input(&fpdu(&header(n), &[0; 28], false)).unwrap();
        }
        peer
    };
    let mut responder = full();
    let bytes = responder.hand_over(usize::MAX);
    assert!(!bytes.is_empty());
    for n in READS + 1..=2 * READS {
        responder.input(&fpdu(&header(n), &[0; 28], false)).unwrap();
    }
    // Only one more request for each response.
    let last = fpdu(&header(2 * READS + 1), &[0; 28], false);
    let fault = responder.input(&last).unwrap_err();
    assert_eq!(fault.code, Code::DDP_NO_BUFFER);

    // The peer has received nothing of what the socket did not accept.
    let mut responder = full();
    let bytes = responder.hand_over(usize::MAX);
    let one = bytes.len() / READS;
    responder.handed_over(one);
    responder
        .input(&fpdu(&header(READS + 1), &[0; 28], false))
        .unwrap();
    let fault = responder
        .input(&fpdu(&header(READS + 2), &[0; 28], false))
        .unwrap_err();
    assert_eq!(fault.code, Code::DDP_NO_BUFFER);
}

//= RFC 5040, Section 5.2.2
//= type=test
//# The RDMAP layer MUST Deliver the RDMA Read Response Message to the ULP.
//= RFC 5041, Section 4.2
//= type=test
//# At the Data Sink, the DDP MUST provide the STag field when the ULP Message is delivered.
#[test]
fn read_responses_must_fit_their_request() {
    let answer = |offset_by: u64, len: usize, last: bool, other: bool| {
        let mut peer = peer();
        peer.read(20, 0, 0);
        while !peer.output(usize::MAX).is_empty() {}
        let read = peer.side.queue.borrow().pending_read().unwrap();
        let header = Tagged {
            last,
            opcode: Opcode::ReadResponse,
            stag: read.stag ^ u32::from(other),
            offset: read.offset + offset_by,
        };
        peer.input(&fpdu(&header.emit(), &vec![5; len], false))
            .map(|()| peer.got)
            .map_err(|f| f.code)
    };
    assert_eq!(answer(0, 20, true, false), Ok(vec![Got::ReadDone]));
    assert_eq!(answer(0, 10, false, false), Ok(vec![]));
    assert_eq!(answer(0, 20, true, true), Err(Code::DDP_INVALID_STAG));
    assert_eq!(answer(0, 0, false, true), Err(Code::DDP_INVALID_STAG));
    assert_eq!(answer(1, 19, true, false), Err(Code::DDP_BASE_OR_BOUNDS));
    assert_eq!(answer(0, 21, true, false), Err(Code::DDP_BASE_OR_BOUNDS));
    let short = answer(0, 19, true, false);
    assert_eq!(short, Err(Code::RDMAP_CATASTROPHIC_STREAM));
    let endless = answer(0, 20, false, false);
    assert_eq!(endless, Err(Code::RDMAP_CATASTROPHIC_STREAM));
}

//= RFC 5040, Section 5.5
//= type=test
//# At the Data Sink, an incoming Send Message MUST [...]
//= RFC 5044, Section 4.4
//= type=test
//# When an FPDU is received, and CRC checking is [...]
//# If not, the receiver MUST treat the FPDU as an invalid FPDU.
#[test]
fn crc_mismatch() {
    let pool = Pool::new(4 << 20).unwrap();
    for step in [1, 1000] {
        for flip in [1, 5, 30, 45] {
            let mut peer = Peer::new(&pool, true, 1460);
            peer.post_receive(100);
            let mut bytes = fpdu(&send().emit(), &[7; 23], true);
            assert_eq!(bytes.len(), 48);
            bytes[flip] ^= 0x10;
            let mut result = Ok(());
            for piece in bytes.chunks(step) {
                result = result.and_then(|()| peer.input(piece));
            }
            // After a wrong length, the receiver waits for bytes that do not arrive.
            if flip != 1 {
                let fault = result.unwrap_err();
                assert!(fault.code == Code::MPA_CRC || step == 1, "{fault:?}");
            }
            assert_eq!(peer.got, [], "nothing is delivered");
        }
    }
}

//= RFC 5044, Section 4.1
//= type=test
//# The pad data MUST be set to zero by [...]
//# When CRCs are not enabled, this field is still [...]
//= RFC 5044, Section 7.1.1
//= type=test
//# When this field is '0' in the MPA Request [...]
//# When CRCs are not in use, the CRC field [...]
/// The bytes of padding may have any value, and so may the CRC field without CRCs.
#[test]
fn padding_and_an_unused_crc_field_are_not_looked_at() {
    let mut peer = peer();
    let mut bytes = fpdu(&send().emit(), b"abc", false);
    assert_eq!(bytes.len(), 2 + 18 + 3 + 1 + 4);
    bytes[23..].copy_from_slice(&[0x55, 0xde, 0xad, 0xbe, 0xef]);
    peer.input(&bytes).unwrap();
    assert_eq!(peer.got, [Got::Message(b"abc".to_vec(), None)]);

    let pool = Pool::new(4 << 20).unwrap();
    let mut peer = Peer::new(&pool, true, 1460);
    peer.post_receive(100);
    let field = Crc::of(&bytes[..24]);
    bytes[24..].copy_from_slice(&field);
    peer.input(&bytes).unwrap();
    assert_eq!(peer.got, [Got::Message(b"abc".to_vec(), None)]);
}

//= RFC 5040, Section 5.4
//= type=test
//# One Terminate Message MUST consume one Untagged Buffer.
//# On a single RDMAP Stream, the RDMAP layer MUST guarantee placement of a single Terminate
//# Message.
//# A Terminate Message MUST be Delivered to the Remote Peer's RDMAP layer.
/// A Terminate needs no Receive.
#[test]
fn a_terminate_is_understood() {
    let pool = Pool::new(4 << 20).unwrap();
    let mut peer = Peer::new(&pool, false, 1460);
    let terminate = Terminate {
        code: Code::RDMAP_ACCESS_RIGHTS,
        segment: None,
        read_request: None,
    };
    let header = Untagged {
        opcode: Opcode::Terminate,
        queue: QN_TERMINATE,
        ..send()
    };
    peer.input(&fpdu(&header.emit(), &terminate.emit(), false))
        .unwrap();
    assert_eq!(peer.got, [Got::Terminated(terminate)]);
}

#[test]
fn the_empty_fpdu_opens_a_stream_once() {
    let mut peer = peer();
    peer.input(&[0; 7]).unwrap();
    assert_eq!(peer.got, []);
    peer.input(&[0]).unwrap();
    assert_eq!(peer.got, [Got::Rtr]);
    assert!(peer.input(&[0; 8]).is_err(), "only first");
}

//= RFC 5041, Section 4.2
//= type=test
//# At the Data Sink, DDP MUST provide the RsvdULP field to the ULP when the DDP Message is
//# delivered.
//= RFC 5041, Section 4.3
//= type=test
//# At the Data Sink, DDP MUST provide RsvdULP field to the ULP when the ULP Message is Delivered.
//= RFC 5041, Section 5.4
//= type=test
//# At the Data Sink, DDP MUST provide the RsvdULP [...]
#[test]
fn every_kind_of_send_is_received() {
    let mut peer = peer();
    let mut want = Vec::new();
    for (n, opcode) in [
        Opcode::Send,
        Opcode::SendInvalidate,
        Opcode::SendSolicited,
        Opcode::SendSolicitedInvalidate,
    ]
    .into_iter()
    .enumerate()
    {
        peer.post_receive(100);
        let (stag, ..) = peer.expose(Access::Write, vec![0; 4]);
        let header = Untagged {
            opcode,
            invalidate: stag,
            msn: n as u32 + 1,
            ..send()
        };
        peer.input(&fpdu(&header.emit(), b"abc", false)).unwrap();
        // The field is ignored if the opcode does not invalidate (RFC 5040 section 4.1).
        let invalidated = opcode.invalidates().then_some(stag);
        want.push(Got::Message(b"abc".to_vec(), invalidated));
        let left = peer.side.stags.borrow_mut().remove_by_peer(stag);
        assert_eq!(left.is_none(), opcode.invalidates());
    }
    assert_eq!(peer.got, want);
}

#[test]
fn the_response_to_a_read_of_no_bytes_names_nothing() {
    let mut peer = peer();
    peer.read(0, 0, 0);
    while !peer.output(usize::MAX).is_empty() {}
    let response = tagged(Opcode::ReadResponse, 0x99, 0x77);
    peer.input(&fpdu(&response, b"", false)).unwrap();
    assert_eq!(peer.got, [Got::ReadDone]);
}

/// Who waits for more bytes than the shortest FPDU has waits for ever.
#[test]
fn no_more_bytes_are_needed_than_the_shortest_fpdu_has() {
    let mut peer = peer();
    let write = fpdu(&tagged(Opcode::Write, 0, 0), b"", false);
    let send = fpdu(&send().emit(), b"", false);
    for bytes in [write, send] {
        for len in 0..bytes.len() - 4 {
            match peer.rx.step(&peer.side, &bytes[..len]) {
                Ok((0, Step::Need(wanted))) => assert!(len < wanted && wanted <= bytes.len()),
                other => panic!("{other:?}"),
            }
        }
    }
}

#[test]
fn a_stream_is_between_two_fpdus_only_when_one_is_complete() {
    let mut peer = peer();
    assert!(peer.rx.is_between_fpdus());
    let bytes = fpdu(&send().emit(), b"hello", false);
    let (head, rest) = bytes.split_at(24);
    peer.input(head).unwrap();
    assert!(!peer.rx.is_between_fpdus());
    peer.input(rest).unwrap();
    assert!(peer.rx.is_between_fpdus());
    assert_eq!(peer.got, [Got::Message(b"hello".to_vec(), None)]);
}

#[test]
fn the_empty_fpdu_opens_a_stream_only_if_its_crc_is_right() {
    let pool = Pool::new(4 << 20).unwrap();
    let opened = |right| {
        let mut peer = Peer::new(&pool, true, 1460);
        let result = peer.input(&fpdu(b"", b"", right));
        result.map(|()| peer.got).map_err(|fault| fault.code)
    };
    assert_eq!(opened(true), Ok(vec![Got::Rtr]));
    assert_eq!(opened(false), Err(Code::MPA_CRC));
}
