//! What threads wait with. `tests/models` builds this server once more, with a module of the
//! same name in place of this one, over a scheduler that tries the orders threads may run in.

pub(crate) use parking_lot::{Condvar, Mutex};
pub(crate) use std::thread;
