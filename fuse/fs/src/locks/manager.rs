//! What all lock requests of a mount share ([`Locks`]), and the calls to the server's lock manager.
//!
//! An answer that the server is in its grace period means
//! that it has restarted, and starts the recovery of all locks.

use super::config::{Kinds, Lasting, LockConfig};
use super::error::LockError;
use super::holding::{Holding, LockFile, Request};
use super::interrupt::Interrupt;
use super::lock_log::LockLog;
use super::lock_table::{Conflict, FileId, LockTable, Owner, WaiterId};
use super::range::{ByteRange, Mode};
use super::svids::Svids;
use crate::counters::counters;
use nfsrdma_nfs3::Cred;
use nfsrdma_nfs3::nlm::{
    CallbackSink, Journal, LockAnswer, LockCall, LockServer, LockTarget, Status,
};
use nfsrdma_record::{Lock, Region};
use nfsrdma_rpcrdma::rpc::plain::PlainError;
use nfsrdma_xdr::nfs3::FileHandle;
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::{Notify, RwLock, watch};
use tokio::time::Instant;

/// Any server's grace period is longer than this. So what is done after it is in time to claim locks, and
/// signs of a restart that are no further apart belong to the same one. One recovery follows another at
/// once, because the server may have restarted while that was under way; a third begins later. (Anybody
/// can say in the name of a server that it has restarted, and some servers end each connection.)
pub(super) const GRACE: Duration = Duration::from_secs(5);

/// The conflicting lock that F_GETLK returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tested {
    pub range: ByteRange,
    pub mode: Mode,
    /// 0 if the lock is not of this mount.
    pub pid: u32,
}

#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) table: LockTable,
    pub(super) turns: HashMap<WaiterId, Arc<Notify>>,
    /// In the order of files, so that those of one file are found without a look at all.
    pub(super) holdings: BTreeMap<(FileId, Owner), Arc<Holding>>,
    pub(super) svids: Svids,
    /// How often a restart of the server was suspected.
    pub(super) suspicions: u64,
}

impl State {
    /// The holdings of a file.
    pub(super) fn of_file(&self, file: FileId) -> impl Iterator<Item = (Owner, &Arc<Holding>)> {
        let all = (file, Owner::FIRST)..=(file, Owner::LAST);
        let of_file = self.holdings.range(all);
        of_file.map(|((_, owner), holding)| (*owner, holding))
    }

    /// Enters an answer of the server: a range of an owner is locked in a mode, or unlocked.
    pub(super) fn apply(&mut self, of: &Holding, range: ByteRange, mode: Option<Mode>) {
        // Before anybody is told.
        of.keep(range, mode);
        let due = self.table.apply(of.file.id, of.owner, range, mode);
        self.tell(&due);
    }

    /// A request that waited is granted or given up.
    pub(super) fn end_wait(&mut self, waiter: &mut Option<(WaiterId, Arc<Notify>)>) {
        if let Some((id, _)) = waiter.take() {
            self.turns.remove(&id);
            let due = self.table.end_wait(id);
            self.tell(&due);
        }
    }

    /// Wakes waiters whose turn has come.
    fn tell(&self, due: &[WaiterId]) {
        for turn in due.iter().filter_map(|id| self.turns.get(id)) {
            turn.notify_one();
        }
    }
}

counters! {
    /// The counters of the locks.
    Counters {
        /// Calls to the lock manager, by procedure.
        lock_calls,
        unlock_calls,
        test_calls,
        cancel_calls,
        /// Calls that were not answered or were refused.
        lock_timeouts,
        /// LOCKs that found a conflicting lock of another machine and are repeated.
        lock_polls,
        locks_granted,
        locks_denied,
        lock_deadlocks,
        lock_interrupts,
        /// Answers that the server is in its grace period.
        lock_grace_waits,
        locks_reclaimed,
        locks_lost,
        /// GRANTED calls of the server for owners of this mount; `lock_restarts_told`: notices of its
        /// restart.
        lock_grants_told,
        lock_restarts_told,
    }
}

/// Whether the server may have restarted and forgotten the locks, and what is being done about it.
#[derive(Debug, Default)]
pub(super) struct Recovery {
    /// Notified when a recovery is to begin.
    pub(super) wanted: Notify,
    /// Locked while one is under way.
    pub(super) under_way: RwLock<()>,
    /// The last sign that the server is in a grace period for which locks have been claimed.
    pub(super) claimed: Mutex<Option<Instant>>,
}

