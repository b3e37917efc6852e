//! What the receiving side asks of the rest of a connection.

use super::stag::{Access, Denied};
use nfsrdma_rdma::{BufMut, WorkId};

/// The RDMA Read of ours whose response is due next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PendingRead {
    /// STag of the sink.
    pub stag: u32,
    /// Tagged offset of its first byte.
    pub offset: u64,
    /// Bytes asked for.
    pub len: u64,
}

/// What the receiver asks the rest of the connection.
pub trait Host {
    /// Memory, or a reference to it.
    type Region: Clone;

    /// Checks an access to tagged memory.
    fn tagged(
        &self,
        stag: u32,
        access: Access,
        offset: u64,
        len: u64,
    ) -> Result<(Self::Region, usize), Denied>;

    /// The next posted Receive.
    fn take_receive(&self) -> Option<(WorkId, BufMut)>;

    /// Invalidates an STag on the peer's word; false if there is none.
    fn invalidate(&self, stag: u32) -> bool;

    /// The oldest RDMA Read that was requested and not answered.
    fn pending_read(&self) -> Option<PendingRead>;

    /// RDMA Read Requests of the peer that are outstanding for sure: the peer cannot have
    /// their whole response yet.
    fn responses_due(&self) -> usize;
}
