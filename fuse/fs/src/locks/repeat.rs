//! Calls that are repeated until they are answered, the pauses between them, and who waits for that.

use super::error::LockError;
use super::holding::Holding;
use super::interrupt::Interrupt;
use super::manager::Locks;
use super::range::ByteRange;
use nfsrdma_nfs3::Cred;
use nfsrdma_nfs3::nlm::{LockAnswer, LockCall, LockTarget, Status};
use nfsrdma_rpcrdma::rpc::plain::PlainError;
use std::time::Duration;
use tokio::time::Instant;

/// The least and the greatest pause before a call is repeated. A server need not call back when it grants
/// a lock, and many cannot, so a request that waits asks again; and nobody says when a grace period ends.
pub(super) const FIRST_PAUSE: Duration = Duration::from_millis(5);
const LAST_PAUSE: Duration = Duration::from_secs(1);

/// The pauses between the attempts of one call, which grow.
#[derive(Debug, Default)]
pub(super) struct Pauses(Duration);

impl Pauses {
    pub(super) fn next(&mut self) -> Duration {
        self.0 = (self.0 * 2).clamp(FIRST_PAUSE, LAST_PAUSE);
        self.0
    }
}

/// A process that waits for the result of a request.
pub(super) struct Caller<'a> {
    locks: &'a Locks,
    interrupt: &'a Interrupt,
    since: Instant,
}

impl<'a> Caller<'a> {
    pub(super) fn new(locks: &'a Locks, interrupt: &'a Interrupt) -> Self {
        Caller {
            locks,
            interrupt,
            since: Instant::now(),
        }
    }

    /// The server has not kept it waiting until now: the limit of a `soft` mount begins again.
    pub(super) fn renew(&mut self) {
        self.since = Instant::now();
    }

    /// Waits for a reason to give up: a signal, or the end of the mount.
    pub(super) async fn stop(&self) -> LockError {
        tokio::select! {
            () = self.interrupt.wait() => LockError::Interrupted,
            () = self.locks.unused.wait() => LockError::GivenUp,
            () = self.locks.ending.wait() => LockError::GivenUp,
        }
    }

    /// Waits until `work` is done, which the server may delay: on a `soft` mount not for longer than it
    /// repeats a call.
    pub(super) async fn until<T>(&self, work: impl Future<Output = T>) -> Result<T, LockError> {
        let config = &self.locks.config;
        let limit = async {
            match config.patience {
                Some((limit, _)) => tokio::time::sleep_until(self.since + limit).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            stop = self.stop() => Err(stop),
            () = limit => Err(config.given_up()),
            done = work => Ok(done),
        }
    }
}

/// Whether a call has no answer that a repetition would not give again.
pub(super) fn is_unanswered(result: &Result<LockAnswer, PlainError>) -> bool {
    let error = result.as_ref().err();
    error.is_some_and(|error| LockError::refused(error).is_none())
}

impl Locks {
    /// Makes a call, and repeats it while its result is one to repeat it for (`again`). `None` if the
    /// mount ends before.
    pub(super) async fn repeat(
        &self,
        cred: &Cred,
        target: &LockTarget,
        call: LockCall,
        again: impl Fn(&Result<LockAnswer, PlainError>) -> bool,
    ) -> Option<Result<LockAnswer, PlainError>> {
        let mut pauses = Pauses::default();
        loop {
            let result = tokio::select! {
                result = self.call(cred, target, call) => result,
                () = self.ending.wait() => return None,
            };
            if !again(&result) {
                return Some(result);
            }
            self.pause(&mut pauses).await?;
        }
    }

    /// Waits for the next of some pauses. `None` if the mount ends before.
    pub(super) async fn pause(&self, pauses: &mut Pauses) -> Option<()> {
        tokio::select! {
            () = tokio::time::sleep(pauses.next()) => Some(()),
            () = self.ending.wait() => None,
        }
    }

    /// Makes a call that nobody waits for, until it is answered; FAILED if it is refused. `None` if the
    /// mount ends before.
    pub(super) async fn insist(
        &self,
        holding: &Holding,
        range: ByteRange,
        call: LockCall,
    ) -> Option<Status> {
        let (cred, target) = (holding.cred(), holding.target(range));
        let result = self.repeat(&cred, &target, call, is_unanswered).await?;
        Some(result.map_or(Status::Failed, |answer| answer.status))
    }
}
