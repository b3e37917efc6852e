//! Connection set-up: from a provider's connection to one that RPC-over-RDMA can use.
//!
//! Both sides announce their inline thresholds, and whether they support remote invalidation, in
//! the private data of the connection (RFC 8797 section 4). The server may announce other values on
//! each connection, so each [`Session`] has its own thresholds. A Receive must be as large as the
//! largest message that the server may send, so Receives are posted after the thresholds are known:
//! one for each credit that is requested, but fewer where these would take more than
//! `RECEIVE_MEMORY`. The server sends nothing before the first call, so no message can arrive too
//! early.

use super::memory::Blocks;
use super::shared::Shared;
use crate::options::Path;
use crate::protocol::Thresholds;
use crate::tap::Connected;
use nfsrdma_rdma::{CompletionQueue, ConnectParams, Error, QueuePair, WorkId};
use nfsrdma_xdr::private_data::PrivateData;
use std::sync::{Arc, OnceLock};
use std::time::SystemTime;

/// Memory for the Receives of one connection, in bytes. With a server that announces messages of
/// 256 KiB, this limits the number of calls under way.
const RECEIVE_MEMORY: usize = 4 << 20;

/// Why there is no connection.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ConnectError {
    #[error(transparent)]
    Provider(#[from] Error),
    /// The peer is connected, but its announced settings cannot be used.
    #[error("{0}")]
    PrivateData(String),
}

/// A connection that is up.
pub(super) struct Session {
    pub(super) queue_pair: Arc<dyn QueuePair>,
    pub(super) thresholds: Thresholds,
    pub(super) receives: Arc<Blocks>,
    pub(super) connected: Arc<Connected>,
    /// Why this side ended the connection, if it did.
    pub(super) ended_here: OnceLock<&'static str>,
}

impl Session {
    /// Ends the connection, for this reason.
    pub(super) fn end_here(&self, why: &'static str) {
        let _ = self.ended_here.set(why);
        self.queue_pair.disconnect();
    }
}

/// A connection that is made but not yet in use.
pub(super) struct Established {
    pub(super) session: Arc<Session>,
    pub(super) completions: Box<dyn CompletionQueue>,
    pub(super) receives_posted: u32,
}

/// Connects for a slot by a path; blocks. `receives` is called with a size and a number of Receives, and
/// returns the memory for them.
pub(super) fn establish(
    shared: &Shared,
    slot: usize,
    path: Path,
    receives: impl FnOnce(usize, usize) -> Arc<Blocks>,
) -> Result<Established, ConnectError> {
    let credits = shared.credits as usize;
    let own = PrivateData {
        remote_invalidation: shared.provider.remote_invalidate(),
        send_size: shared.inline,
        receive_size: shared.inline,
    };
    let connection = shared.provider.connect(
        path.peer,
        &ConnectParams {
            pool: shared.marshaller.pool.clone(),
            private_data: own.encode().to_vec(),
            send_depth: 2 * credits + 8,
            recv_depth: credits + 8,
            reads_out: 0,
            reads_in: shared.reads_in,
            // Receives are posted below, because their size depends on what the server announces.
            receive_buffers: 0,
            receive_size: shared.inline as usize,
            timeout: shared.connect_timeout,
            local: path.local,
        },
    )?;
    let queue_pair = connection.queue_pair;
    let peer = PrivateData::parse(&connection.peer_private_data);
    //= RFC 8797, Section 4
    //# An implementation of the extension described in this document MUST be prepared for the
    //# settings to change upon a reconnection.
    let mut thresholds = Thresholds::negotiate(&own, peer.as_ref());
    thresholds.call = thresholds.call.min(queue_pair.capabilities().max_message);
    if thresholds.call < 1024 {
        return Err(ConnectError::PrivateData(format!(
            "the link carries messages of {} bytes only; RPC-over-RDMA needs 1024",
            thresholds.call
        )));
    }
    let number = (RECEIVE_MEMORY / thresholds.receive).clamp(1, credits);
    let receives = receives(thresholds.receive, number);
    let mut posted = 0;
    while (posted as usize) < number {
        let Some(buf) = receives.take() else { break };
        queue_pair.post_receive(WorkId(0), buf)?;
        posted += 1;
    }
    if posted == 0 {
        return Err(ConnectError::Provider(Error::local(
            format!(
                "the buffer pool has no room for a Receive of {} bytes; ask for a larger cache",
                thresholds.receive
            ),
            std::io::ErrorKind::OutOfMemory.into(),
        )));
    }
    let connected = Connected {
        connection: shared.tap.next_connection(),
        slot,
        time: SystemTime::now(),
        provider: shared.provider.name(),
        local: queue_pair.local_addr(),
        peer: queue_pair.peer_addr(),
        own_private_data: own.encode().to_vec(),
        peer_private_data: connection.peer_private_data,
        greeting: connection.greeting,
    };
    Ok(Established {
        session: Arc::new(Session {
            queue_pair,
            thresholds,
            receives,
            connected: Arc::new(connected),
            ended_here: OnceLock::new(),
        }),
        completions: connection.completions,
        receives_posted: posted,
    })
}
