//! What the fuzz targets run: each function takes any bytes and panics only over a mistake of
//! ours. The replay test gives them the frames of the interoperability captures.

use nfsrdma_client::rpcrdma::{Event, Requester};
use nfsrdma_iwarp::proto::handshake::{self, FrameReader, Terms};
use nfsrdma_iwarp::wire::mpa::FrameKind;
use nfsrdma_xdr::rpcrdma::{ChunkLists, Segment};
use nfsrdma_xdr::support::decoders::decode_with_all;
use std::collections::HashSet;

/// A target and its name.
pub type Target = (&'static str, fn(&[u8]));

/// All of them.
pub const TARGETS: &[Target] = &[
    ("xdr", xdr),
    ("handshake", mpa_handshake),
    ("requester", requester),
];

/// Every decoder of the wire formats; what decodes encodes to something that decodes alike.
pub fn xdr(bytes: &[u8]) {
    decode_with_all(bytes);
}

/// The MPA handshake from both sides, the stream cut where the first byte says.
pub fn mpa_handshake(bytes: &[u8]) {
    let Some((&cut, stream)) = bytes.split_first() else {
        return;
    };
    let terms = Terms {
        crc: cut & 1 != 0,
        revision: 1 + (cut >> 1 & 1),
        peer_to_peer: cut & 4 != 0,
        reads_in: 16,
        reads_out: 16,
    };
    let step = usize::from(cut >> 3) + 1;
    for kind in [FrameKind::Request, FrameKind::Reply] {
        let mut reader = FrameReader::new(kind);
        let mut rest = stream;
        loop {
            let want = reader.want();
            assert!(
                want > 0 && want <= 4096,
                "asks for a bounded number of bytes"
            );
            if rest.is_empty() {
                break;
            }
            let (now, later) = rest.split_at(want.min(step).min(rest.len()));
            rest = later;
            match reader.feed(now) {
                Ok(None) => {}
                Ok(Some(frame)) => {
                    if kind == FrameKind::Request {
                        let _ = handshake::answer(&terms, &frame, b"private");
                        let _ = handshake::reject(&frame, b"no");
                    } else {
                        let _ = handshake::conclude(&terms, &frame);
                    }
                    break;
                }
                Err(_) => break,
            }
        }
    }
}

/// The requester against a peer that chooses every message: commands of a byte, messages with
/// a length before them. No call ends twice, credits and Receives are never overdrawn.
pub fn requester(bytes: &[u8]) {
    const MAXIMUM: u32 = 8;
    let mut machine = Requester::<u32>::new(MAXIMUM);
    let mut pending = HashSet::new();
    let mut receives: u32 = 0;
    let mut next = 0;
    let mut rest = bytes;
    while let Some((&command, after)) = rest.split_first() {
        rest = after;
        match command % 8 {
            0 => {
                machine.receive_posted();
                receives += 1;
            }
            1 | 2 => {
                if !machine.reserve() {
                    continue;
                }
                let chunk = || {
                    [Segment {
                        handle: next,
                        length: 4096,
                        offset: 0,
                    }]
                    .into_iter()
                    .collect()
                };
                let offer = ChunkLists {
                    writes: (command & 8 != 0).then(chunk).into_iter().collect(),
                    reply: (command & 16 != 0).then(chunk),
                    ..ChunkLists::default()
                };
                if machine.launch(next, offer, next).is_err() {
                    machine.cancel();
                } else {
                    assert!(pending.insert(next), "an XID is in flight twice");
                }
                next = (next + 1) % 16;
            }
            3 => {
                let xid = u32::from(command >> 3) % 16;
                if let Some(call) = machine.withdraw(xid) {
                    assert!(pending.remove(&call), "withdrawn, and not pending");
                }
            }
            4 => {
                let mut lost: Vec<_> = machine.lost();
                lost.sort_unstable();
                let mut all: Vec<_> = pending.drain().collect();
                all.sort_unstable();
                assert_eq!(lost, all, "what is lost is what was pending");
                receives = 0;
            }
            _ => {
                if receives == 0 {
                    continue;
                }
                let Some((&len, after)) = rest.split_first() else {
                    return;
                };
                let (message, after) = after.split_at(after.len().min(usize::from(len)));
                rest = after;
                receives -= 1;
                match machine.received(message) {
                    Event::Reply { call, placed, .. } => {
                        assert!(pending.remove(&call), "answered, and not pending");
                        assert!(placed.unwrap_or(0) <= 4096, "more than was offered");
                    }
                    Event::Failed { call, .. } => {
                        assert!(pending.remove(&call), "failed, and not pending");
                    }
                    Event::Discarded(_) => {}
                }
            }
        }
        assert!((1..=MAXIMUM).contains(&machine.granted()));
        assert!(machine.used() <= MAXIMUM);
    }
}
