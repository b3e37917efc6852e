//! The way to a server: the size of packets, rpcbind, and the steps of `nfsrdma ping`.

use super::report::{Finding, Report, Verdict};
use crate::commands::server::name;
use crate::mount::{provider, settings};
use crate::options::mount_source::MountSource;
use crate::options::{LocalLock, MountProtocol, Options};
use crate::path_mtu::{LEAST_MTU, path_mtu};
use nfsrdma_nfs3::mount::{self, PingEvent, PingTarget, Service, Step};
use nfsrdma_rdma::Pool;
use nfsrdma_rpcrdma::rpc::plain::Protocol;
use nfsrdma_xdr::rpcbind::PORT;
use nfsrdma_xdr::{mount3, nlm4};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

/// How long rpcbind may take.
const PATIENCE: Duration = Duration::from_secs(5);
fn packets(address: IpAddr) -> Finding {
    const CHECK: &str = "mtu";
    match path_mtu(address) {
        Some(mtu) if mtu < LEAST_MTU => Finding::warn(
            CHECK,
            format!(
                "packets to {address} have at most {mtu} bytes, so large reads and writes take many"
            ),
            "raise the MTU of the network interface and of the path to 1500 or more",
        ),
        Some(mtu) => Finding::ok(CHECK, format!("packets of {mtu} bytes to {address}")),
        None => Finding::fail(
            CHECK,
            format!("no route to {address}"),
            "check the address, and this machine's routes with 'ip route get'",
        ),
    }
}

/// Whether mounting asks rpcbind for mountd.
fn asks_for_mountd(options: &Options) -> bool {
    options.client.mountport.is_none() && options.client.mountproto != MountProtocol::Rdma
}

fn wants_locks(options: &Options) -> bool {
    options.wanted_local_lock() != LocalLock::All
}

async fn rpcbind(server: IpAddr, options: &Options) -> Finding {
    const CHECK: &str = "rpcbind";
    let for_locks = wants_locks(options) && options.lock_port.is_none();
    let verdict = match (asks_for_mountd(options), for_locks) {
        (true, _) => Verdict::Fail,
        (false, true) => Verdict::Warn,
        (false, false) => return Finding::skip(CHECK, "the options give all ports"),
    };
    let mut found = Vec::new();
    for (what, program, version) in [
        ("mountd", mount3::PROGRAM, mount3::VERSION),
        ("the lock manager", nlm4::PROGRAM, nlm4::VERSION),
    ] {
        let service = Service { program, version };
        match mount::port_of(server, service, Protocol::Tcp, PATIENCE).await {
            Ok(Some(port)) => found.push(format!("{what} at port {port}")),
            Ok(None) => found.push(format!("no {what} over TCP")),
            Err(error) => {
                return Finding {
                    remedy: Some(format!(
                        "{}; or give mountport= and lockport=, which need no rpcbind",
                        error.remedy()
                    )),
                    verdict,
                    ..Finding::ok(CHECK, format!("rpcbind at port {PORT}: {error}"))
                };
            }
        }
    }
    Finding::ok(CHECK, found.join(", "))
}

/// The step of a ping as a finding.
fn taken(step: Step, found: String) -> Finding {
    match step {
        // The text of ping for what a server may be without.
        Step::Locks if found.starts_with("none") => Finding::warn(
            name(step),
            found,
            "locks would be kept on this machine alone: start its lock manager, or give lockport= or nolock",
        ),
        Step::Acl if found.ends_with("does not answer NFS_ACL") => Finding::warn(
            name(step),
            found,
            "'noacl', or permissions=server if files there have ACLs",
        ),
        step => Finding::ok(name(step), found),
    }
}

/// Examines the way to the server. Returns whether a connection can be made.
pub(super) async fn examine(
    spec: &MountSource,
    options: &Options,
    pool: Pool,
    report: &mut Report,
) -> bool {
    let client = settings::client(options);
    let host = settings::target(spec).host;
    let known = tokio::net::lookup_host((&*host, 0)).await.ok();
    let wanted = |address: &SocketAddr| !options.client.ipv6_only || address.is_ipv6();
    if let Some(address) = known.and_then(|mut found| found.find(wanted)) {
        report.add(packets(address.ip()));
        report.add(rpcbind(address.ip(), options).await);
    }
    let target = PingTarget {
        host: &host,
        locks: wants_locks(options).then_some(options.lock_port),
        export: (!spec.export.is_empty()).then_some(spec.export.as_slice()),
    };
    let chosen = match provider::choose(options, &host) {
        Ok(chosen) => chosen,
        Err(failure) => {
            report.add(Finding::told("devices", Verdict::Fail, &failure.message));
            return false;
        }
    };
    // That mountd was found is told once it has answered, too.
    let mut last: Option<Finding> = None;
    let step = |event: PingEvent| {
        let next = match event {
            PingEvent::Taken(step) => {
                let ms = step.time.as_secs_f64() * 1e3;
                taken(step.step, format!("{} ({ms:.1} ms)", step.found))
            }
            PingEvent::Failed { address, error } => Finding::warn(
                name(error.step),
                format!("{address}: {error}"),
                "another address of this name is tried; take this one away from it",
            ),
        };
        if let Some(before) = last.replace(next) {
            report.add(before);
        }
    };
    let pinged = mount::ping(target, &client, chosen.provider.clone(), pool, step).await;
    let failed = pinged.as_ref().err().map(|error| name(error.step));
    if let Some(last) = last.filter(|last| failed != Some(last.check)) {
        report.add(last);
    }
    match pinged {
        Ok(()) => true,
        Err(error) => {
            let check = name(error.step);
            let failure = chosen.failed(error);
            report.add(Finding::told(check, Verdict::Fail, &failure.message));
            false
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_may_be_without_acls_but_not_without_locks() {
        let none = "none: the server does not have NFS_ACL".to_owned();
        assert_eq!(taken(Step::Acl, none).verdict, Verdict::Ok);
        let none = "none: the server does not have NLM version 4".to_owned();
        assert_eq!(taken(Step::Locks, none).verdict, Verdict::Warn);
    }

    #[test]
    fn rpcbind_is_needed_where_a_port_is_not_given() {
        let asks = |text: &str| asks_for_mountd(&Options::parse(text).unwrap());
        assert!(asks(""));
        assert!(!asks("mountport=2049") && !asks("mountproto=rdma"));
    }
}
