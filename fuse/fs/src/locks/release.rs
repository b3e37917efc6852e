//! Releasing locks: by an unlock request, by close(2), and by the end of an open file.
//!
//! The lock leaves the table only when the server has answered UNLOCK, and UNLOCK is repeated until
//! it does, also after a `soft` mount has returned an error to the program: otherwise the server
//! would keep a lock that nobody here knows. In the server's grace period a reclaim may be under
//! way that restores the lock just unlocked; so what the table does not have is unlocked once more
//! when the period is over.

use super::acquire::{Granted, lock_call};
use super::error::LockError;
use super::lock_table::{FileId, Owner};
use super::manager::{Holding, Locks, grace_pause};
use super::range::ByteRange;
use nfsrdma_nfs3::nlm::{LockCall, Status};
use std::sync::Arc;

impl Locks {
    /// Unlocks a range. Hands the result over when the server has answered, or a `soft` mount has
    /// waited long enough; the server is asked until it answers in any case.
    pub async fn unlock(
        self: &Arc<Self>,
        file: FileId,
        owner: Owner,
        range: ByteRange,
        reply: impl FnOnce(Result<(), LockError>) + Send,
    ) {
        let Some(holding) = self.enter_existing(file, owner) else {
            // Unlocking what is not locked is no error.
            return reply(Ok(()));
        };
        let mut reply = Some(reply);
        let unlocking = self.unlock_held(&holding, range);
        tokio::pin!(unlocking);
        if let Some((limit, timed_out)) = self.config.patience {
            tokio::select! {
                result = &mut unlocking => {
                    if let Some(reply) = reply.take() {
                        reply(result);
                    }
                }
                () = tokio::time::sleep(limit) => {
                    if let Some(reply) = reply.take() {
                        reply(Err(if timed_out { LockError::TimedOut } else { LockError::GivenUp }));
                    }
                    let _ = unlocking.await;
                }
            }
        } else {
            let result = unlocking.await;
            if let Some(reply) = reply.take() {
                reply(result);
            }
        }
        self.leave(&holding);
    }

    async fn unlock_held(
        self: &Arc<Self>,
        holding: &Arc<Holding>,
        range: ByteRange,
    ) -> Result<(), LockError> {
        let gate = holding.gate.clone().lock_owned().await;
        let (file, owner) = (holding.file.id, holding.owner);
        let holds = {
            let state = self.state.lock();
            state.table.held(file, owner).is_some()
        };
        let lost = holding.state.lock().lost;
        let mut again = false;
        if holds {
            let answer = self.insist(holding, range, LockCall::Unlock).await;
            let status = answer.ok_or(LockError::GivenUp)?.status;
            again = status == Status::DeniedGracePeriod;
        }
        {
            let mut state = self.state.lock();
            state.apply(holding, range, None);
            if lost && (range == ByteRange::ALL || state.table.held(file, owner).is_none()) {
                // It got the error, and holds nothing any more.
                holding.state.lock().lost = false;
            }
        }
        drop(gate);
        if again {
            self.again_after_grace(holding, range);
        }
        if lost { Err(LockError::Lost) } else { Ok(()) }
    }

    /// Puts back what an owner held before a lock was granted, whose caller was killed before it
    /// knew: by way of an open file that others have, too, it may hold it for long. Nothing is
    /// done if the owner has locked or unlocked something since, or has let go of all.
    pub async fn undo(self: &Arc<Self>, granted: Granted) {
        let holding = &granted.holding;
        let gate = holding.gate.clone().lock_owned().await;
        {
            let state = self.state.lock();
            let there = state.holdings.get(&(holding.file.id, holding.owner));
            let mut of = holding.state.lock();
            let same = there.is_some_and(|there| Arc::ptr_eq(there, holding));
            if !same || of.lost || of.changes != granted.changes {
                return;
            }
            of.enter();
        }
        for &(range, mode) in &granted.before {
            let call = match mode {
                None => LockCall::Unlock,
                Some(mode) if mode == granted.mode => continue,
                Some(mode) => lock_call(mode, false),
            };
            let Some(answer) = self.insist(holding, range, call).await else {
                break;
            };
            // Else it stays as it was granted: others may share what was held alone before.
            if mode.is_none() || answer.status == Status::Granted {
                self.state.lock().apply(holding, range, mode);
            }
            if mode.is_none() && answer.status == Status::DeniedGracePeriod {
                self.again_after_grace(holding, range);
            }
        }
        drop(gate);
        self.leave(holding);
    }

    /// The server has restarted, and may have been asked to give the lock back already.
    fn again_after_grace(self: &Arc<Self>, holding: &Arc<Holding>, range: ByteRange) {
        let (this, of) = (self.clone(), holding.clone());
        holding.state.lock().enter();
        self.spawn(async move {
            this.unlock_after_grace(&of, range).await;
            this.leave(&of);
        });
    }

    /// Unlocks what the table does not have, when the grace period is over.
    async fn unlock_after_grace(&self, holding: &Holding, range: ByteRange) {
        loop {
            tokio::select! {
                () = tokio::time::sleep(grace_pause()) => {}
                () = self.ending.wait() => return,
            }
            // Not held in between: what else the owner holds is to be claimed again.
            let _gate = holding.gate.clone().lock_owned().await;
            let pieces = {
                let state = self.state.lock();
                state.table.pieces(holding.file.id, holding.owner, range)
            };
            let mut grace = false;
            for (piece, _) in pieces.iter().filter(|(_, mode)| mode.is_none()) {
                match self.insist(holding, *piece, LockCall::Unlock).await {
                    Some(answer) => grace |= answer.status == Status::DeniedGracePeriod,
                    None => return,
                }
            }
            if !grace {
                return;
            }
        }
    }

    /// Everything that an owner has of a file. An error tells that a lock was lost.
    pub async fn unlock_all(self: &Arc<Self>, file: FileId, owner: Owner) -> Result<(), LockError> {
        let mut result = Ok(());
        self.unlock(file, owner, ByteRange::ALL, |of| result = of)
            .await;
        result
    }

    /// Whose locks end with an open file: those of flock(2) and of F_OFD_SETLK. (A process's own
    /// are gone already: it closed the file.)
    pub fn take_open(&self, file: FileId, open: u64, flock: Option<u64>) -> Vec<Owner> {
        let mut owners = self.owners_by_open(file, open);
        if let Some(flock) = flock.map(Owner::Flock)
            && !owners.contains(&flock)
        {
            owners.push(flock);
        }
        for owner in &owners {
            self.forget_open(file, open, *owner);
        }
        owners
    }

    /// Locks of `owner` are no longer by way of this open file.
    pub fn forget_open(&self, file: FileId, open: u64, owner: Owner) {
        let state = self.state.lock();
        if let Some(holding) = state.holdings.get(&(file, owner)) {
            holding.state.lock().opens.remove(&open);
        }
    }
}
