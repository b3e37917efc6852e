//! The requester's side of RPC-over-RDMA version 1 (RFC 8166), without I/O: which chunks to offer
//! with a call ([`plan`]), and the state of one connection ([`Requester`]).

mod plan;
mod requester;
#[cfg(test)]
mod tests;

pub use plan::{CallForm, Plan, PlanError, Segments, Shape, Thresholds, call_header_len, plan};
pub use requester::{
    Discard, Event, Failure, InUse, Record, ReplyBody, Requester, Violation, is_reply,
};
