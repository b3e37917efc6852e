//! MNT and UMNT of the server's mountd, over TCP, UDP or RDMA, and EXPORT over TCP or UDP (RFC 1813
//! section 5.2).
//!
//! mountd's port comes from the options or from rpcbind. Each refusal becomes a sentence for users
//! that names the remedy. MNT's list of security flavors decides, with the option `sec`, how NFS
//! calls are secured; MNT and UMNT themselves are made under AUTH_SYS, as by Linux. The answer to UMNT
//! does not matter: it only corrects mountd's list of clients.

use super::{MountError, Step, locate};
use crate::api::Cred;
use crate::options::{ClientOptions, Flavor, MountProtocol};
use nfsrdma_rpcrdma::Error;
use nfsrdma_rpcrdma::rpc::auth;
use nfsrdma_rpcrdma::rpc::plain::{self, PlainError, Protocol, Target};
use nfsrdma_rpcrdma::transport::{Engine, Payload, Request};
use nfsrdma_xdr::codec::{Encode, Text};
use nfsrdma_xdr::mount3::{self, MountArgs, MountRes, MountStatus};
use nfsrdma_xdr::nfs3::{FileHandle, Void};
use nfsrdma_xdr::procedure::Procedure;
use nfsrdma_xdr::rpc::CallTemplate;
use serde::{Deserialize, Serialize};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

/// A directory that a server exports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exported {
    pub path: Vec<u8>,
    /// Who may mount it, in the server's notation; an empty list means everybody.
    pub groups: Vec<Vec<u8>>,
}

/// The server's mountd.
#[derive(Debug)]
pub(super) struct Mountd {
    machine: Vec<u8>,
    reach: Reach,
    /// Whether the port was given by an option.
    port_given: bool,
}

/// Where UMNT goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum MountdPlace {
    Nowhere,
    Tcp(SocketAddr),
    Udp(SocketAddr),
    /// Over the NFS connections.
    Rdma,
}

/// How mountd is reached.
#[derive(Debug)]
enum Reach {
    Unknown,
    Plain(Target),
    /// Over the NFS connections.
    Rdma,
}

/// The error for a failed call. With `given`, the port was an option.
fn protocol_error(host: &str, target: &Target, given: bool, error: &PlainError) -> MountError {
    let (protocol, port) = (target.protocol.name(), target.address.port());
    let remedy = error.remedy();
    let or = match given {
        true => format!(", or leave out mountport={port} to ask rpcbind for mountd's port"),
        false => String::new(),
    };
    let message =
        format!("cannot ask mountd of {host} ({protocol} port {port}): {error}; {remedy}{or}");
    MountError::new(Step::Mount, error.is_transient(), message)
}

fn path(export: &[u8]) -> Result<MountArgs<'_>, MountError> {
    if export.len() > mount3::PATH_MAX {
        let message = format!(
            "the export's path has {} bytes, and MOUNT allows {}: export a directory with a shorter path",
            export.len(),
            mount3::PATH_MAX
        );
        return Err(MountError::new(Step::Export, false, message));
    }
    Ok(MountArgs { path: Text(export) })
}

/// What mountd says of an export.
#[derive(Debug, Clone)]
pub(super) struct Root {
    pub(super) handle: FileHandle,
    pub(super) flavor: Flavor,
    /// Those that the server listed and that are known here.
    pub(super) offered: Vec<Flavor>,
}

/// Flavors as a value of `sec`.
pub(super) fn names(flavors: &[Flavor]) -> String {
    let names: Vec<_> = flavors.iter().map(|flavor| flavor.name()).collect();
    names.join(":")
}

fn known(listed: &[u32]) -> Vec<Flavor> {
    listed
        .iter()
        .copied()
        .filter_map(Flavor::of_number)
        .collect()
}

/// The flavor for an export: the first of those wanted that the server has. A server that lists none
/// accepts all, as old ones do. Without a wish, AUTH_SYS goes before what needs a ticket.
fn negotiate(options: &ClientOptions, listed: &[u32]) -> Option<Flavor> {
    let (wanted, offered) = (&options.flavors[..], known(listed));
    let has = |flavor: &Flavor| listed.is_empty() || offered.contains(flavor);
    match wanted {
        [] if has(&Flavor::Sys) => Some(Flavor::Sys),
        [] => offered.into_iter().find(|flavor| options.has(*flavor)),
        wanted => wanted
            .iter()
            .copied()
            .find(|flavor| has(flavor) && options.has(*flavor)),
    }
}

