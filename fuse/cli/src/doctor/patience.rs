//! A time limit for calls, which a mount makes until they are answered.

use nfsrdma_nfs3::{NfsError, NfsResult};
use std::time::Duration;

/// How long a call may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// A call with a time limit.
pub(super) async fn within<T>(call: impl Future<Output = NfsResult<T>>) -> NfsResult<T> {
    tokio::time::timeout(PATIENCE, call)
        .await
        .unwrap_or(Err(NfsError::TimedOut))
}
