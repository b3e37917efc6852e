//! The ports of the programs.

use nfsrdma_xdr::rpcbind::NetId;
use nfsrdma_xdr::{mount3, nfs_acl, nfs3, nlm4, nsm, rpcbind};

/// The ports on which the server listens; `None` where a transport is off.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Ports {
    pub rdma: Option<u16>,
    pub nfs: Option<u16>,
    pub mount: Option<u16>,
    pub portmap: Option<u16>,
    pub portmap_udp: Option<u16>,
    /// The port of NFS_ACL.
    pub acl: Option<u16>,
    /// The port of NLM and NSM.
    pub lock: Option<u16>,
    pub lock_udp: Option<u16>,
}

impl Ports {
    /// Every program, version, netid (for IPv4) and port.
    pub(super) fn table(&self) -> impl Iterator<Item = (u32, u32, NetId, u16)> {
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

    pub(super) fn find(&self, program: u32, version: u32, by: NetId) -> Option<u16> {
        // A wrong version also gets the port. A call there returns the right version (PROG_MISMATCH
        // of RFC 5531).
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
