//! Locks on ranges of bytes: what the server has granted to this mount, and who waits for what.
//!
//! The server knows the locks of all machines; [`LockTable`] knows those of this mount. It answers
//! three questions without a call: whether a request conflicts with a lock of this mount, whose
//! turn it is to ask the server when several wait, and whether two processes would wait for each
//! other. There is no I/O and no clock in it.
//!
//! Waiters of one mount are served in the order in which they came, if they conflict, so that of
//! many that wait for one lock only the first asks the server again and again. One exception: an
//! owner that holds a lock already overtakes waiters that wait, by whatever way, for that owner;
//! else a queue could make a deadlock that the locks alone do not have.
//!
//! [`Locks`] makes the calls. What makes them safe:
//!
//! * **The table follows the server**, never the other way round: a range becomes held when LOCK
//!   was granted, and free when UNLOCK was answered.
//! * **One call at a time for one owner of one file** (its *gate*), so that the server runs them in
//!   the order in which their answers are applied.
//! * **A blocking request polls**: LOCK with `block` is answered with BLOCKED, and repeated after a
//!   pause that grows. Servers differ in whether they then call back, or take the lock for the
//!   waiter at once; a repeated LOCK is right with all of them.
//! * **Who gives up, restores.** After a signal, or a call without an answer, the server may hold
//!   a lock for us that the table does not have. So CANCEL follows, and for each piece of the
//!   range UNLOCK, or LOCK as the table has it, until they are answered, while the gate stays
//!   closed: no later request of this owner can come in between. The process has had its answer.
//!   An exclusive lock that was to become shared, and that others share already, stays shared.
//!   Once a lock is granted only the death of who asked for it takes it back ([`Locks::undo`]).
//! * **An unlock is not given up**: it is done though who asked for it is killed.
//! * **Nobody waits for a server that does not answer** but by their own will: every wait ends with
//!   a signal, and all of them end with the mount ([`Locks::finish`]).

mod acquire;
mod ending;
mod error;
#[cfg(test)]
mod fake_server;
mod interrupt;
mod lock_table;
mod manager;
mod probe;
mod range;
mod recovery;
mod release;
mod svids;

pub use acquire::Granted;
pub use error::LockError;
pub use interrupt::Interrupt;
pub use lock_table::{Conflict, Deadlock, FileId, LockTable, Owner, WaiterId};
pub use manager::{Kinds, LockConfig, LockFile, Locks, Request, Tested};
pub use range::{ByteRange, LAST, Mode, RangeSet};
