//! MPA: connection set-up frames, FPDU framing and CRC (RFC 5044, RFC 6581).
//!
//! A set-up frame begins with a key that distinguishes request and reply, and carries flags, the
//! revision and private data. An enhanced frame of revision 2 has IRD, ORD and the RTR messages
//! before the private data. An FPDU consists of a length, a ULPDU, padding to a multiple of four,
//! and a CRC32c, whose field exists even if CRCs are not in use. Decoding checks lengths before it
//! allocates memory.

use crc_fast::{CrcAlgorithm, Digest};
use thiserror::Error;

/// Bytes of a request or reply before its private data (RFC 5044 section 7.1.1).
pub const FRAME_HEADER: usize = 20;
//= RFC 5044, Section 7.1.1
//# The Private Data field MUST be between 0 and 512 octets in length.
/// Largest length of private data in a frame.
pub const PRIVATE_DATA_LIMIT: usize = 512;
/// Bytes of the length field that begins each FPDU.
pub const LENGTH_FIELD: usize = 2;
/// Bytes of the CRC field that ends each FPDU, whether CRCs are in use or not.
pub const CRC_FIELD: usize = 4;

//= RFC 5044, Section 7.1.1
//# Initiator mode senders MUST set this field to the fixed value "MPA ID Req Frame" or (in byte
//# order) 4D 50 41 20 49 44 20 52 65 71 20 46 72 61 6D 65 (in hexadecimal).
//# Responder mode senders MUST set this field to the fixed value "MPA ID Rep Frame" or (in byte
//# order) 4D 50 41 20 49 44 20 52 65 70 20 46 72 61 6D 65 (in hexadecimal).
const REQUEST_KEY: &[u8; 16] = b"MPA ID Req Frame";
const REPLY_KEY: &[u8; 16] = b"MPA ID Rep Frame";
const FLAG_MARKERS: u8 = 0x80;
const FLAG_CRC: u8 = 0x40;
const FLAG_REJECT: u8 = 0x20;
const FLAG_ENHANCED: u8 = 0x10;
/// Bytes of IRD and ORD before the private data of an enhanced frame.
const ENHANCED: usize = 4;
const DEPTH_MASK: u16 = 0x3fff;

/// Which of the two set-up frames it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FrameKind {
    /// From the initiator.
    Request,
    /// From the responder.
    Reply,
}

/// The ready-to-receive messages of the peer-to-peer model (RFC 6581 section 9.1), which the
/// initiator sends first so that the responder may send.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RtrTypes {
    /// An FPDU without ULPDU.
    pub fpdu: bool,
    /// A zero-length RDMA Write.
    pub write: bool,
    /// A zero-length RDMA Read.
    pub read: bool,
}

/// The enhanced set-up fields (RFC 6581 section 4).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Enhanced {
    /// How many RDMA Reads the sender of the frame serves at once; 14 bits.
    pub ird: u16,
    /// How many RDMA Reads the sender of the frame issues at once; 14 bits.
    pub ord: u16,
    /// Whether the peer-to-peer model is asked for (request) or agreed to (reply).
    pub peer_to_peer: bool,
    /// RTR messages offered (request) or chosen (reply).
    pub rtr: RtrTypes,
}

impl Enhanced {
    /// The value that means "not negotiated here" (RFC 6581 section 9.1).
    pub const UNSPECIFIED: u16 = DEPTH_MASK;

    fn to_bytes(self) -> [u8; ENHANCED] {
        let bit = |on: bool, at: u16| if on { at } else { 0 };
        let ird =
            (self.ird & DEPTH_MASK) | bit(self.peer_to_peer, 0x8000) | bit(self.rtr.fpdu, 0x4000);
        let ord =
            (self.ord & DEPTH_MASK) | bit(self.rtr.write, 0x8000) | bit(self.rtr.read, 0x4000);
        let [a, b] = ird.to_be_bytes();
        let [c, d] = ord.to_be_bytes();
        [a, b, c, d]
    }

