//! DDP segment headers (RFC 5041 section 4), with the octets they reserve for RDMAP.
//!
//! A tagged segment (RDMA Write, RDMA Read Response) names its destination by STag and offset. An
//! untagged one (Send, RDMA Read Request, Terminate) names it by queue number, message sequence
//! number and offset in the message.

use super::opcode::Opcode;

/// Bytes of a tagged header: control, RDMAP control, STag, TO.
pub const TAGGED_HEADER: usize = 14;
/// Bytes of an untagged header: control, RDMAP control, Invalidate STag, QN, MSN, MO.
pub const UNTAGGED_HEADER: usize = 18;

const FLAG_TAGGED: u8 = 0x80;
const FLAG_LAST: u8 = 0x40;
const VERSION_MASK: u8 = 0x03;
//= RFC 5041, Section 4.1
//# This field MUST be set to one to indicate the version of the specification described in this
//# document.
/// DDP version.
pub const VERSION: u8 = 1;
/// RDMAP version of RFC 5040 (section 4.1).
pub const RDMAP_VERSION: u8 = 1;

/// Queue of Sends (RFC 5040 section 4, Figure 4).
pub const QN_SEND: u32 = 0;
/// Queue of RDMA Read Requests.
pub const QN_READ_REQUEST: u32 = 1;
/// Queue of Terminates.
pub const QN_TERMINATE: u32 = 2;

/// The first two octets of each segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Control {
    /// Whether the segment is tagged.
    pub tagged: bool,
    /// Whether it is the last segment of its message.
    pub last: bool,
    /// DDP version; [`VERSION`].
    pub ddp_version: u8,
    /// RDMAP version; [`RDMAP_VERSION`].
    pub rdmap_version: u8,
    /// RDMAP opcode, four bits.
    pub opcode: u8,
}

impl Control {
    //= RFC 5040, Section 4.1
    //# MUST be set to zero by sender, ignored by the receiver.
    //= RFC 5041, Section 4.1
    //# This field MUST be set to zero on transmit, and not checked on receive.
    /// Reads the two octets. Reserved bits are ignored.
    pub fn parse(bytes: [u8; 2]) -> Self {
        Control {
            tagged: bytes[0] & FLAG_TAGGED != 0,
            last: bytes[0] & FLAG_LAST != 0,
            ddp_version: bytes[0] & VERSION_MASK,
            rdmap_version: bytes[1] >> 6,
            opcode: bytes[1] & 0x0f,
        }
    }

    //= RFC 5040, Section 4.1
    //# The first octet reserved for ULP use in the DDP Protocol MUST be used by the RDMAP to carry
    //# the RDMAP Control Field.
    //# The ordering of the bits in the first octet MUST be as defined in Figure 3, "DDP Control,
    //# RDMAP Control, and Invalidate STag Fields".
    //# For this version of the RDMAP, all RDMA Messages MUST have:
    //# MUST be set to zero by sender, ignored by the receiver.
    //= RFC 5041, Section 4.1
    //# This field MUST be set to zero on transmit, and not checked on receive.
    fn emit(tagged: bool, last: bool, opcode: Opcode) -> [u8; 2] {
        let flags = if tagged { FLAG_TAGGED } else { 0 } | if last { FLAG_LAST } else { 0 };
        [flags | VERSION, RDMAP_VERSION << 6 | opcode as u8]
    }
}

/// Stores a field of fixed size, which needs no call to copy it.
fn put<const N: usize>(to: &mut [u8], at: usize, field: [u8; N]) {
    if let Some(place) = to[at..].first_chunk_mut() {
        *place = field;
    }
}

/// The header of a tagged segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tagged {
    /// Whether it is the last segment of its message.
    pub last: bool,
    /// RDMA Write or RDMA Read Response.
    pub opcode: Opcode,
    /// STag of the buffer.
    pub stag: u32,
    /// Tagged offset (TO): a position in the buffer's address space.
    pub offset: u64,
}

impl Tagged {
    //= RFC 5041, Section 4.2
    //# Figure 4 shows the DDP Header format that MUST be used in all DDP Segments that target
    //# Tagged Buffers.
    //# At the Data Source, DDP MUST set RsvdULP Field to the value specified by the ULP.
    /// Encodes the header.
    pub fn emit(&self) -> [u8; TAGGED_HEADER] {
        let mut b = [0; TAGGED_HEADER];
        put(&mut b, 0, Control::emit(true, self.last, self.opcode));
        put(&mut b, 2, self.stag.to_be_bytes());
        put(&mut b, 6, self.offset.to_be_bytes());
        b
    }

    /// Decodes STag and TO.
    pub fn parse_target(b: &[u8; TAGGED_HEADER]) -> (u32, u64) {
        (
            u32::from_be_bytes([b[2], b[3], b[4], b[5]]),
            u64::from_be_bytes([b[6], b[7], b[8], b[9], b[10], b[11], b[12], b[13]]),
        )
    }
}

