//! RDMAP opcodes, the RDMA Read Request header and the Terminate message (RFC 5040 section 4).
//!
//! A Terminate gives the reason for the end of a connection by layer, error type and error code.
//! For errors of RDMAP and DDP it returns the header of the segment at fault, and for protection
//! errors the RDMA Read Request, if there was one, so that the peer can identify the operation.

use super::ddp::{TAGGED_HEADER, UNTAGGED_HEADER};
use std::fmt;

pub use super::opcode::Opcode;

/// Bytes of [`ReadRequest`].
pub const READ_REQUEST: usize = 28;

/// The RDMA Read Request header (RFC 5040 Figure 6).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadRequest {
    /// STag of the memory to write the data to.
    pub sink_stag: u32,
    /// Tagged offset in that memory.
    pub sink_offset: u64,
    /// Number of bytes to read.
    pub length: u32,
    /// STag of the memory to read.
    pub source_stag: u32,
    /// Tagged offset in that memory.
    pub source_offset: u64,
}

impl ReadRequest {
    //= RFC 5040, Section 4.4
    //# The following figure depicts the RDMA Read Request Header that MUST be used for all RDMA
    //# Read Request Messages:
    /// Encodes the header.
    pub fn emit(&self) -> [u8; READ_REQUEST] {
        let mut b = [0; READ_REQUEST];
        b[..4].copy_from_slice(&self.sink_stag.to_be_bytes());
        b[4..12].copy_from_slice(&self.sink_offset.to_be_bytes());
        b[12..16].copy_from_slice(&self.length.to_be_bytes());
        b[16..20].copy_from_slice(&self.source_stag.to_be_bytes());
        b[20..].copy_from_slice(&self.source_offset.to_be_bytes());
        b
    }

    /// Decodes the header.
    pub fn parse(b: &[u8; READ_REQUEST]) -> Self {
        let word = |at: usize| u32::from_be_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]]);
        let long = |at: usize| u64::from(word(at)) << 32 | u64::from(word(at + 4));
        ReadRequest {
            sink_stag: word(0),
            sink_offset: long(4),
            length: word(12),
            source_stag: word(16),
            source_offset: long(20),
        }
    }
}

/// Layer, error type and error code of a Terminate (RFC 5040 Figure 9, RFC 5041 section 7.2,
/// RFC 5044 section 8, RFC 6581 section 8), as 4, 4 and 8 bits.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct TerminateCode(pub u16);