    fn from_bytes(b: [u8; ENHANCED]) -> Self {
        let ird = u16::from_be_bytes([b[0], b[1]]);
        let ord = u16::from_be_bytes([b[2], b[3]]);
        Enhanced {
            ird: ird & DEPTH_MASK,
            ord: ord & DEPTH_MASK,
            peer_to_peer: ird & 0x8000 != 0,
            rtr: RtrTypes {
                fpdu: ird & 0x4000 != 0,
                write: ord & 0x8000 != 0,
                read: ord & 0x4000 != 0,
            },
        }
    }
}

/// Why a frame is not valid (RFC 5044 section 7.1.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum FrameError {
    /// The first 16 bytes are not the expected key.
    #[error("not an MPA frame of the kind expected")]
    Key,
    /// Revision 0, or one newer than 2.
    #[error("MPA revision {0} is not supported")]
    Revision(u8),
    /// The private data are longer than 512 bytes.
    #[error("{0} bytes of MPA private data exceed 512")]
    TooLong(usize),
    /// An enhanced frame is too short for IRD and ORD.
    #[error("enhanced MPA frame too short for IRD and ORD")]
    TooShort,
}

/// The fixed part of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrameHeader {
    /// Whether the sender requires markers in what it receives.
    pub markers: bool,
    /// Whether the sender requires CRCs.
    pub crc: bool,
    /// Whether the connection is rejected (reply only).
    pub reject: bool,
    /// Whether IRD and ORD precede the private data (revision 2 only).
    pub enhanced: bool,
    /// MPA revision, 1 or 2.
    pub revision: u8,
    /// Number of bytes that follow.
    pub length: usize,
}

impl FrameHeader {
    /// Decodes the first 20 bytes of a frame.
    pub fn parse(kind: FrameKind, bytes: &[u8; FRAME_HEADER]) -> Result<Self, FrameError> {
        let key = match kind {
            FrameKind::Request => REQUEST_KEY,
            FrameKind::Reply => REPLY_KEY,
        };
        //= RFC 5044, Section 7.1.1
        //# Responder mode receivers MUST check this field for the same value, and close the
        //# connection and report an error locally if any other value is detected.
        //# Initiator mode receivers MUST check this field for the same value, and close the
        //# connection and report an error locally if any other value is detected.
        //= RFC 5044, Section 7.1.2
        //# MPA implementations MUST use the difference between the MPA Request Frame and the MPA
        //# Reply Frame to check for incorrect "Initiator/Initiator" startups.
        if &bytes[..16] != key {
            return Err(FrameError::Key);
        }
        let (flags, revision) = (bytes[16], bytes[17]);
        //= RFC 5044, Section 7.1.1
        //# MPA receivers compliant with this version of the specification MUST check this field.
        if !(1..=2).contains(&revision) {
            return Err(FrameError::Revision(revision));
        }
        let length = usize::from(u16::from_be_bytes([bytes[18], bytes[19]]));
        //= RFC 5044, Section 7.1.1
        //# If the receiver detects that the PD_Length field does not match the length of the
        //# Private Data field, or if the length of the Private Data field exceeds 512 octets, the
        //# receiver MUST close the connection and report an error locally.
        //= RFC 5044, Section 7.1.2
        //# MPA implementations MUST validate the PD_Length field.
        //# If any of the above fails, the startup frame MUST be considered improperly formatted.
        if length > PRIVATE_DATA_LIMIT {
            return Err(FrameError::TooLong(length));
        }
        let enhanced = revision == 2 && flags & FLAG_ENHANCED != 0;
        if enhanced && length < ENHANCED {
            return Err(FrameError::TooShort);
        }
        Ok(FrameHeader {
            //= RFC 5044, Section 7.1.1
            //# This bit declares an endpoint's REQUIRED Marker usage.
            //# It MUST be set to zero when sending, and not checked on reception.
            markers: flags & FLAG_MARKERS != 0,
            crc: flags & FLAG_CRC != 0,
            reject: flags & FLAG_REJECT != 0,
            enhanced,
            revision,
            length,
        })
    }
}