/// The header of an untagged segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Untagged {
    /// Whether it is the last segment of its message.
    pub last: bool,
    /// A kind of Send, RDMA Read Request or Terminate.
    pub opcode: Opcode,
    /// The STag to invalidate, or zero.
    pub invalidate: u32,
    /// Queue number.
    pub queue: u32,
    /// Message sequence number, from 1.
    pub msn: u32,
    /// Offset in the message.
    pub offset: u32,
}

/// Invalidate STag, QN, MSN and MO of an untagged segment.
pub type UntaggedTarget = (u32, u32, u32, u32);

impl Untagged {
    //= RFC 5040, Section 4.1
    //# For Send with Invalidate and Send with Solicited Event and Invalidate, the second through
    //# fifth octets of the DDP RsvdULP field MUST be used by RDMAP to carry the Invalidate STag.
    //= RFC 5041, Section 4.3
    //# Figure 5 shows the DDP Header format that MUST be used in all DDP Segments that target
    //# Untagged Buffers.
    //# At the Data Source, DDP MUST set RsvdULP Field to the value specified by the ULP.
    /// Encodes the header.
    pub fn emit(&self) -> [u8; UNTAGGED_HEADER] {
        let mut b = [0; UNTAGGED_HEADER];
        put(&mut b, 0, Control::emit(false, self.last, self.opcode));
        put(&mut b, 2, self.invalidate.to_be_bytes());
        put(&mut b, 6, self.queue.to_be_bytes());
        put(&mut b, 10, self.msn.to_be_bytes());
        put(&mut b, 14, self.offset.to_be_bytes());
        b
    }

    /// Decodes Invalidate STag, QN, MSN and MO.
    pub fn parse_target(b: &[u8; UNTAGGED_HEADER]) -> UntaggedTarget {
        let word = |at: usize| u32::from_be_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]]);
        (word(2), word(6), word(10), word(14))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    //= RFC 5040, Section 4.1
    //= type=test
    //# The first octet reserved for ULP use in the [...]
    //# The ordering of the bits in the first octet [...]
    //# For this version of the RDMAP, all RDMA Messages MUST have:
    //= RFC 5041, Section 4.1
    //= type=test
    //# This field MUST be set to one to indicate [...]
    //= RFC 5041, Section 4.2
    //= type=test
    //# Figure 4 shows the DDP Header format that MUST [...]
    //# At the Data Source, DDP MUST set RsvdULP Field to the value specified by the ULP.
    #[test]
    fn write_header_bytes() {
        let header = Tagged {
            last: true,
            opcode: Opcode::Write,
            stag: 0x0102_0304,
            offset: 0x1122_3344_5566_7788,
        };
        let bytes = [
            0xc1, 0x40, 1, 2, 3, 4, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88,
        ];
        assert_eq!(header.emit(), bytes);
        let control = Control::parse([bytes[0], bytes[1]]);
        assert!(control.tagged && control.last);
        assert_eq!((control.ddp_version, control.rdmap_version), (1, 1));
        assert_eq!(control.opcode, 0);
        assert_eq!(Tagged::parse_target(&bytes), (header.stag, header.offset));
    }

    //= RFC 5040, Section 4.1
    //= type=test
    //# For Send with Invalidate and Send with Solicited Event [...]
    //= RFC 5041, Section 4.3
    //= type=test
    //# Figure 5 shows the DDP Header format that MUST [...]
    //# At the Data Source, DDP MUST set RsvdULP Field to the value specified by the ULP.
    #[test]
    fn send_invalidate_header_bytes() {
        let header = Untagged {
            last: false,
            opcode: Opcode::SendInvalidate,
            invalidate: 0xaabb_ccdd,
            queue: QN_SEND,
            msn: 7,
            offset: 0x1000,
        };
        let bytes = [
            0x01, 0x44, 0xaa, 0xbb, 0xcc, 0xdd, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0x10, 0,
        ];
        assert_eq!(header.emit(), bytes);
        assert_eq!(
            Untagged::parse_target(&bytes),
            (0xaabb_ccdd, QN_SEND, 7, 0x1000)
        );
    }

    proptest! {
        //= RFC 5040, Section 4.1
        //= type=test
        //# MUST be set to zero by sender, ignored by the receiver.
        //= RFC 5041, Section 4.1
        //= type=test
        //# This field MUST be set to zero on transmit, and not checked on receive.
        #[test]
        fn reserved_bits_are_ignored(a: u8, b: u8) {
            prop_assert_eq!(
                Control::parse([a, b]),
                Control::parse([a & !0x3c, b & !0x30])
            );
        }
    }
}
