//! How large packets to a server can be.

use nfsrdma_xdr::rpcbind::PORT;
use rustix::net::sockopt;
use std::net::{IpAddr, SocketAddr, UdpSocket};

/// The smallest packet that every path of IPv6 carries (RFC 8200 section 5), in bytes. With smaller ones
/// large reads and writes are slow.
pub(crate) const LEAST_MTU: u32 = 1280;

/// The largest packet to `address`, as far as this machine knows; no packet is sent.
pub(crate) fn path_mtu(address: IpAddr) -> Option<u32> {
    let any: SocketAddr = match address {
        IpAddr::V4(_) => ([0, 0, 0, 0], 0).into(),
        IpAddr::V6(_) => ([0u16; 8], 0).into(),
    };
    let socket = UdpSocket::bind(any).ok()?;
    socket.connect((address, PORT)).ok()?;
    match address {
        IpAddr::V4(_) => sockopt::ip_mtu(&socket).ok(),
        IpAddr::V6(_) => sockopt::ipv6_mtu(&socket).ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_interface_has_large_packets() {
        assert!(path_mtu([127, 0, 0, 1].into()).is_some_and(|mtu| mtu > LEAST_MTU));
    }
}
