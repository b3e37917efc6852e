//! Locks that are being released while somebody else asks for them without waiting.
//!
//! The kernel sends RELEASE in the background, and may answer for a killed process early: close(2)
//! has returned, or the process has ended, when its locks are still in the table. With Linux's own
//! client they are gone by then. So whoever handles a RELEASE, a FLUSH or an unlock notes at once whose
//! locks it will release ([`Releasing`]), and a request that would be refused because of such a lock waits a
//! while for the end of that. A request that is refused because of any other lock does not wait.
//!
//! A lock is also being released if nobody knows whether the server has it: after a request that was
//! given up, and after an unlock that the server refused in its grace period.
//!
//! The kernel's number of an owner is that of a structure of an open file or a process, whose memory
//! is used again. So a lock for an owner whose locks on the file are being released waits for that,
//! too: the UNLOCK for the old owner would remove the lock of the new one.

use super::error::LockError;
use super::interrupt::Interrupt;
use super::lock_table::{FileId, Owner};
use super::manager::{Holding, Locks, Request};
use super::range::ByteRange;
use std::sync::Arc;
use std::time::Duration;

/// How long a request that does not wait for locks waits for those that are being released. If the
/// server does not answer, EAGAIN is true: it has the lock.
const MOST: Duration = Duration::from_secs(2);

/// While this lives, locks of an owner are being released.
#[derive(Debug)]
#[must_use]
pub struct Releasing {
    locks: Arc<Locks>,
    pub(super) holding: Arc<Holding>,
    range: ByteRange,
}

impl Releasing {
    pub fn owner(&self) -> Owner {
        self.holding.owner
    }
}

/// Owners who had a request or a release under way, with the number of their releases until then.
#[derive(Debug, Default)]
pub(super) struct InUse(Vec<(Arc<Holding>, u64)>);

impl InUse {
    /// Whether a release of one of them has ended since.
    fn has_released(&self) -> bool {
        let mut all = self.0.iter();
        all.any(|(holding, before)| holding.state.lock().released != *before)
    }
}

impl Holding {
    /// Whether locks in a range are being released.
    fn is_releasing(&self, range: ByteRange) -> bool {
        let ranges = &self.state.lock().releasing;
        ranges.iter().any(|of| of.overlaps(&range))
    }
}

impl Drop for Releasing {
    fn drop(&mut self) {
        {
            let mut of = self.holding.state.lock();
            of.released += 1;
            let ranges = &mut of.releasing;
            if let Some(at) = ranges.iter().position(|of| *of == self.range) {
                ranges.swap_remove(at);
            }
        }
        self.locks.leave(&self.holding);
        self.locks.released.notify_waiters();
    }
}

impl Locks {
    /// Notes that locks of an owner are about to be released. `None` if it has none and has not
    /// asked for any; then there is nothing to release.
    pub fn releasing(
        self: &Arc<Self>,
        file: FileId,
        owner: Owner,
        range: ByteRange,
    ) -> Option<Releasing> {
        let holding = self.enter_existing(file, owner)?;
        holding.state.lock().releasing.push(range);
        Some(Releasing {
            locks: self.clone(),
            holding,
            range,
        })
    }

    /// An open file ends: notes whose locks end with it, which are those of flock(2) and of
    /// F_OFD_SETLK. (POSIX locks of processes have ended when these closed the file.) `is_open`
    /// tells whether another open file is still open: an owner that has asked for locks through it
    /// is a new one with an old number, and keeps them.
    pub fn close_open(
        self: &Arc<Self>,
        file: FileId,
        open: u64,
        flock: Option<u64>,
        is_open: impl Fn(u64) -> bool,
    ) -> Vec<Releasing> {
        let mut owners = self.owners_by_open(file, open);
        if let Some(flock) = flock.map(Owner::Flock)
            && !owners.contains(&flock)
        {
            owners.push(flock);
        }
        let mut all = Vec::new();
        for owner in owners {
            self.forget_open(file, open, owner);
            if let Some(releasing) = self.releasing(file, owner, ByteRange::ALL) {
                let others = releasing.holding.state.lock().opens.clone();
                if !others.into_iter().any(&is_open) {
                    all.push(releasing);
                }
            }
        }
        all
    }

