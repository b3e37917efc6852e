//! What threads wait with. `tests/models` builds the file system, its caches, the server in
//! memory and the table of waiting requests once more, with a module of the same names in
//! place of this one, over a scheduler that tries the orders threads may run in.

pub(crate) use parking_lot::{Condvar, Mutex, MutexGuard, RwLock};
pub(crate) use std::sync::atomic;
pub(crate) use std::thread;