macro_rules! terminate_codes {
    ($($(#[$doc:meta])* $name:ident = $value:literal, $text:literal;)*) => {
        impl TerminateCode {
            $($(#[$doc])* pub const $name: TerminateCode = TerminateCode($value);)*

            /// All codes that the RFCs define.
            pub const NAMED: &'static [TerminateCode] = &[$(TerminateCode::$name),*];

            /// The error's name in the RFC.
            pub fn name(self) -> Option<&'static str> {
                match self.0 {
                    $($value => Some($text),)*
                    _ => None,
                }
            }
        }
    };
}

//= RFC 5040, Section 4.8
//# Figure 9, "Terminate Control Field Values", defines the valid values that MUST be used for this
//# field.
//= RFC 5041, Section 7.2
//# The following error numbers MUST be used when reporting errors to the ULP.
terminate_codes! {
    /// RDMAP, Local Catastrophic Error.
    RDMAP_LOCAL_CATASTROPHIC = 0x0000, "RDMAP local catastrophic error";
    /// RDMAP, Remote Protection Error.
    RDMAP_INVALID_STAG = 0x0100, "RDMAP invalid STag";
    /// RDMAP, Remote Protection Error.
    RDMAP_BASE_OR_BOUNDS = 0x0101, "RDMAP base or bounds violation";
    /// RDMAP, Remote Protection Error.
    RDMAP_ACCESS_RIGHTS = 0x0102, "RDMAP access rights violation";
    /// RDMAP, Remote Protection Error.
    RDMAP_STAG_NOT_ASSOCIATED = 0x0103, "RDMAP STag not associated with the stream";
    /// RDMAP, Remote Protection Error.
    RDMAP_TO_WRAP = 0x0104, "RDMAP tagged offset wrap";
    /// RDMAP, Remote Protection Error.
    RDMAP_CANNOT_INVALIDATE = 0x0109, "RDMAP STag cannot be invalidated";
    /// RDMAP, Remote Protection Error.
    RDMAP_PROTECTION_UNSPECIFIED = 0x01ff, "RDMAP unspecified protection error";
    /// RDMAP, Remote Operation Error.
    RDMAP_INVALID_VERSION = 0x0205, "invalid RDMAP version";
    /// RDMAP, Remote Operation Error.
    RDMAP_UNEXPECTED_OPCODE = 0x0206, "unexpected RDMAP opcode";
    /// RDMAP, Remote Operation Error.
    RDMAP_CATASTROPHIC_STREAM = 0x0207, "RDMAP catastrophic error of the stream";
    /// RDMAP, Remote Operation Error.
    RDMAP_CATASTROPHIC_GLOBAL = 0x0208, "RDMAP catastrophic error, global";
    /// RDMAP, Remote Operation Error.
    RDMAP_OPERATION_CANNOT_INVALIDATE = 0x0209, "RDMAP STag cannot be invalidated (operation)";
    /// RDMAP, Remote Operation Error.
    RDMAP_OPERATION_UNSPECIFIED = 0x02ff, "RDMAP unspecified operation error";
    /// DDP, Local Catastrophic Error.
    DDP_LOCAL_CATASTROPHIC = 0x1000, "DDP local catastrophic error";
    /// DDP, Tagged Buffer Error.
    DDP_INVALID_STAG = 0x1100, "DDP invalid STag";
    /// DDP, Tagged Buffer Error.
    DDP_BASE_OR_BOUNDS = 0x1101, "DDP base or bounds violation";
    /// DDP, Tagged Buffer Error.
    DDP_STAG_NOT_ASSOCIATED = 0x1102, "DDP STag not associated with the stream";
    /// DDP, Tagged Buffer Error.
    DDP_TO_WRAP = 0x1103, "DDP tagged offset wrap";
    /// DDP, Tagged Buffer Error.
    DDP_TAGGED_VERSION = 0x1104, "invalid DDP version (tagged)";
    /// DDP, Untagged Buffer Error.
    DDP_INVALID_QN = 0x1201, "invalid DDP queue number";
    /// DDP, Untagged Buffer Error.
    DDP_NO_BUFFER = 0x1202, "no buffer for the DDP message sequence number";
    /// DDP, Untagged Buffer Error.
    DDP_MSN_RANGE = 0x1203, "DDP message sequence number out of range";
    /// DDP, Untagged Buffer Error.
    DDP_INVALID_MO = 0x1204, "invalid DDP message offset";
    /// DDP, Untagged Buffer Error.
    DDP_TOO_LONG = 0x1205, "DDP message too long for the buffer";
    /// DDP, Untagged Buffer Error.
    DDP_UNTAGGED_VERSION = 0x1206, "invalid DDP version (untagged)";
    /// MPA.
    MPA_CLOSED = 0x2001, "MPA: TCP connection closed, terminated or lost";
    /// MPA.
    MPA_CRC = 0x2002, "MPA CRC mismatch";
    /// MPA.
    MPA_MARKER = 0x2003, "MPA marker and length mismatch";
    /// MPA.
    MPA_INVALID_FRAME = 0x2004, "invalid MPA request or reply frame";
    /// MPA (RFC 6581).
    MPA_LOCAL_CATASTROPHIC = 0x2005, "MPA local catastrophic error";
    /// MPA (RFC 6581).
    MPA_INSUFFICIENT_IRD = 0x2006, "MPA insufficient IRD resources";
    /// MPA (RFC 6581).
    MPA_NO_MATCHING_RTR = 0x2007, "MPA no matching RTR option";
}

impl TerminateCode {
    const PROTECTION: u16 = 0x0100;

    /// Whether the Terminate carries the DDP segment length and header (RFC 5040 Figure 10).
    pub fn includes_ddp(self) -> bool {
        let layer = self.0 >> 12;
        (layer == 0 && self.0 >> 8 != 0) || layer == 1
    }

    /// Whether the Terminate carries the RDMA Read Request header, if there is one.
    pub fn includes_rdma(self) -> bool {
        self.0 & 0xff00 == Self::PROTECTION
    }
}

impl fmt::Display for TerminateCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => write!(f, "{name} ({:#06x})", self.0),
            None => write!(f, "Terminate {:#06x}", self.0),
        }
    }
}

