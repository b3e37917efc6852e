//! NFSv3 (RFC 1813) and MOUNT as typed calls, over the RPC transport of `nfsrdma-rpcrdma`.
//!
//! [`mount`] brings an export up, [`api`] is what a file system may ask of a server
//! ([`Nfs3`]), [`client`] makes calls ([`Nfs3Client`]), and `calls` has one for each procedure. `resent` judges the answers
//! of calls that were sent twice, [`nlm`] asks the server for locks, `limits` keeps the sizes that the server takes.

mod acl;
pub mod api;
mod calls;
mod checks;
pub mod client;
mod error;
mod limits;
pub mod mount;
pub mod nlm;
pub mod options;
mod procedures;
mod resent;

pub use api::*;
pub use client::Nfs3Client;
pub use mount::{Description, MountError, Mounted, connect};
pub use nfsrdma_rpcrdma::Stats;
pub use options::{ClientOptions, MountProtocol, MountTarget, Recovery, WriteChunk};
