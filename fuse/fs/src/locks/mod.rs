//! Byte-range locks: those that the server has granted to this mount, and requests that wait.
//!
//! The server knows the locks of all machines; [`LockTable`] knows those of this mount. It answers
//! three questions without a call: whether a request conflicts with a lock of this mount, which of
//! several waiting requests may ask the server, and whether two processes would wait for each
//! other. It has no I/O and no clock.
//!
//! Of the waiters of one mount for an exclusive lock of the same range only the first polls the
//! server. No other waiter waits for another one.
//!
//! [`Locks`] makes the calls, by these rules:
//!
//! * **The table follows the server**, never the other way round: a range becomes held when LOCK
//!   was granted, and free when UNLOCK was answered.
//! * **One call at a time for one owner of one file** (its *gate*), so that the server runs them in
//!   the order in which their answers are applied.
//! * **A blocking request polls**: LOCK with `block` is answered BLOCKED, and repeated after a
//!   growing pause. Some servers then call back, and some take the lock for the waiter at once; a
//!   repeated LOCK is right with all of them. From the first answer on it is repeated until the lock is
//!   granted or given up, whatever else waits.
//! * **A request that is given up restores the server's state.** After a signal, or a call without
//!   an answer, the server may hold a lock for us that the table does not have. So CANCEL follows,
//!   and for each piece of the range UNLOCK, or the LOCK that the table has, until they are
//!   answered. The process is answered before. The gate stays closed meanwhile, so that no other
//!   request of this owner comes in between. An exclusive lock that was to become shared, and that
//!   others share already, stays shared. A lock that was granted stays.
//! * **A lock outlives the process** that serves the mount, if another one goes on with it. Each range that is held has a
//!   record before its holder is told ([`kept`]), and each range of which nobody knows how the server has locked
//!   it has one before the server is asked. The successor has the same owners by the same numbers. It
//!   restores the server's state of the latter ranges, as after a request that is given up; those who
//!   still wait ask again ([`inherit`]).
//! * **An unlock is never given up**, even if its caller is killed.
//! * **A lock that is being released does not count as held** for a request that does not wait: it is
//!   awaited for a while before EAGAIN (`releasing`).
//! * **No process has to wait for a server that does not answer**: a signal ends every wait (that
//!   for an unlock only if it is fatal), and all of them end with the mount ([`Locks::finish`]).

mod acquire;
mod config;
mod ending;
mod error;
#[cfg(test)]
#[path = "tests/fake_server.rs"]
pub(crate) mod fake_server;
mod getlk;
mod holding;
mod inherit;
mod interrupt;
mod kept;
mod lock_log;
mod lock_table;
mod manager;
mod range;
mod recovery;
mod release;
mod releasing;
mod repeat;
mod svids;

pub use config::{Kinds, Lasting, LockConfig};
pub use error::LockError;
pub use holding::{LockFile, Request};
pub use interrupt::Interrupt;
pub use lock_table::{Conflict, Deadlock, FileId, LockTable, Owner, WaiterId};
pub use manager::{Locks, Tested};
pub use range::{ByteRange, LAST, Mode, RangeSet};
pub(crate) use releasing::RELEASED_WITHIN;
pub use releasing::Releasing;
pub use svids::KeepBlock;
