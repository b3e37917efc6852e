//! F_GETLK: which lock is in the way of a request.

use super::config::Retry;
use super::error::LockError;
use super::interrupt::Interrupt;
use super::manager::{Holding, Locks, Request, Tested, grace_pause};
use super::range::{ByteRange, Mode};
use nfsrdma_nfs3::nlm::{LockAnswer, LockCall, Status};
use nfsrdma_rpcrdma::rpc::plain::PlainError;
use std::sync::Arc;

impl Locks {
    /// F_GETLK: a lock that conflicts with the request. `known` as for [`Locks::lock`].
    pub async fn test(
        self: &Arc<Self>,
        request: &Request,
        interrupt: &Interrupt,
        known: impl Future<Output = ()> + Send,
    ) -> Result<Option<Tested>, LockError> {
        let holding = self.enter_to_test(request)?;
        let result = match self.others_released(request, interrupt, known).await {
            Ok(()) => self.tested(request, &holding, interrupt).await,
            Err(error) => Err(error),
        };
        self.leave(&holding);
        result
    }

    async fn tested(
        &self,
        request: &Request,
        holding: &Holding,
        interrupt: &Interrupt,
    ) -> Result<Option<Tested>, LockError> {
        if holding.state.lock().lost {
            return Err(LockError::Lost);
        }
        let own = {
            let state = self.state.lock();
            let (file, owner) = (request.file.id, request.owner);
            let conflict = state
                .table
                .conflict(file, owner, request.range, request.mode);
            conflict.map(|conflict| {
                let of = state.holdings.get(&(file, conflict.owner));
                Tested {
                    range: conflict.range,
                    mode: conflict.mode,
                    pid: of.map_or(0, |of| of.state.lock().pid),
                }
            })
        };
        if own.is_some() {
            return Ok(own);
        }
        let exclusive = request.mode == Mode::Write;
        let mut retry = Retry::default();
        let mut denied = false;
        loop {
            let in_use = self.others_in_use(request);
            let test = LockCall::Test { exclusive };
            let call = self.call_by(&request.cred, holding, request.range, test);
            let result = tokio::select! {
                result = call => result,
                stop = self.stop(interrupt) => return Err(stop),
            };
            let pause = match result {
                Ok(LockAnswer {
                    status: Status::Denied,
                    holder,
                }) => {
                    if !std::mem::replace(&mut denied, true) {
                        match self.unknown_released(request, in_use, interrupt).await {
                            Ok(()) => continue,
                            Err(LockError::WouldBlock) => {}
                            Err(error) => return Err(error),
                        }
                    }
                    let of = |holder: nfsrdma_nfs3::nlm::LockHolder| Tested {
                        range: ByteRange::from_wire(holder.offset, holder.length),
                        mode: if holder.exclusive {
                            Mode::Write
                        } else {
                            Mode::Read
                        },
                        pid: 0,
                    };
                    return Ok(holder.map(of));
                }
                Ok(answer) if answer.status == Status::Granted => return Ok(None),
                Ok(answer) if answer.status == Status::DeniedGracePeriod => grace_pause(),
                Ok(answer) => return Err(LockError::of(answer.status)),
                Err(PlainError::Refused(_)) => return Err(LockError::Denied),
                Err(PlainError::NoProgram) => return Err(LockError::NoLocks),
                Err(_) => retry.next(),
            };
            retry.check(&self.config)?;
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                stop = self.stop(interrupt) => return Err(stop),
            }
        }
    }
}
