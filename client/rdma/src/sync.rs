//! The lock of this crate. With the feature `shuttle`, used by `tests/models` only, it is that of a
//! scheduler that explores the possible interleavings of threads.

#[cfg(feature = "shuttle")]
pub(crate) use nfsrdma_shuttle::Mutex;
#[cfg(not(feature = "shuttle"))]
pub(crate) use parking_lot::Mutex;
