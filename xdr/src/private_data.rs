//! The private data that RPC-over-RDMA version 1 peers exchange while they connect (RFC 8797).
//!
//! They are eight octets of the connection manager's private data: a format identifier, by which
//! they are found after octets of lower layers, a version, a flag for remote invalidation, and the
//! sizes of Send and Receive in units of 1 KiB. For a peer that sends none, the defaults of RFC
//! 8166 hold: 1024 bytes and no remote invalidation. The inline threshold of a direction is the
//! smaller of the sender's Send size and the receiver's Receive size.

/// Format identifier.
pub const MAGIC: u32 = 0xf6ab_0e18;
/// Format version.
pub const VERSION: u8 = 1;
/// Length in bytes.
pub const LEN: usize = 8;
//= RFC 8166, Section 3.3.3
//# Receiver implementations MUST support inline thresholds of 1024 bytes but MAY support larger
//# inline thresholds values.
/// Smallest and default inline threshold in bytes (RFC 8166 section 3.3.3).
pub const MIN_SIZE: u32 = 1024;
/// Largest inline threshold that can be announced, in bytes (RFC 8797 section 4.2).
pub const MAX_SIZE: u32 = 256 * 1024;

//= RFC 8797, Section 4
//# Senders MUST set these bits to zero, and receivers MUST ignore their value.
/// Flag "bit 15" of the RFC's diagram, which is the least significant bit of the octet.
const REMOTE_INVALIDATION: u8 = 0x01;

/// The CM Private Data message (RFC 8797 section 4). The default is assumed for a peer that sends
/// none (section 5.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PrivateData {
    /// Whether this peer supports Send with Invalidate; it is used if both do.
    pub remote_invalidation: bool,
    /// Largest Send of this peer, in bytes.
    pub send_size: u32,
    /// Largest Receive of this peer, in bytes.
    pub receive_size: u32,
}

impl Default for PrivateData {
    fn default() -> Self {
        PrivateData {
            remote_invalidation: false,
            send_size: MIN_SIZE,
            receive_size: MIN_SIZE,
        }
    }
}

impl PrivateData {
    /// Encodes the eight octets. Sizes are rounded down to whole KiB, from [`MIN_SIZE`] to
    /// [`MAX_SIZE`].
    pub fn encode(&self) -> [u8; LEN] {
        let magic = MAGIC.to_be_bytes();
        let flags = if self.remote_invalidation {
            REMOTE_INVALIDATION
        } else {
            0
        };
        [
            magic[0],
            magic[1],
            magic[2],
            magic[3],
            VERSION,
            flags,
            encode_size(self.send_size),
            encode_size(self.receive_size),
        ]
    }

    //= RFC 8797, Section 5.2
    //# If the RPC-over-RDMA version 1 CM Private Data Format Identifier is not present, an
    //# RPC-over-RDMA version 1 receiver MUST behave as if no RPC-over-RDMA version 1 CM Private
    //# Data has been provided.
    /// Finds the message in received private data. Lower layers may have added octets before it, so
    /// the format identifier is searched for, at any alignment (RFC 8797 section 5.2). `None` if
    /// there is no message of a known version.
    pub fn parse(received: &[u8]) -> Option<Self> {
        let magic = MAGIC.to_be_bytes();
        received
            .windows(LEN)
            .find(|octets| octets.starts_with(&magic) && octets[4] == VERSION)
            .map(|octets| PrivateData {
                remote_invalidation: octets[5] & REMOTE_INVALIDATION != 0,
                send_size: decode_size(octets[6]),
                receive_size: decode_size(octets[7]),
            })
    }

    /// Largest Send from the peer that announced `self` to the one that announced `peer`, in bytes
    /// (RFC 8797 section 4.2).
    pub fn threshold_towards(&self, peer: &PrivateData) -> u32 {
        self.send_size.min(peer.receive_size)
    }
}

fn encode_size(bytes: u32) -> u8 {
    (bytes.clamp(MIN_SIZE, MAX_SIZE) / 1024 - 1) as u8
}

fn decode_size(octet: u8) -> u32 {
    (u32::from(octet) + 1) * 1024
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The answer of a Linux server: remote invalidation, and 4096 bytes in both directions.
    const LINUX: [u8; 8] = [0xf6, 0xab, 0x0e, 0x18, 1, 1, 3, 3];

    //= RFC 8797, Section 4
    //= type=test
    //# Senders MUST set these bits to zero, and receivers MUST ignore their value.
    #[test]
    fn literal_octets() {
        let data = PrivateData {
            remote_invalidation: true,
            send_size: 4096,
            receive_size: 4096,
        };
        assert_eq!(data.encode(), LINUX);
        assert_eq!(PrivateData::parse(&LINUX), Some(data));
        assert_eq!(
            PrivateData::default().encode(),
            [0xf6, 0xab, 0x0e, 0x18, 1, 0, 0, 0]
        );
    }

    //= RFC 8797, Section 4
    //= type=test
    //# Senders MUST set these bits to zero, and receivers MUST ignore their value.
    #[test]
    fn reserved_bits_are_ignored() {
        let expected = PrivateData::parse(&LINUX);
        let mut octets = LINUX;
        for reserved in 0..=0x7f {
            octets[5] = reserved << 1 | 1;
            assert_eq!(PrivateData::parse(&octets), expected);
        }
    }

    #[test]
    fn sizes_are_clamped_and_rounded_down() {
        assert_eq!([0, 1, 1024, 2047].map(encode_size), [0; 4]);
        assert_eq!(
            [2048, 65536, 262_144, u32::MAX].map(encode_size),
            [1, 63, 255, 255]
        );
        assert_eq!(decode_size(255), MAX_SIZE);
    }

    //= RFC 8797, Section 5.2
    //= type=test
    //# If the RPC-over-RDMA version 1 CM Private Data Format [...]
    #[test]
    fn what_is_not_there_is_not_found() {
        assert_eq!(PrivateData::parse(&[]), None);
        for len in 0..LEN {
            assert_eq!(PrivateData::parse(&LINUX[..len]), None);
        }
        let mut other = LINUX;
        other[4] = 2;
        assert_eq!(PrivateData::parse(&other), None);
        // As long as the message, and of another protocol.
        for octet in 0..4 {
            let mut other = LINUX;
            other[octet] ^= 1;
            assert_eq!(PrivateData::parse(&other), None);
        }
    }

    #[test]
    fn the_smaller_of_both_sides_counts() {
        let ours = PrivateData {
            send_size: 8192,
            receive_size: 2048,
            ..Default::default()
        };
        let theirs = PrivateData {
            send_size: 4096,
            receive_size: 4096,
            ..Default::default()
        };
        assert_eq!(ours.threshold_towards(&theirs), 4096);
        assert_eq!(theirs.threshold_towards(&ours), 2048);
    }

    proptest! {
        #[test]
        fn found_behind_anything(
            front in proptest::collection::vec(0u8..0xf6, 0..20),
            back in proptest::collection::vec(any::<u8>(), 0..20),
            remote_invalidation: bool, send in 1u32..=256, receive in 1u32..=256,
        ) {
            let data = PrivateData {
                remote_invalidation, send_size: send * 1024, receive_size: receive * 1024,
            };
            let bytes = [&front[..], &data.encode(), &back].concat();
            prop_assert_eq!(PrivateData::parse(&bytes), Some(data));
        }
    }
}
