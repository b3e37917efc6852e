//! MPA connection set-up (RFC 5044 section 7.1, RFC 6581), both sides, without I/O.
//!
//! [`request`] and [`answer`] make the frames; [`conclude`] and [`answer`] derive from the peer's
//! frame what both sides have agreed on. CRCs are used if either side requires them. Markers are
//! used in a direction if its receiver requires them, which this implementation never does. For
//! each direction, the smaller of one side's ORD and the other's IRD holds. In the peer-to-peer
//! model both sides agree on a message that the initiator sends first (RTR). [`FrameReader`]
//! collects a frame from a stream, and never takes a byte that follows it.

use crate::wire::mpa::{
    Enhanced, FRAME_HEADER, Frame, FrameError, FrameHeader, FrameKind, RtrTypes,
};
use crate::wire::rdmap::TerminateCode;
use nfsrdma_rdma::Error;

/// Largest IRD or ORD that can be announced.
const MAX_DEPTH: u32 = Enhanced::UNSPECIFIED as u32 - 1;

/// Collects the bytes of one frame, at most 532.
#[derive(Debug)]
pub struct FrameReader {
    kind: FrameKind,
    bytes: Vec<u8>,
    header: Option<FrameHeader>,
}

impl FrameReader {
    /// Reads one frame of `kind`.
    pub fn new(kind: FrameKind) -> Self {
        FrameReader {
            kind,
            bytes: Vec::new(),
            header: None,
        }
    }

    //= RFC 5044, Section 7.1
    //# MPA requires that the Consumer MUST activate MPA, and any TCP enhancements for MPA, on a TCP
    //# half connection at the same location in the octet stream at both the sender and the
    //# receiver.
    //= RFC 5044, Section 7.1.2
    //# The buffer that receives the Private Data field MUST be large enough to receive that data;
    //# the amount of Private Data MUST not exceed the PD_Length or the application buffer.
    /// How many bytes to read next at most: bytes that follow the frame must stay in the socket.
    pub fn want(&self) -> usize {
        let total = FRAME_HEADER + self.header.map_or(0, |h| h.length);
        total - self.bytes.len()
    }

    /// Adds at most [`FrameReader::want`] bytes (further ones are ignored), and returns the frame
    /// when it is complete.
    pub fn feed(&mut self, bytes: &[u8]) -> Result<Option<Frame>, FrameError> {
        let mut rest = bytes;
        loop {
            let (now, later) = rest.split_at(rest.len().min(self.want()));
            self.bytes.extend_from_slice(now);
            rest = later;
            if self.want() > 0 {
                return Ok(None);
            }
            let Some((head, body)) = self.bytes.split_first_chunk() else {
                return Ok(None);
            };
            match self.header {
                Some(header) => return Ok(Frame::from_parts(self.kind, header, body)),
                None => self.header = Some(FrameHeader::parse(self.kind, head)?),
            }
        }
    }
}

/// What one side asks for or offers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Terms {
    /// Require CRCs; a responder uses them if the initiator requires them, too.
    pub crc: bool,
    /// MPA revision of the initiator: 1 or 2.
    pub revision: u8,
    /// Whether the initiator asks for the peer-to-peer model.
    pub peer_to_peer: bool,
    /// How many RDMA Reads of the peer to serve at once.
    pub reads_in: u32,
    /// How many RDMA Reads to issue at once.
    pub reads_out: u32,
}

/// The message by which an initiator allows its peer to send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rtr {
    /// FPDU without ULPDU.
    Fpdu,
    /// Zero-length RDMA Write.
    Write,
    /// Zero-length RDMA Read.
    Read,
}

/// What both sides agreed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Agreed {
    /// Whether CRCs are in use.
    pub crc: bool,
    //= RFC 5044, Section 4.3
    //# All MPA senders MUST be able to generate Markers when their use is declared by the opposing
    //# receiver (see Section 7.1, Connection Setup).
    //= RFC 5044, Section 7.1.1
    //# When '1' Markers MUST be added as described in Section 4.3, MPA Markers.
    /// Whether the peer requires markers in what it receives. What we receive has none, because we
    /// do not require them.
    pub markers: bool,
    //= RFC 5044, Section 3
    //# MPA MUST provide the protocol version negotiated with its peer to DDP.
    /// The MPA revision of the reply.
    pub revision: u8,
    /// IRD: how many RDMA Reads of the peer to serve at once.
    pub reads_in: u32,
    /// ORD: how many RDMA Reads to issue at once.
    pub reads_out: u32,
    /// The RTR message of the peer-to-peer model.
    pub rtr: Option<Rtr>,
}

