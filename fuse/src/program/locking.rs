//! Whether locks go to the server, and how.

use super::failure::{Exit, Failure};
use super::options::{LocalLock, Options, Recovery};
use crate::locks::{Kinds, LockConfig, Locks};
use nfsrdma_client::nlm::NlmClient;
use nfsrdma_client::rpc::plain::PlainError;
use std::net::IpAddr;
use std::sync::Arc;
use tokio::runtime::Handle;
use tracing::{debug, info, warn};

/// Locks of a mount, as they were found to be possible.
#[derive(Debug)]
pub(super) struct Chosen {
    /// Those that stay on this machine.
    pub(super) local: LocalLock,
    pub(super) locks: Option<Arc<Locks>>,
}

impl Chosen {
    fn local() -> Self {
        Chosen {
            local: LocalLock::All,
            locks: None,
        }
    }
}

/// Looks for the server's lock manager, and falls back on locks of this machine where there is
/// none, unless `lock` asks for it by name. Runs in tokio.
pub(super) async fn choose(server: IpAddr, options: &Options) -> Result<Chosen, Failure> {
    let local = options.wanted_local_lock();
    if local == LocalLock::All {
        return Ok(Chosen::local());
    }
    let found = NlmClient::locate(server, options.lock_port, options.reserved_port).await;
    let why = match found {
        Ok(Some(client)) => {
            let place = client.place();
            let port = place.port;
            info!(
                "locks go to {server}, NLM over {} port {port}",
                place.protocol.name()
            );
            return Ok(Chosen {
                local,
                locks: Some(Locks::new(
                    Arc::new(client),
                    config(local, options),
                    Handle::current(),
                )),
            });
        }
        Ok(None) => "it has no NLM version 4".to_owned(),
        Err(PlainError::Unreachable(why)) if options.lock_port.is_none() => {
            format!("its rpcbind cannot be asked: {why}")
        }
        Err(error) => error.to_string(),
    };
    if options.lock == Some(true) {
        return Err(Failure::new(
            Exit::Failed,
            format!(
                "{server} takes no locks ({why}): leave out 'lock' to have them on this machine only, or give lockport="
            ),
        ));
    }
    // Locks of this machine only may be a surprise: it is said once.
    warn!("locks are kept on this machine only, {server} takes none: {why}");
    Ok(Chosen::local())
}

fn config(local: LocalLock, options: &Options) -> LockConfig {
    let limit = options.timeo * (options.retrans + 1);
    let config = LockConfig {
        kinds: Kinds {
            posix: matches!(local, LocalLock::None | LocalLock::Flock),
            flock: matches!(local, LocalLock::None | LocalLock::Posix),
        },
        patience: match options.recovery {
            Recovery::Hard => None,
            Recovery::Soft => Some((limit, false)),
            Recovery::Softerr => Some((limit, true)),
        },
    };
    debug!(?config, "locks");
    config
}
