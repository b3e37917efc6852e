//! Recovery after a restart of the server, which has lost all locks and grants reclaims for a time.
//!
//! There are several signs of a restart: the connection ends (over UDP there is none, and
//! [`NlmClient`](nfsrdma_nfs3::nlm::NlmClient) has a substitute), a LOCK is answered
//! DENIED_GRACE_PERIOD, the verifier of a WRITE or COMMIT has changed, or the server's NSM says so.
//! None of them is proof. So each lock is claimed with `reclaim`, which a server grants in its
//! grace period. A server that refuses either did not restart, and we still hold the lock; or the
//! period is over, and the lock is lost. To distinguish these, the range is tested as an owner that
//! holds nothing (`probe.rs`). If nobody holds the range, the lock is lost. Otherwise a LOCK of our
//! own is granted only if we hold it, or share it with others. Owners that shared a range before
//! the restart must not mistake each other's new locks for the old ones: so all of them test before
//! any of them locks.
//!
//! Somebody else may have had a lost lock meanwhile. Its holder gets EIO until it has released its
//! locks on the file, because it must not go on as if nothing had happened.

use super::acquire::lock_call;
use super::config::LockConfig;
use super::lock_table::FileId;
use super::manager::{Counters, GRACE, Holding, Locks};
use super::probe::Found;
use super::range::{ByteRange, Mode};
use super::repeat::Pauses;
use futures_util::stream::{self, StreamExt};
use nfsrdma_nfs3::nlm::{Journal, LockCall, LockServer, Status};
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::{OwnedMutexGuard, Semaphore};
use tokio::task::JoinSet;
use tokio::time::Instant;

/// How often a NULL is sent to the server while locks are held: this keeps the connection open,
/// whose end is a sign of a restart. (Servers end connections that are idle for some minutes.)
const KEEP_ALIVE: Duration = Duration::from_secs(60);

/// The most reclaims of a user, and checks of files, at the same time.
const AT_A_TIME: usize = 32;

/// An owner's locks on a file whose reclaims were refused. The gate keeps others from changing
/// them.
#[derive(Debug)]
struct Refused {
    holding: Arc<Holding>,
    gate: OwnedMutexGuard<()>,
    locks: Vec<(ByteRange, Mode)>,
}

impl Locks {
    /// The locks of a mount, with the task that watches for restarts of the server.
    pub fn start(
        server: Arc<dyn LockServer>,
        config: LockConfig,
        journal: Option<Journal>,
        runtime: Handle,
    ) -> Arc<Self> {
        let locks = Locks::new(server, config, journal, runtime);
        watch(&locks);
        locks
    }
}

/// Starts the task that watches for restarts of the server.
fn watch(locks: &Arc<Locks>) {
    let mut losses = locks.server.suspicions();
    let weak: Weak<Locks> = Arc::downgrade(locks);
    locks.runtime.spawn(async move {
        let (mut wanted, mut next, mut last) = (false, Instant::now(), None);
        let mut null = Instant::now() + KEEP_ALIVE;
        loop {
            let Some(locks) = weak.upgrade() else { return };
            tokio::select! {
                () = tokio::time::sleep_until(next), if wanted => {
                    wanted = false;
                    let begun = Instant::now();
                    locks.recover().await;
                    let ended = Instant::now();
                    let again = last.is_some_and(|last| begun < last + GRACE);
                    next = if again { ended + GRACE } else { ended };
                    last = Some(ended);
                }
                () = locks.recovery.wanted.notified(), if !wanted => wanted = true,
                Ok(()) = losses.changed() => locks.suspect(),
                () = tokio::time::sleep_until(null) => {
                    null = Instant::now() + locks.keep_alive().await;
                }
                () = locks.ending.wait() => return,
            }
        }
    });
}

impl Locks {
    /// Keeps the connection open while locks are held, and does without call-backs while none is wanted.
    /// Returns when to do so again.
    async fn keep_alive(&self) -> Duration {
        if self.is_unused() {
            self.server.idle(&|| self.is_unused()).await;
        } else if !self.state.lock().table.is_empty() && self.server.null().await.is_err() {
            return GRACE;
        }
        KEEP_ALIVE
    }

    /// Claims all locks, and then checks those whose reclaims were refused.
    pub(super) async fn recover(self: &Arc<Self>) {
        if self.state.lock().table.is_empty() {
            return;
        }
        let _under_way = self.recovery.under_way.write().await;
        let Counters {
            locks_reclaimed,
            locks_lost,
            ..
        } = &self.counters;
        let counts = || [locks_reclaimed, locks_lost].map(|of| of.load(Ordering::Relaxed));
        let before = counts();
        let refused = self.reclaim_all().await;
        // A check takes a lock for a moment, which other checks would see. So there is one check at
        // a time for each file.
        let checks = stream::iter(refused.into_values());
        let checked = checks.for_each_concurrent(AT_A_TIME, async |mut of_file| {
            self.settle(&mut of_file).await;
            for owner in of_file {
                drop(owner.gate);
                self.leave(&owner.holding);
            }
        });
        checked.await;
        self.log.recovered();
        let [reclaimed, lost] = counts();
        let (reclaimed, lost) = (reclaimed - before[0], lost - before[1]);
        if reclaimed > 0 || lost > 0 {
            tracing::info!(reclaimed, lost, "the server of locks restarted");
        }
        *self.recovery.claimed.lock() = Some(Instant::now());
    }

