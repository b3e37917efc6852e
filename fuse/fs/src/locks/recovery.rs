//! Recovery after a restart of the server, which has lost all locks and grants reclaims for a time.
//!
//! There are several signs of a restart: the connection ends (over UDP there is none, and
//! [`NlmClient`](nfsrdma_nfs3::nlm::NlmClient) has a substitute), a LOCK is answered
//! DENIED_GRACE_PERIOD, the verifier of a WRITE or COMMIT has changed, or the server's NSM says so.
//! None of them is proof. So each lock is claimed with `reclaim`, which a server grants in its
//! grace period. A server that refuses did not restart, and we still hold the lock; or the period is
//! over. Either way the lock is then asked for as a new one: whoever has it gets it again.
//!
//! If somebody else has it, it is lost. Its holder gets EIO until it has released its locks on the
//! file, because it must not go on as if nothing had happened.

use super::acquire::lock_call;
use super::config::{Lasting, LockConfig};
use super::holding::Holding;
use super::manager::{Counters, GRACE, Locks};
use super::range::{ByteRange, Mode};
use super::repeat::Pauses;
use futures_util::stream::{self, StreamExt};
use nfsrdma_nfs3::nlm::{LockCall, LockServer, Status};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::time::Instant;

/// How often a NULL is sent to the server while locks are held: this keeps the connection open,
/// whose end is a sign of a restart. (Servers end connections that are idle for some minutes.)
const KEEP_ALIVE: Duration = Duration::from_secs(60);

/// The most owners whose locks are claimed at the same time.
const AT_A_TIME: usize = 32;

impl Locks {
    /// The locks of a mount, also those of a process before, with the task that watches for restarts of the
    /// server. Runs in tokio.
    pub fn start(
        server: Arc<dyn LockServer>,
        config: LockConfig,
        lasting: Lasting,
        runtime: Handle,
    ) -> Arc<Self> {
        let locks = Locks::new(server, config, lasting, runtime);
        watch(&locks);
        locks.inherit();
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

    /// Claims all locks.
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
        let counts = || [locks_reclaimed, locks_lost].map(|of| of.get());
        let before = counts();
        let all = self.state.lock().table.all();
        let claims = stream::iter(all).for_each_concurrent(AT_A_TIME, async |(file, owner)| {
            if let Some(holding) = self.enter_existing(file, owner) {
                // Whoever has the gate waits for the same server.
                tokio::select! {
                    () = self.claim_all(&holding) => {}
                    () = self.ending.wait() => {}
                }
                self.leave(&holding);
            }
        });
        claims.await;
        let [reclaimed, lost] = counts();
        let (reclaimed, lost) = (reclaimed - before[0], lost - before[1]);
        if reclaimed > 0 || lost > 0 {
            tracing::info!(reclaimed, lost, "the server of locks restarted");
        }
        *self.recovery.claimed.lock() = Some(Instant::now());
    }

    /// Claims the locks of one owner on a file.
    async fn claim_all(&self, holding: &Holding) {
        let _gate = holding.gate.clone().lock_owned().await;
        let held: Vec<(ByteRange, Mode)> = {
            let state = self.state.lock();
            let set = state.table.held(holding.file.id, holding.owner);
            set.map(|set| set.iter().collect()).unwrap_or_default()
        };
        for (range, mode) in held {
            match self.claim(holding, range, mode).await {
                Some(Status::Granted) => {}
                Some(_) => self.lose(holding, range).await,
                // The mount ends.
                None => return,
            }
        }
    }

    /// Claims one lock, and asks for it as for a new one if the claim is refused. The caller has the gate.
    /// `None` if the mount ends before.
    async fn claim(&self, holding: &Holding, range: ByteRange, mode: Mode) -> Option<Status> {
        let reclaim = LockCall::Lock {
            exclusive: mode == Mode::Write,
            block: false,
            reclaim: true,
        };
        let mut pauses = Pauses::default();
        loop {
            let (cred, target) = (holding.cred(), holding.target(range));
            // Also if it is refused: a server that has just started may do so.
            let claimed = self.repeat(&cred, &target, reclaim, Result::is_err).await?;
            match claimed.ok()?.status {
                Status::DeniedGracePeriod => {}
                Status::Granted => {
                    self.counters.locks_reclaimed.add(1);
                    return Some(Status::Granted);
                }
                status => return Some(status),
            }
            let asked = lock_call(mode, false);
            match self.insist(holding, range, asked).await? {
                // It has restarted in between.
                Status::DeniedGracePeriod => self.pause(&mut pauses).await?,
                status => return Some(status),
            }
        }
    }

    /// A lock is lost: removes it from the table, and makes its owner's requests fail.
    async fn lose(&self, holding: &Holding, range: ByteRange) {
        self.counters.locks_lost.add(1);
        holding.lose();
        let _unsure = holding.unsure(range);
        self.state.lock().apply(holding, range, None);
        let pid = holding.state.lock().pid;
        self.log.lost(holding.file.fileid, pid, range);
        // If the server has the lock nevertheless, nobody else would ever unlock it.
        self.insist(holding, range, LockCall::Unlock).await;
    }
}

#[cfg(test)]
#[path = "recovery_tests.rs"]
mod tests;
