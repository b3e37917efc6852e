//! Whether the server has a lock on a range, tested as an owner that holds nothing.
//!
//! TEST should tell. But TEST of Linux's lockd does not see shared locks in some versions: in
//! 6.12.117, a TEST for an exclusive lock is GRANTED although the range is locked shared, even by
//! the same client. So if there should be a shared lock, and TEST sees none, an exclusive LOCK is
//! sent that does not wait. If it is granted, nobody holds the range, and it is unlocked at once.
//!
//! Another mount that has lost a lock on the same range may do this at the same time. Its exclusive
//! lock must not be mistaken for our shared lock, which cannot exist at the same time. If LOCK is
//! refused, it is repeated a few times, since the lock of the other mount exists only briefly.

use super::acquire::lock_call;
use super::manager::{Holding, Locks};
use super::range::{ByteRange, Mode};
use super::repeat::Pauses;
use nfsrdma_nfs3::nlm::{LockAnswer, LockCall, LockTarget, Status};

/// How often an exclusive lock is asked for.
const ATTEMPTS: usize = 4;

/// Whether the conflicting lock that TEST returned is an exclusive lock of another owner.
fn excludes(tested: &LockAnswer, holding: &Holding) -> bool {
    let holder = tested.holder;
    holder.is_some_and(|holder| holder.exclusive && holder.svid != holding.svid)
}

/// Whether a range is locked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Found {
    Held,
    Free,
    /// The server is in its grace period: it has restarted since it refused the reclaim.
    Restarted,
}

impl Locks {
    /// Whether the server has a lock on a range that `holding` should have locked with `mode`.
    /// `None` if the mount ends before that is known.
    pub(super) async fn is_held(
        &self,
        holding: &Holding,
        range: ByteRange,
        mode: Mode,
    ) -> Option<Found> {
        let stranger = LockTarget {
            svid: self.state.lock().svids.fresh().ok()?,
            ..holding.target(range)
        };
        let test = LockCall::Test { exclusive: true };
        let tested = self.answered(holding, &stranger, test).await?;
        match (tested.status, mode) {
            (Status::DeniedGracePeriod, _) => return Some(Found::Restarted),
            (Status::Denied, Mode::Read) if excludes(&tested, holding) => return Some(Found::Free),
            (Status::Denied, _) => return Some(Found::Held),
            (_, Mode::Write) => return Some(Found::Free),
            (_, Mode::Read) => {}
        }
        let lock = lock_call(Mode::Write, false);
        let test = LockCall::Test { exclusive: false };
        let mut pauses = Pauses::default();
        for _ in 0..ATTEMPTS {
            match self.answered(holding, &stranger, lock).await?.status {
                Status::Denied | Status::Blocked => {}
                Status::DeniedGracePeriod => return Some(Found::Restarted),
                Status::Granted => {
                    // If UNLOCK is refused in a grace period, the lock is gone already.
                    self.answered(holding, &stranger, LockCall::Unlock).await?;
                    return Some(Found::Free);
                }
                // Refused for another reason (the caller may not be permitted to write): the lock
                // is not known to be held, so it must not be relied on.
                _ => return Some(Found::Free),
            }
            let tested = self.answered(holding, &stranger, test).await?;
            match tested.status {
                Status::DeniedGracePeriod => return Some(Found::Restarted),
                Status::Denied if excludes(&tested, holding) => return Some(Found::Free),
                _ => {}
            }
            self.pause(&mut pauses).await?;
        }
        Some(Found::Held)
    }

    /// Repeats a call for an owner that is not in the table until it is answered, also if it is refused:
    /// a server that has just started may do so.
    async fn answered(
        &self,
        holding: &Holding,
        target: &LockTarget,
        call: LockCall,
    ) -> Option<LockAnswer> {
        let cred = holding.cred();
        let result = self.repeat(&cred, target, call, Result::is_err).await?;
        result.ok()
    }
}
