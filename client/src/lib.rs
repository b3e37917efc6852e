//! NFSv3 requester engine over RPC-over-RDMA (RFC 8166, 8267, 8797).
//!
//! From the top: [`mount`] brings an export up, [`nfs`] has the typed calls, `rpc` gives them
//! XIDs and credentials, `rpcrdma` is the state machine of one connection without any I/O,
//! `transport` drives it over a provider of the `nfsrdma-rdma` contract. [`nlm`] asks the server for
//! locks, over TCP or UDP. [`exec`] runs the
//! callers, [`stats`] counts.

pub mod exec;
pub mod mount;
pub mod nfs;
pub mod nlm;
pub mod options;
pub mod rpc;
pub mod rpcrdma;
pub mod stats;
mod sync;
pub mod tap;
pub mod transport;

pub use mount::{Description, MountError, Mounted, connect};
pub use nfs::client::Nfs3Client;
pub use options::{ClientOptions, MountProtocol, MountTarget, Recovery, WriteChunk};
pub use stats::Stats;
