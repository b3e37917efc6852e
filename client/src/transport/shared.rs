//! What the engine and its connections both know.

use super::counters::Procedures;
use super::launch::Kit;
use crate::rpc::RetryPolicy;
use crate::tap::Tap;
use nfsrdma_rdma::Provider;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// What all connection slots of a client share.
pub(super) struct Shared {
    pub(super) provider: Arc<dyn Provider>,
    pub(super) peer: SocketAddr,
    /// The server's name in the log.
    pub(super) server: String,
    pub(super) kit: Kit,
    pub(super) credits: u32,
    pub(super) inline: u32,
    pub(super) reads_in: u32,
    pub(super) connect_timeout: Duration,
    pub(super) policy: RetryPolicy,
    pub(super) procedures: Procedures,
    pub(super) tap: Arc<Tap>,
    pub(super) unresponsive: AtomicBool,
    /// Connections that ended.
    pub(super) lost: AtomicU64,
}

impl Shared {
    /// Some call waits longer than `timeo` and `retrans` allow.
    pub(super) fn not_responding(&self) {
        if !self.unresponsive.swap(true, Relaxed) {
            tracing::warn!("server {} not responding", self.server);
        }
    }

    /// A reply came.
    pub(super) fn answered(&self) {
        if self.unresponsive.load(Relaxed) && self.unresponsive.swap(false, Relaxed) {
            tracing::warn!("server {} OK", self.server);
        }
    }
}