    /// Sends a reclaim for each lock. Returns the refused ones, by file. A grace period may be over before
    /// all have been claimed, so the owners of each user queue up among themselves, however many owners
    /// and ranges one of them has.
    async fn reclaim_all(self: &Arc<Self>) -> BTreeMap<FileId, Vec<Refused>> {
        let all = self.state.lock().table.all();
        let mut claims = JoinSet::new();
        let mut of_users: HashMap<u32, Arc<Semaphore>> = HashMap::new();
        for (file, owner) in all {
            let Some(holding) = self.enter_existing(file, owner) else {
                continue;
            };
            let of_user = of_users.entry(holding.cred().uid);
            let of_user = of_user.or_insert_with(|| Arc::new(Semaphore::new(AT_A_TIME)));
            let (this, of_user) = (self.clone(), of_user.clone());
            claims.spawn(async move {
                // The gate comes before the turn: whoever has it waits for the same server,
                // and must not delay the others.
                let gate = tokio::select! {
                    gate = holding.gate.clone().lock_owned() => Some(gate),
                    () = this.ending.wait() => None,
                };
                if let Some(gate) = gate {
                    let _turn = of_user.acquire().await;
                    let locks = this.reclaim(&holding).await;
                    if !locks.is_empty() {
                        return Some(Refused {
                            holding,
                            gate,
                            locks,
                        });
                    }
                }
                this.leave(&holding);
                None
            });
        }
        let mut refused: BTreeMap<FileId, Vec<Refused>> = BTreeMap::new();
        while let Some(claimed) = claims.join_next().await {
            if let Some(still) = claimed.ok().flatten() {
                let of_file = refused.entry(still.holding.file.id).or_default();
                of_file.push(still);
            }
        }
        refused
    }

    /// Sends a reclaim for each lock of one owner on a file. Returns the refused ones. The caller
    /// has the gate.
    async fn reclaim(&self, holding: &Holding) -> Vec<(ByteRange, Mode)> {
        let held: Vec<(ByteRange, Mode)> = {
            let state = self.state.lock();
            let set = state.table.held(holding.file.id, holding.owner);
            set.map(|set| set.iter().collect()).unwrap_or_default()
        };
        let mut refused = Vec::new();
        for (range, mode) in held {
            match self.reclaimed(holding, range, mode).await {
                Some(Status::Granted) => {
                    let counter = &self.counters.locks_reclaimed;
                    counter.fetch_add(1, Ordering::Relaxed);
                }
                Some(Status::DeniedGracePeriod) => refused.push((range, mode)),
                Some(_) => self.lose(holding, range).await,
                // The mount ends.
                None => break,
            }
        }
        refused
    }

    /// Sends one reclaim until it is answered, also if it is refused: a server that has just started may do
    /// so. `None` if the mount ends before.
    async fn reclaimed(&self, holding: &Holding, range: ByteRange, mode: Mode) -> Option<Status> {
        let call = LockCall::Lock {
            exclusive: mode == Mode::Write,
            block: false,
            reclaim: true,
        };
        let (cred, target) = (holding.cred(), holding.target(range));
        let result = self.repeat(&cred, &target, call, Result::is_err).await?;
        Some(result.ok()?.status)
    }

    /// Determines which locks of a file, whose reclaims were refused, are still held.
    async fn settle(&self, refused: &mut [Refused]) {
        let mut pauses = Pauses::default();
        // `None`: the mount ends.
        while self.look_for(refused).await == Some(Found::Restarted) {
            for owner in &mut *refused {
                owner.locks = self.reclaim(&owner.holding).await;
            }
            if self.pause(&mut pauses).await.is_none() {
                return;
            }
        }
    }

    /// Checks whether the locks of a file, whose reclaims were refused, are held. If the server has
    /// restarted meanwhile, they have to be claimed again. `None` if the mount ends before.
    async fn look_for(&self, refused: &[Refused]) -> Option<Found> {
        let mut held = Vec::new();
        // Owners that share a range cannot be distinguished: either all of them hold it, or none.
        let mut shared: HashMap<ByteRange, Found> = HashMap::new();
        for of in refused {
            for &(range, mode) in &of.locks {
                let known = shared.get(&range).filter(|_| mode == Mode::Read);
                let found = match known {
                    Some(known) => *known,
                    None => self.is_held(&of.holding, range, mode).await?,
                };
                match found {
                    Found::Held => held.push((&of.holding, range, mode)),
                    Found::Free => self.lose(&of.holding, range).await,
                    Found::Restarted => return Some(found),
                }
                if mode == Mode::Read {
                    shared.insert(range, found);
                }
            }
        }
        // Only after all tests, because these would see the locks that are taken here.
        for (holding, range, mode) in held {
            match self.insist(holding, range, lock_call(mode, false)).await? {
                Status::Granted => {}
                Status::DeniedGracePeriod => return Some(Found::Restarted),
                _ => self.lose(holding, range).await,
            }
        }
        Some(Found::Held)
    }

    /// A lock is lost: removes it from the table, and makes its owner's requests fail.
    async fn lose(&self, holding: &Holding, range: ByteRange) {
        self.counters.locks_lost.fetch_add(1, Ordering::Relaxed);
        let pid = {
            let mut state = holding.state.lock();
            state.lost = true;
            state.pid
        };
        self.state.lock().apply(holding, range, None);
        self.log.lost(holding.file.fileid, pid, range);
        // If the server has the lock nevertheless, nobody else would ever unlock it.
        self.insist(holding, range, LockCall::Unlock).await;
    }
}

#[cfg(test)]
#[path = "recovery_tests.rs"]
mod tests;
