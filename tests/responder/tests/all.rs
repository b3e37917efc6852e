//! The tests of this crate as one program, which is linked once. A new file has its line here.

#![allow(clippy::unwrap_used, reason = "a failure is a failed test")]
#![allow(unreachable_pub, reason = "modules of tests alone")]

mod common;
mod rdma;
mod safety;
