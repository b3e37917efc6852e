//! Locks of NFS version 3: NLM 4 and NSM 1, as Linux's lockd and rpc.statd behave.

pub mod ranges;
mod record;
mod send;
mod service;
pub mod table;

pub use service::{LockService, Settings};
pub use table::{CallbackStyle, Policy};
