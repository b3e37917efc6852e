//! NFS version 3 (RFC 1813): basic types, and one file for each group of procedures.

mod attr;
mod basic;
mod dir;
mod file;
mod fsinfo;
mod modify;
mod procedure;

pub use attr::*;
pub use basic::*;
pub use dir::*;
pub use file::*;
pub use fsinfo::*;
pub use modify::*;
pub use procedure::*;

/// RPC program number of NFS.
pub const PROGRAM: u32 = 100003;
/// The version of this module.
pub const VERSION: u32 = 3;
