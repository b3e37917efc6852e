//! The RPC transport: RPC-over-RDMA (RFC 8166, 8267, 8797), and plain RPC over TCP and UDP.
//! It knows RPC (RFC 5531) and no program above it: which program its connections serve, it
//! is told ([`Program`]), and its errors are those of RPC ([`Error`]).
//!
//! From the top: `transport` makes calls over connections, which it replaces and retransmits
//! on, [`rpc`] gives them XIDs and credentials and says when they are retried, [`protocol`]
//! is the state machine of one connection without any I/O. [`exec`] runs the callers, [`abandon`] says which of them have left,
//! [`tap`] lets others watch, [`stats`] counts.

pub mod abandon;
pub mod error;
pub mod exec;
pub mod options;
pub mod protocol;
pub mod rpc;
pub mod stats;
mod sync;
pub mod tap;
pub mod transport;

pub use error::{Error, Result};
pub use options::{Program, Recovery, TransportOptions, WriteChunk};
pub use stats::Stats;
