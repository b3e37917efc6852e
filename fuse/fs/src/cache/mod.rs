//! The page cache: pure data structures, without I/O.
//!
//! A [`Pages`] holds what is known of one file's contents in blocks whose buffers are
//! registered memory. [`Budget`] bounds the blocks of all files and says which to drop.
//! [`WriteBack`] decides what of one file is to be written and committed next, and who hears of
//! errors. [`ReadAhead`] decides what to fetch before it is asked for.

mod block;
mod budget;
mod dirty;
mod gaps;
mod lent;
#[cfg(test)]
mod model;
mod pages;
mod ranges;
mod readahead;
mod write_back;
#[cfg(test)]
mod write_back_tests;
mod write_data;

pub use budget::{Budget, Evict};
pub use dirty::{Gaps, Verdict, WriteJob};
pub use lent::Lent;
pub use pages::{MAX_PIECE, PAGE, Pages, Piece};
pub use ranges::RangeSet;
pub use readahead::ReadAhead;
pub use write_back::{Accepted, Action, Goal, WriteBack, WriteCall, WriteLimits};
pub use write_data::{KeptData, WriteData};
