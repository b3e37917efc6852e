//! Asking at which port a program listens: portmap version 2 and rpcbind versions 3 and 4 (RFC
//! 1833), netids and universal addresses (RFC 5665).

use crate::codec::{self, Decode, Decoder, Encode, Encoder, Text, xdr_struct};
use crate::nfs3::Void;
use crate::procedure::{Ddp, Procedure};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// RPC program number of portmap and rpcbind.
pub const PROGRAM: u32 = 100000;
/// The port of portmap and rpcbind.
pub const PORT: u16 = 111;
/// Longest netid, universal address or owner, in bytes (RFC 1833 sets no bound).
pub const STRING_MAX: usize = 255;
/// Largest results of DUMP, in bytes; see [`crate::mount3::MAX_LIST_LEN`].
pub const MAX_LIST_LEN: usize = 64 * 1024;

/// The IP protocol numbers that portmap uses.
pub mod protocol {
    pub const TCP: u32 = 6;
    pub const UDP: u32 = 17;
}

xdr_struct! {
    /// mapping of portmap version 2 (RFC 1833 section 3.1).
    #[derive(Copy, Default)]
    Mapping {
        program: u32,
        version: u32,
        /// One of [`protocol`].
        protocol: u32,
        /// Ignored in GETPORT and UNSET.
        port: u32,
    }
}

xdr_struct! {
    /// rpcb of rpcbind versions 3 and 4 (RFC 1833 section 2.1).
    #[derive(Copy, Default)]
    Binding<'a> {
        program: u32,
        version: u32,
        netid: Text<'a, STRING_MAX>,
        /// Universal address; in GETADDR, the address that the call is sent to, or empty.
        address: Text<'a, STRING_MAX>,
        owner: Text<'a, STRING_MAX>,
    }
}

/// A linked list, the results of DUMP.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct List<T>(pub Vec<T>);

impl<T: Encode> Encode for List<T> {
    fn encode(&self, to: &mut Encoder) {
        to.list(&self.0);
    }
}

impl<'a, T: Decode<'a>> Decode<'a> for List<T> {
    fn decode(from: &mut Decoder<'a>) -> codec::Result<Self> {
        Ok(List(from.list()?))
    }
}