/// A request or reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    /// Request or reply.
    pub kind: FrameKind,
    /// Whether the sender requires markers in what it receives.
    pub markers: bool,
    /// Whether the sender requires CRCs.
    pub crc: bool,
    /// Whether the connection is rejected (reply only).
    pub reject: bool,
    /// MPA revision, 1 or 2.
    pub revision: u8,
    /// The fields of the enhanced set-up (revision 2).
    pub enhanced: Option<Enhanced>,
    /// Private data of the upper layer.
    pub private_data: Vec<u8>,
}

impl Frame {
    /// Makes a frame of the result of [`FrameHeader::parse`] and the `length` bytes that follow.
    /// `None` if `body` has another length.
    pub fn from_parts(kind: FrameKind, header: FrameHeader, body: &[u8]) -> Option<Self> {
        if body.len() != header.length {
            return None;
        }
        let (enhanced, private_data) = if header.enhanced {
            let (fields, rest) = body.split_first_chunk()?;
            (Some(Enhanced::from_bytes(*fields)), rest)
        } else {
            (None, body)
        };
        Some(Frame {
            kind,
            markers: header.markers,
            crc: header.crc,
            reject: header.reject,
            revision: header.revision,
            enhanced,
            private_data: private_data.to_vec(),
        })
    }

    //= RFC 5044, Section 7.1.1
    //# This field MUST contain the length in octets of the Private Data field.
    /// Encodes the frame. Private data that do not fit are cut; see [`Frame::fits`].
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut body = Vec::with_capacity(ENHANCED + self.private_data.len());
        let mut flags = 0;
        for (on, flag) in [
            (self.markers, FLAG_MARKERS),
            (self.crc, FLAG_CRC),
            (self.reject, FLAG_REJECT),
            (self.enhanced.is_some(), FLAG_ENHANCED),
        ] {
            flags |= if on { flag } else { 0 };
        }
        if let Some(enhanced) = self.enhanced {
            body.extend_from_slice(&enhanced.to_bytes());
        }
        body.extend_from_slice(&self.private_data);
        body.truncate(PRIVATE_DATA_LIMIT);
        let mut bytes = Vec::with_capacity(FRAME_HEADER + body.len());
        bytes.extend_from_slice(match self.kind {
            FrameKind::Request => REQUEST_KEY,
            FrameKind::Reply => REPLY_KEY,
        });
        bytes.extend_from_slice(&[flags, self.revision]);
        bytes.extend_from_slice(&(body.len() as u16).to_be_bytes());
        bytes.extend_from_slice(&body);
        bytes
    }

    /// Whether `private_data` bytes fit into any frame, even an enhanced one.
    pub fn fits(private_data: usize) -> bool {
        private_data <= PRIVATE_DATA_LIMIT - ENHANCED
    }
}

/// Bytes from one marker to the next, counted from the first byte of full operation (RFC 5044
/// section 4.3).
pub const MARKER_INTERVAL: usize = 512;
/// Bytes of a marker.
pub const MARKER: usize = 4;

//= RFC 5044, Section 4.2
//# The format of a Marker MUST be as specified in Figure 3:
//# The Reserved field MUST be set to zero on transmit and ignored on receive (except for CRC
//# calculation).
//# The least significant two bits MUST always be set to zero at the transmitter, and the receivers
//# MUST always treat these as zero for calculations.
/// Encodes a marker: 16 reserved bits, then FPDUPTR, which is 0 before an FPDU.
pub fn marker(pointer: u16) -> [u8; MARKER] {
    let [high, low] = pointer.to_be_bytes();
    [0, 0, high, low]
}

/// Bytes of padding after a ULPDU, which make the FPDU without CRC a multiple of four (RFC 5044
/// section 4.1).
pub fn padding(ulpdu: usize) -> usize {
    (LENGTH_FIELD + ulpdu).wrapping_neg() & 3
}

//= RFC 5044, Section 4.1
//# The format of an FPDU shown below MUST be used for all MPA FPDUs.
/// Length of the FPDU of a ULPDU, in bytes.
pub fn fpdu_len(ulpdu: usize) -> usize {
    LENGTH_FIELD + ulpdu + padding(ulpdu) + CRC_FIELD
}

