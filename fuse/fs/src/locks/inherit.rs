//! What a process does that goes on with the locks of one that has died. They are still held: nothing is
//! claimed, and the server is told of no crash.
//!
//! Of a range that was being asked for or unlocked nobody knows how the server has locked it. Its state is
//! restored, before any other request of the owner changes it, but after the server has run what that process had
//! sent. Whoever still waits for an answer asks again, because the kernel sends these requests to this process, too.
//!
//! The server may have restarted while no process served the mount. So it is asked whether a lock is still in
//! the way of others.

use super::holding::{Holding, LockFile};
use super::lock_table::Owner;
use super::manager::{Locks, State};
use super::range::{ByteRange, Mode};
use super::releasing::Releasing;
use super::repeat::is_unanswered;
use crate::credential::cred_of;
use nfsrdma_nfs3::nlm::{LockCall, LockTarget, Status};
use nfsrdma_record::{Lock, Record};
use std::pin::Pin;
use std::sync::Arc;

/// Who asks whether a lock is in the way; the kernel does not use this number.
const STRANGER: Owner = Owner::LAST;

impl Locks {
    /// Takes what is recorded. Sends nothing yet: if this process fails before it serves, the next one inherits.
    pub(super) fn inherit(self: &Arc<Self>) {
        let mut found = self.records.restore();
        // In the order in which they were made.
        found.sort_by_key(|lock| lock.number() >> 32);
        let any = !found.is_empty();
        let mut later: Vec<Pin<Box<dyn Future<Output = ()> + Send>>> = Vec::new();
        for record in found {
            let Some(range) = ByteRange::new(record.start, record.end) else {
                continue;
            };
            let mode = match record.exclusive {
                0 => Mode::Read,
                _ => Mode::Write,
            };
            let mut state = self.state.lock();
            let holding = self.restored(&mut state, &record);
            let (file, owner) = (holding.file.id, holding.owner);
            match record.standing {
                Lock::HELD => {
                    holding.granted_by(&cred_of(&record.cred), mode);
                    holding.adopt(range, mode, record);
                    state.table.apply(file, owner, range, Some(mode));
                }
                Lock::LOST => {
                    self.counters.locks_lost.add(1);
                    holding.state.lock().lost = Some(record);
                }
                _ => {
                    drop(state);
                    // Requests for locks of the owner wait for it.
                    if let Some(releasing) = self.releasing(file, owner, range) {
                        let (this, of) = (self.clone(), (range, mode));
                        later.push(Box::pin(async move {
                            this.make_sure(releasing, of, record).await;
                        }));
                    }
                }
            }
        }
        if any {
            let this = self.clone();
            later.push(Box::pin(async move { this.look_for_restart().await }));
        }
        *self.inherited.lock() = later;
    }

    /// The other process is gone, and this one serves the mount. `is_open` tells whether a file is still open:
    /// what was locked through others is unlocked, since their processes may have been killed, and answered
    /// early.
    pub fn go_on(self: &Arc<Self>, is_open: impl Fn(u64) -> bool) {
        let later = std::mem::take(&mut *self.inherited.lock());
        if later.is_empty() {
            return;
        }
        let told = {
            let state = self.state.lock();
            let told = |of: &Arc<Holding>| of.state.lock().machine_state;
            state.holdings.values().map(told).max()
        };
        self.server.resume(told.unwrap_or(0));
        later.into_iter().for_each(|work| self.spawn(work));
        self.end_closed(is_open);
    }

    /// The holding of an owner that a process before has had.
    fn restored(&self, state: &mut State, lock: &Lock) -> Arc<Holding> {
        let owner = match lock.flock {
            0 => Owner::Posix(lock.owner),
            _ => Owner::Flock(lock.owner),
        };
        let holding = match state.holdings.get(&(lock.nodeid, owner)) {
            Some(holding) => holding.clone(),
            None => {
                state.svids.restore(owner, lock.svid);
                let file = LockFile {
                    id: lock.nodeid,
                    handle: lock.handle,
                    fileid: lock.fileid,
                };
                self.make_holding(state, file, owner, lock.svid, &cred_of(&lock.cred))
            }
        };
        holding.asked_by((lock.pid, lock.open), lock.machine_state);
        holding
    }

    /// Makes the server's state of a range that was being asked for or unlocked that of the table.
    async fn make_sure(
        &self,
        releasing: Releasing,
        (range, mode): (ByteRange, Mode),
        record: Record<Lock>,
    ) {
        self.server.settled().await;
        let holding = &releasing.holding;
        let _gate = holding.gate.clone().lock_owned().await;
        let queued = record.standing == Lock::QUEUED;
        self.withdraw(holding, range, mode, queued).await;
    }

    /// Asks for one lock whether the server still has it. An answer that it is in its grace period is a sign of
    /// a restart anyway.
    async fn look_for_restart(&self) {
        let (holding, range, svid) = {
            let mut state = self.state.lock();
            let Some((file, owner)) = state.table.all().first().copied() else {
                return;
            };
            let held = state.table.held(file, owner);
            let range = held.and_then(|set| set.iter().next());
            let holding = state.holdings.get(&(file, owner)).cloned();
            let (Some(holding), Some((range, _))) = (holding, range) else {
                return;
            };
            let Ok(svid) = state.svids.take(STRANGER) else {
                return;
            };
            (holding, range, svid)
        };
        let target = LockTarget {
            svid,
            ..holding.target(range)
        };
        let test = LockCall::Test { exclusive: true };
        let cred = holding.cred();
        let tested = self.repeat(&cred, &target, test, is_unanswered);
        if let Some(Ok(answer)) = tested.await
            && answer.status == Status::Granted
        {
            self.suspect();
        }
        self.state.lock().svids.give_back(STRANGER);
    }

    fn end_closed(self: &Arc<Self>, is_open: impl Fn(u64) -> bool) {
        let ended: Vec<_> = {
            let state = self.state.lock();
            let is_ended = |of: &Holding| !of.state.lock().opens.iter().copied().any(&is_open);
            let ended = state.holdings.iter().filter(|(_, of)| is_ended(of));
            ended.map(|(key, _)| *key).collect()
        };
        for (file, owner) in ended {
            if let Some(releasing) = self.releasing(file, owner, ByteRange::ALL) {
                let this = self.clone();
                self.spawn(async move {
                    // No program waits for this result.
                    let _ = this.unlock_all(file, owner).await;
                    drop(releasing);
                });
            }
        }
    }
}

#[cfg(test)]
#[path = "inherit_tests.rs"]
mod tests;
