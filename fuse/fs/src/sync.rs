//! Mutexes and atomics. With the feature `shuttle`, which only `tests/models` turns on,
//! the same names stand for those of a scheduler that tries the orders in which threads may run.

#[cfg(feature = "shuttle")]
pub(crate) use nfsrdma_shuttle::{Mutex, RwLock, atomic};
#[cfg(not(feature = "shuttle"))]
pub(crate) use parking_lot::{Mutex, RwLock};
#[cfg(not(feature = "shuttle"))]
pub(crate) use std::sync::atomic;
