//! Which RDMA provider a mount uses.

use super::failure::Failure;
use super::options::{Options, Transport};
use nfsrdma_iwarp::{Fpdu, IwarpOptions, IwarpProvider};
use nfsrdma_rdma::Provider;
use std::sync::Arc;

/// The provider that `transport=` asks for, to reach `host`.
pub fn provider(options: &Options, host: &str) -> Result<Arc<dyn Provider>, Failure> {
    match options.transport {
        Transport::Iwarp => Ok(iwarp(options)),
        Transport::Auto => Ok(verbs_to(options, host).unwrap_or_else(|| iwarp(options))),
        Transport::Verbs => verbs(),
    }
}

#[cfg(feature = "verbs")]
fn verbs() -> Result<Arc<dyn Provider>, Failure> {
    Ok(Arc::new(nfsrdma_verbs::Verbs::new()))
}

#[cfg(not(feature = "verbs"))]
fn verbs() -> Result<Arc<dyn Provider>, Failure> {
    use super::failure::Exit;
    Err(Failure::new(
        Exit::System,
        "this build has no verbs provider: use transport=iwarp, or a build with the feature 'verbs'",
    ))
}

/// The verbs provider, if a device of this machine reaches `host`.
#[cfg(feature = "verbs")]
fn verbs_to(options: &Options, host: &str) -> Option<Arc<dyn Provider>> {
    use std::net::ToSocketAddrs;
    /// For the device to find its way; without devices the answer is immediate.
    const ROUTE: std::time::Duration = std::time::Duration::from_secs(2);
    let verbs = nfsrdma_verbs::Verbs::new();
    let peer = (host, options.port).to_socket_addrs().ok()?.next()?;
    match verbs.reaches(peer, ROUTE) {
        Ok(device) => {
            tracing::debug!(%device, "an RDMA device reaches the server");
            Some(Arc::new(verbs))
        }
        Err(error) => {
            tracing::debug!(%error, "soft-iWARP it is");
            None
        }
    }
}

#[cfg(not(feature = "verbs"))]
fn verbs_to(_: &Options, _: &str) -> Option<Arc<dyn Provider>> {
    None
}

fn iwarp(options: &Options) -> Arc<dyn Provider> {
    Arc::new(IwarpProvider::new(IwarpOptions {
        crc: options.crc,
        fpdu: match options.fpdu {
            Some(size) => Fpdu::Bytes(size as usize),
            None => Fpdu::Auto,
        },
        ..IwarpOptions::default()
    }))
}