/// Why the flavors wanted and those that the server listed have none in common.
fn no_flavor(host: &str, path: &str, wanted: &[Flavor], listed: &[u32]) -> String {
    match (&known(listed)[..], wanted) {
        ([], []) => format!(
            "{host} exports {path} with security other than sec=sys: allow sec=sys there, or use 'mount -t nfs'"
        ),
        (offered, []) => format!(
            "{host} exports {path} with sec={offered} only: use sec={offered}, or allow sec=sys there",
            offered = names(offered)
        ),
        ([], wanted) => format!(
            "{host} exports {path} with security that this program does not have: allow sec={} there",
            names(wanted)
        ),
        (offered, wanted) => format!(
            "{host} exports {path} with sec={offered}, not with sec={wanted}: use sec={offered}, or allow sec={wanted} there",
            offered = names(offered),
            wanted = names(wanted)
        ),
    }
}

/// The root's handle and the flavor for it, or mountd's refusal as a sentence.
fn root(
    host: &str,
    export: &[u8],
    options: &ClientOptions,
    result: MountRes,
) -> Result<Root, MountError> {
    let path = String::from_utf8_lossy(export);
    let refused = |message: String| MountError::new(Step::Export, false, message);
    // The name as a command's argument, without the address in parentheses.
    let name = host.split(' ').next().unwrap_or(host);
    let status = match result {
        MountRes::Ok(mounted) => {
            if mounted.root.as_bytes().is_empty() {
                return Err(refused(format!(
                    "{host} answers MOUNT of {path} with an unusable file handle: see the server's log"
                )));
            }
            return match negotiate(options, &mounted.flavors) {
                Some(flavor) => Ok(Root {
                    handle: mounted.root,
                    flavor,
                    offered: known(&mounted.flavors),
                }),
                None => Err(refused(no_flavor(
                    host,
                    &path,
                    &options.flavors,
                    &mounted.flavors,
                ))),
            };
        }
        MountRes::Fail(status) => status,
    };
    Err(refused(match status {
        MountStatus::NoEnt => {
            format!("{host} does not export {path}: 'nfsrdma exports {name}' lists what it does")
        }
        MountStatus::Perm | MountStatus::Access => format!(
            "{host} does not export {path} to this machine: \
             'nfsrdma exports {name}' lists what it exports, and to whom"
        ),
        MountStatus::NotDir => {
            format!("{path} of {host} is not a directory: mount the one it is in")
        }
        MountStatus::NameTooLong => {
            format!("{path} is too long for {host}: export a directory with a shorter path")
        }
        status => format!(
            "mountd of {host} answered {} for {path}: see the server's log",
            status.name()
        ),
    }))
}

impl Mountd {
    pub(super) fn new(machine: &str) -> Self {
        Mountd {
            machine: machine.as_bytes().to_vec(),
            reach: Reach::Unknown,
            port_given: false,
        }
    }

    /// mountd of a mount that another process made.
    pub(super) fn at(machine: &str, place: MountdPlace, options: &ClientOptions) -> Self {
        let plain = |address, protocol| {
            Reach::Plain(Target {
                address,
                protocol,
                privileged: options.resvport,
                timeout: options.transport.connect_timeout,
            })
        };
        Mountd {
            reach: match place {
                MountdPlace::Nowhere => Reach::Unknown,
                MountdPlace::Tcp(address) => plain(address, Protocol::Tcp),
                MountdPlace::Udp(address) => plain(address, Protocol::Udp),
                MountdPlace::Rdma => Reach::Rdma,
            },
            ..Mountd::new(machine)
        }
    }

    pub(super) fn place_of_umnt(&self) -> MountdPlace {
        match &self.reach {
            Reach::Unknown => MountdPlace::Nowhere,
            Reach::Rdma => MountdPlace::Rdma,
            Reach::Plain(target) => match target.protocol {
                Protocol::Tcp => MountdPlace::Tcp(target.address),
                Protocol::Udp => MountdPlace::Udp(target.address),
            },
        }
    }

