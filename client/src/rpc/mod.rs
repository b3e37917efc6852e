//! What is RPC and not RDMA: XIDs, credentials, when to retry, and plain RPC over TCP and UDP
//! for MOUNT and rpcbind.

mod credential;
pub mod plain;
mod retry;
pub mod stream;
mod xid;

pub use credential::Credentials;
pub(crate) use credential::auth;
pub use retry::{Expiry, Retry, RetryPolicy};
pub use xid::Xids;
