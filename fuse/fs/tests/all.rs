//! The tests of this crate as one program, which is linked once. A new file has its line here.

#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

mod lies;
mod semantics;
