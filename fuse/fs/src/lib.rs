//! The file system: NFSv3 with client caches, and its connection to FUSE.
//!
//! [`fs`] is the file system, one file for each group of operations, over the trait
//! `nfsrdma_nfs3::Nfs3`; it knows nothing of FUSE. [`cache`] holds its data structures,
//! without I/O. [`adapter`] turns FUSE requests, which `nfsrdma_channel` decodes, into calls of
//! [`fs`]. [`locks`] takes programs' locks at the server.

/// Whether mutexes and threads are those of `tests/models`, with a scheduler for model checking.
pub const UNDER_SHUTTLE: bool = cfg!(feature = "shuttle");

pub mod adapter;
pub mod cache;
mod counters;
mod credential;
pub mod fs;
pub mod locks;
mod named;
mod sync;
