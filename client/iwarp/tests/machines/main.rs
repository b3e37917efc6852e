//! The state machines without sockets: two of them joined in memory, and one with hostile input.

#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

mod faults;
mod peer;
mod properties;
