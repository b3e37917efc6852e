//! Takes a lock: it first waits for conflicting locks of this mount, and then sends LOCK. From then
//! on the server may take the lock for it at any time, and keeps all others from it; so LOCK is
//! repeated until the lock is granted or given up, whatever else waits here: after pauses of 5 ms to
//! 1 s, 5 ms after the server calls back, or when a lock of this mount that was in the way is gone. The caller gets the result as soon as it is known. If it is not certain what
//! the server has then, its state is restored afterwards (`restore`).

use super::config::Retry;
use super::error::LockError;
use super::interrupt::Interrupt;
use super::lock_table::{Owner, WaiterId};
use super::manager::{Holding, Locks, Request, grace_pause};
use super::range::{ByteRange, Mode};
use nfsrdma_nfs3::nlm::{LockAnswer, LockCall, Status};
use nfsrdma_rpcrdma::rpc::plain::PlainError;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::sync::{Notify, OwnedMutexGuard};
use tokio::task::JoinHandle;

/// The least and the greatest pause between two LOCKs for a lock that another machine has.
const FIRST_POLL: Duration = Duration::from_millis(5);
const LAST_POLL: Duration = Duration::from_secs(1);

/// A lock that was taken, with what [`Locks::undo`] needs to restore the state before it.
#[derive(Debug)]
pub struct Granted {
    pub(super) holding: Arc<Holding>,
    pub(super) range: ByteRange,
    pub(super) mode: Mode,
    /// How the range was locked before.
    pub(super) before: Vec<(ByteRange, Option<Mode>)>,
    /// The value of [`changes`](super::manager::HoldingState) after this lock was taken.
    pub(super) changes: u64,
}

/// The state of an attempt to take a lock, which is needed to clean up after it.
#[derive(Default)]
struct Attempt {
    /// The server may hold a lock that the table does not have.
    uncertain: bool,
    /// The count of suspicions before the last LOCK.
    suspicions: u64,
    /// A call that was under way when the attempt was stopped.
    under_way: Option<JoinHandle<Result<LockAnswer, PlainError>>>,
    gate: Option<OwnedMutexGuard<()>>,
    waiter: Option<WaiterId>,
    granted: Option<Granted>,
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
    /// when the cleaning up is done as well. `None`: the lock was not taken. `known` is ready when
    /// every release that began before the request is known ([`Locks::releasing`]); it is awaited
    /// if a request that does not wait would be refused.
    pub async fn lock(
        self: &Arc<Self>,
        request: &Request,
        interrupt: &Interrupt,
        known: impl Future<Output = ()> + Send,
        reply: impl FnOnce(Result<(), LockError>) + Send,
    ) -> Option<Granted> {
        let holding = match self.enter(request) {
            Ok(holding) => holding,
            Err(error) => {
                reply(Err(error));
                return None;
            }
        };
        let mut attempt = Attempt::default();
        let result = match self.released(request, &holding, interrupt, known).await {
            Ok(()) => {
                self.attempt(request, &holding, interrupt, &mut attempt)
                    .await
            }
            Err(error) => Err(error),
        };
        let counter = match result {
            Ok(()) => &self.counters.locks_granted,
            Err(LockError::Interrupted) => &self.counters.lock_interrupts,
            Err(LockError::Deadlock) => &self.counters.lock_deadlocks,
            Err(_) => &self.counters.locks_denied,
        };
        counter.fetch_add(1, Ordering::Relaxed);
        if let Some(id) = attempt.waiter.take() {
            let mut state = self.state.lock();
            state.turns.remove(&id);
            let due = state.table.end_wait(id);
            state.tell(&due);
        }
        let (file, owner) = (request.file.id, request.owner);
        let releasing = attempt
            .uncertain
            .then(|| self.releasing(file, owner, request.range));
        reply(result);
        let granted = attempt.granted.take();
        if attempt.uncertain {
            self.restore(request, &holding, attempt).await;
        }
        drop(releasing);
        self.leave(&holding);
        granted
    }

