//! The state machines without sockets: two joined in memory, and one against hostile bytes.

#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

mod faults;
mod peer;
mod properties;
