//! Chooses whether locks go to the server, and starts the client of its lock manager.

use crate::failure::Failure;
use crate::ipc::keeper::{JOURNAL, Keeper, SVIDS};
use crate::options::{LocalLock, MountProtocol, Options, Recovery};
use nfsrdma_fs::locks::{KeepBlock, Kinds, Lasting, LockConfig, Locks};
use nfsrdma_nfs3::nlm::{
    Abandoned, CallbackOptions, CallbackSink, Callbacks, Journal, NlmClient, SvidBlock,
};
use nfsrdma_record::Table;
use nfsrdma_rpcrdma::rpc::RetryPolicy;
use nfsrdma_rpcrdma::tap::Tap;
use rustix::process::geteuid;
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tracing::{debug, info, warn};

/// The environment variable that names the directory for journals of locks.
const STATE_DIR: &str = "NFSRDMA_STATE_DIR";
/// How long a mount waits until the locks that killed mounts left are unlocked.
const ORPHANS: Duration = Duration::from_secs(3);
/// How long to try to tell the server that locks were lost.
const CRASH: Duration = Duration::from_secs(10);

/// The outcome of the choice.
#[derive(Debug)]
pub(crate) struct Chosen {
    /// The kinds of locks that stay on this machine.
    pub(crate) local: LocalLock,
    pub(crate) locks: Option<Arc<Locks>>,
}

impl Chosen {
    fn local() -> Self {
        Chosen {
            local: LocalLock::All,
            locks: None,
        }
    }
}

/// Looks for the server's lock manager. If the server has none, locks are kept on this machine,
/// unless the option `lock` demands the server. If the server cannot be asked, locks wait until it
/// answers: with locks on each machine, two clients would get the same lock. Must be called within
/// tokio. What the locks leave to a successor is recorded in `table`, and kept by `keeper`.
pub(crate) async fn choose(
    server: IpAddr,
    options: &Options,
    tap: &Arc<Tap>,
    table: &Table,
    keeper: &Keeper,
) -> Result<Chosen, Failure> {
    let local = options.wanted_local_lock();
    if local == LocalLock::All {
        return Ok(Chosen::local());
    }
    let client = new_client(server, options);
    let (has_none, why) = match client.probe().await {
        Ok(true) => {
            if let Some(place) = client.place() {
                let (over, port) = (place.protocol.name(), place.port);
                info!("locks go to {server}, NLM over {over} port {port}");
            }
            return begin(client, local, options, tap, (table, keeper)).await;
        }
        Ok(false) => (true, "it has no NLM version 4".to_owned()),
        Err(error) if client.place().is_none() => (
            error.is_connection_refused() && !needs_rpcbind(options),
            format!("its rpcbind cannot be asked: {error}"),
        ),
        Err(error) => (false, error.to_string()),
    };
    if options.lock == Some(true) {
        return Err(Failure::failed(format!(
            "{server} takes no locks ({why}): give nolock to have them on this machine only, or lockport="
        )));
    }
    // Either outcome may surprise the user, so the log has a line about it.
    if has_none {
        warn!("locks are kept on this machine only, {server} takes none: {why}");
        return Ok(Chosen::local());
    }
    warn!(
        "locks wait until {server} answers for its lock manager ({why}); nolock keeps them on this machine only"
    );
    begin(client, local, options, tap, (table, keeper)).await
}

/// As it was chosen for a process that has died, with its locks. Must be called within tokio.
pub(crate) fn resume(
    server: IpAddr,
    local: LocalLock,
    options: &Options,
    tap: &Arc<Tap>,
    table: &Table,
    keeper: &Keeper,
) -> Chosen {
    if local == LocalLock::All {
        return Chosen::local();
    }
    let client = new_client(server, options);
    client.set_tap(tap.clone());
    let journal = keeper.take(JOURNAL).and_then(|file| {
        Journal::resume(file, server, is_temporary())
            .inspect_err(|error| warn!("the journal of locks cannot be gone on with: {error}"))
            .ok()
    });
    let names = keeper.take_named(SVIDS).filter_map(|(first, name)| {
        let first = first.parse().ok()?;
        Some(SvidBlock::kept(first, name))
    });
    let lasting = Lasting {
        journal,
        blocks: names.collect(),
        ..lasting(table, keeper)
    };
    let (locks, _) = start(client, local, options, lasting);
    let locks = Some(locks);
    Chosen { local, locks }
}

fn new_client(server: IpAddr, options: &Options) -> Arc<NlmClient> {
    let (port, privileged) = (options.lock_port, options.client.resvport);
    Arc::new(NlmClient::new(server, port, privileged))
}

fn lasting(table: &Table, keeper: &Keeper) -> Lasting {
    let keeper = keeper.clone();
    Lasting {
        records: table.locks().clone(),
        keep: KeepBlock(Box::new(move |block| {
            if let Some(name) = block.name() {
                keeper.keep_listener(&format!("{SVIDS}{}", block.first()), name);
            }
        })),
        ..Lasting::default()
    }
}

