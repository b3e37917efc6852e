//! For tests and fuzzers of this crate and of those above it (feature `proptest-support`):
//! values of every type, and every decoder in one list.

pub mod decoders;
pub mod locking;
pub mod strategies;