impl fmt::Debug for TerminateCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The DDP header that a Terminate returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TerminatedHeader {
    /// The header of a tagged segment.
    Tagged([u8; TAGGED_HEADER]),
    /// The header of an untagged segment.
    Untagged([u8; UNTAGGED_HEADER]),
}

impl TerminatedHeader {
    fn bytes(&self) -> &[u8] {
        match self {
            TerminatedHeader::Tagged(b) => b,
            TerminatedHeader::Untagged(b) => b,
        }
    }
}

/// A Terminate message (RFC 5040 section 4.8).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Terminate {
    /// The reason for the Terminate.
    pub code: TerminateCode,
    /// ULPDU length and DDP header of the segment at fault.
    pub segment: Option<(u16, TerminatedHeader)>,
    /// The RDMA Read Request at fault.
    pub read_request: Option<[u8; READ_REQUEST]>,
}

const HDRCT_LENGTH: u8 = 0x80;
const HDRCT_DDP: u8 = 0x40;
const HDRCT_RDMA: u8 = 0x20;

/// Longest Terminate, in bytes: control, length, untagged header, and Read Request header.
pub const MAX_TERMINATE: usize = 4 + 2 + UNTAGGED_HEADER + READ_REQUEST;

impl Terminate {
    //= RFC 5040, Section 4.8
    //# The following figure depicts a Terminate Header that MUST be used for the Terminate Message:
    //# The Terminate Control field MUST have the format defined in Figure 8 below.
    //# This field MUST be set to zero on transmit, ignored on receive.
    //# It MUST be valid if the M bit is set.
    //# It MUST be present when the D bit is set.
    //# It MUST be present if the D bit is set.
    //# It MUST be present if the R bit is set.
    /// Encodes the bytes after the DDP header.
    pub fn emit(&self) -> Vec<u8> {
        let mut b = Vec::with_capacity(MAX_TERMINATE);
        b.extend_from_slice(&self.code.0.to_be_bytes());
        let mut control = 0;
        if self.segment.is_some() {
            control |= HDRCT_LENGTH | HDRCT_DDP;
        }
        if self.read_request.is_some() {
            control |= HDRCT_RDMA;
        }
        b.extend_from_slice(&[control, 0]);
        if let Some((length, header)) = &self.segment {
            b.extend_from_slice(&length.to_be_bytes());
            b.extend_from_slice(header.bytes());
        }
        if let Some(request) = &self.read_request {
            b.extend_from_slice(request);
        }
        b
    }

    /// Decodes a Terminate. Only the control field must be complete; headers that are incomplete or
    /// missing are left out, because the code matters most.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let (control, mut rest) = bytes.split_first_chunk::<4>()?;
        let mut terminate = Terminate {
            code: TerminateCode(u16::from_be_bytes([control[0], control[1]])),
            segment: None,
            read_request: None,
        };
        let flags = control[2];
        if flags & (HDRCT_LENGTH | HDRCT_DDP) != 0 {
            let Some((length, after)) = rest.split_first_chunk::<2>() else {
                return Some(terminate);
            };
            rest = after;
            if flags & HDRCT_DDP != 0 {
                let tagged = rest.first().is_some_and(|b| b & 0x80 != 0);
                let header = if tagged {
                    rest.split_first_chunk()
                        .map(|(h, after)| (TerminatedHeader::Tagged(*h), after))
                } else {
                    rest.split_first_chunk()
                        .map(|(h, after)| (TerminatedHeader::Untagged(*h), after))
                };
                let Some((header, after)) = header else {
                    return Some(terminate);
                };
                terminate.segment = Some((u16::from_be_bytes(*length), header));
                rest = after;
            }
        }
        if flags & HDRCT_RDMA != 0 {
            terminate.read_request = rest.first_chunk().copied();
        }
        Some(terminate)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    //= RFC 5040, Section 4.4
    //= type=test
    //# The following figure depicts the RDMA Read Request Header [...]
    #[test]
    fn read_request_bytes() {
        let request = ReadRequest {
            sink_stag: 0x0a0b_0c0d,
            sink_offset: 0x1000,
            length: 0x10_0000,
            source_stag: 0x0102_0304,
            source_offset: 0x7fff_0000_0000,
        };
        let bytes = [
            0x0a, 0x0b, 0x0c, 0x0d, 0, 0, 0, 0, 0, 0, 0x10, 0, 0, 0x10, 0, 0, 1, 2, 3, 4, 0, 0,
            0x7f, 0xff, 0, 0, 0, 0,
        ];
        assert_eq!(request.emit(), bytes);
        assert_eq!(ReadRequest::parse(&bytes), request);
    }