/// Whether this mount needed the server's rpcbind. If it did, and rpcbind refuses connections now,
/// it is only down for a while. If it did not, the server has no rpcbind, and so no lock manager
/// that clients could find, as many servers that only serve NFS over RDMA.
fn needs_rpcbind(options: &Options) -> bool {
    options.client.mountport.is_none()
        && options.client.mounthost.is_none()
        && options.client.mountproto != MountProtocol::Rdma
}

/// The directories for journals of locks, the best one first: root's first one outlives a restart
/// of the machine, the others only outlive a process.
fn journals() -> Vec<PathBuf> {
    if let Some(dir) = std::env::var_os(STATE_DIR) {
        return vec![dir.into()];
    }
    if geteuid().is_root() {
        return vec!["/var/lib/nfsrdma".into(), "/run/nfsrdma".into()];
    }
    vec![format!("/run/user/{}/nfsrdma", geteuid().as_raw()).into()]
}

/// Whether the directory of journals is removed with the last one in it.
fn is_temporary() -> bool {
    std::env::var_os(STATE_DIR).is_none()
}

/// Begins a journal for this mount, and unlocks what killed mounts have left.
async fn begin(
    client: Arc<NlmClient>,
    local: LocalLock,
    options: &Options,
    tap: &Arc<Tap>,
    (table, keeper): (&Table, &Keeper),
) -> Result<Chosen, Failure> {
    client.set_tap(tap.clone());
    let server = client.server();
    let dirs = journals();
    let find = |dir: &PathBuf| Abandoned::find(dir, server);
    let abandoned: Vec<_> = dirs.iter().flat_map(find).collect();
    let journal = dirs.iter().find_map(|dir| {
        let made = Journal::create(dir, server, is_temporary());
        made.inspect_err(|error| debug!("no journal of locks in {}: {error}", dir.display()))
            .ok()
    });
    match &journal {
        // While it is kept no other mount takes these locks for those of a killed one.
        Some(journal) => {
            let kept = journal
                .fd()
                .and_then(|file| keeper.keep(JOURNAL, file.as_fd()));
            kept.map_err(Failure::no_threads)?;
        }
        None => info!(
            "no place for a journal of locks: what this process leaves when it is killed stays locked"
        ),
    }
    let lasting = Lasting {
        journal,
        ..lasting(table, keeper)
    };
    let (locks, callbacks) = start(client, local, options, lasting);
    if abandoned.iter().any(Abandoned::may_have_locks) {
        let told = tokio::time::timeout(CRASH, callbacks.notify_crash()).await;
        debug!(?told, "telling the server of locks that were lost");
    }
    if !abandoned.is_empty() {
        let (this, done) = (locks.clone(), Arc::new(Notify::new()));
        let told = done.clone();
        locks.spawn(async move {
            this.unlock_orphans(abandoned).await;
            told.notify_one();
        });
        // A program that locks right after the mount should not find the lock of a dead process.
        let _ = tokio::time::timeout(ORPHANS, done.notified()).await;
    }
    let locks = Some(locks);
    Ok(Chosen { local, locks })
}

fn start(
    client: Arc<NlmClient>,
    local: LocalLock,
    options: &Options,
    lasting: Lasting,
) -> (Arc<Locks>, Arc<Callbacks>) {
    let journal = lasting.journal.as_ref();
    let callbacks = client.listen(CallbackOptions {
        port: options.callback_port,
        dir: journal.and_then(Journal::dir).map(Path::to_path_buf),
    });
    let locks = Locks::start(client, config(local, options), lasting, Handle::current());
    let sink: Weak<dyn CallbackSink> = Arc::<Locks>::downgrade(&locks);
    callbacks.set_sink(sink);
    (locks, callbacks)
}

fn config(local: LocalLock, options: &Options) -> LockConfig {
    let transport = &options.client.transport;
    let policy = RetryPolicy {
        timeo: transport.timeo,
        retrans: transport.retrans,
        recovery: transport.recovery,
    };
    let limit = policy.patience();
    let config = LockConfig {
        kinds: Kinds {
            posix: matches!(local, LocalLock::None | LocalLock::Flock),
            flock: matches!(local, LocalLock::None | LocalLock::Posix),
        },
        patience: match transport.recovery {
            Recovery::Hard => None,
            Recovery::Soft => Some((limit, false)),
            Recovery::SoftErr => Some((limit, true)),
        },
    };
    debug!(?config, "locks");
    config
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_soft_mount_asks_for_locks_as_long_as_for_anything_else() {
        let options = Options::parse("soft,timeo=100,retrans=2").unwrap();
        let patience = config(LocalLock::None, &options).patience;
        assert_eq!(patience, Some((Duration::from_secs(30), false)));
    }
}
