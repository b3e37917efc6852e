//! The RDMA connection of a mount, and single calls on it, with failures as sentences for users.

use super::error::{MountError, Step};
use crate::api::NfsError;
use crate::options::{NFS_RDMA_PORT, TransportOptions};
use crate::procedures::NFS3;
use nfsrdma_rdma::{Error as RdmaError, Pool, Provider};
use nfsrdma_rpcrdma::transport::{ConnectError, Engine};
use nfsrdma_xdr::nfs3::Status;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// Lets the peer answer before the process ends, if the mount is interrupted while it connects.
struct Answered(Arc<dyn Provider>);

impl Drop for Answered {
    fn drop(&mut self) {
        let _ = self.0.await_answers();
    }
}

/// Connects over RDMA.
pub(super) async fn dial(
    provider: Arc<dyn Provider>,
    peer: SocketAddr,
    host: &str,
    options: TransportOptions,
    pool: Pool,
) -> Result<Arc<Engine>, MountError> {
    let _answered = Answered(provider.clone());
    let name = host.to_owned();
    let dialled = tokio::task::spawn_blocking(move || {
        Engine::connect(provider, peer, &name, NFS3, &options, pool)
    });
    let error = match dialled.await {
        Ok(Ok(engine)) => return Ok(engine),
        Ok(Err(error)) => error,
        Err(_) => ConnectError::PrivateData("the connecting task died".to_owned()),
    };
    let failed = |transient, why: String| {
        let message = format!("cannot connect to {host} (RDMA, {peer}): {why}");
        MountError::new(Step::Connect, transient, message)
    };
    Err(match error {
        ConnectError::PrivateData(why) => {
            let message = format!("{host} and this client do not fit together: {why}");
            MountError::new(Step::PrivateData, false, message)
        }
        ConnectError::Provider(RdmaError::Refused(_)) => failed(
            true,
            "connection refused; check that the server offers NFS over RDMA at this port (port=), \
             and its log"
                .to_owned(),
        ),
        ConnectError::Provider(error @ RdmaError::NotRdma(_)) => failed(
            false,
            format!(
                "{error}; give the port of NFS over RDMA (port=, usually {NFS_RDMA_PORT}), \
                 or use 'mount -t nfs' for NFS over TCP"
            ),
        ),
        ConnectError::Provider(error @ RdmaError::TimedOut(_)) => failed(
            true,
            format!("{error}; check the address, firewalls between, and the server"),
        ),
        ConnectError::Provider(RdmaError::Local { error, .. }) if is_unreachable(&error) => failed(
            true,
            format!("{}; {}", unreachable_text(error.kind()), ROUTES),
        ),
        // At boot the network may bring it later.
        ConnectError::Provider(RdmaError::Local { what, error }) if lacks_address(&error) => {
            failed(
                true,
                format!(
                    "{what}: this machine does not have the address; check localports= and 'ip address'"
                ),
            )
        }
        ConnectError::Provider(error @ RdmaError::Local { .. }) => failed(false, error.to_string()),
        ConnectError::Provider(error) => failed(true, error.to_string()),
    })
}

/// The remedy if this machine has no route to the server.
const ROUTES: &str = "check the address, and this machine's routes with 'ip route get'";

fn is_unreachable(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NetworkUnreachable | io::ErrorKind::HostUnreachable
    )
}

fn lacks_address(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::AddrNotAvailable
}

fn unreachable_text(kind: io::ErrorKind) -> &'static str {
    match kind {
        io::ErrorKind::HostUnreachable => "host unreachable",
        _ => "network unreachable",
    }
}

/// One call while mounting, with a time limit and with failures as sentences.
pub(super) struct Probe<'a> {
    pub(super) step: Step,
    pub(super) what: &'static str,
    pub(super) host: &'a str,
    pub(super) timeout: Duration,
}

impl Probe<'_> {
    pub(super) async fn run<T>(
        &self,
        call: impl Future<Output = Result<T, NfsError>>,
    ) -> Result<T, MountError> {
        let Probe {
            step, what, host, ..
        } = self;
        let error = match tokio::time::timeout(self.timeout, call).await {
            Ok(Ok(value)) => return Ok(value),
            Ok(Err(error)) => error,
            Err(_) => NfsError::TimedOut,
        };
        // A server that has just started may answer STALE before it has read its table of exports, as
        // mount.nfs knows.
        let transient = matches!(
            error,
            NfsError::TimedOut | NfsError::GivenUp | NfsError::Status(Status::Stale)
        );
        let message = match error {
            NfsError::TimedOut | NfsError::GivenUp => {
                format!(
                    "{host} does not answer NFS calls ({what}): see whether its NFS server runs"
                )
            }
            NfsError::Refused(why) | NfsError::Denied(why) => {
                format!("{host} refuses NFS version 3 ({what}): {why}; turn it on there")
            }
            error => format!("{what} failed at {host}: {error}"),
        };
        Err(MountError::new(*step, transient, message))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_server_that_does_not_know_the_handle_yet_is_asked_again() {
        let failed = async |error| {
            let probe = Probe {
                step: Step::Fsinfo,
                what: "FSINFO",
                host: "srv",
                timeout: Duration::from_secs(20),
            };
            let call = async { Err::<(), _>(error) };
            probe.run(call).await.unwrap_err()
        };
        let stale = failed(NfsError::Status(Status::Stale)).await;
        assert!(stale.transient, "{stale}");
        let refused = failed(NfsError::Status(Status::Access)).await;
        assert!(!refused.transient, "{refused}");
    }
}
