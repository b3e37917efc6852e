//! What is RPC and not RDMA: XIDs, credentials, when to retry, and plain RPC over TCP and UDP
//! for MOUNT and rpcbind.

mod accept;
mod credential;
pub mod plain;
mod retry;
mod xid;

pub use accept::accepted;
pub use credential::{Cred, Credential, Credentials, auth};
pub use retry::{Expiry, Retry, RetryPolicy};
pub use xid::Xids;