/// A running CRC32c over length field, ULPDU and padding (RFC 5044 section 4.4).
#[derive(Clone)]
pub struct Crc {
    digest: Digest,
}

impl Crc {
    /// The CRC of no bytes.
    pub fn new() -> Self {
        Crc {
            digest: Digest::new(CrcAlgorithm::Crc32Iscsi),
        }
    }

    /// Begins anew, with no bytes.
    pub fn reset(&mut self) {
        self.digest.reset();
    }

    /// Adds bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        self.digest.update(bytes);
    }

    //= RFC 5044, Section 4.4
    //# When CRCs are enabled, the CRC field in the MPA FPDU MUST be computed using the CRC32c
    //# polynomial in the manner described in the iSCSI Protocol [iSCSI] document for Header and
    //# Data Digests.
    //= RFC 5041, Section 3
    //# LLP MUST provide a strong digest (at least equivalent to CRC32-C) to cover at least the DDP
    //# Segment.
    /// The CRC field as it is sent: least significant byte first, as in iSCSI.
    pub fn field(&self) -> [u8; CRC_FIELD] {
        (self.digest.finalize() as u32).to_le_bytes()
    }

    /// The CRC field over `bytes`.
    pub fn of(bytes: &[u8]) -> [u8; CRC_FIELD] {
        crc_fast::crc32_iscsi(bytes).to_le_bytes()
    }
}

impl Default for Crc {
    fn default() -> Self {
        Crc::new()
    }
}

impl std::fmt::Debug for Crc {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Crc({:02x?})", self.field())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The reply of a Linux 6.12 server to `IRD 16, ORD 0`.
    const KNFSD_REPLY: &[u8] = b"MPA ID Rep Frame\x10\x02\x00\x0c\
        \x00\x00\x00\x10\xf6\xab\x0e\x18\x01\x00\x03\x03";

    fn parse(kind: FrameKind, bytes: &[u8]) -> Option<Frame> {
        let (head, body) = bytes.split_first_chunk()?;
        Frame::from_parts(kind, FrameHeader::parse(kind, head).ok()?, body)
    }

    #[test]
    fn reply_of_linux() {
        let frame = parse(FrameKind::Reply, KNFSD_REPLY).unwrap();
        assert_eq!(
            frame,
            Frame {
                kind: FrameKind::Reply,
                markers: false,
                crc: false,
                reject: false,
                revision: 2,
                enhanced: Some(Enhanced {
                    ird: 0,
                    ord: 16,
                    ..Enhanced::default()
                }),
                private_data: vec![0xf6, 0xab, 0x0e, 0x18, 1, 0, 3, 3],
            }
        );
        assert_eq!(frame.to_bytes(), KNFSD_REPLY);
    }

    #[test]
    fn flags_and_control_bits() {
        let bytes = b"MPA ID Req Frame\xd0\x02\x00\x04\xc0\x10\xc0\x08";
        let frame = parse(FrameKind::Request, bytes).unwrap();
        assert!(frame.markers && frame.crc && !frame.reject);
        let enhanced = frame.enhanced.unwrap();
        assert_eq!((enhanced.ird, enhanced.ord), (16, 8));
        assert!(enhanced.peer_to_peer);
        assert!(enhanced.rtr.fpdu && enhanced.rtr.write && enhanced.rtr.read);
        assert_eq!(frame.to_bytes(), bytes);
    }

