//! The bytes of each kind of message.

use super::*;
use crate::proto::terminate::Fault;
use crate::wire::mpa::fpdu_len;
use crate::wire::rdmap::TerminateCode;
use nfsrdma_rdma::Pool;

fn data(pool: &Pool, bytes: &[u8]) -> Segs<Buf> {
    let mut buf = pool.alloc(bytes.len()).unwrap();
    buf.copy_from_slice(bytes);
    [buf.freeze()].into_iter().collect()
}

fn send(pool: &Pool, bytes: &[u8], invalidate: Option<u32>) -> Message {
    Message::Send {
        token: Token::None,
        data: data(pool, bytes),
        invalidate,
    }
}

fn write(pool: &Pool, bytes: &[u8], stag: u32, offset: u64) -> Message {
    Message::Write {
        token: Token::None,
        data: data(pool, bytes),
        stag,
        offset,
    }
}

const REQUEST: ReadRequest = ReadRequest {
    sink_stag: 0x0a0b_0c0d,
    sink_offset: 0x1000,
    length: 5,
    source_stag: 0x0102_0304,
    source_offset: 0x2000,
};

/// The ULPDUs that `messages` are cut into. Checks length field, padding and CRC field, which is
/// zero if CRCs are off.
fn ulpdus(cutter: &mut Segmenter, messages: Vec<Message>) -> Vec<Vec<u8>> {
    let mut messages = messages.into_iter();
    let mut stream = Vec::new();
    loop {
        cutter.fill(usize::MAX, usize::MAX, || messages.next());
        let mut slices = Slices::new();
        let (total, _) = cutter.gather(&mut slices, usize::MAX);
        stream.extend(slices.iter().flat_map(|s| s.iter().copied()));
        drop(slices);
        cutter.advance(total, &mut Vec::new());
        if total == 0 {
            break;
        }
    }
    let mut rest = &stream[..];
    let mut out = Vec::new();
    while let Some((length, _)) = rest.split_first_chunk() {
        let ulpdu = usize::from(u16::from_be_bytes(*length));
        let (fpdu, later) = rest.split_at(fpdu_len(ulpdu));
        let (covered, field) = fpdu.split_at(fpdu.len() - CRC_FIELD);
        let wanted = if cutter.crc { Crc::of(covered) } else { [0; 4] };
        assert_eq!(field, wanted);
        assert_eq!(covered.len() % 4, 0);
        assert!(covered[LENGTH_FIELD + ulpdu..].iter().all(|b| *b == 0));
        out.push(covered[LENGTH_FIELD..][..ulpdu].to_vec());
        rest = later;
    }
    out
}

fn cutter() -> Segmenter {
    Segmenter::new(false, false, MAX_FPDU)
}

