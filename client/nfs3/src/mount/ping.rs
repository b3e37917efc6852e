//! Tests a server without mounting it: lists what it exports ([`exports`]), and tries each step of
//! mounting ([`ping`]).
//!
//! The steps, time limits and errors are those of mounting, but each step is reported with its
//! duration and result as soon as it succeeds, which shows where a failure occurs. NULL is called
//! several times, and the least, mean and longest time of a call are reported. A server without NFS_ACL or NLM is reported as
//! such, not as an error. The connection is closed at the end.

use super::dial::{Probe, dial};
use super::error::{MountError, Step};
use super::mountd::{Exported, Mountd, Root, names};
use super::{Attempts, PlainMount, Undo, at_address, identity, resolve, try_context};
use crate::client::Nfs3Client;
use crate::nlm::NlmClient;
use crate::options::{ClientOptions, Flavor, MountProtocol};
use nfsrdma_rdma::{Pool, Provider};
use nfsrdma_rpcrdma::words::counted;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Number of NULL calls.
const CALLS: u32 = 5;

/// A step that succeeded.
#[derive(Debug, Clone)]
pub struct Taken {
    pub step: Step,
    /// The duration of the step; the mean time of a call for NULL, which is called several times.
    pub time: Duration,
    /// The result of the step, as text for users.
    pub found: String,
}

/// Lists what `host` exports. MOUNT is asked over TCP or UDP. Runs in tokio.
pub async fn exports(host: &str, options: &ClientOptions) -> Result<Vec<Exported>, MountError> {
    if options.mountproto == MountProtocol::Rdma {
        let message = "exports are listed over TCP or UDP: leave out mountproto=rdma";
        return Err(MountError::new(Step::Options, false, message));
    }
    let host = options.mounthost.as_deref().unwrap_or(host);
    let mut attempts = Attempts::new(host, options);
    let ipv6_only = match &options.mounthost {
        Some(_) => options.mount_ipv6_only,
        None => options.ipv6_only,
    };
    for at in resolve(host, options.transport.connect_timeout, ipv6_only).await? {
        match exports_at(at, &at_address(host, at), options).await {
            Ok(exports) => return Ok(exports),
            Err(error) => attempts.failed(at, error),
        }
    }
    Err(attempts.error())
}

async fn exports_at(
    at: IpAddr,
    host: &str,
    options: &ClientOptions,
) -> Result<Vec<Exported>, MountError> {
    let mut mountd = Mountd::new(&identity::machine_name());
    mountd.locate(at, host, options, "").await?;
    mountd
        .exports(
            &identity::own_credential(),
            host,
            options.transport.connect_timeout,
        )
        .await
}

/// What [`ping`] tests.
#[derive(Debug, Clone, Copy)]
pub struct PingTarget<'a> {
    pub host: &'a str,
    /// Whether to look for the server's lock manager, and at which port (`None` asks rpcbind).
    pub locks: Option<Option<u16>>,
    /// An export for which MOUNT is called, too.
    pub export: Option<&'a [u8]>,
}

/// What [`ping`] reports during the test.
#[derive(Debug, Clone)]
pub enum PingEvent {
    /// A step succeeded.
    Taken(Taken),
    /// This address of the host failed, and the next one is tried.
    Failed { address: IpAddr, error: MountError },
}

/// Reaches a server step by step, at each of its addresses in turn until one works, and reports
/// each step that succeeds. The error is that of the address that got furthest, and names the
/// failed step. Runs in tokio.
pub async fn ping(
    target: PingTarget<'_>,
    options: &ClientOptions,
    provider: Arc<dyn Provider>,
    pool: Pool,
    mut report: impl FnMut(PingEvent),
) -> Result<(), MountError> {
    let checked = options.check();
    checked.map_err(|message| MountError::new(Step::Options, false, message))?;
    let begun = Instant::now();
    let addresses = resolve(
        target.host,
        options.transport.connect_timeout,
        options.ipv6_only,
    )
    .await?;
    report(PingEvent::Taken(Taken {
        step: Step::Resolve,
        time: begun.elapsed(),
        found: addresses
            .iter()
            .map(IpAddr::to_string)
            .collect::<Vec<_>>()
            .join(", "),
    }));
    let mut attempts = Attempts::new(target.host, options);
    let last = addresses.last().copied();
    for address in addresses {
        let mut begun = Instant::now();
        let taken = |step, found: String| {
            let time = match step {
                Step::Null => begun.elapsed() / CALLS,
                _ => begun.elapsed(),
            };
            report(PingEvent::Taken(Taken { step, time, found }));
            begun = Instant::now();
        };
        let tried = ping_at(
            target,
            address,
            options,
            provider.clone(),
            pool.clone(),
            taken,
        )
        .await;
        match tried {
            Ok(()) => return Ok(()),
            Err(error) => {
                if Some(address) != last {
                    let error = error.clone();
                    report(PingEvent::Failed { address, error });
                }
                attempts.failed(address, error);
            }
        }
    }
    Err(attempts.error())
}

