//! The RPC-over-RDMA transport (RFC 8166), over any provider.

mod connection;
mod odd;
pub mod plan;

pub use odd::{Habit, Odd};

use crate::rpc::{Peer, Service};
use crate::workers::Workers;
use connection::{Outbox, Shared, Terms};
use nfsrdma_rdma::{ConnectParams, Error, Incoming, Pool, QueuePair};
use nfsrdma_xdr::private_data::PrivateData;
use plan::Limits;
use std::sync::Arc;
use std::time::Duration;

/// Receives beyond one for each credit, for messages that are not calls.
const SPARE_RECEIVES: usize = 4;
/// Most bytes of a call in addition to WRITE data: credentials, handle, a path.
const CALL_OVERHEAD: u64 = 8192;
/// Most segments of the Read chunks of one call.
const READ_SEGMENTS: usize = 512;

/// The settings of connections.
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    /// The credits in each reply, which are the RPCs that a peer may have under way.
    pub credits: u32,
    /// Largest Send in each direction, in bytes.
    pub inline: u32,
    /// Whether to use Send With Invalidate with peers that support it.
    pub invalidate: bool,
    /// Most RDMA Reads under way at a time.
    pub reads: u32,
    /// Largest READ and WRITE, in bytes.
    pub rtmax: u32,
    pub wtmax: u32,
    /// The time limit for establishing a connection.
    pub timeout: Duration,
    /// Whether only threads that never took another identity may use the connection. The kernel's
    /// interface to RDMA devices refuses threads whose credentials are not those with which the
    /// device was opened, even if they have become equal again.
    pub apart: bool,
    /// Whether replies may be protected by RPCSEC_GSS, which copies them.
    pub sealed: bool,
    /// Imitated habits of other servers.
    pub odd: Odd,
}

impl Settings {
    fn limits(&self) -> Limits {
        Limits {
            argument: u64::from(self.wtmax).next_multiple_of(4),
            message: u64::from(self.wtmax) + CALL_OVERHEAD,
            read_segments: READ_SEGMENTS,
            credits: self.credits,
        }
    }

    /// The memory of one connection, in bytes: for each credit a received message, a reply, and
    /// both directions' largest payload, in blocks of a power of two.
    fn memory(&self) -> usize {
        let block = |len: usize| len.max(nfsrdma_rdma::buf::MIN_BLOCK).next_power_of_two();
        let receive = block(self.inline as usize);
        let sealed = match self.sealed {
            true => block(self.rtmax as usize + CALL_OVERHEAD as usize),
            false => 0,
        };
        // The pieces of a message, and that it is joined.
        let message = 2 * block(self.wtmax as usize + CALL_OVERHEAD as usize);
        let call = 2 * receive
            + block(self.rtmax as usize)
            + sealed
            + message
            + READ_SEGMENTS * nfsrdma_rdma::buf::MIN_BLOCK;
        (self.credits as usize + SPARE_RECEIVES) * receive + self.credits as usize * call
    }
}

/// Accepts an incoming connection and serves it until its end. Call this on a thread of its own.
/// `began` gets the queue pair, by which the connection can be ended.
pub fn serve(
    mut incoming: Box<dyn Incoming>,
    service: &Arc<Service>,
    workers: &Arc<Workers>,
    settings: &Settings,
    began: impl FnOnce(Arc<dyn QueuePair>),
) -> Result<(), Error> {
    let remote = incoming.peer_addr();
    let theirs = incoming.request(settings.timeout)?;
    //= RFC 8797, Section 5.1
    //# In other words, the peer MUST behave as if a Private Data message was received in which (1)
    //# bit 15 of the Flags field is zero and (2) both Size fields contain the value zero.
    let theirs = PrivateData::parse(&theirs).unwrap_or_default();
    let ours = PrivateData {
        remote_invalidation: settings.invalidate,
        send_size: settings.inline,
        receive_size: settings.inline,
    };
    let pool = Pool::new(settings.memory())?;
    let receives = settings.credits as usize + SPARE_RECEIVES;
    let link = incoming.accept(&ConnectParams {
        pool: pool.clone(),
        private_data: ours.encode().to_vec(),
        // For each segment, a call needs an RDMA Read, or a reply an RDMA Write.
        send_depth: (settings.credits as usize * 64).clamp(4096, 16384),
        recv_depth: receives,
        reads_out: settings.reads,
        reads_in: settings.reads,
        //= RFC 8166, Section 3.3.1
        //# The Responder MUST ensure that an increase in receive resources is effected before the
        //# next RPC Reply message is sent.
        receive_buffers: receives,
        receive_size: settings.inline as usize,
        timeout: settings.timeout,
        local: None,
    })?;
    let queue_pair = link.queue_pair.clone();
    began(queue_pair.clone());
    let terms = Terms {
        limits: settings.limits(),
        inline: (ours.threshold_towards(&theirs) as usize)
            .min(queue_pair.capabilities().max_message),
        invalidate: settings.invalidate && theirs.remote_invalidation,
        apart: settings.apart,
        odd: settings.odd,
        wtmax: settings.wtmax as usize,
    };
    tracing::info!(
        peer = %remote,
        link = %queue_pair.capabilities().description,
        inline = terms.inline,
        invalidate = terms.invalidate,
        "RDMA connection"
    );
    let shared = Arc::new(Shared {
        peer: Peer {
            remote,
            local: queue_pair.local_addr(),
            rdma: true,
            udp: false,
        },
        queue_pair,
        pool,
        service: service.clone(),
        workers: workers.clone(),
        terms,
        outbox: Outbox::new(),
    });
    match connection::run(&shared, link.completions) {
        Error::LinkLost(_) => Ok(()),
        error => Err(error),
    }
}