macro_rules! procedures {
    ($version:expr, $(
        $(#[$meta:meta])*
        $type:ident $(<$v:ident>)? = $number:literal, $name:literal, idempotent: $idempotent:literal,
        $args:ty => $res:ty, $max:expr;
    )*) => {
        $(
            #[doc = concat!($name, ", procedure ", $number, ".")]
            #[doc = ""]
            $(#[$meta])*
            #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
            pub struct $type $(<const $v: u32>)?;

            impl $(<const $v: u32>)? Procedure for $type $(<$v>)? {
                const PROGRAM: u32 = PROGRAM;
                const VERSION: u32 = $version;
                const NUMBER: u32 = $number;
                const NAME: &'static str = $name;
                const DDP: Ddp = Ddp::None;
                const IDEMPOTENT: bool = $idempotent;
                type Args<'a> = $args;
                type Res<'a> = $res;

                fn max_results(_: &Self::Args<'_>) -> usize {
                    $max
                }
            }
        )*
    };
}

/// Portmap version 2 (RFC 1833 section 3).
pub mod portmap {
    use super::{Ddp, List, MAX_LIST_LEN, Mapping, PROGRAM, Procedure, Void};

    /// The version number.
    pub const VERSION: u32 = 2;

    procedures! { VERSION,
        Null = 0, "NULL", idempotent: true, Void => Void, 0;
        /// True: the mapping was added.
        Set = 1, "SET", idempotent: false, Mapping => bool, 4;
        /// True: mappings were removed.
        Unset = 2, "UNSET", idempotent: false, Mapping => bool, 4;
        /// The port, or 0 if the program is not registered.
        Getport = 3, "GETPORT", idempotent: true, Mapping => u32, 4;
        Dump = 4, "DUMP", idempotent: true, Void => List<Mapping>, MAX_LIST_LEN;
    }
}

/// Rpcbind versions 3 and 4 (RFC 1833 section 2), whose common procedures these are; `V` is the
/// version.
pub mod rpcb {
    use super::{Binding, Ddp, List, MAX_LIST_LEN, PROGRAM, Procedure, STRING_MAX, Text, Void};
    use crate::codec;

    const MAX_STRING_LEN: usize = 4 + codec::roundup(STRING_MAX);

    procedures! { V,
        Null<V> = 0, "NULL", idempotent: true, Void => Void, 0;
        /// True: the binding was added.
        Set<V> = 1, "SET", idempotent: false, Binding<'a> => bool, 4;
        /// True: bindings were removed.
        Unset<V> = 2, "UNSET", idempotent: false, Binding<'a> => bool, 4;
        /// The universal address, or an empty string if the program is not registered.
        Getaddr<V> = 3, "GETADDR", idempotent: true,
            Binding<'a> => Text<'a, STRING_MAX>, MAX_STRING_LEN;
        Dump<V> = 4, "DUMP", idempotent: true, Void => List<Binding<'a>>, MAX_LIST_LEN;
    }
}

/// Network identifiers with IP addresses (RFC 5665 section 5; RFC 8166 section 9 for rdma).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum NetId {
    Tcp,
    Udp,
    Tcp6,
    Udp6,
    Rdma,
    Rdma6,
}

impl NetId {
    /// Every netid.
    pub const ALL: [NetId; 6] = [
        NetId::Tcp,
        NetId::Udp,
        NetId::Tcp6,
        NetId::Udp6,
        NetId::Rdma,
        NetId::Rdma6,
    ];

    /// The string on the wire.
    pub const fn name(self) -> &'static str {
        match self {
            NetId::Tcp => "tcp",
            NetId::Udp => "udp",
            NetId::Tcp6 => "tcp6",
            NetId::Udp6 => "udp6",
            NetId::Rdma => "rdma",
            NetId::Rdma6 => "rdma6",
        }
    }

    /// The netid with this name.
    pub fn from_name(name: &[u8]) -> Option<Self> {
        NetId::ALL
            .into_iter()
            .find(|netid| netid.name().as_bytes() == name)
    }

    /// Whether its addresses are IPv6.
    pub const fn is_ipv6(self) -> bool {
        matches!(self, NetId::Tcp6 | NetId::Udp6 | NetId::Rdma6)
    }

    /// Decodes a universal address; `None` if it is invalid or not of this netid's family.
    pub fn parse_address(self, address: &[u8]) -> Option<SocketAddr> {
        parse_universal_address(address).filter(|a| a.is_ipv6() == self.is_ipv6())
    }
}

impl fmt::Display for NetId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The universal address: the host's address, then the port's high and low octet, as in
/// "10.1.3.7.2.15" (RFC 5665 sections 5.2.3.3 and 5.2.3.4). A scope or flow label is left out.
pub fn universal_address(address: &SocketAddr) -> String {
    let [high, low] = address.port().to_be_bytes();
    format!("{}.{high}.{low}", address.ip())
}

/// Decodes a universal address of either family.
pub fn parse_universal_address(address: &[u8]) -> Option<SocketAddr> {
    let text = std::str::from_utf8(address).ok()?;
    let (rest, low) = text.rsplit_once('.')?;
    let (host, high) = rest.rsplit_once('.')?;
    let port = u16::from_be_bytes([octet(high)?, octet(low)?]);
    let host = if host.contains(':') {
        IpAddr::V6(host.parse::<Ipv6Addr>().ok()?)
    } else {
        IpAddr::V4(host.parse::<Ipv4Addr>().ok()?)
    };
    Some(SocketAddr::new(host, port))
}

