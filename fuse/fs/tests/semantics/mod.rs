//! The file system without FUSE and without a network: on a server in memory.

mod abandoned;
mod caches;
mod data;
mod directories;
mod errors;
mod kept_data;
mod opens;
mod permissions;
mod removals;
mod resent;
mod restarts;
mod support;
mod tickets;
