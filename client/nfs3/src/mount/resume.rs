//! Goes on with a mount that another process made, by what that one found out: without DNS, rpcbind,
//! MNT and FSINFO. The connections are made in the background, and calls wait for them, so a server
//! that is away delays calls and nothing else.

use super::mountd::{Mountd, MountdPlace};
use super::{Mounted, identity, paths};
use crate::client::Nfs3Client;
use crate::limits::Source;
use crate::options::{ClientOptions, Flavor, MountTarget};
use crate::procedures::NFS3;
use crate::transport::Transport;
use nfsrdma_rdma::{Pool, Provider};
use nfsrdma_rpcrdma::transport::{ConnectError, Engine};
use nfsrdma_xdr::codec::{Decode, Encode};
use nfsrdma_xdr::nfs3::{FileHandle, FsinfoOk};
use serde::{Deserialize, Serialize};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

/// What mounting found out, besides the options.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Found {
    pub server: SocketAddr,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) remotes: Vec<IpAddr>,
    pub(super) root: Vec<u8>,
    /// The results of FSINFO, in XDR.
    pub(super) fsinfo: Vec<u8>,
    pub(super) name_max: u32,
    pub(super) acl: bool,
    #[serde(default, skip_serializing_if = "Flavor::is_sys")]
    pub(super) flavor: Flavor,
    pub(super) mountd: MountdPlace,
}

impl Mounted {
    /// What [`resume`] needs to go on with this mount.
    pub fn found(&self) -> Found {
        Found {
            server: self.server,
            remotes: self.remotes.clone(),
            root: self.root.as_bytes().to_vec(),
            fsinfo: self.fsinfo.to_xdr(),
            name_max: self.name_max,
            acl: self.client.has_acl(),
            flavor: self.flavor,
            mountd: self.mountd.place_of_umnt(),
        }
    }
}

/// The client of a mount of `target` with the same options. It returns at once. The error, a
/// sentence, says what of this record or of this machine is at fault.
pub fn resume(
    target: &MountTarget,
    options: &ClientOptions,
    found: &Found,
    provider: Arc<dyn Provider>,
    pool: Pool,
) -> Result<Mounted, String> {
    let root = FileHandle::new(&found.root)
        .ok_or("the record of the mount has no usable file handle of its root")?;
    let fsinfo = FsinfoOk::from_xdr(&found.fsinfo)
        .map_err(|error| format!("the record of the mount has unusable limits: {error}"))?;
    let machine = identity::machine_name_of(options);
    let cred = identity::own_credential();
    let (peer, host) = (found.server, &target.host);
    let transport = paths::transport(options, peer.ip(), &found.remotes)?;
    let engine = Engine::resume(provider, peer, host, NFS3, &transport, pool)
        .map_err(|error: ConnectError| error.to_string())?;
    let client = Nfs3Client::new(engine, machine.as_bytes(), options, found.flavor);
    client.set_acl(found.acl);
    client.set_limits(
        Source::new(root, cred.clone(), options, found.flavor),
        &fsinfo,
    );
    Ok(Mounted {
        client,
        root,
        fsinfo,
        name_max: found.name_max,
        server: peer,
        remotes: found.remotes.clone(),
        flavor: found.flavor,
        description: None,
        mountd: Mountd::at(&machine, found.mountd, options),
        export: target.export.clone(),
        cred,
    })
}
