//! Takes a lock: it first waits for conflicting locks of this mount, and then sends LOCK. From then
//! on the server may take the lock for it at any time, and keeps all others from it; so LOCK is
//! repeated until the lock is granted or given up, whatever else waits here: after pauses of 5 ms to
//! 1 s, 5 ms after the server calls back, or when a lock of this mount that was in the way is gone. The
//! caller gets the result as soon as it is known. If it is not certain what the server has then, its
//! state is restored afterwards (`restore`).

use super::error::LockError;
use super::holding::{Holding, Request};
use super::interrupt::Interrupt;
use super::lock_table::{Owner, WaiterId};
use super::manager::Locks;
use super::range::{ByteRange, Mode};
use super::repeat::{Caller, FIRST_PAUSE, Pauses};
use nfsrdma_nfs3::nlm::{LockAnswer, LockCall, Status};
use nfsrdma_record::{Lock, Record};
use nfsrdma_rpcrdma::rpc::plain::PlainError;
use std::sync::Arc;
use tokio::sync::{Notify, OwnedMutexGuard};
use tokio::task::JoinHandle;

/// The state of an attempt to take a lock, which is needed to clean up after it.
#[derive(Default)]
struct Attempt {
    /// The server may hold a lock that the table does not have.
    uncertain: bool,
    /// The count of suspicions before the last LOCK.
    suspicions: u64,
    /// A call that was under way when the attempt was stopped.
    under_way: Option<JoinHandle<Result<LockAnswer, PlainError>>>,
    /// For whoever goes on if this process dies meanwhile.
    asked: Option<Record<Lock>>,
    gate: Option<OwnedMutexGuard<()>>,
    /// Its number among those that wait, and what tells it that its turn has come.
    waiter: Option<(WaiterId, Arc<Notify>)>,
    granted: bool,
}

pub(super) fn lock_call(mode: Mode, block: bool) -> LockCall {
    LockCall::Lock {
        exclusive: mode == Mode::Write,
        block,
        reclaim: false,
    }
}

impl Locks {
    /// Takes a lock, and passes the result to `reply` as soon as it is known. This returns only
    /// when the cleaning up is done as well. False: the lock was not taken. `known` is ready when
    /// every release that began before the request is known ([`Locks::releasing`]); it is awaited
    /// if a request that does not wait would be refused.
    pub async fn lock(
        self: &Arc<Self>,
        request: &Request,
        interrupt: &Interrupt,
        known: impl Future<Output = ()> + Send,
        reply: impl FnOnce(Result<(), LockError>) + Send,
    ) -> bool {
        let holding = match self.enter(request) {
            Ok(holding) => holding,
            Err(error) => {
                reply(Err(error));
                return false;
            }
        };
        let mut attempt = Attempt::default();
        let mut caller = Caller::new(self, interrupt);
        let trying = self.attempt(request, &holding, &mut caller, known, &mut attempt);
        let result = trying.await;
        let counter = match result {
            Ok(()) => &self.counters.locks_granted,
            Err(LockError::Interrupted) => &self.counters.lock_interrupts,
            Err(LockError::Deadlock) => &self.counters.lock_deadlocks,
            Err(_) => &self.counters.locks_denied,
        };
        counter.add(1);
        self.state.lock().end_wait(&mut attempt.waiter);
        let (file, owner) = (request.file.id, request.owner);
        let releasing = attempt
            .uncertain
            .then(|| self.releasing(file, owner, request.range));
        reply(result);
        let granted = attempt.granted;
        if attempt.uncertain {
            self.restore(request, &holding, attempt).await;
        }
        drop(releasing);
        self.leave(&holding);
        granted
    }

