//! Whether anybody holds a range, as an owner sees it that holds nothing.
//!
//! TEST should tell. That of Linux's lockd does not see shared locks in some versions: seen with
//! 6.12.117, where a TEST for an exclusive lock is GRANTED though the range is locked shared, for
//! its own client, too. So where a shared lock should be, and TEST sees none, an exclusive LOCK
//! tries, without waiting; if it is granted, nobody holds the range, and it is given back at once.
//!
//! Another mount that has lost a lock of the same range may be doing just that, and its exclusive
//! lock is not to be taken for ours: while it lasts, our shared one cannot exist. If LOCK is
//! refused, it is tried a few times more, since the other's lasts for a moment only.

use super::acquire::lock_call;
use super::manager::{Holding, Locks, Retry};
use super::range::{ByteRange, Mode};
use nfsrdma_nfs3::nlm::{LockAnswer, LockCall, LockTarget, Status};
use std::time::Duration;

/// After each try of an exclusive lock.
const PAUSES: [Duration; 4] = [
    Duration::ZERO,
    Duration::from_millis(5),
    Duration::from_millis(10),
    Duration::from_millis(20),
];

/// Whether what is in the way, as TEST tells, is an exclusive lock of another owner.
fn excludes(tested: &LockAnswer, holding: &Holding) -> bool {
    let holder = tested.holder;
    holder.is_some_and(|holder| holder.exclusive && holder.svid != holding.svid)
}

/// What a look at a range has shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Found {
    Held,
    Free,
    /// The server is in its grace period: it has restarted since it refused the reclaim.
    Restarted,
}

impl Locks {
    /// Whether anybody holds a lock on a range that `holding` should have locked with `mode`.
    /// `None` if the mount ends before it is known.
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
        for pause in PAUSES {
            match self.answered(holding, &stranger, lock).await?.status {
                Status::Denied | Status::Blocked => {}
                Status::DeniedGracePeriod => return Some(Found::Restarted),
                Status::Granted => {
                    // In a grace period it is gone already.
                    self.answered(holding, &stranger, LockCall::Unlock).await?;
                    return Some(Found::Free);
                }
                // Refused for another reason (the file may be written by nobody here): not known
                // to be held, and so it is not to be relied on.
                _ => return Some(Found::Free),
            }
            let tested = self.answered(holding, &stranger, test).await?;
            match tested.status {
                Status::DeniedGracePeriod => return Some(Found::Restarted),
                Status::Denied if excludes(&tested, holding) => return Some(Found::Free),
                _ => {}
            }
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = self.ending.wait() => return None,
            }
        }
        Some(Found::Held)
    }

    /// The answer to a call of an owner that is not in the table; repeated until there is one.
    async fn answered(
        &self,
        holding: &Holding,
        target: &LockTarget,
        call: LockCall,
    ) -> Option<LockAnswer> {
        let (mut retry, cred) = (Retry::default(), holding.cred());
        loop {
            let result = tokio::select! {
                result = self.server.call(&cred, target, call) => result,
                () = self.ending.wait() => return None,
            };
            let pause = match result {
                Ok(answer) => return Some(answer),
                Err(error) => {
                    tracing::debug!(%error, ?call, "looking for a lock");
                    retry.next()
                }
            };
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = self.ending.wait() => return None,
            }
        }
    }
}
