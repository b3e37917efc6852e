//! What the pool shares blocks with. `tests/models` builds [`buf`](crate::buf) once more,
//! with a module of the same names in place of this one, over a scheduler that tries the
//! orders threads may run in.

pub(crate) use parking_lot::Mutex;
