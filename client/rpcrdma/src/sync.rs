//! What threads wait with. `tests/models` builds [`exec`](crate::exec) and
//! [`transport`](crate::transport) once more, with a module of the same names in place of
//! this one, over a scheduler that tries the orders threads may run in.

pub(crate) use parking_lot::{Condvar, Mutex};
pub(crate) use std::sync::atomic;
pub(crate) use std::{thread, thread_local as thread_cell};