    /// Finds mountd's port, by option or by asking rpcbind. `without` is added to the error: how to do
    /// without either.
    pub(super) async fn locate(
        &mut self,
        at: IpAddr,
        host: &str,
        options: &ClientOptions,
        without: &str,
    ) -> Result<(), MountError> {
        let timeout = options.transport.connect_timeout;
        let protocols: &[Protocol] = match options.mountproto {
            MountProtocol::Auto => &[Protocol::Tcp, Protocol::Udp],
            MountProtocol::Udp => &[Protocol::Udp],
            MountProtocol::Tcp | MountProtocol::Rdma => &[Protocol::Tcp],
        };
        let mut found = options.mountport.map(|port| (protocols[0], port));
        for protocol in protocols {
            if found.is_some() {
                break;
            }
            let port = locate::mountd(at, *protocol, timeout)
                .await
                .map_err(|error| {
                    let message = format!(
                        "cannot ask rpcbind of {host} ({} port 111) for mountd's port: {error}; {}, or give mountd's \
                         port by the option mountport= (20048 on Linux, as a rule){without}",
                        protocol.name(),
                        error.remedy()
                    );
                    MountError::new(Step::Rpcbind, error.is_transient(), message)
                })?;
            found = port.map(|port| (*protocol, port));
        }
        let Some((protocol, port)) = found else {
            let message = format!(
                "rpcbind of {host} does not know mountd version 3: start it there, \
                 or give its port by mountport={without}"
            );
            return Err(MountError::new(Step::Rpcbind, true, message));
        };
        self.port_given = options.mountport.is_some();
        self.reach = Reach::Plain(Target {
            address: SocketAddr::new(at, port),
            protocol,
            privileged: options.resvport,
            timeout,
        });
        Ok(())
    }

    /// MNT over TCP or UDP.
    pub(super) async fn mnt_plain(
        &self,
        cred: &Cred,
        export: &[u8],
        host: &str,
        options: &ClientOptions,
    ) -> Result<Root, MountError> {
        let Reach::Plain(target) = self.reach else {
            let message = format!("nobody knows where mountd of {host} is");
            return Err(MountError::new(Step::Mount, false, message));
        };
        let timeout = options.transport.connect_timeout;
        let target = Target { timeout, ..target };
        let args = path(export)?;
        let result =
            plain::call::<mount3::Mnt, _>(&target, auth(&self.machine, cred), &args, |res| res);
        let result = result
            .await
            .map_err(|error| protocol_error(host, &target, self.port_given, &error))?;
        root(host, export, options, result)
    }

    /// Where mountd was found, as text for users.
    pub(super) fn place(&self) -> String {
        match &self.reach {
            Reach::Plain(target) => format!("{} {}", target.protocol.name(), target.address),
            Reach::Rdma => "RDMA".to_owned(),
            Reach::Unknown => String::new(),
        }
    }

