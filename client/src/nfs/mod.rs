//! NFSv3 as the file system uses it.

pub mod api;
pub mod client;

pub use api::*;
mod resent;