//= RFC 5040, Section 4.1
//= type=test
//# All RDMA Messages handed by the RDMAP layer to [...]
//# Figure 4, "RDMA Usage of DDP Fields", MUST be [...]
//# Figure 4 defines the value of the RDMA Opcode field that MUST be used for each RDMA Message.
//# Figure 4 defines when the STag, Queue Number, and [...]
//# For Send, Send with Solicited Event, RDMA Read Request, [...]
//= RFC 5040, Section 4.2
//= type=test
//# The following figure defines which RDMA Headers MUST be [...]
//= RFC 5040, Section 5.1
//= type=test
//# An RDMA Write Message MUST reference a Tagged Buffer.
//# That is, the Data Source RDMAP layer MUST request that the DDP layer mark the Message as Tagged.
//= RFC 5040, Section 5.2.1
//= type=test
//# An RDMA Read Request Message MUST reference an Untagged Buffer.
//# That is, the Local Peer's RDMAP layer MUST request that the DDP mark the Message as Untagged.
//# An RDMA Read Request Message MUST reference the RDMA Read Request Queue.
//# That is, the Local Peer's RDMAP layer MUST request that the DDP layer [...]
//= RFC 5040, Section 5.2.2
//= type=test
//# An RDMA Read Response Message MUST reference a Tagged Buffer.
//# That is, the Data Source RDMAP layer MUST request that the DDP mark the Message as Tagged.
//= RFC 5040, Section 5.3
//= type=test
//# A Send Message Type MUST reference an Untagged Buffer.
//# That is, the Local Peer's RDMAP layer MUST request that the DDP layer mark the Message as
//# Untagged.
//# For a Send Message Type, the Local Peer's RDMAP [...]
//# A Send with Invalidate or Send with Solicited Event and Invalidate Message MUST reference an
//# STag.
//# That is, the Local Peer's RDMAP layer MUST pass [...]
//= RFC 5040, Section 5.4
//= type=test
//# A Terminate Message MUST reference an Untagged Buffer.
//# That is, the Local Peer's RDMAP layer MUST request that the DDP layer mark the Message as
//# Untagged.
//# That is, the Local Peer's RDMAP layer MUST request that the DDP layer set [...]
//= RFC 5041, Section 4.2
//= type=test
//# At the Data Source, DDP MUST set the STag field to the value specified by the ULP.
//= RFC 5041, Section 5.2
//= type=test
//# The ULP at the Data Source MUST specify the [...]
#[test]
fn each_message_has_its_header() {
    let pool = Pool::new(1 << 20).unwrap();
    let fault = Fault::new(TerminateCode::DDP_INVALID_QN);
    let messages = vec![
        send(&pool, b"hello", None),
        send(&pool, b"hi", Some(0xaabb_ccdd)),
        write(&pool, b"data", 0x0102_0304, 0x1122_3344_5566_7788),
        Message::ReadRequest {
            token: Token::None,
            request: REQUEST,
        },
        Message::Response {
            stag: 0x0a0b_0c0d,
            offset: 0x1000,
            data: data(&pool, b"read!"),
        },
        Message::Terminate(fault.terminate()),
    ];
    // T, L, DDP version 1; RDMAP version 1 and opcode. Untagged: Invalidate STag, queue number,
    // MSN, MO. Tagged: STag, TO.
    let expected: [&[u8]; 6] = [
        &[
            0x41, 0x43, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, b'h', b'e', b'l', b'l',
            b'o',
        ],
        &[
            0x41, 0x44, 0xaa, 0xbb, 0xcc, 0xdd, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, b'h', b'i',
        ],
        &[
            0xc1, 0x40, 1, 2, 3, 4, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88, b'd', b'a',
            b't', b'a',
        ],
        &[
            0x41, 0x41, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0, // queue 1, MSN 1
            0x0a, 0x0b, 0x0c, 0x0d, 0, 0, 0, 0, 0, 0, 0x10, 0, 0, 0, 0, 5, // sink, length
            1, 2, 3, 4, 0, 0, 0, 0, 0, 0, 0x20, 0, // source
        ],
        &[
            0xc1, 0x42, 0x0a, 0x0b, 0x0c, 0x0d, 0, 0, 0, 0, 0, 0, 0x10, 0, b'r', b'e', b'a', b'd',
            b'!',
        ],
        &[
            0x41, 0x47, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 0, // queue 2, MSN 1
            0x12, 0x01, 0, 0, // DDP, untagged buffer error, invalid QN; no headers
        ],
    ];
    assert_eq!(ulpdus(&mut cutter(), messages), expected);
}

//= RFC 5041, Section 4.1
//= type=test
//# It MUST be set to one on the last DDP Segment of every DDP Message.
//# It MUST NOT be set to one on any other DDP Segment.
//# The DDP Segment with the L bit set to [...]
//# For an Untagged DDP Message, the DDP Segment with the L bit set to 1 MUST carry the highest MO.
//= RFC 5041, Section 4.2
//= type=test
//# Each DDP Segment within a specific DDP Message MUST contain the same value for this field.
//# The Data Source MUST ensure that each DDP Segment [...]
//# Each DDP Segment within a specific DDP Message MUST contain the same value for this field and
//# [...]
//= RFC 5041, Section 4.3
//= type=test
//# Each DDP Segment within a specific DDP Message MUST contain the same value for the RsvdULP
//# field.
//# Each DDP segment within a specific DDP message MUST contain the same value for this field and
//# [...]
//# The Data Source MUST ensure that each DDP Segment [...]
//# Each DDP segment within a specific DDP message MUST contain the same value for this field.
//# The MO referencing the first octet of the DDP Message MUST be set to zero by the DDP layer.
//= RFC 5041, Section 4.4
//= type=test
//# Each DDP Segment MUST contain a DDP Header.
//= RFC 5041, Section 5.2
//= type=test
//# At the Data Source, the DDP layer MUST segment [...]
//# For each DDP Segment of a Untagged DDP Message, [...]
//# For each DDP Segment of a Tagged DDP Message, [...]
//= RFC 5044, Section 3
//= type=test
//# MPA MUST encapsulate the ULPDU such that there is exactly one ULPDU contained in one FPDU.
//= RFC 5044, Section 4.4
//= type=test
//# When sending an FPDU, the sender MUST include a CRC field.
#[test]
fn the_segments_of_a_message_differ_in_offset_and_last_flag() {
    let pool = Pool::new(1 << 20).unwrap();
    let bytes: Vec<u8> = (0..300u16).map(|n| n as u8).collect();
    // The MULPDU is 130: 112 bytes after an untagged header, 116 after a tagged one.
    let mut cutter = Segmenter::new(true, false, MIN_FPDU);
    let messages = vec![
        send(&pool, &bytes, Some(7)),
        write(&pool, &bytes, 9, u64::from(u32::MAX)),
    ];
    let all = ulpdus(&mut cutter, messages);
    let untagged = |flags: u8, offset: u8, from: usize, to: usize| {
        let head = [
            flags, 0x44, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, offset,
        ];
        [&head[..], &bytes[from..to]].concat()
    };
    let tagged = |flags: u8, offset: u64, from: usize, to: usize| {
        let head = [flags, 0x40, 0, 0, 0, 9];
        [&head[..], &offset.to_be_bytes(), &bytes[from..to]].concat()
    };
    let offset = u64::from(u32::MAX);
    let expected = [
        untagged(0x01, 0, 0, 112),
        untagged(0x01, 112, 112, 224),
        untagged(0x41, 224, 224, 300),
        tagged(0x81, offset, 0, 116),
        tagged(0x81, offset + 116, 116, 232),
        tagged(0xc1, offset + 232, 232, 300),
    ];
    assert_eq!(all, expected);
}