    /// EXPORT over TCP or UDP.
    pub(super) async fn exports(
        &self,
        cred: &Cred,
        host: &str,
        timeout: Duration,
    ) -> Result<Vec<Exported>, MountError> {
        let Reach::Plain(target) = self.reach else {
            let message = format!("nobody knows where mountd of {host} is");
            return Err(MountError::new(Step::Mount, false, message));
        };
        let target = Target { timeout, ..target };
        let call = plain::call::<mount3::ListExports, _>(
            &target,
            auth(&self.machine, cred),
            &Void {},
            |exports| {
                let exported = |export: mount3::Export<'_>| Exported {
                    path: export.path.0.to_vec(),
                    groups: export.groups.iter().map(|group| group.0.to_vec()).collect(),
                };
                exports.0.into_iter().map(exported).collect()
            },
        );
        call.await
            .map_err(|error| protocol_error(host, &target, self.port_given, &error))
    }

    /// Lets UMNT use the NFS connections if `shared`.
    pub(super) fn set_rdma(&mut self, shared: bool) {
        self.reach = if shared { Reach::Rdma } else { Reach::Unknown };
    }

    /// MNT over RDMA.
    pub(super) async fn mnt_rdma(
        &self,
        engine: &Engine,
        cred: &Cred,
        export: &[u8],
        host: &str,
        options: &ClientOptions,
    ) -> Result<Root, MountError> {
        let timeout = options.transport.connect_timeout;
        let args = path(export)?;
        let call = self.over_rdma::<mount3::Mnt>(engine, cred, &args);
        let result = match tokio::time::timeout(timeout, call).await {
            Err(_) => Err(Error::TimedOut),
            Ok(Err(error)) => Err(error),
            Ok(Ok(reply)) => reply.results::<mount3::Mnt>(),
        };
        let result = result.map_err(|error| {
            let transient = matches!(error, Error::TimedOut);
            let message = format!(
                "cannot ask mountd of {host} over RDMA: {error}; leave out mountproto=rdma to ask \
                 over TCP or UDP"
            );
            MountError::new(Step::Mount, transient, message)
        })?;
        root(host, export, options, result)
    }

    fn over_rdma<P: Procedure>(
        &self,
        engine: &Engine,
        cred: &Cred,
        args: &P::Args<'_>,
    ) -> nfsrdma_rpcrdma::transport::CallFuture {
        let template = CallTemplate::new(P::PROGRAM, P::VERSION, auth(&self.machine, cred));
        let request = Request {
            procedure: usize::MAX,
            max_results: P::max_results(args),
            max_ddp_result: 0,
            payload: Payload::None,
        };
        engine.call(request, |xid, to| {
            template.encode(xid, P::NUMBER, to);
            args.encode(to);
        })
    }

    /// Calls UMNT. Its answer does not matter.
    pub(super) async fn umnt(
        &self,
        engine: &Engine,
        cred: &Cred,
        export: &[u8],
        timeout: Duration,
    ) {
        let Ok(args) = path(export) else { return };
        match &self.reach {
            Reach::Unknown => {}
            Reach::Plain(target) => {
                let target = Target { timeout, ..*target };
                let call = plain::call::<mount3::Umnt, _>(
                    &target,
                    auth(&self.machine, cred),
                    &args,
                    |_| (),
                );
                if let Err(error) = call.await {
                    tracing::debug!(%error, "UMNT was not answered");
                }
            }
            Reach::Rdma => {
                let call = self.over_rdma::<mount3::Umnt>(engine, cred, &args);
                if tokio::time::timeout(timeout, call).await.is_err() {
                    tracing::debug!("UMNT was not answered");
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::{Mechanism, Service};
    use nfsrdma_rpcrdma::security::{Establish, Establishing};
    use std::sync::Arc;

    struct Nobody;

    impl Establish for Nobody {
        fn establish<'a>(&'a self, _: &'a [IpAddr], _: Service, _: &'a Cred) -> Establishing<'a> {
            unreachable!()
        }
    }

    const SYS: Flavor = Flavor::Sys;
    const KRB5: Flavor = Flavor::Kerberos(Service::None);
    const KRB5P: Flavor = Flavor::Kerberos(Service::Privacy);

    /// The numbers are those of Linux for `sec=sys:krb5p` and so on.
    #[test]
    fn flavors() {
        const LISTS: [&[u32]; 5] = [&[], &[1], &[390_003, 390_004, 390_005], &[1, 390_005], &[0]];
        for (wanted, chosen) in [
            (
                &[][..],
                [Some(SYS), Some(SYS), Some(KRB5), Some(SYS), Some(SYS)],
            ),
            (&[SYS], [Some(SYS), Some(SYS), None, Some(SYS), Some(SYS)]),
            (&[KRB5], [Some(KRB5), None, Some(KRB5), None, None]),
            (
                &[KRB5P, SYS],
                [Some(KRB5P), Some(SYS), Some(KRB5P), Some(KRB5P), Some(SYS)],
            ),
        ] {
            let options = ClientOptions {
                flavors: wanted.to_vec(),
                mechanism: Some(Mechanism(Arc::new(Nobody))),
                ..ClientOptions::default()
            };
            assert_eq!(LISTS.map(|list| negotiate(&options, list)), chosen);
            let without = ClientOptions {
                mechanism: None,
                ..options
            };
            let is = LISTS.map(|list| negotiate(&without, list));
            assert!(is.iter().flatten().all(Flavor::is_sys));
        }
    }

    #[test]
    fn refusals_name_the_remedy() {
        for (wanted, listed, says) in [
            (
                &[][..],
                &[390_009][..],
                "allow sec=sys there, or use 'mount -t nfs'",
            ),
            (
                &[],
                &[390_003, 390_005],
                "with sec=krb5:krb5p only: use sec=krb5:krb5p, or allow sec=sys there",
            ),
            (&[KRB5], &[390_009], "allow sec=krb5 there"),
            (
                &[KRB5, KRB5P],
                &[0],
                "with sec=sys, not with sec=krb5:krb5p: use sec=sys, or allow sec=krb5:krb5p there",
            ),
        ] {
            let said = no_flavor("server", "/export", wanted, listed);
            assert!(said.ends_with(says), "{said}");
        }
    }
}
