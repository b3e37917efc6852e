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
use super::config::{LockConfig, Retry};
use super::lock_table::FileId;
use super::manager::{Holding, Locks, grace_pause};
use super::probe::Found;
use super::range::{ByteRange, Mode};
use nfsrdma_nfs3::nlm::{Journal, LockCall, LockServer, Status};
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use tokio::runtime::Handle;
use tokio::sync::{OwnedMutexGuard, Semaphore};
use tokio::task::JoinSet;

/// How often a NULL is sent to the server while locks are held: this keeps the connection open,
/// whose end is a sign of a restart.
const KEEP_ALIVE: Duration = Duration::from_secs(60);
/// How often while the server does not answer, so that its grace period is not missed.
const ASK_AGAIN: Duration = Duration::from_secs(5);

/// The least time between two recoveries that notices of a restart start, because anybody can send
/// such a notice in the name of the server.
const TOLD: Duration = Duration::from_secs(10);

/// The greatest pause between two recoveries that ends of connections start. The pauses grow while
/// the connection ends again soon after a recovery: a server that closes it after each answer would
/// otherwise be called without end. A grace period is longer than this.
const LOST: Duration = Duration::from_secs(5);
const FIRST_LOST: Duration = Duration::from_millis(50);

/// The most reclaims at the same time, of all users and of each.
const AT_A_TIME: usize = 32;

/// Whose turn it is to claim a lock. A grace period may be over before all have been claimed, so
/// users take turns, however many owners and ranges one of them has: the owners of each user queue
/// up among themselves, and the reclaims of the first [`AT_A_TIME`] of each with those of others.
#[derive(Debug)]
struct Turns {
    of_users: Mutex<HashMap<u32, Arc<Semaphore>>>,
    calls: Semaphore,
}

impl Default for Turns {
    fn default() -> Self {
        Turns {
            of_users: Mutex::default(),
            calls: Semaphore::new(AT_A_TIME),
        }
    }
}

impl Turns {
    /// The queue of a user's owners.
    fn of_user(&self, uid: u32) -> Arc<Semaphore> {
        let mut of_users = self.of_users.lock();
        let new = || Arc::new(Semaphore::new(AT_A_TIME));
        of_users.entry(uid).or_insert_with(new).clone()
    }
}

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

/// When recoveries that ends of connections start may begin.
#[derive(Debug)]
struct Paced {
    /// When the last recovery ended.
    last: Option<Instant>,
    pause: Duration,
    next: Instant,
}

impl Default for Paced {
    fn default() -> Self {
        Paced {
            last: None,
            pause: Duration::ZERO,
            next: Instant::now(),
        }
    }
}

impl Paced {
    /// The connection has ended. Returns whether a recovery may begin at once; otherwise it may at
    /// `next`.
    fn due(&mut self, now: Instant) -> bool {
        let soon = |last: Instant| now.saturating_duration_since(last) < LOST;
        self.pause = match self.last.is_some_and(soon) {
            true => (self.pause * 2).clamp(FIRST_LOST, LOST),
            false => Duration::ZERO,
        };
        self.next = self.last.map_or(now, |last| last + self.pause);
        now >= self.next
    }
}

/// Starts the task that watches for restarts of the server.
fn watch(locks: &Arc<Locks>) {
    let mut losses = locks.server.suspicions();
    let weak: Weak<Locks> = Arc::downgrade(locks);
    locks.runtime.spawn(async move {
        let (mut told, mut next_told) = (false, Instant::now());
        let (mut ended, mut losses_paced) = (false, Paced::default());
        let mut pause = KEEP_ALIVE;
        loop {
            let Some(locks) = weak.upgrade() else { return };
            let held = !locks.state.lock().table.is_empty();
            let mut lost = false;
            tokio::select! {
                () = locks.recovery.restart_told.notified(), if !told => told = true,
                () = tokio::time::sleep_until(next_told.into()), if told => {
                    (told, lost) = (false, true);
                    next_told = Instant::now() + TOLD;
                }
                changed = losses.changed(), if !ended => match changed {
                    Ok(()) => match losses_paced.due(Instant::now()) {
                        true => lost = true,
                        false => ended = true,
                    },
                    Err(_) => tokio::time::sleep(KEEP_ALIVE).await,
                },
                () = tokio::time::sleep_until(losses_paced.next.into()), if ended => {
                    (ended, lost) = (false, true);
                }
                () = locks.recovery.suspected.notified() => lost = true,
                () = tokio::time::sleep(pause), if held => {
                    let there = locks.server.null().await.is_ok();
                    pause = if there { KEEP_ALIVE } else { ASK_AGAIN };
                }
                () = tokio::time::sleep(KEEP_ALIVE), if !held => {
                    if locks.is_unused() {
                        locks.server.idle(&|| locks.is_unused()).await;
                    }
                }
                () = locks.ending.wait() => return,
            }
            if lost && locks.suspicion() {
                locks.recover().await;
                losses_paced.last = Some(Instant::now());
            }
        }
    });
}

