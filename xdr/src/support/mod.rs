//! Support for tests and fuzzers of this crate and of others (feature `proptest-support`):
//! strategies for values of every type, and a list of all decoders.

pub mod decoders;
pub mod locking;
pub mod security;
pub mod strategies;
