//! The page cache: pure data structures, without I/O.
//!
//! A [`Pages`] holds of one file what the kernel's page cache does not have, in blocks whose buffers are registered
//! memory: data on its way to the kernel or read ahead, and data that is not on the server's stable storage.
//! [`Budget`] limits the memory of the blocks of all files. [`WriteBack`] decides which data of one file is written
//! and committed next. [`ReadAhead`] decides what to read ahead.

mod block;
mod budget;
mod dirty;
#[cfg(test)]
#[path = "tests/model.rs"]
mod model;
mod pages;
#[cfg(test)]
mod promises_tests;
mod ranges;
mod readahead;
mod records;
#[cfg(test)]
mod records_tests;
mod write_back;
#[cfg(test)]
mod write_back_tests;
mod write_data;

pub use block::PAGE;
pub use budget::{Budget, Evict};
pub use dirty::{Verdict, WriteJob};
pub use pages::{MAX_PIECE, Pages, Piece};
pub use ranges::RangeSet;
pub use readahead::ReadAhead;
pub use records::{Recorder, place_of};
pub use write_back::{Accepted, Action, Goal, WriteBack, WriteCall, WriteLimits};
pub use write_data::{KeptData, WriteData};
