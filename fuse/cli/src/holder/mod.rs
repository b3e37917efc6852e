//! The holder: a small process that keeps the descriptors of a mount, so that the mount outlives the
//! daemon that serves it (`restart=`).
//!
//! The process that the user started, or its child in the background, becomes the holder before it
//! has a thread, and the daemon is a fork of it ([`run`]). The daemon gives it every descriptor
//! without which the mount would end ([`client`], by the messages of [`protocol`]). If the daemon
//! dies, the holder starts the program anew, and that successor takes the descriptors and goes on.
//!
//! An upgrade is the same, but the successor is started first, and waits ([`upgrade`]).
//!
//! A daemon that was killed may hang in its exit until requests are answered that nobody but its
//! successor answers. Then neither its parent nor what is at the other end of its sockets hears of
//! the death. So one thread of the daemon has a table of descriptors of its own, in which there is
//! only the end of a pipe: that is closed when this thread is gone, and no request holds it up.

pub mod client;
mod failures;
mod program;
pub mod protocol;
pub mod run;
mod state;
mod text;
mod upgrade;

pub use program::Program;