    /// Records that `owner` no longer has locks through this open file.
    pub fn forget_open(&self, file: FileId, open: u64, owner: Owner) {
        let state = self.state.lock();
        if let Some(holding) = state.holdings.get(&(file, owner)) {
            holding.state.lock().opens.remove(&open);
        }
    }

    /// Waits until no locks of a request's own owner in its range are being released. The caller has
    /// entered `holding`.
    pub(super) async fn own_released(
        &self,
        holding: &Holding,
        range: ByteRange,
        interrupt: &Interrupt,
    ) -> Result<(), LockError> {
        self.until(interrupt, || !holding.is_releasing(range)).await
    }

    /// If a lock of this mount is in the way of a request: waits, for [`MOST`] at most, until
    /// `known` is ready and the lock is not being released any more.
    pub(super) async fn others_released(
        &self,
        request: &Request,
        interrupt: &Interrupt,
        known: impl Future<Output = ()>,
    ) -> Result<(), LockError> {
        let conflict = || {
            let state = self.state.lock();
            let (file, owner) = (request.file.id, request.owner);
            let conflict = state
                .table
                .conflict(file, owner, request.range, request.mode);
            let holding = state.holdings.get(&(file, conflict?.owner));
            holding.cloned()
        };
        if conflict().is_none() {
            return Ok(());
        }
        let released = || conflict().is_none_or(|holding| !holding.is_releasing(request.range));
        let waiting = async {
            known.await;
            self.until(interrupt, released).await
        };
        // What is still in the way then is looked for by the caller.
        tokio::time::timeout(MOST, waiting).await.unwrap_or(Ok(()))
    }

    /// Notes which other owners of a file have a request or a release under way: the server may have
    /// locks of theirs that the table does not have.
    pub(super) fn others_in_use(&self, request: &Request) -> InUse {
        let state = self.state.lock();
        let others = state.of_file(request.file.id);
        let in_use = others.filter_map(|(owner, holding)| {
            let of = holding.state.lock();
            (owner != request.owner && of.is_in_use()).then(|| (holding.clone(), of.released))
        });
        InUse(in_use.collect())
    }

    /// The server has refused a request although no lock of this mount is in the way. `before` is
    /// what [`Locks::others_in_use`] has noted just before the request was sent. If the server may
    /// have had locks that the table does not have, and that are being released or were released
    /// since, waits for the end of that, for [`MOST`] at most. Otherwise the request fails. (A
    /// release may have ended between the refusal and its arrival here.)
    pub(super) async fn unknown_released(
        &self,
        request: &Request,
        before: InUse,
        interrupt: &Interrupt,
    ) -> Result<(), LockError> {
        let releasing: Vec<Arc<Holding>> = {
            let state = self.state.lock();
            let others = state.of_file(request.file.id).filter(|(owner, holding)| {
                *owner != request.owner && holding.is_releasing(request.range)
            });
            others.map(|(_, holding)| holding.clone()).collect()
        };
        if releasing.is_empty() && !before.has_released() {
            return Err(LockError::WouldBlock);
        }
        let released = || !releasing.iter().any(|of| of.is_releasing(request.range));
        let waiting = self.until(interrupt, released);
        tokio::time::timeout(MOST, waiting).await.unwrap_or(Ok(()))
    }

    async fn until(
        &self,
        interrupt: &Interrupt,
        condition: impl Fn() -> bool,
    ) -> Result<(), LockError> {
        loop {
            let mut told = std::pin::pin!(self.released.notified());
            told.as_mut().enable();
            if condition() {
                return Ok(());
            }
            tokio::select! {
                () = told => {}
                stop = self.stop(interrupt) => return Err(stop),
            }
        }
    }
}

#[cfg(test)]
#[path = "releasing_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "releasing_model.rs"]
mod model;
