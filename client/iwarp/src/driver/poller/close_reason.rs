//! What a connection ends with.

use crate::proto::terminate::Fault;
use nfsrdma_rdma::{BufMut, Error, WorkId};
use std::time::Instant;

/// Why a connection ends: its peer broke a rule, or it failed.
pub(super) enum CloseReason {
    Fault(Fault),
    Error(Error),
}

impl From<Fault> for CloseReason {
    fn from(fault: Fault) -> Self {
        CloseReason::Fault(fault)
    }
}

/// A connection whose peer broke a rule and is sent a Terminate.
pub(super) struct Lingering {
    pub(super) until: Instant,
    pub(super) half_closed: bool,
    /// What the connection ends with.
    pub(super) error: Error,
    pub(super) partial: Option<(WorkId, BufMut)>,
}
