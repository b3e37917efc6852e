//! The synchronisation primitives of this crate. With the feature `shuttle`, used by `tests/models`
//! only, they are those of a scheduler that explores the possible interleavings of threads.

#[cfg(feature = "shuttle")]
pub(crate) use nfsrdma_shuttle::{Condvar, Mutex, atomic, thread, thread_cell};
#[cfg(not(feature = "shuttle"))]
pub(crate) use parking_lot::{Condvar, Mutex};
#[cfg(not(feature = "shuttle"))]
pub(crate) use std::sync::atomic;
#[cfg(not(feature = "shuttle"))]
pub(crate) use std::{thread, thread_local as thread_cell};
