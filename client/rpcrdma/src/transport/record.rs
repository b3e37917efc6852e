//! What a call carries for the listeners of [`Tap`](crate::tap::Tap).

use crate::tap::Sent;
use nfsrdma_xdr::rpcrdma::ChunkLists;
use std::sync::Arc;

/// A record of a transmission that was made while there were listeners.
#[derive(Debug, Default)]
pub(super) struct Record {
    pub(super) sent: Option<Arc<Sent>>,
    /// The chunks offered, if a listener wants messages.
    pub(super) offer: Option<ChunkLists>,
    /// The reply, and the handle that its Send invalidated.
    pub(super) reply: Option<(Box<[u8]>, Option<u32>)>,
}
