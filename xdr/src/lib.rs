//! Wire formats of an NFS/RDMA client and server: XDR (RFC 4506), ONC RPC (RFC 5531), RPCSEC_GSS
//! (RFC 2203), NFSv3 and MOUNT v3 (RFC 1813), NLM version 4 and NSM version 1 (The Open Group, XNFS), NFS_ACL version 3,
//! rpcbind (RFC 1833), RPC-over-RDMA version 1 (RFC 8166) and its private data (RFC 8797).
//!
//! Nothing here does I/O, and nothing here copies file data: the payloads of READ and WRITE are
//! [`codec::Payload`]s, which refer to memory that the caller owns.
#![forbid(unsafe_code)]

pub mod codec;
pub mod mount3;
pub mod nfs3;
pub mod nfs_acl;
pub mod nlm4;
pub mod nsm;
pub mod posix_acl;
pub mod private_data;
pub mod procedure;
pub mod record;
pub mod rpc;
pub mod rpcbind;
pub mod rpcrdma;
pub mod rpcsec_gss;
#[cfg(feature = "proptest-support")]
pub mod support;
