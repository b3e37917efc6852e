//! Portmap version 2 and rpcbind versions 3 and 4 (RFC 1833), which return the ports of the
//! programs. Nothing can be registered.

use super::{Context, Done, Service, Stop};
use nfsrdma_xdr::codec::{Decode, Decoder, Encode, Encoder, Text};
use nfsrdma_xdr::rpc::Accepted;
use nfsrdma_xdr::rpcbind;
use nfsrdma_xdr::rpcbind::{Binding, List, Mapping, NetId, portmap, protocol, universal_address};
use std::net::SocketAddr;

impl Service {
    pub(super) fn portmap(
        &self,
        context: &Context<'_>,
        mut from: Decoder<'_>,
        out: &mut Encoder,
    ) -> Done {
        let ports = self.ports.get().copied().unwrap_or_default();
        match (context.version, context.procedure) {
            (_, 0) => {}
            // SET and UNSET are refused.
            (_, 1 | 2) => out.bool(false),
            (portmap::VERSION, 3) => {
                let asked = Mapping::decode(&mut from)?;
                let port = match asked.protocol {
                    protocol::TCP => ports.find(asked.program, asked.version, NetId::Tcp),
                    protocol::UDP => ports.find(asked.program, asked.version, NetId::Udp),
                    _ => None,
                };
                out.u32(u32::from(port.unwrap_or(0)));
            }
            (portmap::VERSION, 4) => List(
                ports
                    .table()
                    .filter_map(|(program, version, netid, port)| {
                        let protocol = match netid {
                            NetId::Tcp => protocol::TCP,
                            NetId::Udp => protocol::UDP,
                            _ => return None,
                        };
                        Some(Mapping {
                            program,
                            version,
                            protocol,
                            port: u32::from(port),
                        })
                    })
                    .collect(),
            )
            .encode(out),
            (3 | 4, 3) => {
                let asked = Binding::decode(&mut from)?;
                let port = match NetId::from_name(asked.netid.0) {
                    Some(NetId::Tcp | NetId::Tcp6) => {
                        ports.find(asked.program, asked.version, NetId::Tcp)
                    }
                    Some(NetId::Udp | NetId::Udp6) => {
                        ports.find(asked.program, asked.version, NetId::Udp)
                    }
                    Some(NetId::Rdma | NetId::Rdma6) => ports
                        .table()
                        .find(|&(p, _, netid, _)| p == asked.program && netid == NetId::Rdma)
                        .map(|(.., port)| port),
                    _ => None,
                };
                let ip = context.peer.local.ip();
                let address = port.map(|port| universal_address(&SocketAddr::new(ip, port)));
                Text::<{ rpcbind::STRING_MAX }>(address.unwrap_or_default().as_bytes()).encode(out);
            }
            (3 | 4, 4) => {
                let ip = context.peer.local.ip();
                let rows: Vec<_> = ports
                    .table()
                    .map(|(program, version, netid, port)| {
                        let address = universal_address(&SocketAddr::new(ip, port));
                        (program, version, named(netid, ip.is_ipv6()), address)
                    })
                    .collect();
                List(
                    rows.iter()
                        .map(|(program, version, netid, address)| Binding {
                            program: *program,
                            version: *version,
                            netid: Text(netid.name().as_bytes()),
                            address: Text(address.as_bytes()),
                            owner: Text(b"nfsrdma-responder"),
                        })
                        .collect(),
                )
                .encode(out);
            }
            _ => return Err(Stop::Accepted(Accepted::ProcUnavail)),
        }
        Ok(None)
    }
}

fn named(netid: NetId, ipv6: bool) -> NetId {
    match (netid, ipv6) {
        (NetId::Tcp, true) => NetId::Tcp6,
        (NetId::Udp, true) => NetId::Udp6,
        (NetId::Rdma, true) => NetId::Rdma6,
        (netid, _) => netid,
    }
}
