//! What threads wait with. With the feature `shuttle`, which only `tests/models` turns on, these
//! are the same names over a scheduler that tries the orders threads may run in.

#[cfg(feature = "shuttle")]
pub(crate) use nfsrdma_shuttle::{Condvar, Mutex, MutexGuard, RwLock, atomic, thread};
#[cfg(not(feature = "shuttle"))]
pub(crate) use parking_lot::{Condvar, Mutex, MutexGuard, RwLock};
#[cfg(not(feature = "shuttle"))]
pub(crate) use std::sync::atomic;
#[cfg(not(feature = "shuttle"))]
pub(crate) use std::thread;