/// The locks of a mount; see the module [`locks`](super).
pub struct Locks {
    pub(super) server: Arc<dyn LockServer>,
    pub(super) config: LockConfig,
    /// What it leaves to the process that goes on with the mount.
    pub(super) records: Arc<Region<Lock>>,
    /// From which the next mount unlocks if nobody goes on.
    pub(super) journal: Option<Journal>,
    pub(crate) log: LockLog,
    pub(super) runtime: Handle,
    pub(super) state: Mutex<State>,
    /// Whether there are holdings. It can be read without locking `state`.
    in_use: AtomicBool,
    pub(super) counters: Counters,
    /// The mount is no longer used: waits for locks end.
    pub(super) unused: Interrupt,
    /// The mount ends: calls are not repeated any more.
    pub(super) ending: Interrupt,
    /// The number of spawned operations that have not ended.
    pub(super) running: watch::Sender<usize>,
    /// Counts the releases that have begun, and again when they end. It must not be changed with `state`
    /// locked, because whoever waits for it looks at that.
    pub(super) releases: watch::Sender<u64>,
    pub(super) recovery: Recovery,
    /// What has to be done for the locks of a process that has died, when this one serves the mount.
    pub(super) inherited: Mutex<Vec<Pin<Box<dyn Future<Output = ()> + Send>>>>,
}

impl fmt::Debug for Locks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.state.lock().table.fmt(f)
    }
}

impl Locks {
    /// The locks of a mount at `server`; background work runs in `runtime`.
    pub(super) fn new(
        server: Arc<dyn LockServer>,
        config: LockConfig,
        lasting: Lasting,
        runtime: Handle,
    ) -> Arc<Self> {
        let state = State {
            svids: Svids::new(lasting.blocks, lasting.keep),
            ..State::default()
        };
        Arc::new(Locks {
            server,
            config,
            records: lasting.records,
            journal: lasting.journal,
            log: LockLog::default(),
            runtime,
            state: Mutex::new(state),
            in_use: AtomicBool::new(false),
            counters: Counters::default(),
            unused: Interrupt::default(),
            ending: Interrupt::default(),
            running: watch::Sender::default(),
            releases: watch::Sender::default(),
            recovery: Recovery::default(),
            inherited: Mutex::default(),
        })
    }

    pub fn kinds(&self) -> Kinds {
        self.config.kinds
    }

    /// Counters since the mount, as (name, value).
    pub fn statistics(&self) -> Vec<(&'static str, u64)> {
        let mut list = self.counters.list();
        let state = self.state.lock();
        list.push(("locks_held", state.table.len() as u64));
        list.push(("lock_waiters", state.table.waiting() as u64));
        list
    }

    /// Whether a lock that was requested through this open file is lost.
    pub fn is_lost(&self, file: FileId, open: u64) -> bool {
        if self.counters.locks_lost.get() == 0 {
            return false;
        }
        let state = self.state.lock();
        state.of_file(file).any(|(_, holding)| {
            let state = holding.state.lock();
            state.lost.is_some() && state.opens.contains(&open)
        })
    }

    /// Runs an operation in the runtime; [`Locks::finish`] waits for it.
    pub fn spawn(self: &Arc<Self>, operation: impl Future<Output = ()> + Send + 'static) {
        struct Running(Arc<Locks>);
        impl Drop for Running {
            fn drop(&mut self) {
                self.0.running.send_modify(|running| *running -= 1);
            }
        }
        self.running.send_modify(|running| *running += 1);
        let running = Running(self.clone());
        self.runtime.spawn(async move {
            operation.await;
            drop(running);
        });
    }

    /// Whether no request is under way and no lock is held.
    pub(super) fn is_unused(&self) -> bool {
        !self.in_use.load(Ordering::Acquire)
    }

    /// The first lock of this mount that keeps a request from being granted, and its owner's holding.
    pub(super) fn conflict(&self, request: &Request) -> Option<(Conflict, Option<Arc<Holding>>)> {
        let state = self.state.lock();
        let (file, owner) = (request.file.id, request.owner);
        let conflict = state
            .table
            .conflict(file, owner, request.range, request.mode)?;
        let holding = state.holdings.get(&(file, conflict.owner));
        Some((conflict, holding.cloned()))
    }

    /// The holding for a request to take a lock, new if there is none. Counts as used until
    /// [`Locks::leave`].
    pub(super) fn enter(&self, request: &Request) -> Result<Arc<Holding>, LockError> {
        let holding = self.enter_to_test(request)?;
        holding.asked_by((request.pid, request.open), self.server.state());
        Ok(holding)
    }

