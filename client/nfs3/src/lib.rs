//! NFSv3 (RFC 1813) and MOUNT as typed calls, over the RPC transport of `nfsrdma-rpcrdma`.
//!
//! [`mount`] brings an export up, [`api`] is what a file system may ask of a server ([`Nfs3`]),
//! [`client`] makes calls ([`Nfs3Client`]), and `calls` has one for each procedure; `create` makes
//! those that make an object. `retransmitted` judges the answers of calls that were sent twice,
//! `limits` keeps the sizes that the server takes and `renewal` asks for them again, [`nlm`] asks
//! the server for locks.

mod acl;
pub mod api;
mod calls;
mod checks;
pub mod client;
mod create;
mod error;
mod limits;
pub mod mount;
pub mod nlm;
pub mod options;
mod procedures;
mod renewal;
mod retransmitted;

pub use api::*;
pub use client::Nfs3Client;
pub use mount::{Description, MountError, Mounted, connect};
pub use nfsrdma_rpcrdma::Stats;
pub use options::{
    ClientOptions, MountProtocol, MountTarget, Recovery, TransportOptions, WriteChunk,
};
