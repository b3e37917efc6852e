//! Trying a server without mounting it: what it exports, and each step of reaching it.

use super::mountd::Mountd;
use super::{MountError, Probe, Step, Undo, dial, identity, resolve};
use crate::client::Nfs3Client;
use crate::options::{ClientOptions, MountProtocol};
use nfsrdma_rdma::{Pool, Provider};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// NULL calls whose quickest is told.
const CALLS: u32 = 5;

/// A directory that a server exports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exported {
    pub path: Vec<u8>,
    /// Who may mount it, in the server's own notation; nobody named means everybody.
    pub groups: Vec<Vec<u8>>,
}

/// One step that succeeded.
#[derive(Debug, Clone)]
pub struct Taken {
    pub step: Step,
    /// How long it took.
    pub time: Duration,
    /// What was found, for people.
    pub found: String,
}

/// Lists what `host` exports. MOUNT is asked over TCP or UDP. Runs in tokio.
pub async fn exports(host: &str, options: &ClientOptions) -> Result<Vec<Exported>, MountError> {
    if options.mountproto == MountProtocol::Rdma {
        let message = "exports are listed over TCP or UDP: leave out mountproto=rdma";
        return Err(MountError::new(Step::Options, false, message));
    }
    let at = first_address(options.mounthost.as_deref().unwrap_or(host), options).await?;
    let mut mountd = Mountd::new(&identity::machine_name());
    mountd.locate(at, host, options).await?;
    mountd
        .exports(&identity::own_credential(), host, options.connect_timeout)
        .await
}

async fn first_address(
    host: &str,
    options: &ClientOptions,
) -> Result<std::net::IpAddr, MountError> {
    let addresses = resolve(host, options.connect_timeout).await?;
    addresses.first().copied().ok_or_else(|| {
        let message = format!("{host} has no address");
        MountError::new(Step::Resolve, false, message)
    })
}

/// Reaches `host` step by step and tells each step as it succeeds; with `export`, asks MOUNT
/// for it too. The error names the step that did not. Runs in tokio.
pub async fn ping(
    host: &str,
    export: Option<&[u8]>,
    options: &ClientOptions,
    provider: Arc<dyn Provider>,
    pool: Pool,
    mut tell: impl FnMut(Taken),
) -> Result<(), MountError> {
    let checked = options.check();
    checked.map_err(|message| MountError::new(Step::Options, false, message))?;
    let mut begun = Instant::now();
    let mut taken = |step, found: String| {
        let time = begun.elapsed();
        tell(Taken { step, time, found });
        begun = Instant::now();
    };
    let address = first_address(host, options).await?;
    taken(Step::Resolve, address.to_string());
    let timeout = options.connect_timeout;
    let cred = identity::own_credential();
    let machine = identity::machine_name();
    if let Some(export) = export
        && options.mountproto != MountProtocol::Rdma
    {
        let at = match &options.mounthost {
            Some(name) => first_address(name, options).await?,
            None => address,
        };
        let mut mountd = Mountd::new(&machine);
        mountd.locate(at, host, options).await?;
        taken(Step::Mount, mountd.place());
        let root = mountd.mnt_plain(&cred, export, host, timeout).await?;
        let bytes = root.as_bytes().len();
        taken(Step::Export, format!("file handle of {bytes} bytes"));
    }
    let peer = SocketAddr::new(address, options.port);
    let engine = dial(provider, peer, host, options, pool).await?;
    let _undo = Undo(Some(engine.clone()));
    let link = engine.session().map(|session| {
        let thresholds = session.thresholds;
        format!(
            "{}, inline {}/{}",
            session.capabilities.description, thresholds.call, thresholds.reply
        )
    });
    taken(Step::Connect, link.unwrap_or_default());
    let client = Nfs3Client::new(engine.clone(), machine.as_bytes(), options.recovery);
    let mut quickest = Duration::MAX;
    for _ in 0..CALLS {
        let sent = Instant::now();
        let probe = Probe {
            step: Step::Null,
            what: "NULL",
            host,
            timeout,
        };
        probe.run(client.null(&cred)).await?;
        quickest = quickest.min(sent.elapsed());
    }
    let credits = engine.session().map_or(0, |session| session.credits);
    taken(
        Step::Null,
        format!("{CALLS} calls, the quickest in {quickest:.0?}, credits {credits}"),
    );
    if options.acl {
        let probe = tokio::time::timeout(timeout, client.probe_acl(&cred));
        let found = match probe.await {
            Ok(true) => "NFS_ACL version 3",
            Ok(false) => "none: the server does not have NFS_ACL",
            Err(_) => "none: the server does not answer NFS_ACL",
        };
        taken(Step::Acl, found.to_owned());
    }
    if let Some(export) = export
        && options.mountproto == MountProtocol::Rdma
    {
        let mut mountd = Mountd::new(&machine);
        mountd.set_rdma(true);
        let root = mountd
            .mnt_rdma(&engine, &cred, export, host, timeout)
            .await?;
        let bytes = root.as_bytes().len();
        taken(Step::Export, format!("file handle of {bytes} bytes"));
    }
    Ok(())
}
