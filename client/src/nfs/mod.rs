//! NFSv3 as the file system uses it.

mod acl;
pub mod api;
pub(crate) mod checks;
pub mod client;
pub(crate) mod limits;
mod resent;

pub use api::*;