    /// Waits for releases that are under way, as far as they concern the request.
    async fn released(
        &self,
        request: &Request,
        holding: &Holding,
        interrupt: &Interrupt,
        known: impl Future<Output = ()>,
    ) -> Result<(), LockError> {
        let own = self.own_released(holding, request.range, interrupt);
        self.config.patiently(own).await?;
        if request.wait {
            // It waits for all locks.
            return Ok(());
        }
        self.others_released(request, interrupt, known).await
    }

    async fn attempt(
        self: &Arc<Self>,
        request: &Request,
        holding: &Arc<Holding>,
        interrupt: &Interrupt,
        attempt: &mut Attempt,
    ) -> Result<(), LockError> {
        if holding.state.lock().lost {
            return Err(LockError::Lost);
        }
        self.let_go_of_flock(request, holding, interrupt, attempt)
            .await?;
        let turn = self.queue(request, attempt)?;
        let mut retry = Retry::default();
        let mut poll = FIRST_POLL;
        let mut denied = false;
        loop {
            if let Some(turn) = &turn
                && self.wait_for_turn(turn, attempt, interrupt).await?
            {
                // The server has kept nobody waiting meanwhile.
                retry = Retry::default();
            }
            let recovery = self.wait_for_recovery(interrupt);
            self.config.patiently(recovery).await?;
            attempt.gate = Some(self.gate(holding, interrupt).await?);
            let in_use = (!request.wait).then(|| self.others_in_use(request));
            let answer = self.ask(request, holding, interrupt, attempt).await?;
            let answer = answer.map(|answer| answer.status);
            let waits = request.wait && matches!(answer, Ok(Status::Blocked | Status::Denied));
            let pause = match answer {
                Ok(Status::Granted) => {
                    self.granted(request, holding, attempt);
                    if request.mode == Mode::Read {
                        self.ask_anew(holding, request.range).await;
                    }
                    return Ok(());
                }
                Ok(Status::Blocked) if request.wait => {
                    self.refused(request, holding, attempt).await?;
                    let pause = poll;
                    poll = (poll * 2).min(LAST_POLL);
                    retry = Retry::default();
                    pause
                }
                // This server does not queue blocking requests.
                Ok(Status::Denied) if request.wait => {
                    self.refused(request, holding, attempt).await?;
                    let pause = poll;
                    poll = (poll * 2).min(LAST_POLL);
                    retry = Retry::default();
                    pause
                }
                Ok(Status::DeniedGracePeriod) => {
                    retry.check(&self.config)?;
                    grace_pause()
                }
                Ok(Status::Denied) if !std::mem::replace(&mut denied, true) => {
                    attempt.gate = None;
                    let in_use = in_use.unwrap_or_default();
                    self.unknown_released(request, in_use, interrupt).await?;
                    continue;
                }
                Ok(status) => {
                    attempt.uncertain |= status == Status::Blocked;
                    return Err(LockError::of(status));
                }
                Err(PlainError::Refused(_)) => return Err(LockError::Denied),
                Err(PlainError::NoProgram) => return Err(LockError::NoLocks),
                Err(_) => {
                    retry.check(&self.config)?;
                    retry.next()
                }
            };
            attempt.gate = None;
            let hinted = async {
                holding.granted.notified().await;
                // A limit for servers that call back often.
                tokio::time::sleep(FIRST_POLL).await;
            };
            let told = async {
                match &turn {
                    Some(turn) => turn.notified().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = hinted, if waits => {}
                () = told, if waits => {}
                stop = self.stop(interrupt) => return Err(stop),
            }
        }
    }

    /// Waits for the gate of a holding. Fails if the caller was killed before: its process may have
    /// ended, and what it locked then would be a lock that nobody releases in time.
    async fn gate(
        &self,
        holding: &Holding,
        interrupt: &Interrupt,
    ) -> Result<OwnedMutexGuard<()>, LockError> {
        let gate = async {
            tokio::select! {
                biased;
                stop = self.stop(interrupt) => Err(stop),
                gate = holding.gate.clone().lock_owned() => Ok(gate),
            }
        };
        self.config.patiently(gate).await
    }

    /// Enters a lock that the server has granted. The caller has the gate.
    fn granted(&self, request: &Request, holding: &Arc<Holding>, attempt: &mut Attempt) {
        let mut state = self.state.lock();
        let (file, owner) = (request.file.id, request.owner);
        let before = state.table.pieces(file, owner, request.range);
        state.apply(holding, request.range, Some(request.mode));
        // The waiter is removed after that, so that those behind it are not told for nothing.
        if let Some(id) = attempt.waiter.take() {
            state.turns.remove(&id);
            let due = state.table.end_wait(id);
            state.tell(&due);
        }
        holding.granted_by(request);
        if self.recovery.suspicions.load(Ordering::Acquire) != attempt.suspicions {
            // The server may have restarted after the grant, and the recovery may have listed the
            // locks before this one was entered.
            self.suspect();
        }
        let mut of = holding.state.lock();
        of.opens.insert(request.open);
        attempt.uncertain = false;
        attempt.granted = Some(Granted {
            holding: holding.clone(),
            range: request.range,
            mode: request.mode,
            before,
            changes: of.changes,
        });
    }

    /// flock(2): before a lock is converted, it is released if another owner is in the way.
    async fn let_go_of_flock(
        self: &Arc<Self>,
        request: &Request,
        holding: &Arc<Holding>,
        interrupt: &Interrupt,
        attempt: &mut Attempt,
    ) -> Result<(), LockError> {
        if !self.converts_flock(request) {
            return Ok(());
        }
        let _gate = self.gate(holding, interrupt).await?;
        // TEST of some servers sees no shared locks (see `refused`), but those of this mount are known. Two
        // owners here that share a lock would otherwise wait for each other before either asks the server.
        let Request {
            owner, range, mode, ..
        } = *request;
        let other = self
            .state
            .lock()
            .table
            .conflict(request.file.id, owner, range, mode);
        let test = LockCall::Test { exclusive: true };
        let taken = other.is_some()
            || match self.call(holding, request.range, test).await {
                Ok(answer) => answer.status == Status::Denied,
                Err(_) => false,
            };
        match taken {
            true => self.free_flock(holding, attempt).await,
            false => Ok(()),
        }
    }

    /// Whether the request converts a shared lock of flock(2) to an exclusive one. (The opposite
    /// conversion cannot conflict.)
    fn converts_flock(&self, request: &Request) -> bool {
        if !matches!(request.owner, Owner::Flock(_)) || request.mode == Mode::Read {
            return false;
        }
        let state = self.state.lock();
        let held = state.table.held(request.file.id, request.owner);
        held.is_some_and(|set| set.iter().any(|(_, mode)| mode != request.mode))
    }

    /// Releases a lock that is to be converted. The caller has the gate.
    async fn free_flock(&self, holding: &Holding, attempt: &mut Attempt) -> Result<(), LockError> {
        let unlock = async {
            let all = ByteRange::ALL;
            Ok(self.insist(holding, all, LockCall::Unlock).await)
        };
        // The server may carry it out even if it is given up.
        let before = std::mem::replace(&mut attempt.uncertain, true);
        let answer = self.config.patiently(unlock).await?;
        attempt.uncertain = before;
        if answer.is_some_and(|answer| answer.status != Status::DeniedGracePeriod) {
            self.state.lock().apply(holding, ByteRange::ALL, None);
        }
        Ok(())
    }

    /// LOCK was refused, and the request waits. A lock of flock(2) that is to be converted is
    /// released now, although TEST found no conflict: TEST of Linux 6.12 does not see shared locks,
    /// and two owners that share a lock would wait for each other for ever.
    async fn refused(
        &self,
        request: &Request,
        holding: &Holding,
        attempt: &mut Attempt,
    ) -> Result<(), LockError> {
        self.counters.lock_polls.fetch_add(1, Ordering::Relaxed);
        match self.converts_flock(request) {
            true => self.free_flock(holding, attempt).await,
            false => Ok(()),
        }
    }

    /// Checks the request against this mount's locks. If it waits, it gets a place in the queue.
    fn queue(
        &self,
        request: &Request,
        attempt: &mut Attempt,
    ) -> Result<Option<Arc<Notify>>, LockError> {
        let mut state = self.state.lock();
        let (file, owner) = (request.file.id, request.owner);
        let (range, mode) = (request.range, request.mode);
        if !request.wait {
            return match state.table.conflict(file, owner, range, mode) {
                Some(_) => Err(LockError::WouldBlock),
                None => Ok(None),
            };
        }
        let id = state
            .table
            .wait(file, owner, range, mode)
            .map_err(|_| LockError::Deadlock)?;
        let turn = Arc::new(Notify::new());
        state.turns.insert(id, turn.clone());
        attempt.waiter = Some(id);
        Ok(Some(turn))
    }

    /// Waits until no lock of this mount is in the way, unless the request may be at the server
    /// already. Returns whether it had to.
    async fn wait_for_turn(
        &self,
        turn: &Notify,
        attempt: &Attempt,
        interrupt: &Interrupt,
    ) -> Result<bool, LockError> {
        let Some(id) = attempt.waiter else {
            return Ok(false);
        };
        let mut waited = false;
        loop {
            if self.state.lock().table.may_ask(id) || attempt.uncertain {
                return Ok(waited);
            }
            waited = true;
            tokio::select! {
                () = turn.notified() => {}
                stop = self.stop(interrupt) => return Err(stop),
            }
        }
    }

    /// Waits until the locks from before a restart of the server are claimed.
    async fn wait_for_recovery(&self, interrupt: &Interrupt) -> Result<(), LockError> {
        loop {
            let mut recovered = std::pin::pin!(self.recovery.ended.notified());
            recovered.as_mut().enable();
            if !self.recovery.under_way.load(Ordering::Acquire) {
                return Ok(());
            }
            tokio::select! {
                () = recovered => {}
                stop = self.stop(interrupt) => return Err(stop),
            }
        }
    }

    /// Sends LOCK. The call goes on if the wait for it is stopped.
    async fn ask(
        self: &Arc<Self>,
        request: &Request,
        holding: &Arc<Holding>,
        interrupt: &Interrupt,
        attempt: &mut Attempt,
    ) -> Result<Result<LockAnswer, PlainError>, LockError> {
        let (this, of, range) = (self.clone(), holding.clone(), request.range);
        let call = lock_call(request.mode, request.wait);
        attempt.suspicions = self.recovery.suspicions.load(Ordering::Acquire);
        let cred = request.cred.clone();
        let mut task = self
            .runtime
            .spawn(async move { this.call_by(&cred, &of, range, call).await });
        tokio::select! {
            result = &mut task => {
                let result = result.unwrap_or(Err(PlainError::TimedOut));
                attempt.uncertain |= match &result {
                    // FAILED stands for answers that make no sense, too.
                    Ok(answer) => matches!(answer.status, Status::Blocked | Status::Failed),
                    Err(PlainError::Refused(_) | PlainError::NoProgram) => false,
                    Err(_) => true,
                };
                Ok(result)
            }
            stop = self.stop(interrupt) => {
                attempt.uncertain = true;
                attempt.under_way = Some(task);
                Err(stop)
            }
        }
    }

    /// Makes the server's locks of the range the same as those in the table.
    async fn restore(&self, request: &Request, holding: &Holding, mut attempt: Attempt) {
        let _gate = match attempt.gate.take() {
            Some(gate) => gate,
            None => holding.gate.clone().lock_owned().await,
        };
        if let Some(task) = attempt.under_way.take() {
            let answered = task.await;
            let refused = |status| {
                !matches!(
                    status,
                    Status::Granted | Status::Blocked | Status::DeniedGracePeriod
                )
            };
            // Nothing was granted, and nothing will be.
            if matches!(&answered, Ok(Ok(answer)) if refused(answer.status)) && !request.wait {
                return;
            }
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
                Some(answer) if answer.status != Status::DeniedGracePeriod => {}
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
            let answer = self.insist(holding, piece, call).await;
            match answer.map(|answer| answer.status) {
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
#[path = "waiting_model.rs"]
mod waiting_model;