    async fn attempt(
        self: &Arc<Self>,
        request: &Request,
        holding: &Arc<Holding>,
        caller: &mut Caller<'_>,
        known: impl Future<Output = ()> + Send,
        attempt: &mut Attempt,
    ) -> Result<(), LockError> {
        let mut known = Some(known);
        let own = self.own_released(holding, request.range);
        caller.until(own).await?;
        if holding.state.lock().lost.is_some() {
            return Err(LockError::Lost);
        }
        if request.wait {
            self.queue(request, attempt)?;
        }
        let mut pauses = Pauses::default();
        loop {
            let before = self.releases();
            let answer = match self.free_flock(request, holding, caller, attempt).await? {
                false => Ok(Status::DeniedGracePeriod),
                true if request.wait => {
                    if self.wait_for_turn(caller, attempt).await? {
                        caller.renew();
                        pauses = Pauses::default();
                    }
                    self.ask(request, holding, caller, attempt).await?
                }
                true if self.conflict(request).is_some() => Ok(Status::Denied),
                true => self.ask(request, holding, caller, attempt).await?,
            };
            let waits = match answer {
                Ok(Status::Granted) => {
                    self.granted(request, holding, attempt);
                    if request.mode == Mode::Read {
                        self.ask_anew(holding, request.range).await;
                    }
                    return Ok(());
                }
                // DENIED: this server does not queue blocking requests.
                Ok(Status::Blocked | Status::Denied) if request.wait => {
                    self.counters.lock_polls.add(1);
                    true
                }
                Ok(Status::DeniedGracePeriod) => false,
                Ok(status) => {
                    attempt.gate = None;
                    if status == Status::Denied
                        && let Some(known) = known.take()
                        && self.is_released(request, before, caller, known).await?
                    {
                        continue;
                    }
                    return Err(LockError::of(status));
                }
                Err(error) => match LockError::refused(&error) {
                    Some(refused) => return Err(refused),
                    None => false,
                },
            };
            attempt.gate = None;
            let hinted = async {
                holding.granted.notified().await;
                // A limit for servers that call back often.
                tokio::time::sleep(FIRST_PAUSE).await;
            };
            let told = async {
                match &attempt.waiter {
                    Some((_, turn)) => turn.notified().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = tokio::time::sleep(pauses.next()) => {}
                () = hinted, if waits => {}
                () = told, if waits => {}
                stop = caller.stop() => return Err(stop),
            }
            if waits {
                caller.renew();
            }
        }
    }

    /// Waits for the gate of a holding, to change something at the server. Fails if the caller was killed before: its process may have
    /// ended, and what it locked then would be a lock that nobody releases in time.
    async fn gate(
        &self,
        request: &Request,
        holding: &Holding,
        caller: &Caller<'_>,
        attempt: &mut Attempt,
    ) -> Result<(), LockError> {
        attempt.gate = Some(caller.until(holding.gate.clone().lock_owned()).await?);
        attempt.asked.get_or_insert_with(|| holding.asked(request));
        Ok(())
    }

    /// Enters a lock that the server has granted. The caller has the gate.
    fn granted(&self, request: &Request, holding: &Arc<Holding>, attempt: &mut Attempt) {
        let mut state = self.state.lock();
        holding.granted_by(&request.cred, request.mode);
        holding.asked_by((request.pid, request.open), self.server.state());
        state.apply(holding, request.range, Some(request.mode));
        // The waiter is removed after that, so that those behind it are not told for nothing.
        state.end_wait(&mut attempt.waiter);
        if state.suspicions != attempt.suspicions {
            // The server may have restarted after the grant, and the recovery may have listed the
            // locks before this one was entered.
            self.recover_soon();
        }
        attempt.uncertain = false;
        attempt.granted = true;
    }

    /// flock(2): before a shared lock becomes an exclusive one it is released, as flock(2) says. (Otherwise
    /// two owners that share it would wait for each other. The opposite conversion cannot conflict.)
    /// False if the server is in its grace period.
    async fn free_flock(
        &self,
        request: &Request,
        holding: &Holding,
        caller: &Caller<'_>,
        attempt: &mut Attempt,
    ) -> Result<bool, LockError> {
        let converts = || {
            let state = self.state.lock();
            let held = state.table.held(request.file.id, request.owner);
            matches!(request.owner, Owner::Flock(_))
                && held.is_some_and(|set| set.iter().any(|(_, mode)| mode < request.mode))
        };
        if !converts() {
            return Ok(true);
        }
        self.gate(request, holding, caller, attempt).await?;
        // The server may carry it out even if it is given up.
        let before = std::mem::replace(&mut attempt.uncertain, true);
        let unlock = self.insist(holding, ByteRange::ALL, LockCall::Unlock);
        let status = caller.until(unlock).await?;
        attempt.uncertain = before;
        attempt.gate = None;
        let freed = status.is_some_and(|status| status != Status::DeniedGracePeriod);
        if freed {
            self.state.lock().apply(holding, ByteRange::ALL, None);
        }
        Ok(freed)
    }

    /// Gives a request that waits a place in the queue.
    fn queue(&self, request: &Request, attempt: &mut Attempt) -> Result<(), LockError> {
        let mut state = self.state.lock();
        let (file, owner) = (request.file.id, request.owner);
        let id = state
            .table
            .wait(file, owner, request.range, request.mode)
            .map_err(|_| LockError::Deadlock)?;
        let turn = Arc::new(Notify::new());
        state.turns.insert(id, turn.clone());
        attempt.waiter = Some((id, turn));
        Ok(())
    }

    /// Waits until no lock of this mount is in the way, unless the request may be at the server
    /// already. Returns whether it had to.
    async fn wait_for_turn(
        &self,
        caller: &Caller<'_>,
        attempt: &Attempt,
    ) -> Result<bool, LockError> {
        let Some((id, turn)) = &attempt.waiter else {
            return Ok(false);
        };
        let mut waited = false;
        while !self.state.lock().table.may_ask(*id) && !attempt.uncertain {
            waited = true;
            tokio::select! {
                () = turn.notified() => {}
                stop = caller.stop() => return Err(stop),
            }
        }
        Ok(waited)
    }

    /// Sends LOCK when the locks from before a restart of the server are claimed. The call goes on if the
    /// wait for it is stopped.
    async fn ask(
        self: &Arc<Self>,
        request: &Request,
        holding: &Arc<Holding>,
        caller: &Caller<'_>,
        attempt: &mut Attempt,
    ) -> Result<Result<Status, PlainError>, LockError> {
        drop(caller.until(self.recovery.under_way.read()).await?);
        self.gate(request, holding, caller, attempt).await?;
        let (this, target) = (self.clone(), holding.target(request.range));
        let call = lock_call(request.mode, request.wait);
        attempt.suspicions = self.state.lock().suspicions;
        let cred = request.cred.clone();
        let mut task = self
            .runtime
            .spawn(async move { this.call(&cred, &target, call).await });
        let answered = caller.until(&mut task).await;
        let Ok(result) = answered else {
            attempt.uncertain = true;
            attempt.under_way = Some(task);
            return answered.map(|_| Err(PlainError::TimedOut));
        };
        let result = result.unwrap_or(Err(PlainError::TimedOut));
        attempt.uncertain |= match &result {
            // FAILED stands for answers that make no sense, too.
            Ok(answer) => matches!(answer.status, Status::Blocked | Status::Failed),
            Err(error) => LockError::refused(error).is_none(),
        };
        Ok(result.map(|answer| answer.status))
    }

    /// Makes the server's locks of the range the same as those in the table.
    async fn restore(&self, request: &Request, holding: &Holding, mut attempt: Attempt) {
        let _gate = match attempt.gate.take() {
            Some(gate) => gate,
            None => holding.gate.clone().lock_owned().await,
        };
        if let Some(task) = attempt.under_way.take() {
            // Whatever its answer is: the server may have run it, or queued it.
            let _ = task.await;
        }
        self.withdraw(holding, request.range, request.mode, request.wait)
            .await;
    }

    /// Gives up a request that the server may have queued or granted: makes the server's locks of the
    /// range the same as those in the table. The caller has the gate.
    pub(super) async fn withdraw(
        &self,
        holding: &Holding,
        range: ByteRange,
        mode: Mode,
        queued: bool,
    ) {
        if queued {
            let cancel = LockCall::Cancel {
                exclusive: mode == Mode::Write,
            };
            // A server in its grace period has restarted, and has lost what it may have granted.
            match self.insist(holding, range, cancel).await {
                Some(status) if status != Status::DeniedGracePeriod => {}
                _ => return,
            }
        }
        let pieces = {
            let state = self.state.lock();
            state.table.pieces(holding.file.id, holding.owner, range)
        };
        for (piece, held) in pieces {
            let call = match held {
                None => LockCall::Unlock,
                Some(held) => lock_call(held, false),
            };
            match self.insist(holding, piece, call).await {
                Some(Status::Granted) => {}
                None | Some(Status::DeniedGracePeriod) => return,
                Some(status) => self.not_restored(mode, holding, (piece, held), status),
            }
        }
    }

    /// Some of an owner's locks became less. If the server has taken a lock for another thread of the
    /// owner that does not know of it yet, it is less now, too, and what is left of it would keep out
    /// others whom that thread waits for. So it is given back, and asked for again. The caller has the
    /// gate.
    pub(super) async fn ask_anew(&self, holding: &Holding, range: ByteRange) {
        let waiting: Vec<_> = {
            let state = self.state.lock();
            let all = state.table.waits_of(holding.file.id, holding.owner);
            all.filter(|(of, _)| of.overlaps(&range)).collect()
        };
        for (range, mode) in waiting {
            self.withdraw(holding, range, mode, true).await;
        }
    }

    /// The server refused to restore a lock of the table. If an exclusive lock was to become
    /// shared, others may share it meanwhile, so the table gets the shared lock that the server
    /// has. Otherwise the server may have lost the lock.
    fn not_restored(
        &self,
        asked: Mode,
        holding: &Holding,
        (range, mode): (ByteRange, Option<Mode>),
        status: Status,
    ) {
        let refused = matches!(status, Status::Denied | Status::Blocked);
        match (mode, asked) {
            (Some(Mode::Write), Mode::Read) if refused => {
                let mut state = self.state.lock();
                state.apply(holding, range, Some(Mode::Read));
            }
            (Some(_), _) => self.suspect(),
            (None, _) => {}
        }
    }
}

#[cfg(test)]
#[path = "acquire_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "tests/waiting_model.rs"]
mod waiting_model;
