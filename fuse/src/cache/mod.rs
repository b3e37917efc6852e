//! The page cache: pure data structures, without I/O.
//!
//! A [`Pages`] holds what is known of one file's contents in blocks whose buffers are
//! registered memory. [`Budget`] bounds the blocks of all files and says which to drop.
//! [`ReadAhead`] decides what to fetch before it is asked for.

mod budget;
mod lent;
#[cfg(test)]
mod model;
mod pages;
mod ranges;
mod readahead;

pub use budget::{Budget, Evict};
pub use lent::Lent;
pub use pages::{MAX_PIECE, PAGE, Pages, Piece, Verdict, WriteJob};
pub use ranges::RangeSet;
pub use readahead::ReadAhead;
