//! RPC over TCP with record marking (RFC 5531 section 11).

mod connection;
mod output;

pub use connection::{Limits, serve};
