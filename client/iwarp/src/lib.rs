//! Soft-iWARP: RDMA over TCP without special hardware, as a provider of the contract in
//! [`nfsrdma_rdma`], for initiators and responders.
//!
//! [`wire`] has the formats of MPA (RFC 5044, 6581), DDP (RFC 5041) and RDMAP (RFC 5040), and
//! [`proto`] the state machines, which do no I/O. Only the private module `driver` uses sockets and
//! threads.

mod driver;
mod options;
pub mod proto;
pub mod wire;

pub use options::{Fpdu, IwarpOptions};

use nfsrdma_rdma::{ConnectParams, Connection, Handshakes, Listener, Provider, Result};
use std::net::SocketAddr;
use std::sync::Arc;

/// The soft-iWARP provider.
#[derive(Debug, Clone, Default)]
pub struct IwarpProvider {
    options: IwarpOptions,
    handshakes: Arc<Handshakes>,
}

impl IwarpProvider {
    /// A provider that uses these options for every connection, made or accepted.
    pub fn new(options: IwarpOptions) -> Self {
        IwarpProvider {
            options,
            handshakes: Arc::default(),
        }
    }

    /// The options.
    pub fn options(&self) -> &IwarpOptions {
        &self.options
    }
}

impl Provider for IwarpProvider {
    fn name(&self) -> &'static str {
        "iwarp"
    }

    fn remote_invalidate(&self) -> bool {
        true
    }

    fn connect(&self, peer: SocketAddr, params: &ConnectParams) -> Result<Connection> {
        driver::connect::connect(&self.options, &self.handshakes, peer, params)
    }

    fn await_answers(&self) -> bool {
        self.handshakes.wait()
    }

    fn listen(&self, local: SocketAddr) -> Result<Box<dyn Listener>> {
        driver::listen::listen(&self.options, local)
    }
}
