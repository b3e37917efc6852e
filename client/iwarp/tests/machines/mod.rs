//! The state machines without sockets: two of them joined in memory, and one with hostile input.

mod faults;
mod peer;
mod properties;