    /// As [`Locks::enter`], for a request that takes no lock.
    pub(super) fn enter_to_test(&self, request: &Request) -> Result<Arc<Holding>, LockError> {
        let mut state = self.state.lock();
        let key = (request.file.id, request.owner);
        let holding = match state.holdings.get(&key) {
            Some(holding) => holding.clone(),
            None => {
                let svid = state.svids.take(request.owner).map_err(|error| {
                    tracing::error!(%error, "no number for a lock owner");
                    LockError::NoLocks
                })?;
                self.make_holding(&mut state, request.file, request.owner, svid, &request.cred)
            }
        };
        holding.state.lock().uses += 1;
        Ok(holding)
    }

    pub(super) fn make_holding(
        &self,
        state: &mut State,
        file: LockFile,
        owner: Owner,
        svid: u32,
        cred: &Cred,
    ) -> Arc<Holding> {
        if let Some(journal) = &self.journal {
            self.journaled(journal.add(svid, &file.handle, cred));
        }
        let records = self.records.clone();
        let holding = Arc::new(Holding::new(file, owner, svid, cred, records));
        state.holdings.insert((file.id, owner), holding.clone());
        self.in_use.store(true, Ordering::Release);
        holding
    }

    /// A line was to be written to the journal.
    pub(super) fn journaled(&self, result: io::Result<()>) {
        if let Err(error) = result {
            self.log.journal_failed(&error);
        }
    }

    /// As [`Locks::enter`], only if there is a holding.
    pub(super) fn enter_existing(&self, file: FileId, owner: Owner) -> Option<Arc<Holding>> {
        if self.is_unused() {
            return None;
        }
        let state = self.state.lock();
        let holding = state.holdings.get(&(file, owner))?.clone();
        holding.state.lock().uses += 1;
        Some(holding)
    }

    pub(super) fn leave(&self, holding: &Holding) {
        let mut state = self.state.lock();
        let mut of = holding.state.lock();
        of.uses -= 1;
        let key = (holding.file.id, holding.owner);
        let unused = of.uses == 0 && of.lost.is_none() && !state.table.concerns(key.0, key.1);
        drop(of);
        if unused {
            state.holdings.remove(&key);
            if state.holdings.is_empty() {
                self.in_use.store(false, Ordering::Release);
            }
            if let Some(journal) = &self.journal {
                self.journaled(journal.remove(holding.svid, &holding.file.handle));
            }
            state.svids.give_back(holding.owner);
        }
    }

    /// The server may have restarted: starts the recovery of all locks. A LOCK that is under way may have
    /// been granted before: its caller sees the new count, and then wants one more recovery.
    pub fn suspect(&self) {
        self.state.lock().suspicions += 1;
        self.recover_soon();
    }

    pub(super) fn recover_soon(&self) {
        self.recovery.wanted.notify_one();
    }

    /// The server has answered that it is in its grace period. Locks are claimed once for each.
    fn in_grace(&self) {
        let now = Instant::now();
        let last = self.recovery.claimed.lock().replace(now);
        if last.is_none_or(|last| now > last + GRACE) {
            self.suspect();
        }
    }

    /// Makes one call.
    pub(super) async fn call(
        &self,
        cred: &Cred,
        target: &LockTarget,
        call: LockCall,
    ) -> Result<LockAnswer, PlainError> {
        let counter = match call {
            LockCall::Test { .. } => &self.counters.test_calls,
            LockCall::Lock { .. } => &self.counters.lock_calls,
            LockCall::Cancel { .. } => &self.counters.cancel_calls,
            LockCall::Unlock => &self.counters.unlock_calls,
        };
        counter.add(1);
        let result = self.server.call(cred, target, call).await;
        match &result {
            Ok(answer) if answer.status == Status::DeniedGracePeriod => {
                self.counters.lock_grace_waits.add(1);
                if !matches!(call, LockCall::Lock { reclaim: true, .. }) {
                    self.in_grace();
                }
            }
            Ok(_) => {}
            Err(_) => {
                self.counters.lock_timeouts.add(1);
            }
        }
        result
    }
}

impl CallbackSink for Locks {
    fn granted(&self, svid: u32, file: &FileHandle) -> bool {
        let state = self.state.lock();
        let mut all = state.holdings.values();
        let Some(holding) = all.find(|of| of.svid == svid && of.file.handle == *file) else {
            return false;
        };
        self.counters.lock_grants_told.add(1);
        holding.granted.notify_one();
        true
    }

    fn restarted(&self) {
        self.counters.lock_restarts_told.add(1);
        self.suspect();
    }
}
