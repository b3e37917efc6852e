use super::*;
use nfsrdma_xdr::rpcrdma::{ChunkLists, ReadSegment};
use std::time::Duration;

fn connected(local: &str, peer: &str) -> Connected {
    Connected {
        connection: 1,
        time: SystemTime::UNIX_EPOCH,
        transport: "verbs".to_owned(),
        local: local.parse().unwrap(),
        peer: peer.parse().unwrap(),
        own_private_data: vec![0xf6, 0xab, 0x0e, 0x18, 1, 1, 3, 3],
        peer_private_data: vec![],
        greeting: None,
    }
}

fn data(bytes: &[u8]) -> Data {
    Data {
        bytes: bytes.into(),
        length: bytes.len(),
    }
}

/// The TCP payload, sequence number and acknowledgement number of an IPv4 packet without options.
fn tcp(packet: &Packet) -> (&[u8], u32, u32) {
    let word = |at: usize| u32::from_be_bytes(packet.bytes[at..at + 4].try_into().unwrap());
    (&packet.bytes[54..], word(38), word(42))
}

#[test]
fn the_beginning_in_bytes() {
    let mut conversation = Conversation::new(&connected("10.0.0.1:1000", "10.0.0.2:20049"));
    let packets = conversation.take();
    assert_eq!(packets.len(), 5);
    #[rustfmt::skip]
    let syn = [
        2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0,
        0x45, 0, 0, 40, 0, 0, 0x40, 0, 64, 6, 0x26, 0xce, 10, 0, 0, 1, 10, 0, 0, 2,
        0x03, 0xe8, 0x4e, 0x51, 0, 0, 0, 0, 0, 0, 0, 0, 0x50, 2, 0xff, 0xff, 0x49, 0xa7, 0, 0,
    ];
    assert_eq!(packets[0].bytes, syn);
    assert_eq!(packets[0].length, syn.len());
    let (request, sequence, acknowledged) = tcp(&packets[3]);
    assert_eq!(
        request,
        b"MPA ID Req Frame\x00\x01\x00\x08\xf6\xab\x0e\x18\x01\x01\x03\x03"
    );
    assert_eq!((sequence, acknowledged), (1, 1));
    let (reply, sequence, acknowledged) = tcp(&packets[4]);
    assert_eq!(reply, b"MPA ID Rep Frame\x00\x01\x00\x00");
    assert_eq!((sequence, acknowledged), (1, 29));
}

#[test]
fn a_greeting_is_shown_as_it_was() {
    // Revision 2, markers and CRC; the enhanced set-up fields before the private data.
    let request = b"MPA ID Req Frame\x50\x02\x00\x06\x00\x08\x00\x00hi";
    let reply = b"MPA ID Rep Frame\x90\x02\x00\x05\x00\x00\x00\x08!";
    let greeting = Some([request.to_vec(), reply.to_vec()]);
    let mut conversation = Conversation::new(&Connected {
        greeting,
        ..connected("10.0.0.1:1000", "10.0.0.2:20049")
    });
    conversation.outgoing(SystemTime::UNIX_EPOCH, &data(b"hello"));
    let packets = conversation.take();
    assert_eq!(tcp(&packets[3]).0, request);
    let mut unmarked = *reply;
    unmarked[16] = 0x10;
    assert_eq!(tcp(&packets[4]).0, unmarked);
    assert_eq!(packets[4].comment, Some(AS_IT_WAS));
    let fpdu = tcp(&packets[5]).0;
    let (before, crc) = fpdu.split_at(fpdu.len() - 4);
    assert_eq!(crc, Crc::of(before));
    // What makes no sense is not shown.
    let mut conversation = Conversation::new(&Connected {
        greeting: Some([vec![0; 28], reply.to_vec()]),
        ..connected("10.0.0.1:1000", "10.0.0.2:20049")
    });
    let packets = conversation.take();
    assert_eq!(packets[4].comment, Some(MADE_UP));
}

