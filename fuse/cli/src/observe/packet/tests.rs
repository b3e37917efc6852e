use super::*;

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
