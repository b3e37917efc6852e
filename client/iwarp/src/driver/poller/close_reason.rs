//! Why a connection ends, and its state while a Terminate is sent.

use crate::proto::terminate::Fault;
use nfsrdma_rdma::{BufMut, Error, Instant, WorkId};

/// Why a connection ends: the peer violated the protocol, or the connection failed.
pub(super) enum CloseReason {
    Fault(Fault),
    Error(Error),
}

impl From<Fault> for CloseReason {
    fn from(fault: Fault) -> Self {
        CloseReason::Fault(fault)
    }
}

/// The state of a connection that sends a Terminate before it ends.
pub(super) struct Lingering {
    pub(super) until: Instant,
    pub(super) half_closed: bool,
    /// The error that the connection ends with.
    pub(super) error: Error,
    pub(super) partial: Option<(WorkId, BufMut)>,
}
