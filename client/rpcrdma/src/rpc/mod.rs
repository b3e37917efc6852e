//! The parts of RPC that do not depend on RDMA: XIDs, credentials, retry policy, and plain RPC over
//! TCP and UDP for MOUNT, rpcbind, NLM, and the first calls of RPCSEC_GSS.

mod accept;
mod credential;
mod initiate;
pub mod plain;
mod retry;
pub mod stream;
mod xid;

pub use accept::accepted;
pub use credential::{Cred, Credential, Credentials, auth};
pub use initiate::{Initiated, initiate};
pub use retry::{Expiry, Retry, RetryPolicy};
pub use xid::Xids;
