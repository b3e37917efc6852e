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
use super::manager::{GRACE, Holding, Locks};
use super::probe::Found;
use super::range::{ByteRange, Mode};
use super::repeat::Pauses;
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

/// The numbers of locks that were reclaimed and lost.
#[derive(Debug, Default)]
struct Counts {
    reclaimed: u64,
    lost: u64,
}

impl Counts {
    fn add(&mut self, more: Counts) {
        self.reclaimed += more.reclaimed;
        self.lost += more.lost;
    }
}

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
        let (mut counts, refused) = self.reclaim_all().await;
        // A check takes a lock for a moment, which other checks would see. So there is one check at
        // a time for each file.
        let mut looks = JoinSet::new();
        let at_a_time = Arc::new(Semaphore::new(AT_A_TIME));
        for mut of_file in refused.into_values() {
            let (this, at_a_time) = (self.clone(), at_a_time.clone());
            looks.spawn(async move {
                let _turn = at_a_time.acquire().await;
                let counts = this.settle(&mut of_file).await;
                for owner in of_file {
                    drop(owner.gate);
                    this.leave(&owner.holding);
                }
                counts
            });
        }
        while let Some(result) = looks.join_next().await {
            counts.add(result.unwrap_or_default());
        }
        self.log.recovered();
        let Counts { reclaimed, lost } = counts;
        self.counters
            .locks_reclaimed
            .fetch_add(reclaimed, Ordering::Relaxed);
        if reclaimed > 0 || lost > 0 {
            tracing::info!(reclaimed, lost, "the server of locks restarted");
        }
        *self.recovery.claimed.lock() = Some(Instant::now());
    }

    /// Sends a reclaim for each lock. Returns the refused ones, by file. A grace period may be over before
    /// all have been claimed, so the owners of each user queue up among themselves, however many owners
    /// and ranges one of them has.
    async fn reclaim_all(self: &Arc<Self>) -> (Counts, BTreeMap<FileId, Vec<Refused>>) {
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
                    gate = holding.gate.clone().lock_owned() => gate,
                    () = this.ending.wait() => {
                        this.leave(&holding);
                        return (Counts::default(), None);
                    }
                };
                let _turn = of_user.acquire().await;
                let (counts, locks) = this.reclaim(&holding).await;
                if locks.is_empty() {
                    drop(gate);
                    this.leave(&holding);
                    return (counts, None);
                }
                let refused = Refused {
                    holding,
                    gate,
                    locks,
                };
                (counts, Some(refused))
            });
        }
        let mut counts = Counts::default();
        let mut refused: BTreeMap<FileId, Vec<Refused>> = BTreeMap::new();
        while let Some(result) = claims.join_next().await {
            let (of, still) = result.unwrap_or_default();
            counts.add(of);
            if let Some(still) = still {
                let of_file = refused.entry(still.holding.file.id).or_default();
                of_file.push(still);
            }
        }
        (counts, refused)
    }

    /// Sends a reclaim for each lock of one owner on a file. Returns the refused ones. The caller
    /// has the gate.
    async fn reclaim(&self, holding: &Holding) -> (Counts, Vec<(ByteRange, Mode)>) {
        let held: Vec<(ByteRange, Mode)> = {
            let state = self.state.lock();
            let set = state.table.held(holding.file.id, holding.owner);
            set.map(|set| set.iter().collect()).unwrap_or_default()
        };
        let mut counts = Counts::default();
        let mut refused = Vec::new();
        for (range, mode) in held {
            match self.reclaimed(holding, range, mode).await {
                Some(Status::Granted) => counts.reclaimed += 1,
                Some(Status::DeniedGracePeriod) => refused.push((range, mode)),
                Some(_) => {
                    counts.lost += 1;
                    self.lose(holding, range).await;
                }
                // The mount ends.
                None => break,
            }
        }
        (counts, refused)
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
    async fn settle(&self, refused: &mut [Refused]) -> Counts {
        let mut counts = Counts::default();
        let mut pauses = Pauses::default();
        while !self.look_for(refused, &mut counts).await {
            // The server has restarted since, and grants reclaims now, or after a pause.
            for owner in &mut *refused {
                let (of, locks) = self.reclaim(&owner.holding).await;
                counts.add(of);
                owner.locks = locks;
            }
            if self.pause(&mut pauses).await.is_none() {
                break;
            }
        }
        counts
    }

    /// Checks whether the locks of a file, whose reclaims were refused, are held. False if the
    /// server has restarted meanwhile, so that they have to be claimed again.
    async fn look_for(&self, refused: &[Refused], counts: &mut Counts) -> bool {
        let mut all = Vec::new();
        for of in refused {
            let locks = of.locks.iter();
            all.extend(locks.map(|&(range, mode)| (&of.holding, range, mode)));
        }
        let mut held = Vec::new();
        // Owners that share a range cannot be distinguished: either all of them hold it, or none.
        let mut shared: HashMap<ByteRange, Found> = HashMap::new();
        for (holding, range, mode) in all {
            let known = shared.get(&range).copied();
            let found = match known.filter(|_| mode == Mode::Read) {
                Some(known) => known,
                None => match self.is_held(holding, range, mode).await {
                    Some(found) => found,
                    // The mount ends.
                    None => return true,
                },
            };
            match found {
                Found::Held => held.push((holding, range, mode)),
                Found::Free => {
                    counts.lost += 1;
                    self.lose(holding, range).await;
                }
                Found::Restarted => return false,
            }
            if mode == Mode::Read {
                shared.insert(range, found);
            }
        }
        // Only after all tests, because these would see the locks that are taken here.
        for (holding, range, mode) in held {
            let call = lock_call(mode, false);
            match self.insist(holding, range, call).await {
                Some(Status::Granted) => {}
                Some(Status::DeniedGracePeriod) => return false,
                Some(_) => {
                    counts.lost += 1;
                    self.lose(holding, range).await;
                }
                None => return true,
            }
        }
        true
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
