//! Portmap version 2 and rpcbind versions 3 and 4 (RFC 1833): where the programs listen.
//! Nobody can register anything.

use super::{Context, Done, Service, Stop};
use nfsrdma_xdr::codec::{Decode, Decoder, Encode, Encoder, Text};
use nfsrdma_xdr::rpc::Accepted;
use nfsrdma_xdr::rpcbind::{Binding, List, Mapping, NetId, portmap, protocol, universal_address};
use nfsrdma_xdr::{mount3, nfs_acl, nfs3, nlm4, nsm, rpcbind};
use std::net::SocketAddr;

/// The ports listened on; `None` where a transport is off.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Ports {
    pub rdma: Option<u16>,
    pub nfs: Option<u16>,
    pub mount: Option<u16>,
    pub portmap: Option<u16>,
    pub portmap_udp: Option<u16>,
    /// Of NFS_ACL.
    pub acl: Option<u16>,
    /// Of NLM and NSM.
    pub lock: Option<u16>,
    pub lock_udp: Option<u16>,
}

impl Ports {
    /// Every program, version, netid (for IPv4) and port.
    fn table(&self) -> impl Iterator<Item = (u32, u32, NetId, u16)> {
        let pm = rpcbind::PROGRAM;
        [
            (pm, 2, NetId::Tcp, self.portmap),
            (pm, 3, NetId::Tcp, self.portmap),
            (pm, 4, NetId::Tcp, self.portmap),
            (pm, 2, NetId::Udp, self.portmap_udp),
            (pm, 3, NetId::Udp, self.portmap_udp),
            (pm, 4, NetId::Udp, self.portmap_udp),
            (nfs3::PROGRAM, nfs3::VERSION, NetId::Tcp, self.nfs),
            (mount3::PROGRAM, mount3::VERSION, NetId::Tcp, self.mount),
            (nfs_acl::PROGRAM, nfs_acl::VERSION, NetId::Tcp, self.acl),
            (nlm4::PROGRAM, nlm4::VERSION, NetId::Tcp, self.lock),
            (nlm4::PROGRAM, nlm4::VERSION, NetId::Udp, self.lock_udp),
            (nsm::PROGRAM, nsm::VERSION, NetId::Tcp, self.lock),
            (nsm::PROGRAM, nsm::VERSION, NetId::Udp, self.lock_udp),
            (nfs3::PROGRAM, nfs3::VERSION, NetId::Rdma, self.rdma),
            (mount3::PROGRAM, mount3::VERSION, NetId::Rdma, self.rdma),
        ]
        .into_iter()
        .filter_map(|(program, version, netid, port)| Some((program, version, netid, port?)))
    }

    fn find(&self, program: u32, version: u32, by: NetId) -> Option<u16> {
        // The wrong version gets the port too, where it learns the right one (RFC 5531's
        // PROG_MISMATCH).
        let of = |version: Option<u32>| {
            self.table()
                .find(|&(p, v, netid, _)| {
                    p == program && netid == by && version.is_none_or(|wanted| wanted == v)
                })
                .map(|(.., port)| port)
        };
        of(Some(version)).or_else(|| of(None))
    }
}

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
            // SET and UNSET: refused.
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
