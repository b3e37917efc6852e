//! The MPA handshake.

use nfsrdma_iwarp::proto::handshake::{self, FrameReader, Terms};
use nfsrdma_iwarp::wire::mpa::FrameKind;

/// The MPA handshake from both sides. The first byte says where the stream is cut.
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