    //= RFC 5040, Section 4.8
    //= type=test
    //# The following figure depicts a Terminate Header that MUST be used for the Terminate Message:
    //# The Terminate Control field MUST have the format defined in Figure 8 below.
    //# This field MUST be set to zero on transmit, ignored on receive.
    //# It MUST be valid if the M bit is set.
    //# It MUST be present when the D bit is set.
    //# It MUST be present if the D bit is set.
    #[test]
    fn terminate_bytes() {
        let terminate = Terminate {
            code: TerminateCode::DDP_INVALID_STAG,
            segment: Some((1038, TerminatedHeader::Tagged([0xc1; 14]))),
            read_request: None,
        };
        let mut bytes = vec![0x11, 0x00, 0xc0, 0x00, 0x04, 0x0e];
        bytes.extend_from_slice(&[0xc1; 14]);
        assert_eq!(terminate.emit(), bytes);
        assert_eq!(Terminate::parse(&bytes), Some(terminate));
    }

    //= RFC 5040, Section 4.8
    //= type=test
    //# Figure 9, "Terminate Control Field Values", defines the valid [...]
    //= RFC 5041, Section 7.2
    //= type=test
    //# The following error numbers MUST be used when reporting errors to the ULP.
    #[test]
    fn codes_are_named_and_distinct() {
        for code in TerminateCode::NAMED {
            assert!(code.name().is_some());
        }
        assert!(TerminateCode(0x3456).name().is_none());
        // According to RFC 5040 Figure 10.
        assert!(!TerminateCode::RDMAP_LOCAL_CATASTROPHIC.includes_ddp());
        assert!(TerminateCode::RDMAP_ACCESS_RIGHTS.includes_ddp());
        assert!(TerminateCode::RDMAP_ACCESS_RIGHTS.includes_rdma());
        assert!(!TerminateCode::RDMAP_UNEXPECTED_OPCODE.includes_rdma());
        assert!(TerminateCode::DDP_INVALID_MO.includes_ddp());
        assert!(!TerminateCode::MPA_CRC.includes_ddp());
    }

    #[test]
    fn opcodes() {
        for bits in 0..16 {
            match Opcode::from_bits(bits) {
                Some(opcode) => assert_eq!(opcode as u8, bits),
                None => assert!(bits >= 8),
            }
        }
    }

    proptest! {
        #[test]
        fn any_bytes_as_terminate(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            let parsed = Terminate::parse(&bytes);
            prop_assert_eq!(parsed.is_some(), bytes.len() >= 4);
        }

        //= RFC 5040, Section 4.8
        //= type=test
        //# It MUST be present if the R bit is set.
        #[test]
        fn terminates_round_trip(code: u16, length: u16, tagged: bool, read: bool) {
            let header = if tagged {
                TerminatedHeader::Tagged([0x81; 14])
            } else {
                TerminatedHeader::Untagged([0x41; 18])
            };
            let terminate = Terminate {
                code: TerminateCode(code),
                segment: Some((length, header)),
                read_request: read.then_some([9; READ_REQUEST]),
            };
            prop_assert!(terminate.emit().len() <= MAX_TERMINATE);
            prop_assert_eq!(Terminate::parse(&terminate.emit()), Some(terminate));
        }
    }
}