/// The times of several calls, as ping(8) shows them.
fn round_trips(times: &[Duration]) -> String {
    let ms = times.iter().map(|time| time.as_secs_f64() * 1e3);
    let (least, most) = (
        ms.clone().fold(f64::MAX, f64::min),
        ms.clone().fold(0.0, f64::max),
    );
    let mean = ms.sum::<f64>() / times.len() as f64;
    let calls = counted(times.len(), "call");
    format!("{calls}, min/avg/max {least:.3}/{mean:.3}/{most:.3} ms")
}

/// The result of looking for the lock manager, as text for users.
async fn lock_manager(server: IpAddr, port: Option<u16>, options: &ClientOptions) -> String {
    let client = NlmClient::new(server, port, options.resvport);
    let found = tokio::time::timeout(options.transport.connect_timeout, client.probe());
    match (found.await, client.place()) {
        (Ok(Ok(true)), Some(place)) => {
            let (over, port) = (place.protocol.name(), place.port);
            format!("NLM version 4 over {over}, port {port}")
        }
        (Ok(Ok(_)), _) => "none: the server does not have NLM version 4".to_owned(),
        (Ok(Err(error)), _) => format!("none: {error}"),
        (Err(_), _) => "none: the server does not answer NLM".to_owned(),
    }
}

async fn ping_at(
    target: PingTarget<'_>,
    address: IpAddr,
    options: &ClientOptions,
    provider: Arc<dyn Provider>,
    pool: Pool,
    mut taken: impl FnMut(Step, String),
) -> Result<(), MountError> {
    let PingTarget {
        host,
        locks,
        export,
    } = target;
    let shown = &at_address(host, address);
    let timeout = options.transport.connect_timeout;
    let cred = identity::own_credential();
    let machine = identity::machine_name();
    let mut flavor = None;
    if let Some(export) = export
        && options.mountproto != MountProtocol::Rdma
    {
        let ask = PlainMount {
            server: shown,
            address,
            options,
            machine: &machine,
            cred: &cred,
            export,
        };
        let located = |mountd: &Mountd| taken(Step::Mount, mountd.place());
        let (_, root) = ask.run(located).await?;
        taken(Step::Export, about(&root));
        flavor = Some(root.flavor);
    }
    let peer = SocketAddr::new(address, options.port);
    let engine = dial(provider, peer, host, options.transport.clone(), pool).await?;
    let _undo = Undo(Some(engine.clone()));
    let link = engine.session().map(|session| {
        let thresholds = session.thresholds;
        format!(
            "{}, inline {}/{}",
            session.capabilities.description, thresholds.call, thresholds.reply
        )
    });
    taken(Step::Connect, link.unwrap_or_default());
    let client = Nfs3Client::new(engine.clone(), machine.as_bytes(), options, Flavor::Sys);
    let mut times = Vec::new();
    for _ in 0..CALLS {
        let sent = Instant::now();
        let probe = Probe {
            step: Step::Null,
            what: "NULL",
            host: shown,
            timeout,
        };
        probe.run(client.null(&cred)).await?;
        times.push(sent.elapsed());
    }
    let credits = engine.session().map_or(0, |session| session.credits);
    taken(
        Step::Null,
        format!("{}, credits {credits}", round_trips(&times)),
    );
    if let Some(flavor @ Flavor::Kerberos(_)) = flavor {
        let client = Nfs3Client::new(engine.clone(), machine.as_bytes(), options, flavor);
        try_context(&client, &cred, shown, timeout).await?;
        client.destroy_contexts(timeout).await;
        taken(Step::Context, format!("sec={flavor}, user {}", cred.uid));
    }
    if options.acl {
        let probe = tokio::time::timeout(timeout, client.probe_acl(&cred));
        let found = match probe.await {
            Ok(Ok(true)) => "NFS_ACL version 3",
            Ok(Ok(false)) => "none: the server does not have NFS_ACL",
            Ok(Err(_)) | Err(_) => "none: the server does not answer NFS_ACL",
        };
        taken(Step::Acl, found.to_owned());
    }
    if let Some(port) = locks {
        taken(Step::Locks, lock_manager(address, port, options).await);
    }
    if let Some(export) = export
        && options.mountproto == MountProtocol::Rdma
    {
        let mut mountd = Mountd::new(&machine);
        mountd.set_rdma(true);
        let root = mountd
            .mnt_rdma(&engine, &cred, export, shown, options)
            .await?;
        taken(Step::Export, about(&root));
    }
    Ok(())
}

/// What mountd says of an export, as text for users.
fn about(root: &Root) -> String {
    let handle = format!(
        "file handle of {}",
        counted(root.handle.as_bytes().len(), "byte")
    );
    match &root.offered[..] {
        [] => handle,
        offered => format!("{handle}, sec={}", names(offered)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latency_of_a_call_is_no_sum() {
        let times = [1, 2, 9].map(Duration::from_millis);
        assert_eq!(
            round_trips(&times),
            "3 calls, min/avg/max 1.000/4.000/9.000 ms"
        );
    }
}
