//! The rpcbind of this machine, which tells others our ports (RFC 1833).
//!
//! Programs register by its socket in the file system. It records their user, and only that user
//! and root can remove the registration. It can be asked over TCP from this machine, too.

use nfsrdma_rpcrdma::rpc::plain::{self, PlainError, Protocol, Target};
use nfsrdma_xdr::codec::Text;
use nfsrdma_xdr::nfs3::Void;
use nfsrdma_xdr::procedure::Procedure;
use nfsrdma_xdr::rpc::Auth;
use nfsrdma_xdr::rpcbind::{Binding, List, NetId, PORT, rpcb, universal_address};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;
use tokio::net::UnixStream;

const SOCKETS: [&str; 2] = ["/run/rpcbind.sock", "/var/run/rpcbind.sock"];
/// Time limit of one question.
const LIMIT: Duration = Duration::from_secs(2);
/// The owner in our registrations; rpcbind replaces it by the calling user.
const OWNER: &[u8] = b"nfsrdma";

/// A registration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Row {
    pub(super) program: u32,
    pub(super) version: u32,
    pub(super) netid: NetId,
    pub(super) port: u16,
}

async fn by_socket<P: Procedure, T>(
    args: &P::Args<'_>,
    with: impl FnOnce(P::Res<'_>) -> T,
) -> Result<T, PlainError> {
    for path in SOCKETS {
        let connected = tokio::time::timeout(LIMIT, UnixStream::connect(path)).await;
        match connected {
            Ok(Ok(stream)) => return plain::call_on::<P, T>(stream, LIMIT, args, with).await,
            Ok(Err(error)) if error.kind() == std::io::ErrorKind::NotFound => {}
            Ok(Err(error)) => return Err(error.into()),
            Err(_) => return Err(PlainError::TimedOut),
        }
    }
    Err(PlainError::Unreachable(
        "there is no rpcbind".to_owned().into(),
    ))
}

fn rows(list: &List<Binding<'_>>) -> Vec<Row> {
    let row = |binding: &Binding<'_>| {
        let netid = NetId::from_name(binding.netid.0)?;
        let port = netid.parse_address(binding.address.0)?.port();
        Some(Row {
            program: binding.program,
            version: binding.version,
            netid,
            port,
        })
    };
    list.0.iter().filter_map(row).collect()
}

/// All registrations with IP addresses. An error means that no rpcbind answers.
pub(super) async fn dump() -> Result<Vec<Row>, PlainError> {
    let found = by_socket::<rpcb::Dump<4>, _>(&Void {}, |list| rows(&list)).await;
    let Err(PlainError::Unreachable(_)) = found else {
        return found;
    };
    let target = Target {
        address: (Ipv4Addr::LOCALHOST, PORT).into(),
        protocol: Protocol::Tcp,
        privileged: false,
        timeout: LIMIT,
    };
    let with = |list: List<Binding<'_>>| rows(&list);
    plain::call::<rpcb::Dump<4>, _>(&target, Auth::None, &Void {}, with).await
}

fn any(netid: NetId) -> IpAddr {
    match netid.is_ipv6() {
        true => Ipv6Addr::UNSPECIFIED.into(),
        false => Ipv4Addr::UNSPECIFIED.into(),
    }
}

/// Registers a program at a port. Returns whether rpcbind accepted it.
pub(super) async fn set(row: Row) -> Result<bool, PlainError> {
    let address = universal_address(&SocketAddr::new(any(row.netid), row.port));
    let binding = Binding {
        program: row.program,
        version: row.version,
        netid: Text(row.netid.name().as_bytes()),
        address: Text(address.as_bytes()),
        owner: Text(OWNER),
    };
    by_socket::<rpcb::Set<4>, _>(&binding, |done| done).await
}

/// Removes a registration.
pub(super) async fn unset(row: Row) -> Result<bool, PlainError> {
    let binding = Binding {
        program: row.program,
        version: row.version,
        netid: Text(row.netid.name().as_bytes()),
        address: Text(b""),
        owner: Text(OWNER),
    };
    by_socket::<rpcb::Unset<4>, _>(&binding, |done| done).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_rows_with_ports_count() {
        let binding = |netid: &'static [u8], address: &'static [u8]| Binding {
            program: 100_021,
            version: 4,
            netid: Text(netid),
            address: Text(address),
            owner: Text(b"superuser"),
        };
        let list = List(vec![
            binding(b"udp", b"0.0.0.0.8.1"),
            binding(b"local", b"/run/rpcbind.sock"),
            binding(b"udp6", b"::.8.1"),
            binding(b"tcp", b"::.8.1"),
            binding(b"tcp", b"nonsense"),
        ]);
        let found: Vec<_> = rows(&list)
            .iter()
            .map(|row| (row.netid, row.port))
            .collect();
        assert_eq!(found, [(NetId::Udp, 2049), (NetId::Udp6, 2049)]);
    }
}
