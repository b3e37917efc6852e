//! Locks on ranges of bytes: what the server has granted to this mount, and who waits for what.
//!
//! The server knows the locks of all machines; [`LockTable`] knows those of this mount. It answers
//! three questions without a call: whether a request conflicts with a lock of this mount, whose
//! turn it is to ask the server when several wait, and whether two processes would wait for each
//! other. There is no I/O and no clock here; `fs::locking` does the calls.
//!
//! Waiters of one mount are served in the order in which they came, if they conflict, so that of
//! many that wait for one lock only the first asks the server again and again. One exception: an
//! owner that holds a lock already overtakes waiters that wait, by whatever way, for that owner;
//! else a queue could make a deadlock that the locks alone do not have.

mod range;
mod table;

pub use range::{ByteRange, LAST, Mode, RangeSet};
pub use table::{Conflict, Deadlock, FileId, LockTable, Owner, WaiterId};
