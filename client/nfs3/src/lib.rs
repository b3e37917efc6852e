//! NFSv3 (RFC 1813) and MOUNT as typed calls, over the RPC transport of `nfsrdma-rpcrdma`.
//!
//! [`mount`] brings an export up, [`api`] is what a file system may ask of a server
//! ([`Nfs3`]), and [`client`] makes calls of it ([`Nfs3Client`]). `resent` judges the answers
//! of calls that were sent twice, `limits` keeps the sizes that the server takes.

mod acl;
pub mod api;
mod checks;
pub mod client;
mod error;
mod limits;
pub mod mount;
pub mod options;
mod procedures;
mod resent;

pub use api::*;
pub use client::Nfs3Client;
pub use mount::{Description, MountError, Mounted, connect};
pub use nfsrdma_rpcrdma::Stats;
pub use options::{ClientOptions, MountProtocol, MountTarget, Recovery, WriteChunk};
