//! NFSv3 (RFC 1813) and MOUNT as typed calls, over the RPC transport of `nfsrdma-rpcrdma`.
//!
//! [`mount`] mounts an export, [`api`] and [`transport`] are the interface to the file system ([`Nfs3`],
//! [`Transport`]), and [`client`] makes calls ([`Nfs3Client`]). `calls` has a method for each procedure, and `create`
//! those that create an object. `retransmitted` interprets errors of calls that were sent more than
//! once, `refusals` logs calls that were not run at all, `limits` holds the sizes that the server accepts, `renewal` asks for them again, and
//! `secured` makes calls under RPCSEC_GSS, and
//! [`nlm`] locks files at the server.

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
mod refusals;
mod renewal;
mod retransmitted;
mod secured;
pub mod transport;
mod waiting;

pub use api::*;
pub use client::Nfs3Client;
pub use mount::identity::own_credential;
pub use mount::{Description, MountError, Mounted, connect};
pub use nfsrdma_rpcrdma::Stats;
pub use options::{
    ClientOptions, MountProtocol, MountTarget, Recovery, TransportOptions, WriteChunk,
};
pub use transport::*;
