//! The requests of the control socket before and after this machine sleeps (suspend, hibernation), which a hook of
//! systemd makes (`packaging/sleep`).
//!
//! Linux writes its own file systems back before it sleeps, but tells those of FUSE nothing. Afterwards the server, or what
//! is between, may have forgotten the connections and say nothing: a call would find that out after `timeo`.

use crate::ipc::control::{self, ControlReply};
use nfsrdma_fs::fs::Fs;
use nfsrdma_nfs3::Nfs3Client;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::AsyncWriteExt;

/// The names of the requests.
pub(crate) const BEFORE: &str = "before-sleep";
pub(crate) const AFTER: &str = "after-sleep";
/// How long the machine may wait for the server before it sleeps.
pub(crate) const LIMIT: Duration = Duration::from_secs(10);

/// The answer to the first; nobody waits for one to the second.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Answer {
    /// Bytes that the server does not have.
    pub(crate) left: u64,
    /// Calls that have waited long for it.
    pub(crate) waiting: u64,
}

/// Answers them before `next`.
pub(crate) fn answer(
    fs: Arc<Fs<Nfs3Client>>,
    client: Nfs3Client,
    next: control::Answer,
) -> control::Answer {
    Arc::new(move |request| match request {
        BEFORE => {
            let (fs, client) = (fs.clone(), client.clone());
            Some(ControlReply::Feed(Box::new(move |mut stream| {
                Box::pin(async move {
                    let _ = tokio::time::timeout(LIMIT, fs.write_back_all()).await;
                    let (left, waiting) = (fs.unsafe_bytes(), client.stats().waits.calls);
                    let text = serde_json::to_string(&Answer { left, waiting }).unwrap_or_default();
                    // The client may be gone.
                    let _ = stream.write_all(text.as_bytes()).await;
                })
            })))
        }
        AFTER => {
            client.connect_anew("this machine has slept");
            Some(ControlReply::Document("{}".into()))
        }
        _ => next(request),
    })
}