impl Locks {
    /// Counts a suspicion of a restart. Returns whether any lock is held. A LOCK that is under way
    /// may have been granted before the restart: its caller sees the new count, and then starts
    /// another recovery.
    fn suspicion(&self) -> bool {
        let state = self.state.lock();
        self.recovery.suspicions.fetch_add(1, Ordering::Release);
        !state.table.is_empty()
    }

    /// Claims all locks, and then checks those whose reclaims were refused.
    pub(super) async fn recover(self: &Arc<Self>) {
        self.recovery.under_way.store(true, Ordering::Release);
        let turns = Arc::new(Turns::default());
        let (mut counts, refused) = self.reclaim_all(&turns).await;
        // A check takes a lock for a moment, which other checks would see. So there is one check at
        // a time for each file.
        let mut looks = JoinSet::new();
        let at_a_time = Arc::new(Semaphore::new(AT_A_TIME));
        for mut of_file in refused.into_values() {
            let (this, at_a_time, turns) = (self.clone(), at_a_time.clone(), turns.clone());
            looks.spawn(async move {
                let _turn = at_a_time.acquire().await;
                let counts = this.settle(&mut of_file, &turns).await;
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
        *self.recovery.last.lock() = Some(Instant::now());
        self.recovery.under_way.store(false, Ordering::Release);
        self.recovery.ended.notify_waiters();
    }

    /// Sends a reclaim for each lock. Returns the refused ones, by file.
    async fn reclaim_all(
        self: &Arc<Self>,
        turns: &Arc<Turns>,
    ) -> (Counts, BTreeMap<FileId, Vec<Refused>>) {
        let all = self.state.lock().table.all();
        let mut claims = JoinSet::new();
        for (file, owner) in all {
            let Some(holding) = self.enter_existing(file, owner) else {
                continue;
            };
            let (this, turns) = (self.clone(), turns.clone());
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
                let of_user = turns.of_user(holding.cred().uid);
                let _turn = of_user.acquire().await;
                let (counts, locks) = this.reclaim(&holding, &turns).await;
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
    async fn reclaim(&self, holding: &Holding, turns: &Turns) -> (Counts, Vec<(ByteRange, Mode)>) {
        let held: Vec<(ByteRange, Mode)> = {
            let state = self.state.lock();
            let set = state.table.held(holding.file.id, holding.owner);
            set.map(|set| set.iter().collect()).unwrap_or_default()
        };
        let mut counts = Counts::default();
        let mut refused = Vec::new();
        for (range, mode) in held {
            match self.reclaimed(holding, range, mode, turns).await {
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

    /// Sends one reclaim until it is answered. `None` if the mount ends before.
    async fn reclaimed(
        &self,
        holding: &Holding,
        range: ByteRange,
        mode: Mode,
        turns: &Turns,
    ) -> Option<Status> {
        let call = LockCall::Lock {
            exclusive: mode == Mode::Write,
            block: false,
            reclaim: true,
        };
        // Not by `insist`, which gives up if the call is refused.
        let mut retry = Retry::default();
        loop {
            let in_turn = async {
                let _turn = turns.calls.acquire().await;
                self.call(holding, range, call).await
            };
            let result = tokio::select! {
                result = in_turn => result,
                () = self.ending.wait() => return None,
            };
            match result {
                Ok(answer) => return Some(answer.status),
                Err(error) => tracing::debug!(%error, "claiming a lock again"),
            }
            tokio::select! {
                () = tokio::time::sleep(retry.next()) => {}
                () = self.ending.wait() => return None,
            }
        }
    }

    /// Determines which locks of a file, whose reclaims were refused, are still held.
    async fn settle(&self, refused: &mut [Refused], turns: &Turns) -> Counts {
        let mut counts = Counts::default();
        let mut pause = Duration::ZERO;
        while !self.look_for(refused, &mut counts).await {
            // The server has restarted since, and grants reclaims now, or after a pause.
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = self.ending.wait() => return counts,
            }
            pause = grace_pause();
            for owner in &mut *refused {
                let (of, locks) = self.reclaim(&owner.holding, turns).await;
                counts.add(of);
                owner.locks = locks;
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
                Some(answer) if answer.status == Status::Granted => {}
                Some(answer) if answer.status == Status::DeniedGracePeriod => return false,
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