/// Decodes an octet of decimal digits; `parse` alone would also accept "+1".
fn octet(text: &str) -> Option<u8> {
    let digits = (1..=3).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_digit());
    digits.then(|| text.parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn portmap_literals() {
        // GETPORT(100005, 3, TCP, 0), and a list of two mappings.
        let mapping = Mapping {
            program: 100_005,
            version: 3,
            protocol: protocol::TCP,
            port: 0,
        };
        let bytes = [0, 1, 0x86, 0xa5, 0, 0, 0, 3, 0, 0, 0, 6, 0, 0, 0, 0];
        assert_eq!(mapping.to_xdr(), bytes);
        let list = List(vec![mapping, mapping]);
        let one = [0, 0, 0, 1];
        let expected = [&one[..], &bytes, &one, &bytes, &[0; 4]].concat();
        assert_eq!(list.to_xdr(), expected);
        assert_eq!(List::from_xdr(&expected), Ok(list));
    }

    #[test]
    fn rpcbind_literal() {
        let binding = Binding {
            program: 100_003,
            version: 3,
            netid: Text(b"tcp"),
            address: Text(b""),
            owner: Text(b"a"),
        };
        let bytes = b"\0\x01\x86\xa3\0\0\0\x03\0\0\0\x03tcp\0\0\0\0\0\0\0\0\x01a\0\0\0";
        assert_eq!(binding.to_xdr(), bytes);
        assert_eq!(Binding::from_xdr(bytes), Ok(binding));
        assert_eq!(<rpcb::Getaddr<3> as Procedure>::VERSION, 3);
        assert_eq!(<rpcb::Getaddr<4> as Procedure>::VERSION, 4);
        let longest = Text::<STRING_MAX>(&[b'x'; STRING_MAX]);
        let max = rpcb::Getaddr::<4>::max_results(&binding);
        assert_eq!(longest.to_xdr().len(), max);
    }

    #[test]
    fn universal_addresses() {
        // RFC 5665's form is h1.h2.h3.h4.p1.p2: port 2049 is 8 * 256 + 1, 20049 is 78 * 256 + 81.
        let cases = [
            ("127.0.0.1:2049", "127.0.0.1.8.1", NetId::Tcp),
            ("10.0.0.255:111", "10.0.0.255.0.111", NetId::Udp),
            ("192.0.2.1:20049", "192.0.2.1.78.81", NetId::Rdma),
            ("[::1]:2049", "::1.8.1", NetId::Tcp6),
            ("[2001:db8::7]:65535", "2001:db8::7.255.255", NetId::Rdma6),
        ];
        for (socket, universal, netid) in cases {
            let socket: SocketAddr = socket.parse().unwrap();
            assert_eq!(universal_address(&socket), universal);
            assert_eq!(netid.parse_address(universal.as_bytes()), Some(socket));
        }
        assert_eq!(NetId::Tcp6.parse_address(b"127.0.0.1.8.1"), None);
        for bad in [
            "",
            ".",
            "1.2",
            "1.2.3.4",
            "1.2.3.4.5",
            "1.2.3.4.256.0",
            "1.2.3.4.+1.0",
            "1.2.3.4.5.6.7",
            "::1.8",
            "host.8.1",
            "1.2.3.4..1",
            "1.2.3.4.0000.1",
        ] {
            assert_eq!(parse_universal_address(bad.as_bytes()), None, "{bad}");
        }
    }

    #[test]
    fn netids_are_found_by_name() {
        for netid in NetId::ALL {
            assert_eq!(NetId::from_name(netid.to_string().as_bytes()), Some(netid));
        }
        assert_eq!(NetId::from_name(b"sctp"), None);
    }

    proptest! {
        #[test]
        fn addresses_come_back(ip: IpAddr, port: u16) {
            let socket = SocketAddr::new(ip, port);
            prop_assert_eq!(parse_universal_address(universal_address(&socket).as_bytes()), Some(socket));
        }
    }
}
