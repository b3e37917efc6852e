//! Asks the server's rpcbind for the port of a program (RFC 1833).
//!
//! rpcbind is called at port 111 over TCP, and over UDP if it does not answer on TCP. The newest
//! version that it supports is used: 4, then 3, then portmap (version 2), which knows IPv4 only.
//! Versions 3 and 4 answer with a universal address (RFC 5665), of which only the port is used.
//! Port 0 or an empty address means that the program is not registered.

use nfsrdma_rpcrdma::rpc::plain::{self, PlainError, Protocol, Target};
use nfsrdma_xdr::codec::Text;
use nfsrdma_xdr::mount3;
use nfsrdma_xdr::rpc::Auth;
use nfsrdma_xdr::rpcbind::{
    Binding, Mapping, NetId, PORT, portmap, protocol, rpcb, universal_address,
};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

fn netid(host: IpAddr, wanted: Protocol) -> NetId {
    match (wanted, host) {
        (Protocol::Tcp, IpAddr::V4(_)) => NetId::Tcp,
        (Protocol::Udp, IpAddr::V4(_)) => NetId::Udp,
        (Protocol::Tcp, IpAddr::V6(_)) => NetId::Tcp6,
        (Protocol::Udp, IpAddr::V6(_)) => NetId::Udp6,
    }
}

/// A program and its version.
#[derive(Debug, Clone, Copy)]
pub struct Service {
    pub program: u32,
    pub version: u32,
}

/// The port of MOUNT version 3 over `wanted`; `None` if the server does not offer it. Asks rpcbind
/// over TCP, and over UDP if it does not answer on TCP.
pub(super) async fn mountd(
    host: IpAddr,
    wanted: Protocol,
    timeout: Duration,
) -> Result<Option<u16>, PlainError> {
    let mount = Service {
        program: mount3::PROGRAM,
        version: mount3::VERSION,
    };
    port_of(host, mount, wanted, timeout).await
}

/// Like [`mountd`], for any service.
pub async fn port_of(
    host: IpAddr,
    service: Service,
    wanted: Protocol,
    timeout: Duration,
) -> Result<Option<u16>, PlainError> {
    port_at(SocketAddr::new(host, PORT), service, wanted, timeout).await
}

async fn port_at(
    rpcbind: SocketAddr,
    service: Service,
    wanted: Protocol,
    timeout: Duration,
) -> Result<Option<u16>, PlainError> {
    let tcp = Target {
        address: rpcbind,
        protocol: Protocol::Tcp,
        privileged: false,
        timeout,
    };
    let over_tcp = match ask(&tcp, service, wanted).await {
        Err(error) if error.is_transient() => error,
        answer => return answer,
    };
    let udp = Target {
        protocol: Protocol::Udp,
        ..tcp
    };
    match ask(&udp, service, wanted).await {
        // If TCP packets were lost, a refusal over UDP does not mean that there is no rpcbind.
        Err(error) if error.is_connection_refused() => Err(over_tcp),
        answer => answer,
    }
}

async fn ask(at: &Target, service: Service, wanted: Protocol) -> Result<Option<u16>, PlainError> {
    let netid = netid(at.address.ip(), wanted);
    let address = universal_address(&at.address);
    let binding = Binding {
        program: service.program,
        version: service.version,
        netid: Text(netid.name().as_bytes()),
        address: Text(address.as_bytes()),
        owner: Text(b""),
    };
    let port = |found: Text<'_, { nfsrdma_xdr::rpcbind::STRING_MAX }>| {
        if found.0.is_empty() {
            return Ok(None);
        }
        match netid.parse_address(found.0) {
            Some(address) => Ok(Some(address.port()).filter(|port| *port != 0)),
            None => Err(PlainError::Misbehaved(
                "rpcbind's address is none".to_owned(),
            )),
        }
    };
    match plain::call::<rpcb::Getaddr<4>, _>(at, Auth::None, &binding, port).await {
        Err(PlainError::NoProgram) => {}
        answer => return answer?,
    }
    match plain::call::<rpcb::Getaddr<3>, _>(at, Auth::None, &binding, port).await {
        Err(PlainError::NoProgram) => {}
        answer => return answer?,
    }
    if at.address.is_ipv6() {
        return Err(PlainError::NoProgram);
    }
    let mapping = Mapping {
        program: service.program,
        version: service.version,
        protocol: match wanted {
            Protocol::Tcp => protocol::TCP,
            Protocol::Udp => protocol::UDP,
        },
        port: 0,
    };
    let port = plain::call::<portmap::Getport, _>(at, Auth::None, &mapping, |port| port).await?;
    match u16::try_from(port) {
        Ok(0) => Ok(None),
        Ok(port) => Ok(Some(port)),
        Err(_) => Err(PlainError::Misbehaved(format!("port {port}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nfsrdma_xdr::codec::{Decoder, Encode};
    use nfsrdma_xdr::record;
    use nfsrdma_xdr::rpc::{Accepted, Call, Reply};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    const MOUNT: Service = Service {
        program: mount3::PROGRAM,
        version: mount3::VERSION,
    };

    /// An rpcbind that has only versions up to `newest`; mountd is at port 0x4e20 over TCP.
    async fn rpcbind(newest: u32) -> SocketAddr {
        rpcbind_without(newest, b"").await
    }

    /// The same, which answers `none` for programs that are not registered.
    async fn rpcbind_without(newest: u32, none: &'static [u8]) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let mut mark = [0; 4];
                stream.read_exact(&mut mark).await.unwrap();
                let len = u32::from_be_bytes(mark) & 0x7fff_ffff;
                let mut message = vec![0; len as usize];
                stream.read_exact(&mut message).await.unwrap();
                let mut from = Decoder::new(&message);
                let call = Call::parse(&mut from).unwrap();
                let tcp = from.rest().windows(3).any(|w| w == b"tcp");
                let low = 2;
                let (status, results) = match call.version {
                    v if v > newest => (Accepted::ProgMismatch { low, high: newest }, vec![]),
                    2 => (Accepted::Success, 0x4e20u32.to_xdr()),
                    _ if tcp => (Accepted::Success, Text::<255>(b"127.0.0.1.78.32").to_xdr()),
                    _ => (Accepted::Success, Text::<255>(none).to_xdr()),
                };
                let reply = [&Reply::accepted(call.xid, status).to_xdr()[..], &results].concat();
                let mark = record::mark(reply.len(), true);
                stream.write_all(&mark).await.unwrap();
                stream.write_all(&reply).await.unwrap();
            }
        });
        address
    }

    #[tokio::test]
    async fn every_version_of_rpcbind_will_do() {
        for newest in 2..=4 {
            let at = rpcbind(newest).await;
            let found = port_at(at, MOUNT, Protocol::Tcp, Duration::from_secs(20)).await;
            assert_eq!(found.unwrap(), Some(20000), "version {newest}");
        }
    }

    #[tokio::test]
    async fn what_is_not_registered_is_not_found() {
        // Some servers answer with an address whose port is 0.
        for (newest, none) in [(4, &b""[..]), (4, b"0.0.0.0.0.0"), (3, b"127.0.0.1.0.0")] {
            let at = rpcbind_without(newest, none).await;
            let found = port_at(at, MOUNT, Protocol::Udp, Duration::from_secs(20)).await;
            assert_eq!(found.unwrap(), None, "{none:?}");
        }
    }
}
