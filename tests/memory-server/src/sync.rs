//! Locks, waits and threads. With the feature `shuttle`, which only `tests/models` turns on, the
//! same names belong to a scheduler that tries the possible orders of threads.

#[cfg(feature = "shuttle")]
pub(crate) use nfsrdma_shuttle::{Condvar, Mutex, thread};
#[cfg(not(feature = "shuttle"))]
pub(crate) use parking_lot::{Condvar, Mutex};
#[cfg(not(feature = "shuttle"))]
pub(crate) use std::thread;
