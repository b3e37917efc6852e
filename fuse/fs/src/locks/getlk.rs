//! F_GETLK: which lock is in the way of a request.

use super::error::LockError;
use super::holding::{Holding, Request};
use super::interrupt::Interrupt;
use super::manager::{Locks, Tested};
use super::range::{ByteRange, Mode};
use super::repeat::{Caller, is_unanswered};
use nfsrdma_nfs3::nlm::{LockCall, LockHolder, Status};
use std::sync::Arc;

impl Locks {
    /// F_GETLK: a lock that conflicts with the request, of this mount or at the server. One that is being released
    /// counts: what is found may be out of date when it arrives.
    pub async fn test(
        self: &Arc<Self>,
        request: &Request,
        interrupt: &Interrupt,
    ) -> Result<Option<Tested>, LockError> {
        let holding = self.enter_to_test(request)?;
        let caller = Caller::new(self, interrupt);
        let result = self.tested(request, &holding, &caller).await;
        self.leave(&holding);
        result
    }

    async fn tested(
        &self,
        request: &Request,
        holding: &Holding,
        caller: &Caller<'_>,
    ) -> Result<Option<Tested>, LockError> {
        if holding.state.lock().lost.is_some() {
            return Err(LockError::Lost);
        }
        if let Some((conflict, of)) = self.conflict(request) {
            return Ok(Some(Tested {
                range: conflict.range,
                mode: conflict.mode,
                pid: of.map_or(0, |of| of.state.lock().pid),
            }));
        }
        let test = LockCall::Test {
            exclusive: request.mode == Mode::Write,
        };
        let target = holding.target(request.range);
        let tested = self.repeat(&request.cred, &target, test, |result| {
            let grace = |status| status == Status::DeniedGracePeriod;
            is_unanswered(result) || result.as_ref().is_ok_and(|answer| grace(answer.status))
        });
        let answer = match caller.until(tested).await? {
            Some(Ok(answer)) => answer,
            Some(Err(error)) => {
                return Err(LockError::refused(&error).unwrap_or(LockError::NoLocks));
            }
            None => return Err(LockError::GivenUp),
        };
        let of = |holder: LockHolder| Tested {
            range: ByteRange::from_wire(holder.offset, holder.length),
            mode: match holder.exclusive {
                true => Mode::Write,
                false => Mode::Read,
            },
            pid: 0,
        };
        match answer.status {
            Status::Granted => Ok(None),
            Status::Denied => Ok(answer.holder.map(of)),
            status => Err(LockError::of(status)),
        }
    }
}
