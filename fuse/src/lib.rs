//! The file system: NFSv3 with client caches, and its connection to FUSE.
//!
//! [`fs`] is the file system, one file for each group of operations, over the trait
//! `nfsrdma_client::nfs::Nfs3`; it knows nothing of FUSE. [`cache`] holds its data
//! structures, without I/O. [`adapter`] turns FUSE requests, which `nfsrdma_channel` decodes,
//! into calls of [`fs`]. [`program`] is the command line and the life of a mount.

pub mod adapter;
pub mod cache;
pub mod fs;
pub mod locks;
pub mod memory;
pub mod program;
mod sync;