fn depth(value: u32) -> u16 {
    value.min(MAX_DEPTH) as u16
}

/// The limit in force if the peer announced `peer`.
fn limit(own: u32, peer: u16) -> u32 {
    if peer == Enhanced::UNSPECIFIED {
        own
    } else {
        own.min(u32::from(peer))
    }
}

/// Makes the initiator's request.
pub fn request(terms: &Terms, private_data: &[u8]) -> Frame {
    Frame {
        kind: FrameKind::Request,
        markers: false,
        crc: terms.crc,
        reject: false,
        revision: terms.revision,
        enhanced: (terms.revision >= 2).then(|| Enhanced {
            ird: depth(terms.reads_in),
            ord: depth(terms.reads_out),
            peer_to_peer: terms.peer_to_peer,
            rtr: RtrTypes {
                fpdu: terms.peer_to_peer,
                write: terms.peer_to_peer,
                read: terms.peer_to_peer,
            },
        }),
        private_data: private_data.to_vec(),
    }
}

/// Why the initiator does not accept a reply.
#[derive(Debug, Clone)]
pub struct Unacceptable {
    /// The error for the caller.
    pub error: Error,
    /// The Terminate to send, because the responder is already in full operation.
    pub terminate: Option<TerminateCode>,
}

impl From<Error> for Unacceptable {
    fn from(error: Error) -> Self {
        Unacceptable {
            error,
            terminate: None,
        }
    }
}

/// Derives from the reply what was agreed on, for the initiator.
pub fn conclude(terms: &Terms, reply: &Frame) -> Result<Agreed, Unacceptable> {
    if reply.reject {
        return Err(Error::Refused(reply.private_data.clone()).into());
    }
    let mut agreed = Agreed {
        markers: reply.markers,
        //= RFC 5044, Section 4.4
        //# After receipt of an MPA startup declaration indicating that its peer requires CRCs, an
        //# MPA instance MUST continue generating and checking CRCs until the connection terminates.
        //# If an MPA instance has declared that it does not require CRCs, it MUST turn off CRC
        //# checking immediately after receipt of an MPA mode declaration indicating that its peer
        //# also does not require CRCs.
        //= RFC 5044, Section 7.1.1
        //# When this field is '0' in the MPA Request Frame and the MPA Reply Frame, CRCs MUST not
        //# be checked and need not be generated by either endpoint.
        //# When this bit is '1' in either the MPA Request Frame or MPA Reply Frame, CRCs MUST be
        //# generated and checked by both endpoints.
        crc: terms.crc || reply.crc,
        revision: reply.revision,
        reads_in: terms.reads_in,
        reads_out: terms.reads_out,
        rtr: None,
    };
    if reply.revision > terms.revision {
        let what = format!(
            "answers MPA revision {} with revision {}",
            terms.revision, reply.revision
        );
        return Err(Error::PeerMisbehaved(what).into());
    }
    if let Some(enhanced) = reply.enhanced {
        // RFC 6581 section 5: the responder's ORD must not exceed the IRD that was announced.
        if enhanced.ord != Enhanced::UNSPECIFIED && u32::from(enhanced.ord) > terms.reads_in {
            return Err(Unacceptable {
                error: Error::PeerMisbehaved(format!(
                    "wants {} RDMA Reads at a time where {} were offered",
                    enhanced.ord, terms.reads_in
                )),
                terminate: Some(TerminateCode::MPA_INSUFFICIENT_IRD),
            });
        }
        agreed.reads_in = limit(terms.reads_in, enhanced.ord);
        agreed.reads_out = limit(terms.reads_out, enhanced.ird);
        if terms.peer_to_peer && enhanced.peer_to_peer {
            agreed.rtr = Some(pick(enhanced.rtr).ok_or_else(|| Unacceptable {
                error: Error::PeerMisbehaved(
                    "agrees to peer-to-peer without an RTR message".into(),
                ),
                terminate: Some(TerminateCode::MPA_NO_MATCHING_RTR),
            })?);
        }
    }
    Ok(agreed)
}

/// Chooses the RTR message; the one that most implementations support comes first.
fn pick(offered: RtrTypes) -> Option<Rtr> {
    [
        (offered.write, Rtr::Write),
        (offered.read, Rtr::Read),
        (offered.fpdu, Rtr::Fpdu),
    ]
    .into_iter()
    .find_map(|(is, rtr)| is.then_some(rtr))
}

