//! Chooses the RDMA provider of a mount.

use crate::failure::Failure;
use crate::options::{Options, Transport};
use nfsrdma_iwarp::{Fpdu, IwarpOptions, IwarpProvider};
use nfsrdma_nfs3::mount::{MountError, Step};
use nfsrdma_rdma::Provider;
use std::sync::Arc;
use std::time::Duration;

/// TCP takes the times of keepalive in whole seconds.
const SECOND: Duration = Duration::from_secs(1);

/// A provider, and the reason for its choice.
#[derive(Debug)]
pub(crate) struct Chosen {
    pub provider: Arc<dyn Provider>,
    pub reason: String,
    /// Whether this program made the choice, and not the user.
    ours: bool,
}

impl Chosen {
    /// The error of a mount by this provider, with the reason for the choice if that may matter.
    pub(crate) fn failed(&self, error: MountError) -> Failure {
        let told = self.ours && error.step == Step::Connect;
        let mut failure = Failure::from(error);
        if told {
            failure.message = format!("{} ({})", failure.message, self.reason);
        }
        failure
    }
}

/// Chooses the provider that `transport=` asks for, to reach `host`. It may wait for the network.
pub(crate) fn choose(options: &Options, host: &str) -> Result<Chosen, Failure> {
    match options.transport {
        Transport::Iwarp => Ok(Chosen {
            provider: iwarp(options),
            reason: "soft-iWARP as transport=iwarp asks".to_owned(),
            ours: false,
        }),
        Transport::Verbs => Ok(Chosen {
            provider: verbs()?,
            reason: "verbs as transport=verbs asks".to_owned(),
            ours: false,
        }),
        Transport::Auto => Ok(verbs_to(options, host).unwrap_or_else(|why| Chosen {
            provider: iwarp(options),
            reason: format!("soft-iWARP because {why}"),
            ours: true,
        })),
    }
}

#[cfg(feature = "verbs")]
fn verbs() -> Result<Arc<dyn Provider>, Failure> {
    Ok(Arc::new(nfsrdma_verbs::Verbs::new()))
}

#[cfg(not(feature = "verbs"))]
fn verbs() -> Result<Arc<dyn Provider>, Failure> {
    use crate::failure::Exit;
    Err(Failure::new(
        Exit::System,
        "this build has no verbs provider: use transport=iwarp, or a build with the feature 'verbs'",
    ))
}

/// The verbs provider if an RDMA device here reaches `host`; otherwise why none does.
#[cfg(feature = "verbs")]
fn verbs_to(options: &Options, host: &str) -> Result<Chosen, String> {
    use nfsrdma_nfs3::options::Remotes;
    use std::net::{SocketAddr, ToSocketAddrs};
    use std::time::{Duration, Instant};
    /// How long a device may take to resolve a route. Without devices the answer is immediate.
    const ROUTE: Duration = Duration::from_secs(2);
    let verbs = nfsrdma_verbs::Verbs::new();
    // The mount resolves the name again, and then reports a failure.
    let port = options.client.port;
    let peers: Vec<SocketAddr> = match &options.client.remotes {
        Remotes::These(list) => list.iter().map(|ip| (*ip, port).into()).collect(),
        Remotes::Mounted | Remotes::Resolved => (host, port)
            .to_socket_addrs()
            .map_err(|_| format!("{host} cannot be resolved"))?
            .collect(),
    };
    let peers = peers.into_iter();
    let end = Instant::now() + ROUTE;
    let mut why = format!("{host} has no address");
    for peer in peers.filter(|peer| !options.client.ipv6_only || peer.is_ipv6()) {
        let left = end.saturating_duration_since(Instant::now());
        match verbs.reaches(peer, left) {
            Ok(device) => {
                return Ok(Chosen {
                    provider: Arc::new(verbs),
                    reason: format!(
                        "verbs because the RDMA device {device} reaches {}",
                        peer.ip()
                    ),
                    ours: true,
                });
            }
            Err(no) => {
                tracing::debug!(error = %no, %peer, "not by verbs");
                no.reason().clone_into(&mut why);
            }
        }
    }
    Err(why)
}

#[cfg(not(feature = "verbs"))]
fn verbs_to(_: &Options, _: &str) -> Result<Chosen, String> {
    Err("this build has no verbs provider".to_owned())
}

fn iwarp(options: &Options) -> Arc<dyn Provider> {
    let defaults = IwarpOptions::default();
    // A short `timeo` asks to notice a silent server early. So it also shortens the times after
    // which TCP gives up a path, both with data unacknowledged and when idle.
    let within = |time: Option<Duration>| {
        time.map(|time| time.min(options.client.transport.timeo.max(SECOND)))
    };
    Arc::new(IwarpProvider::new(IwarpOptions {
        crc: options.crc,
        fpdu: match options.fpdu {
            Some(size) => Fpdu::Bytes(size as usize),
            None => Fpdu::Auto,
        },
        user_timeout: within(defaults.user_timeout),
        keepalive: within(defaults.keepalive),
        ..defaults
    }))
}
