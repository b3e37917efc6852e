//! MNT and UMNT, over TCP, UDP or RDMA.

use super::{Exported, MountError, Step, locate};
use crate::api::Cred;
use crate::options::{ClientOptions, MountProtocol};
use nfsrdma_rpcrdma::Error;
use nfsrdma_rpcrdma::rpc::auth;
use nfsrdma_rpcrdma::rpc::plain::{self, PlainError, Protocol, Target};
use nfsrdma_rpcrdma::transport::{Engine, Payload, Request};
use nfsrdma_xdr::codec::{Encode, Text};
use nfsrdma_xdr::mount3::{self, MountArgs, MountRes, MountStatus};
use nfsrdma_xdr::nfs3::{FileHandle, Void};
use nfsrdma_xdr::procedure::Procedure;
use nfsrdma_xdr::rpc::{CallTemplate, flavor};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

/// The server's mountd.
#[derive(Debug)]
pub(super) struct Mountd {
    machine: Vec<u8>,
    reach: Reach,
}

/// How it is reached.
#[derive(Debug)]
enum Reach {
    Unknown,
    Plain(Target),
    /// Over the NFS connections.
    Rdma,
}

fn protocol_error(host: &str, protocol: Protocol, port: u16, error: &PlainError) -> MountError {
    let transient = matches!(error, PlainError::TimedOut | PlainError::Unreachable(_));
    let message = format!(
        "cannot ask mountd of {host} ({} port {port}): {error}",
        protocol.name()
    );
    MountError::new(Step::Mount, transient, message)
}

fn path(export: &[u8]) -> Result<MountArgs<'_>, MountError> {
    if export.len() > mount3::PATH_MAX {
        let message = format!(
            "the export's path has {} bytes; MOUNT allows {}",
            export.len(),
            mount3::PATH_MAX
        );
        return Err(MountError::new(Step::Export, false, message));
    }
    Ok(MountArgs { path: Text(export) })
}

/// The root's handle, or mountd's refusal as a sentence.
fn root(host: &str, export: &[u8], result: MountRes) -> Result<FileHandle, MountError> {
    let path = String::from_utf8_lossy(export);
    let refused = |why: &str| MountError::new(Step::Export, false, format!("{host}:{path}: {why}"));
    let status = match result {
        MountRes::Ok(mounted) => {
            if mounted.root.as_bytes().is_empty() {
                return Err(refused("the server gave an empty file handle"));
            }
            // An empty list is what old servers send when anything goes.
            let fits = |f: &u32| matches!(*f, flavor::SYS | flavor::NONE);
            if !mounted.flavors.is_empty() && !mounted.flavors.iter().any(fits) {
                return Err(refused("the server wants security other than sec=sys"));
            }
            return Ok(mounted.root);
        }
        MountRes::Fail(status) => status,
    };
    Err(match status {
        MountStatus::NoEnt => refused("no such export"),
        MountStatus::Perm | MountStatus::Access => {
            refused("the server does not permit this machine to mount it")
        }
        MountStatus::NotDir => refused("not a directory"),
        MountStatus::NameTooLong => refused("the path is too long for the server"),
        status => refused(&format!("mountd answered {}", status.name())),
    })
}

impl Mountd {
    pub(super) fn new(machine: &str) -> Self {
        Mountd {
            machine: machine.as_bytes().to_vec(),
            reach: Reach::Unknown,
        }
    }

    /// Finds mountd: by option, or by asking rpcbind.
    pub(super) async fn locate(
        &mut self,
        at: IpAddr,
        host: &str,
        options: &ClientOptions,
    ) -> Result<(), MountError> {
        let timeout = options.connect_timeout;
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
                    let transient =
                        matches!(error, PlainError::TimedOut | PlainError::Unreachable(_));
                    let message = format!(
                        "cannot ask rpcbind of {host} for mountd: {error} \
                     (the options mountport= or mountproto=rdma do without it)"
                    );
                    MountError::new(Step::Rpcbind, transient, message)
                })?;
            found = port.map(|port| (*protocol, port));
        }
        let Some((protocol, port)) = found else {
            let message = format!("rpcbind of {host} does not know mountd version 3");
            return Err(MountError::new(Step::Rpcbind, true, message));
        };
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
        timeout: Duration,
    ) -> Result<FileHandle, MountError> {
        let Reach::Plain(target) = self.reach else {
            let message = format!("nobody knows where mountd of {host} is");
            return Err(MountError::new(Step::Mount, false, message));
        };
        let target = Target { timeout, ..target };
        let args = path(export)?;
        let result =
            plain::call::<mount3::Mnt, _>(&target, auth(&self.machine, cred), &args, |res| res);
        let result = result
            .await
            .map_err(|e| protocol_error(host, target.protocol, target.address.port(), &e))?;
        root(host, export, result)
    }

    /// Where it was found, for people.
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
            .map_err(|e| protocol_error(host, target.protocol, target.address.port(), &e))
    }

    /// UMNT may go over the NFS connections.
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
        timeout: Duration,
    ) -> Result<FileHandle, MountError> {
        let args = path(export)?;
        let call = self.over_rdma::<mount3::Mnt>(engine, cred, &args);
        let result = match tokio::time::timeout(timeout, call).await {
            Err(_) => Err(Error::TimedOut),
            Ok(Err(error)) => Err(error),
            Ok(Ok(reply)) => reply.results::<mount3::Mnt>(),
        };
        let result = result.map_err(|error| {
            let transient = matches!(error, Error::TimedOut);
            let message = format!("cannot ask mountd of {host} over RDMA: {error}");
            MountError::new(Step::Mount, transient, message)
        })?;
        root(host, export, result)
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

    /// UMNT; its answer does not matter.
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