    //= RFC 5044, Section 7.1.1
    //= type=test
    //# Responder mode receivers MUST check this field for the [...]
    //# MPA receivers compliant with this version of the specification MUST check this field.
    //# If the receiver detects that the PD_Length field does [...]
    //= RFC 5044, Section 7.1.2
    //= type=test
    //# MPA implementations MUST use the difference between the MPA [...]
    //# MPA implementations MUST validate the PD_Length field.
    //# If any of the above fails, the startup frame MUST be considered improperly formatted.
    #[test]
    fn refused_frames() {
        let header = |bytes: &[u8; 20]| FrameHeader::parse(FrameKind::Request, bytes);
        assert_eq!(
            header(b"MPA ID Rep Frame\0\x01\0\0"),
            Err(FrameError::Key),
            "a reply is no request"
        );
        for revision in [0, 3, 255] {
            let mut bytes = *b"MPA ID Req Frame\0\x01\0\0";
            bytes[17] = revision;
            assert_eq!(header(&bytes), Err(FrameError::Revision(revision)));
        }
        assert_eq!(
            header(b"MPA ID Req Frame\0\x01\x02\x01"),
            Err(FrameError::TooLong(513))
        );
        assert_eq!(
            header(b"MPA ID Req Frame\x10\x02\0\x03"),
            Err(FrameError::TooShort)
        );
        let one = header(b"MPA ID Req Frame\x10\x01\0\0").unwrap();
        assert!(!one.enhanced, "revision 1 has no enhanced set-up");
    }

    //= RFC 5044, Section 7.1.1
    //= type=test
    //# It MUST be set to zero when sending, and not checked on reception.
    #[test]
    fn reserved_bits_are_not_looked_at() {
        let header = |flags: u8| {
            let mut bytes = *b"MPA ID Req Frame\0\x01\0\0";
            bytes[16] = flags;
            FrameHeader::parse(FrameKind::Request, &bytes)
        };
        assert_eq!(header(0x1f), header(0));
        assert_eq!(header(0xdf), header(0xc0));
    }

    #[test]
    fn padding_makes_multiples_of_four() {
        for ulpdu in 0..64 {
            assert_eq!(fpdu_len(ulpdu) % 4, 0);
            assert!(padding(ulpdu) < 4);
        }
        assert_eq!(padding(14), 0);
        assert_eq!(fpdu_len(14), 20);
        assert_eq!(fpdu_len(15), 24);
    }

    #[test]
    fn a_crc_begins_anew() {
        let mut crc = Crc::new();
        crc.update(b"of another FPDU");
        crc.reset();
        for piece in [&b"of this"[..], b"", b" one"] {
            crc.update(piece);
        }
        assert_eq!(crc.field(), Crc::of(b"of this one"));
    }

    //= RFC 5044, Section 4.4
    //= type=test
    //# When CRCs are enabled, the CRC field in the [...]
    //= RFC 5041, Section 3
    //= type=test
    //# LLP MUST provide a strong digest (at least equivalent to CRC32-C) to cover at least the DDP
    //# Segment.
    /// RFC 3720 appendix B.4.
    #[test]
    fn crc_of_the_rfc() {
        assert_eq!(Crc::of(&[0; 32]), [0xaa, 0x36, 0x91, 0x8a]);
        assert_eq!(Crc::of(&[0xff; 32]), [0x43, 0xab, 0xa8, 0x62]);
        assert_eq!(
            Crc::of(&std::array::from_fn::<u8, 32, _>(|i| i as u8)),
            [0x4e, 0x79, 0xdd, 0x46]
        );
    }

    proptest! {
        #[test]
        fn frames_round_trip(
            ird in 0u16..0x4000, ord in 0u16..0x4000, bits: [bool; 8],
            data in proptest::collection::vec(any::<u8>(), 0..=508),
        ) {
            let frame = Frame {
                kind: if bits[0] { FrameKind::Request } else { FrameKind::Reply },
                markers: bits[1],
                crc: bits[2],
                reject: bits[3],
                revision: 2,
                enhanced: bits[4].then_some(Enhanced {
                    ird,
                    ord,
                    peer_to_peer: bits[5],
                    rtr: RtrTypes { fpdu: bits[6], write: bits[7], read: bits[0] },
                }),
                private_data: data,
            };
            let bytes = frame.to_bytes();
            prop_assert_eq!(parse(frame.kind, &bytes), Some(frame));
        }

        #[test]
        fn crc_in_pieces(data in proptest::collection::vec(any::<u8>(), 0..3000), cut: usize) {
            let (a, b) = data.split_at(cut % (data.len() + 1));
            let mut crc = Crc::new();
            crc.update(a);
            crc.update(b);
            prop_assert_eq!(crc.field(), Crc::of(&data));
        }
    }
}