#[test]
fn messages_in_bytes() {
    let mut conversation = Conversation::new(&connected("10.0.0.1:1000", "10.0.0.2:20049"));
    conversation.take();
    let time = SystemTime::UNIX_EPOCH + Duration::from_secs(1);
    conversation.outgoing(time, &data(b"hello"));
    let packets = conversation.take();
    let (fpdu, sequence, _) = tcp(&packets[0]);
    #[rustfmt::skip]
    let expected = [
        0, 23,
        0x41, 0x43, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0,
        b'h', b'e', b'l', b'l', b'o', 0, 0, 0,
        0, 0, 0, 0,
    ];
    assert_eq!(fpdu, expected);
    assert_eq!((packets.len(), sequence, packets[0].comment), (1, 29, None));

    let segment = |handle, length, offset| Segment {
        handle,
        length,
        offset,
    };
    conversation.incoming(&Incoming {
        connection: 1,
        time,
        message: data(b"done"),
        invalidated: Some(0x0a0b_0c0d),
        offer: ChunkLists {
            reads: [ReadSegment {
                position: 0,
                target: segment(7, 3, 0x100),
            }]
            .into_iter()
            .collect(),
            writes: [[segment(8, 4, 0x200), segment(9, 4, 0x300)]
                .into_iter()
                .collect()]
            .into_iter()
            .collect(),
            reply: None,
        },
        read: Some(data(b"abc")),
        written: Some(data(b"012345")),
        reply: None,
    });
    let packets = conversation.take();
    let fpdus: Vec<&[u8]> = packets.iter().map(|packet| tcp(packet).0).collect();
    #[rustfmt::skip]
    let expected: [&[u8]; 5] = [
        // Read Request: 3 bytes from STag 7 at 0x100, to sink 1 at 0.
        &[0, 46, 0x41, 0x41, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0,
          0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 1, 0,
          0, 0, 0, 0],
        &[0, 17, 0xc1, 0x42, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, b'a', b'b', b'c', 0,
          0, 0, 0, 0],
        &[0, 18, 0xc1, 0x40, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 2, 0, b'0', b'1', b'2', b'3',
          0, 0, 0, 0],
        // With the padding of the item.
        &[0, 18, 0xc1, 0x40, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 3, 0, b'4', b'5', 0, 0,
          0, 0, 0, 0],
        // Send With Invalidate.
        &[0, 22, 0x41, 0x44, 10, 11, 12, 13, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0,
          b'd', b'o', b'n', b'e', 0, 0, 0, 0],
    ];
    assert_eq!(fpdus, expected);
    assert!(
        packets[..4]
            .iter()
            .all(|p| p.comment == Some(RECONSTRUCTED))
    );
    // The server's sequence numbers do not count the client's Read Response.
    let sequences: Vec<u32> = packets.iter().map(|packet| tcp(packet).1).collect();
    assert_eq!(sequences, [21, 61, 73, 97, 121]);
}

#[test]
fn large_and_cut_messages() {
    let mut conversation = Conversation::new(&connected("[::1]:1000", "127.0.0.1:20049"));
    conversation.take();
    let message = Data {
        bytes: vec![1; 70].into(),
        length: 100_000,
    };
    conversation.outgoing(SystemTime::UNIX_EPOCH, &message);
    let packets = conversation.take();
    let headers = 14 + 40 + 20;
    let lengths: Vec<(usize, usize)> = packets.iter().map(|p| (p.bytes.len(), p.length)).collect();
    assert_eq!(
        lengths,
        [
            (headers + 20 + 70, headers + fpdu_len(18 + 64_000)),
            (headers + 20, headers + fpdu_len(18 + 36_000)),
        ]
    );
    // IPv6, because one of the addresses is.
    assert_eq!(packets[0].bytes[12..15], [0x86, 0xdd, 0x60]);
    let flags = |packet: &Packet| packet.bytes[headers + 2];
    assert_eq!([flags(&packets[0]), flags(&packets[1])], [0x01, 0x41]);
}