/// Makes the responder's reply to a request. Also returns what was agreed on, unless the reply
/// rejects.
pub fn answer(terms: &Terms, request: &Frame, private_data: &[u8]) -> (Frame, Option<Agreed>) {
    let offered = request.enhanced.filter(|e| e.peer_to_peer);
    let rtr = offered.and_then(|e| pick(e.rtr));
    if offered.is_some() && rtr.is_none() {
        return (reject(request, &[]), None);
    }
    let mut agreed = Agreed {
        crc: terms.crc || request.crc,
        markers: request.markers,
        revision: request.revision,
        reads_in: terms.reads_in,
        reads_out: terms.reads_out,
        rtr,
    };
    if let Some(enhanced) = request.enhanced {
        agreed.reads_in = limit(terms.reads_in, enhanced.ord);
        agreed.reads_out = limit(terms.reads_out, enhanced.ird);
        if rtr == Some(Rtr::Read) {
            agreed.reads_in = agreed.reads_in.max(1);
        }
    }
    let reply = Frame {
        kind: FrameKind::Reply,
        markers: false,
        crc: agreed.crc,
        reject: false,
        revision: request.revision,
        enhanced: request.enhanced.map(|_| Enhanced {
            ird: depth(agreed.reads_in),
            ord: depth(agreed.reads_out),
            peer_to_peer: rtr.is_some(),
            rtr: RtrTypes {
                fpdu: rtr == Some(Rtr::Fpdu),
                write: rtr == Some(Rtr::Write),
                read: rtr == Some(Rtr::Read),
            },
        }),
        private_data: private_data.to_vec(),
    };
    (reply, Some(agreed))
}

