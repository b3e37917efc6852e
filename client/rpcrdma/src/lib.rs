//! The RPC transport: RPC-over-RDMA (RFC 8166, 8267, 8797), and plain RPC over TCP and UDP. It
//! implements RPC (RFC 5531) and knows no program above it: the caller names the program that its
//! connections serve ([`Program`]), and its errors are those of RPC ([`Error`]).
//!
//! From the top: `transport` makes calls over connections, replaces connections that have ended,
//! and retransmits calls on the new ones. [`rpc`] gives calls their XIDs and credentials and
//! decides when they are retried. [`security`] proves under RPCSEC_GSS who calls and who answers. [`protocol`] is the state machine of one connection, without any
//! I/O. [`exec`] runs the callers' futures, [`abandon`] marks operations whose caller no longer
//! waits, [`tap`] reports calls and messages to listeners, [`throttle`] keeps the log short, [`words`] are for
//! its sentences, and [`stats`] holds the counters.

pub mod abandon;
pub mod error;
pub mod exec;
pub mod options;
mod place;
pub mod protocol;
pub mod rpc;
pub mod security;
pub mod stats;
mod sync;
pub mod tap;
pub mod throttle;
pub mod transport;
pub mod words;

#[cfg(test)]
extern crate self as nfsrdma_rpcrdma;

pub use error::{Error, Result};
pub use options::{Program, Recovery, TransportOptions, WriteChunk};
pub use stats::Stats;
