//! Releasing locks: by an unlock request, by close(2), and by the end of an open file.
//!
//! A lock is removed from the table only when the server has answered UNLOCK. UNLOCK is repeated
//! until then, even after a `soft` mount has returned an error to the program: otherwise the server
//! would keep a lock that nobody here knows. During the server's grace period, a reclaim may be
//! under way that restores the lock that was just unlocked; so whatever the table does not have is
//! unlocked once more when the period is over.

use super::error::LockError;
use super::holding::Holding;
use super::lock_table::{FileId, Owner};
use super::manager::Locks;
use super::range::ByteRange;
use super::repeat::Pauses;
use nfsrdma_nfs3::nlm::{LockCall, Status};
use std::sync::Arc;

impl Locks {
    /// Unlocks a range. Passes the result to `reply` when the server has answered, or a `soft`
    /// mount has waited long enough; UNLOCK is repeated until it is answered in any case.
    pub async fn unlock(
        self: &Arc<Self>,
        file: FileId,
        owner: Owner,
        range: ByteRange,
        reply: impl FnOnce(Result<(), LockError>) + Send,
    ) {
        let Some(releasing) = self.releasing(file, owner, range) else {
            // Unlocking what is not locked is no error.
            return reply(Ok(()));
        };
        let mut unlocking = std::pin::pin!(self.unlock_held(&releasing.holding, range));
        let told = match self.config.patience {
            Some((limit, _)) => tokio::time::timeout(limit, &mut unlocking).await.ok(),
            None => Some(unlocking.as_mut().await),
        };
        reply(told.unwrap_or(Err(self.config.given_up())));
        if told.is_none() {
            let _ = unlocking.await;
        }
    }

    async fn unlock_held(
        self: &Arc<Self>,
        holding: &Arc<Holding>,
        range: ByteRange,
    ) -> Result<(), LockError> {
        let _gate = holding.gate.clone().lock_owned().await;
        let lost = holding.state.lock().lost.is_some();
        let holds = || {
            let state = self.state.lock();
            state.table.held(holding.file.id, holding.owner).is_some()
        };
        let mut result = Ok(());
        if holds() {
            let status = self.unlock_once(holding, range).await;
            // Nothing but a restart is a reason to refuse UNLOCK, and it would be refused again.
            match status.ok_or(LockError::GivenUp)? {
                Status::Granted => self.ask_anew(holding, range).await,
                Status::DeniedGracePeriod => {}
                status => {
                    self.log.unlock_refused(holding.file.fileid, status);
                    self.ask_anew(holding, range).await;
                    result = Err(LockError::NoLocks);
                }
            }
        }
        if lost {
            result = Err(LockError::Lost);
            if range == ByteRange::ALL || !holds() {
                // The owner gets the error now, and has released all locks.
                holding.state.lock().lost = None;
            }
        }
        result
    }

    /// Sends UNLOCK and removes the range from the table. The caller has the gate. If the server is in its
    /// grace period, the range is unlocked once more when that is over, because a reclaim of the lock may
    /// be under way.
    async fn unlock_once(
        self: &Arc<Self>,
        holding: &Arc<Holding>,
        range: ByteRange,
    ) -> Option<Status> {
        // Its caller may have been killed, and is answered.
        let _unsure = holding.unsure(range);
        holding.keep(range, None);
        let status = self.insist(holding, range, LockCall::Unlock).await?;
        self.state.lock().apply(holding, range, None);
        if status == Status::DeniedGracePeriod
            && let Some(releasing) = self.releasing(holding.file.id, holding.owner, range)
        {
            let this = self.clone();
            self.spawn(async move {
                this.unlock_after_grace(&releasing.holding, range).await;
                drop(releasing);
            });
        }
        Some(status)
    }

    /// Waits until the grace period is over, and unlocks whatever the table does not have.
    async fn unlock_after_grace(&self, holding: &Holding, range: ByteRange) {
        let mut pauses = Pauses::default();
        while self.pause(&mut pauses).await.is_some() {
            // The gate is not held during the pause, so that other locks of the owner can be
            // claimed.
            let _gate = holding.gate.clone().lock_owned().await;
            let pieces = {
                let state = self.state.lock();
                state.table.pieces(holding.file.id, holding.owner, range)
            };
            let mut grace = false;
            for (piece, _) in pieces.iter().filter(|(_, mode)| mode.is_none()) {
                match self.insist(holding, *piece, LockCall::Unlock).await {
                    Some(status) => grace |= status == Status::DeniedGracePeriod,
                    None => return,
                }
            }
            if !grace {
                return;
            }
        }
    }

    /// Unlocks everything that an owner has on a file. Fails if a lock was lost.
    pub async fn unlock_all(self: &Arc<Self>, file: FileId, owner: Owner) -> Result<(), LockError> {
        let mut result = Ok(());
        self.unlock(file, owner, ByteRange::ALL, |of| result = of)
            .await;
        result
    }
}
