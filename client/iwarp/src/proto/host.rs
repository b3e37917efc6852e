//! The interface by which the receiver uses the rest of a connection.

use super::stag::{Access, Denied};
use nfsrdma_rdma::{BufMut, WorkId};

/// An RDMA Read of ours whose response is expected next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PendingRead {
    /// STag of the sink.
    pub stag: u32,
    /// Tagged offset of its first byte.
    pub offset: u64,
    /// Bytes requested.
    pub len: u64,
}

impl PendingRead {
    /// The RDMA Read of an RTR message, which has no sink.
    pub const EMPTY: PendingRead = PendingRead {
        stag: 0,
        offset: 0,
        len: 0,
    };
}

/// What the receiver needs from the rest of the connection.
pub trait Host {
    /// Memory, or a reference to it.
    type Region: Clone;

    /// Checks an access to tagged memory. Returns the memory and the offset in it.
    fn tagged(
        &self,
        stag: u32,
        access: Access,
        offset: u64,
        len: u64,
    ) -> Result<(Self::Region, usize), Denied>;

    /// Takes the next posted Receive.
    fn take_receive(&self) -> Option<(WorkId, BufMut)>;

    /// Invalidates an STag at the peer's request; false if there is none.
    fn invalidate(&self, stag: u32) -> bool;

    /// The oldest RDMA Read that was requested and is not yet answered.
    fn pending_read(&self) -> Option<PendingRead>;

    /// Number of the peer's RDMA Read Requests that are certainly outstanding, because the peer
    /// cannot have received their whole response yet.
    fn responses_due(&self) -> usize;
}
