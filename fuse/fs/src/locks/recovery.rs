//! After a restart of the server: it has forgotten every lock, and takes reclaims for a time.
//!
//! That it restarted shows in several ways: its connection ends (what stands for that over UDP,
//! where there is none, [`NlmClient`](nfsrdma_nfs3::nlm::NlmClient) knows), a LOCK is answered with
//! DENIED_GRACE_PERIOD, the verifier of WRITE or COMMIT is another one, or its NSM tells. None of
//! them is proof. So each lock is claimed with `reclaim`, which a server grants in its grace
//! period. One that is not in it refuses: either it did not restart, and we hold the lock still, or
//! the period is over, and it is lost. An owner that does not exist asks whether anybody holds the
//! range (see `probe.rs`): if nobody does, the lock is lost. If somebody does, a LOCK of our own is
//! granted if and only if that is us.
//!
//! A lock that is lost may have been somebody else's meanwhile. Its holder must not go on as if
//! nothing had happened: EIO, until it has let go of the file's locks.

use super::manager::{Holding, LockConfig, Locks};
use super::range::{ByteRange, Mode};
use nfsrdma_nfs3::nlm::{Journal, LockCall, LockServer, Status};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

/// How often the server is asked whether it is there, while something is held: that keeps the
/// connection, whose end is the sign of a restart.
const KEEP_ALIVE: Duration = Duration::from_secs(60);
/// The same while it does not answer: its grace period is not to be missed.
const ASK_AGAIN: Duration = Duration::from_secs(5);

/// Between two recoveries because somebody said that the server restarted: anybody may say so in
/// its name.
const TOLD: Duration = Duration::from_secs(10);

/// Owners whose locks are claimed at the same time.
const AT_A_TIME: usize = 32;

/// What became of a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Claim {
    Held,
    Reclaimed,
    Lost,
}

impl Locks {
    /// Locks of a mount, with the task that looks for restarts of the server.
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

/// Starts the task that looks for restarts of the server.
fn watch(locks: &Arc<Locks>) {
    let mut losses = locks.server.suspicions();
    let weak: Weak<Locks> = Arc::downgrade(locks);
    locks.runtime.spawn(async move {
        let (mut told, mut next_told) = (false, Instant::now());
        let mut pause = KEEP_ALIVE;
        loop {
            let Some(locks) = weak.upgrade() else { return };
            let held = !locks.state.lock().table.is_empty();
            let mut lost = false;
            tokio::select! {
                () = locks.restart_told.notified(), if !told => told = true,
                () = tokio::time::sleep_until(next_told.into()), if told => {
                    (told, lost) = (false, true);
                    next_told = Instant::now() + TOLD;
                }
                changed = losses.changed() => match changed {
                    Ok(()) => lost = true,
                    Err(_) => tokio::time::sleep(KEEP_ALIVE).await,
                },
                () = locks.suspected.notified() => lost = true,
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
            if lost && !locks.state.lock().table.is_empty() {
                locks.recover().await;
            }
        }
    });
}

impl Locks {
    /// Claims every lock again.
    async fn recover(self: &Arc<Self>) {
        self.recovering.store(true, Ordering::Release);
        let all = self.state.lock().table.all();
        let at_a_time = Arc::new(Semaphore::new(AT_A_TIME));
        let mut claims = JoinSet::new();
        for (file, owner) in all {
            let Some(holding) = self.enter_existing(file, owner) else {
                continue;
            };
            let (this, at_a_time) = (self.clone(), at_a_time.clone());
            claims.spawn(async move {
                // Whoever has the gate waits for the same server, and must not keep others back.
                let gate = tokio::select! {
                    gate = holding.gate.clone().lock_owned() => Some(gate),
                    () = this.ending.wait() => None,
                };
                let turn = at_a_time.acquire().await;
                let mut reclaimed = (0, 0);
                if gate.is_some() {
                    reclaimed = this.claim_all(&holding).await;
                }
                drop((turn, gate));
                this.leave(&holding);
                reclaimed
            });
        }
        let (mut reclaimed, mut lost) = (0, 0);
        while let Some(result) = claims.join_next().await {
            let (more, gone) = result.unwrap_or_default();
            reclaimed += more;
            lost += gone;
        }
        self.counters
            .locks_reclaimed
            .fetch_add(reclaimed, Ordering::Relaxed);
        if reclaimed > 0 || lost > 0 {
            tracing::info!(reclaimed, lost, "the server of locks restarted");
        }
        *self.last_recovery.lock() = Some(Instant::now());
        self.recovering.store(false, Ordering::Release);
        self.recovered.notify_waiters();
    }

    /// What one owner holds of a file; returns how many locks were reclaimed and lost.
    async fn claim_all(&self, holding: &Holding) -> (u64, u64) {
        let held: Vec<(ByteRange, Mode)> = {
            let state = self.state.lock();
            let set = state.table.held(holding.file.id, holding.owner);
            set.map(|set| set.iter().collect()).unwrap_or_default()
        };
        let (mut reclaimed, mut lost) = (0, 0);
        for (range, mode) in held {
            match self.claim(holding, range, mode).await {
                Some(Claim::Held) => {}
                Some(Claim::Reclaimed) => reclaimed += 1,
                Some(Claim::Lost) => {
                    lost += 1;
                    self.lose(holding, range);
                    // Should the server have it after all, nobody would ever unlock it.
                    self.insist(holding, range, LockCall::Unlock).await;
                }
                // The mount ends.
                None => break,
            }
        }
        (reclaimed, lost)
    }

    async fn claim(&self, holding: &Holding, range: ByteRange, mode: Mode) -> Option<Claim> {
        let exclusive = mode == Mode::Write;
        let lock = |reclaim| LockCall::Lock {
            exclusive,
            block: false,
            reclaim,
        };
        // A refusal for want of a grace period is an answer here, so not by way of `insist`.
        let mut retry = super::manager::Retry::default();
        let status = loop {
            let result = tokio::select! {
                result = self.call(holding, range, lock(true)) => result,
                () = self.ending.wait() => return None,
            };
            match result {
                Ok(answer) => break answer.status,
                Err(error) => tracing::debug!(%error, "claiming a lock again"),
            }
            tokio::select! {
                () = tokio::time::sleep(retry.next()) => {}
                () = self.ending.wait() => return None,
            }
        };
        match status {
            Status::Granted => return Some(Claim::Reclaimed),
            Status::DeniedGracePeriod => {}
            _ => return Some(Claim::Lost),
        }
        if !self.is_held(holding, range, mode).await? {
            return Some(Claim::Lost);
        }
        let answer = self.insist(holding, range, lock(false)).await?;
        Some(match answer.status {
            Status::Granted => Claim::Held,
            _ => Claim::Lost,
        })
    }

    /// A lock cannot be claimed again.
    fn lose(&self, holding: &Holding, range: ByteRange) {
        self.counters.locks_lost.fetch_add(1, Ordering::Relaxed);
        let pid = {
            let mut state = holding.state.lock();
            state.lost = true;
            state.pid
        };
        self.state.lock().apply(holding, range, None);
        let (offset, length) = range.to_wire();
        tracing::error!(
            fileid = holding.file.fileid,
            pid,
            offset,
            length,
            "a lock was lost: the server restarted and did not give it back; its holder gets EIO"
        );
    }
}
