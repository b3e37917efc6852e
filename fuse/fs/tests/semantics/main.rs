//! The file system without FUSE and without a network: on a server in memory.

#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

mod abandoned;
mod caches;
mod data;
mod directories;
mod errors;
mod opens;
mod permissions;
mod random;
mod removals;
mod shared;
mod support;
