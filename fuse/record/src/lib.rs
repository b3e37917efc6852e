//! What a mount has to remember beyond the life of its process: the objects that the kernel knows, open
//! files, hidden files, locks, and data that is not safe.
//!
//! A [`Table`] is not a copy that is written at times: it is where these things are. Each is a record of fixed
//! size without pointers. The table lies in a memfd, which another process keeps open; if the process that
//! serves the mount dies, the next one opens the table and goes on with the records. A table in anonymous memory
//! ([`Table::anonymous`]) is the same without that.
//!
//! **Each record can be read after any store.** A process may be killed between two stores. So a record is
//! written completely before its number is, which makes it valid; and the number is cleared before anything
//! else is changed. Counters are single atomic words.
//!
//! **Numbers.** The number of a record is its slot plus one, and above these 32 bits how many records of its kind
//! were made before it. So a number leads to its record without a search, and is not used again: not after the record
//! is freed, and not by the next process. The first record of a table has number 1.
//!
//! **Memory.** A table grows by a [chunk](chunk) at a time, which is allocated in the memfd before it is used, because a
//! process is killed if it writes to a mapping for which there is no memory. If the memfd cannot grow, the table
//! goes on in anonymous memory: its further records are lost with the process, as all are without a memfd. A chunk that
//! has no records any more gives its memory back, all but one of each kind.

mod chunk;
mod head;
mod kinds;
mod region;
mod table;

pub use kinds::{Credential, Extent, HIDDEN_NAME, Hidden, Lock, Node, Open, Plain};
pub use region::{Record, Region};
pub use table::{Refused, Table};

#[cfg(test)]
mod tests;