/// Makes the responder's reply that rejects a request.
pub fn reject(request: &Frame, private_data: &[u8]) -> Frame {
    Frame {
        kind: FrameKind::Reply,
        markers: false,
        crc: request.crc,
        reject: true,
        revision: request.revision,
        enhanced: request.enhanced.map(|_| Enhanced::default()),
        private_data: private_data.to_vec(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TERMS: Terms = Terms {
        crc: false,
        revision: 2,
        peer_to_peer: false,
        reads_in: 16,
        reads_out: 0,
    };

    //= RFC 5044, Section 7.1.1
    //= type=test
    //# Initiator mode senders MUST set this field to the [...]
    //# It MUST be set to zero when sending, and not checked on reception.
    //# This field MUST contain the length in octets of the Private Data field.
    //= RFC 5044, Section 7.1.2
    //= type=test
    //# When MPA is started in the Initiator mode, the [...]
    /// The same request was answered by Linux 6.12.
    #[test]
    fn request_bytes() {
        let request = request(&TERMS, &[0xf6, 0xab, 0x0e, 0x18, 1, 0, 3, 3]);
        assert_eq!(
            request.to_bytes(),
            b"MPA ID Req Frame\x10\x02\0\x0c\0\x10\0\0\xf6\xab\x0e\x18\x01\0\x03\x03"
        );
    }

    #[test]
    fn depths_are_negotiated_both_ways() {
        let client = Terms {
            reads_in: 40,
            reads_out: 3,
            ..TERMS
        };
        let server = Terms {
            reads_in: 2,
            reads_out: 30,
            ..TERMS
        };
        let (reply, served) = answer(&server, &request(&client, b"hi"), b"ho");
        let served = served.unwrap();
        let agreed = conclude(&client, &reply).unwrap();
        assert_eq!((agreed.reads_in, agreed.reads_out), (30, 2));
        assert_eq!((served.reads_in, served.reads_out), (2, 30));
        assert_eq!(reply.private_data, b"ho");
        assert_eq!(reply.enhanced.unwrap().ird, 2);
    }

    //= RFC 5044, Section 4.4
    //= type=test
    //# After receipt of an MPA startup declaration indicating that [...]
    //# If an MPA instance has declared that it does [...]
    //= RFC 5044, Section 7.1.1
    //= type=test
    //# When this bit is '1' in either the MPA [...]
    #[test]
    fn crc_if_either_asks() {
        for (a, b) in [(false, false), (false, true), (true, false), (true, true)] {
            let client = Terms { crc: a, ..TERMS };
            let server = Terms { crc: b, ..TERMS };
            let (reply, served) = answer(&server, &request(&client, b""), b"");
            assert_eq!(conclude(&client, &reply).unwrap().crc, a || b);
            assert_eq!(served.unwrap().crc, a || b);
            // A responder need not repeat what the initiator asked for.
            let bare = Frame { crc: b, ..reply };
            assert_eq!(conclude(&client, &bare).unwrap().crc, a || b);
        }
    }

    //= RFC 5044, Section 3
    //= type=test
    //# MPA MUST provide the protocol version negotiated with its peer to DDP.
    #[test]
    fn revision_1_has_no_depths() {
        let client = Terms {
            revision: 1,
            ..TERMS
        };
        let frame = request(&client, b"x");
        assert_eq!(frame.enhanced, None);
        let (reply, served) = answer(&TERMS, &frame, b"");
        assert_eq!(reply.revision, 1);
        assert_eq!(served.unwrap().reads_in, TERMS.reads_in);
        assert_eq!(conclude(&client, &reply).unwrap().revision, 1);
    }

    #[test]
    fn peer_to_peer() {
        let client = Terms {
            peer_to_peer: true,
            ..TERMS
        };
        let asked = request(&client, b"");
        let (reply, served) = answer(&TERMS, &asked, b"");
        assert_eq!(served.unwrap().rtr, Some(Rtr::Write));
        assert_eq!(conclude(&client, &reply).unwrap().rtr, Some(Rtr::Write));

        let mut only_read = asked.clone();
        let offer = only_read.enhanced.as_mut().unwrap();
        offer.rtr = RtrTypes {
            read: true,
            ..RtrTypes::default()
        };
        let (_, served) = answer(
            &Terms {
                reads_in: 0,
                ..TERMS
            },
            &only_read,
            b"",
        );
        let served = served.unwrap();
        assert_eq!((served.rtr, served.reads_in), (Some(Rtr::Read), 1));

        let mut none = asked;
        none.enhanced.as_mut().unwrap().rtr = RtrTypes::default();
        let (reply, served) = answer(&TERMS, &none, b"");
        assert!(reply.reject && served.is_none());
    }

    //= RFC 5044, Section 7.1.1
    //= type=test
    //# This bit declares an endpoint's REQUIRED Marker usage.
    //# When in a received MPA Request Frame or MPA [...]
    #[test]
    fn each_side_says_whether_it_wants_markers() {
        let mut frame = request(&TERMS, b"");
        assert!(!frame.markers, "we can do without");
        frame.markers = true;
        let (mut reply, served) = answer(&TERMS, &frame, b"");
        assert!(!reply.reject && served.unwrap().markers);
        assert!(!reply.markers, "their wish is not ours");
        assert!(!conclude(&TERMS, &reply).unwrap().markers);
        reply.markers = true;
        assert!(conclude(&TERMS, &reply).unwrap().markers);
    }

    #[test]
    fn rejections() {
        let error = |reply: &Frame| conclude(&TERMS, reply).unwrap_err().error;
        let (mut reply, _) = answer(&TERMS, &request(&TERMS, b""), b"");
        reply.enhanced.as_mut().unwrap().ord = 17;
        let told = conclude(&TERMS, &reply).unwrap_err().terminate;
        assert_eq!(told, Some(TerminateCode::MPA_INSUFFICIENT_IRD));
        assert!(matches!(error(&reply), Error::PeerMisbehaved(_)));
        let refused = reject(&request(&TERMS, b""), b"no");
        assert!(matches!(error(&refused), Error::Refused(d) if d == b"no"));
    }

    /// A responder may answer a request with the same revision or an older one.
    #[test]
    fn a_reply_of_a_higher_revision_than_asked_is_refused() {
        let old = Terms {
            revision: 1,
            ..TERMS
        };
        let (reply, _) = answer(&TERMS, &request(&TERMS, b""), b"");
        assert!(conclude(&TERMS, &reply).is_ok());
        let error = conclude(&old, &reply).unwrap_err().error;
        assert!(matches!(error, Error::PeerMisbehaved(why) if why.contains("revision 1 with")));
    }

    /// RFC 6581 section 9.2: if Control Flag A is 0 on either side, B, C and D are ignored, and
    /// nothing opens the stream.
    #[test]
    fn no_rtr_message_unless_both_sides_are_peers() {
        let peers = Terms {
            peer_to_peer: true,
            ..TERMS
        };
        let none = RtrTypes::default();
        let asked = request(&TERMS, b"").enhanced.unwrap();
        assert!(!asked.peer_to_peer && asked.rtr == none);
        let asked = request(&peers, b"").enhanced.unwrap();
        assert!(asked.peer_to_peer && asked.rtr.write && asked.rtr.read && asked.rtr.fpdu);
        for (ours, theirs, rtr) in [
            (TERMS, false, None),
            (TERMS, true, None),
            (peers, false, None),
            (peers, true, Some(Rtr::Write)),
        ] {
            let (mut reply, _) = answer(&TERMS, &request(&peers, b""), b"");
            reply.enhanced.as_mut().unwrap().peer_to_peer = theirs;
            assert_eq!(conclude(&ours, &reply).unwrap().rtr, rtr);
        }
        let mut frame = request(&peers, b"");
        frame.enhanced.as_mut().unwrap().peer_to_peer = false;
        let (reply, served) = answer(&TERMS, &frame, b"");
        assert_eq!(served.unwrap().rtr, None);
        let reply = reply.enhanced.unwrap();
        assert!(!reply.peer_to_peer && reply.rtr == none);
        let (reply, _) = answer(&TERMS, &request(&peers, b""), b"");
        assert!(reply.enhanced.unwrap().peer_to_peer);
        // Peers without a message that both know: the responder is told (section 9.2).
        let (mut reply, _) = answer(&TERMS, &request(&peers, b""), b"");
        reply.enhanced.as_mut().unwrap().rtr = none;
        let told = conclude(&peers, &reply).unwrap_err().terminate;
        assert_eq!(told, Some(TerminateCode::MPA_NO_MATCHING_RTR));
    }

    /// RFC 6581 section 9.1: the initiator's ORD is at most the responder's IRD, and the other way
    /// around.
    #[test]
    fn reads_are_limited_by_the_peers_ird() {
        let client = Terms {
            reads_out: 8,
            ..TERMS
        };
        let (mut reply, _) = answer(&TERMS, &request(&client, b""), b"");
        for (ird, ord, reads) in [
            (3, 0, (0, 3)),
            (8, 16, (16, 8)),
            (9, 2, (2, 8)),
            (Enhanced::UNSPECIFIED, Enhanced::UNSPECIFIED, (16, 8)),
        ] {
            let fields = reply.enhanced.as_mut().unwrap();
            (fields.ird, fields.ord) = (ird, ord);
            let agreed = conclude(&client, &reply).unwrap();
            assert_eq!((agreed.reads_in, agreed.reads_out), reads, "{ird} {ord}");
        }
        let server = Terms {
            reads_in: 5,
            reads_out: 30,
            ..TERMS
        };
        for (ird, ord, reads) in [(3, 2, (2, 3)), (40, 7, (5, 30))] {
            let mut frame = request(&client, b"");
            let fields = frame.enhanced.as_mut().unwrap();
            (fields.ird, fields.ord) = (ird, ord);
            let (reply, served) = answer(&server, &frame, b"");
            let served = served.unwrap();
            assert_eq!((served.reads_in, served.reads_out), reads);
            let fields = reply.enhanced.unwrap();
            assert_eq!((u32::from(fields.ird), u32::from(fields.ord)), reads);
        }
    }

    proptest! {
        //= RFC 5044, Section 7.1
        //= type=test
        //# MPA requires that the Consumer MUST activate MPA, and [...]
        //= RFC 5044, Section 7.1.2
        //= type=test
        //# The buffer that receives the Private Data field MUST [...]
        #[test]
        fn frames_in_pieces(data in proptest::collection::vec(any::<u8>(), 0..508), step in 1usize..64) {
            let frame = request(&TERMS, &data);
            let bytes = frame.to_bytes();
            let mut reader = FrameReader::new(FrameKind::Request);
            let mut got = None;
            for piece in bytes.chunks(step) {
                prop_assert!(got.is_none());
                prop_assert!(reader.want() > 0);
                let mut piece = piece;
                while !piece.is_empty() {
                    let n = piece.len().min(reader.want());
                    got = reader.feed(&piece[..n]).unwrap();
                    piece = &piece[n..];
                }
            }
            prop_assert_eq!(got, Some(frame));
        }

        #[test]
        fn hostile_frames(bytes in proptest::collection::vec(any::<u8>(), 0..1200), key: bool) {
            let mut reader = FrameReader::new(FrameKind::Reply);
            let mut input = bytes;
            if key {
                input.splice(0..0, *b"MPA ID Rep Frame");
            }
            let _ = reader.feed(&input);
            prop_assert!(reader.bytes.len() <= 532);
        }
    }
}