//= RFC 5041, Section 5.2
//= type=test
//# A zero-length DDP Message is allowed and MUST consume exactly one DDP Segment.
#[test]
fn a_message_without_bytes_is_one_segment() {
    let pool = Pool::new(1 << 20).unwrap();
    let messages = vec![send(&pool, b"", None), write(&pool, b"", 1, 2)];
    let all = ulpdus(&mut cutter(), messages);
    let lengths: Vec<usize> = all.iter().map(Vec::len).collect();
    assert_eq!(lengths, [ddp::UNTAGGED_HEADER, ddp::TAGGED_HEADER]);
    assert!(all.iter().all(|ulpdu| ulpdu[0] & 0x40 != 0), "the last");
}

//= RFC 5041, Section 4.3
//= type=test
//# The Message Sequence Number specifies a sequence number that [...]
//# The initial value for MSN MUST be one.
//# The MSN value MUST wrap to 0 after a value of 0xFFFFFFFF.
#[test]
fn message_sequence_numbers_count_from_one_by_queue_and_wrap() {
    let pool = Pool::new(1 << 20).unwrap();
    let msn = |ulpdu: &Vec<u8>| u32::from_be_bytes(ulpdu[10..14].try_into().unwrap());
    let three = || {
        let request = || Message::ReadRequest {
            token: Token::None,
            request: REQUEST,
        };
        let mut messages = Vec::new();
        for _ in 0..3 {
            messages.extend([send(&pool, b"x", None), request()]);
        }
        messages
    };
    let mut cutter = cutter();
    let all = ulpdus(&mut cutter, three());
    assert_eq!(all.iter().map(msn).collect::<Vec<_>>(), [1, 1, 2, 2, 3, 3]);
    (cutter.send_msn, cutter.read_msn) = (u32::MAX, u32::MAX - 1);
    let all = ulpdus(&mut cutter, three());
    let wrapped = [u32::MAX, u32::MAX - 1, 0, u32::MAX, 1, 0];
    assert_eq!(all.iter().map(msn).collect::<Vec<_>>(), wrapped);
}

//= RFC 5041, Section 3
//= type=test
//# LLPs MUST expose MULPDU and MULPDU changes.
//= RFC 5044, Section 3
//= type=test
//# MPA MUST provide information to DDP on the current [...]
//# The range of MULPDU values MUST be between 128 octets and 64768 octets, inclusive.
//# The sending DDP MUST NOT post a ULPDU larger than 64768 octets to MPA.
//= RFC 5044, Section 4.5
//= type=test
//# The maximum ULPDU Length for a single ULPDU when Markers are present MUST be computed as:
//# The maximum ULPDU Length for a single ULPDU when Markers are NOT present MUST be computed as:
//# If this occurs, the MPA on TCP sender MUST [...]
/// The longest ULPDU is the MULPDU, from 128 to 64768 bytes for any limit.
#[test]
fn mulpdu_is_what_the_rfc_computes() {
    let pool = Pool::new(1 << 20).unwrap();
    let long = vec![1; 70_000];
    const MAX: usize = usize::MAX;
    for asked in [
        0, 100, 128, 136, 140, 512, 516, 1448, 1460, 9000, 64_772, 65_541, MAX,
    ] {
        for markers in [false, true] {
            let mut cutter = Segmenter::new(false, markers, asked);
            let emss = cutter.max_fpdu();
            let computed = match markers {
                true => emss - (6 + 4 * emss.div_ceil(512) + emss % 4),
                false => emss - (6 + emss % 4),
            };
            let mut message = Some(write(&pool, &long, 1, 0));
            cutter.fill(1, 1, || message.take());
            let mut slices = Slices::new();
            cutter.gather(&mut slices, usize::MAX);
            let bytes: Vec<u8> = slices.iter().flat_map(|s| s.iter().copied()).collect();
            let at = if markers { MARKER } else { 0 };
            let ulpdu = usize::from(u16::from_be_bytes([bytes[at], bytes[at + 1]]));
            assert_eq!(ulpdu, computed, "{asked}, {markers}");
            assert!(
                (128..=64_768).contains(&ulpdu),
                "{ulpdu} for {asked}, {markers}"
            );
            assert!(emss <= asked.max(140), "{emss} for {asked}");
        }
    }
}
