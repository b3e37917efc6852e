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
use super::holding::{Holding, Request};
use super::lock_table::{FileId, Owner};
use super::manager::Locks;
use super::range::ByteRange;
use super::repeat::Caller;
use std::sync::Arc;
use std::time::Duration;

/// How long a request that does not wait for locks waits for those that are being released: for the
/// kernel, their processes have let go of them. If the server does not answer, EAGAIN is true: it has
/// the lock.
pub(crate) const RELEASED_WITHIN: Duration = Duration::from_secs(2);

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
            let ranges = &mut self.holding.state.lock().releasing;
            if let Some(at) = ranges.iter().position(|of| *of == self.range) {
                ranges.swap_remove(at);
            }
        }
        self.locks.leave(&self.holding);
        self.locks.releases.send_modify(|releases| *releases += 1);
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
        self.releases.send_modify(|releases| *releases += 1);
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
        if self.is_unused() {
            return Vec::new();
        }
        let ends = |(owner, of): &(Owner, &Arc<Holding>)| {
            let asked = of.state.lock().opens.remove(&open);
            asked || flock.map(Owner::Flock) == Some(*owner)
        };
        let owners: Vec<Owner> = {
            let state = self.state.lock();
            let ending = state.of_file(file).filter(ends);
            ending.map(|(owner, _)| owner).collect()
        };
        let mut all = Vec::new();
        for owner in owners {
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

    /// A number that changes whenever a release begins or ends.
    pub(super) fn releases(&self) -> u64 {
        *self.releases.borrow()
    }

    /// Waits until no locks of a holding in a range are being released.
    pub(super) async fn own_released(&self, holding: &Holding, range: ByteRange) {
        self.until_released(|| !holding.is_releasing(range)).await;
    }

    /// Whether a release is in the way of a request that does not wait. `None`: a lock of this mount is,
    /// and nobody releases it.
    fn waits_for_release(&self, request: &Request) -> Option<bool> {
        if let Some((_, holding)) = self.conflict(request) {
            let releasing = holding.is_none_or(|of| of.is_releasing(request.range));
            return releasing.then_some(true);
        }
        // The server may have a lock that the table does not have.
        let state = self.state.lock();
        let mut others = state.of_file(request.file.id);
        Some(others.any(|(owner, of)| owner != request.owner && of.is_releasing(request.range)))
    }

    /// A request that does not wait was refused, because of a lock of this mount or by the server.
    /// `before` is what [`Locks::releases`] was just before that. If the lock in the way may have been
    /// released since, or is being released, waits for the end of that, for [`RELEASED_WITHIN`] at most, and returns
    /// true: the request is to be tried again. `known` is ready when every release that began before the
    /// request is known.
    pub(super) async fn is_released(
        &self,
        request: &Request,
        before: u64,
        caller: &Caller<'_>,
        known: impl Future<Output = ()>,
    ) -> Result<bool, LockError> {
        let waiting = async {
            if self.conflict(request).is_some() {
                known.await;
            }
            match self.waits_for_release(request) {
                None => false,
                Some(false) => self.releases() != before,
                Some(true) => {
                    let released = || self.waits_for_release(request) != Some(true);
                    self.until_released(released).await;
                    true
                }
            }
        };
        let waiting = tokio::time::timeout(RELEASED_WITHIN, waiting);
        Ok(caller.until(waiting).await?.unwrap_or(true))
    }

    /// Waits for something that comes by the end of a release.
    async fn until_released(&self, condition: impl Fn() -> bool) {
        // It cannot fail while `self` lives.
        let _ = self.releases.subscribe().wait_for(|_| condition()).await;
    }
}

#[cfg(test)]
#[path = "releasing_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "tests/releasing_model.rs"]
mod model;
