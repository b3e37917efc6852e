//! What a call carries for the listeners of [`Tap`](crate::tap::Tap).

use crate::tap::Sent;
use nfsrdma_xdr::rpcrdma::ChunkLists;
use std::sync::Arc;

/// What is kept of a call that was sent while somebody listened.
#[derive(Debug, Default)]
pub(super) struct Record {
    pub(super) sent: Option<Arc<Sent>>,
    /// What was offered, if messages are listened to.
    pub(super) offer: Option<ChunkLists>,
    /// The reply, and the handle it invalidated.
    pub(super) reply: Option<(Box<[u8]>, Option<u32>)>,
}
