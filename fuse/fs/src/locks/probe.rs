//! Whether anybody holds a range, as an owner sees it that holds nothing.
//!
//! TEST should tell. That of Linux's lockd does not see shared locks in some versions: seen with
//! 6.12.117, where a TEST for an exclusive lock is GRANTED though the range is locked shared, for
//! its own client, too. So where a shared lock should be, and TEST sees none, an exclusive LOCK
//! tries, without waiting; if it is granted, nobody holds the range, and it is given back at once.

use super::manager::{Holding, Locks, Retry, grace_pause};
use super::range::{ByteRange, Mode};
use nfsrdma_nfs3::nlm::{LockCall, LockTarget, Status};

impl Locks {
    /// Whether anybody holds a lock on a range that `holding` should have locked with `mode`.
    /// `None` if the mount ends before it is known.
    pub(super) async fn is_held(
        &self,
        holding: &Holding,
        range: ByteRange,
        mode: Mode,
    ) -> Option<bool> {
        let stranger = LockTarget {
            svid: self.state.lock().svids.fresh().ok()?,
            ..holding.target(range)
        };
        let test = LockCall::Test { exclusive: true };
        if self.answered(holding, &stranger, test).await? == Status::Denied {
            return Some(true);
        }
        if mode == Mode::Write {
            return Some(false);
        }
        let lock = LockCall::Lock {
            exclusive: true,
            block: false,
            reclaim: false,
        };
        // Refused for another reason (the file may be written by nobody here): not known to be
        // held, and so it is not to be relied on.
        let refused = match self.answered(holding, &stranger, lock).await? {
            Status::Denied | Status::Blocked => return Some(true),
            Status::Granted => false,
            _ => true,
        };
        if !refused {
            self.answered(holding, &stranger, LockCall::Unlock).await?;
        }
        Some(false)
    }

    /// The answer to a call of an owner that is not in the table; repeated in a grace period and
    /// until there is one.
    async fn answered(
        &self,
        holding: &Holding,
        target: &LockTarget,
        call: LockCall,
    ) -> Option<Status> {
        let mut retry = Retry::default();
        loop {
            let result = tokio::select! {
                result = self.server.call(&holding.cred, target, call) => result,
                () = self.ending.wait() => return None,
            };
            let pause = match result {
                Ok(answer) if answer.status == Status::DeniedGracePeriod => grace_pause(),
                Ok(answer) => return Some(answer.status),
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
