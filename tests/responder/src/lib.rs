//! An NFSv3 and MOUNT v3 server over RPC-over-RDMA (RFC 8166) and over TCP, for tests, benchmarks
//! and the quick start. It shares the wire formats and the RDMA providers with the client, but not
//! its RPC transport.

pub mod control;
pub mod fs;
pub mod lock;
pub mod options;
pub mod rdma;
pub mod rpc;
pub mod server;
mod sys;
pub mod tcp;
pub mod udp;
pub mod workers;
