//! The tests of this crate as one program, which is linked once. A new file has its line here.

#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

mod common;
mod engine;
mod hostile;
mod limits;
mod memory;
mod retransmitted;
mod tap;
