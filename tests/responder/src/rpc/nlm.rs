//! NLM version 4, without the asynchronous procedures, which no client of the tests calls.

use super::{Context, Done, Service, Stop};
use crate::lock::ranges::Range;
use crate::lock::table::{CallerAddress, Host, LockMode, LockRequest, Owner, TestFailure};
use nfsrdma_xdr::codec::{Decode, Decoder, Encode, Encoder, Text};
use nfsrdma_xdr::nfs3::FileHandle;
use nfsrdma_xdr::nlm4::{
    Cancel, CancelArgs, FreeAll, Granted, GrantedResult, Holder, Lock, LockArgs, LockRange,
    LockUnmonitored, NetObj, Notify, Null, Res, Status, Test, TestArgs, TestReply, TestRes, Unlock,
    UnlockArgs,
};
use nfsrdma_xdr::procedure::Procedure;
use nfsrdma_xdr::rpc::Accepted;
use std::net::SocketAddr;

/// Whether a procedure demands the right to lock the file, or only that it exists.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Need {
    File,
    Right,
}

impl Service {
    pub(super) fn nlm(&self, context: &Context<'_>, from: Decoder<'_>, out: &mut Encoder) -> Done {
        if !self.locks.arrive() {
            return Err(Stop::NoReply);
        }
        match self.locks.answer(context.procedure) {
            Some(status) => answer_with(status, context, from, out)?,
            None => self.run_nlm(context, from, out)?,
        }
        Ok(None)
    }

    fn run_nlm(
        &self,
        context: &Context<'_>,
        mut from: Decoder<'_>,
        out: &mut Encoder,
    ) -> Result<(), Stop> {
        self.fs.take_own_identity();
        match context.procedure {
            Null::NUMBER => {}
            Test::NUMBER => self
                .nlm_test(context, &TestArgs::decode(&mut from)?)
                .encode(out),
            LockRange::NUMBER => self
                .nlm_lock(context, &LockArgs::decode(&mut from)?, true)
                .encode(out),
            LockUnmonitored::NUMBER => {
                self.nlm_lock(context, &LockArgs::decode(&mut from)?, false)
                    .encode(out);
            }
            Cancel::NUMBER => self
                .nlm_cancel(context, &CancelArgs::decode(&mut from)?)
                .encode(out),
            Unlock::NUMBER => self
                .nlm_unlock(context, &UnlockArgs::decode(&mut from)?)
                .encode(out),
            // This server never waits for locks of others.
            Granted::NUMBER => {
                let args = TestArgs::decode(&mut from)?;
                Res {
                    cookie: args.cookie,
                    status: Status::Denied,
                }
                .encode(out);
            }
            GrantedResult::NUMBER => {
                let res = Res::decode(&mut from)?;
                let address = caller(context).source;
                self.locks.granted_answer(address, res.cookie.0, res.status);
            }
            FreeAll::NUMBER => {
                Notify::decode(&mut from)?;
                let host = host(context);
                self.locks.with(|table, now| table.free_all(now, host));
            }
            _ => return Err(Stop::Accepted(Accepted::ProcUnavail)),
        }
        Ok(())
    }

    /// Checks that the file may be locked. Files with locks are not checked: a lock keeps its file
    /// open, as in lockd, even after its last name was removed.
    fn nlm_file(&self, context: &Context<'_>, file: &FileHandle, need: Need) -> Result<(), Status> {
        use nfsrdma_xdr::nfs3;
        if self.locks.with(|table, _| table.has_file(file)) {
            return Ok(());
        }
        let found = self.fs.lockable(&context.who, file, need == Need::Right);
        self.fs.take_own_identity();
        found.map_err(|status| match status {
            nfs3::Status::Stale => Status::StaleHandle,
            _ => Status::Failed,
        })
    }

    fn nlm_request(
        &self,
        context: &Context<'_>,
        lock: &Lock<'_>,
        exclusive: bool,
        need: Need,
    ) -> Result<LockRequest, Status> {
        let range = Range::new(lock.offset, lock.length).ok_or(Status::TooBig)?;
        self.nlm_file(context, &lock.file, need)?;
        Ok(LockRequest {
            file: lock.file,
            owner: Owner {
                host: host(context),
                svid: lock.svid,
            },
            exclusive,
            range,
        })
    }

    fn nlm_test<'a>(&self, context: &Context<'_>, args: &TestArgs<'a>) -> TestRes<'a> {
        let reply = match self.nlm_request(context, &args.lock, args.exclusive, Need::Right) {
            Err(status) => TestReply::Other(status),
            Ok(request) => match self.locks.with(|table, now| table.test(now, &request)) {
                Ok(()) => TestReply::Other(Status::Granted),
                Err(TestFailure::Grace) => TestReply::Other(Status::DeniedGracePeriod),
                Err(TestFailure::Held {
                    svid,
                    exclusive,
                    range,
                }) => TestReply::Denied(Holder {
                    exclusive,
                    svid,
                    owner: Text(b""),
                    offset: range.start,
                    length: range.length(),
                }),
            },
        };
        TestRes {
            cookie: args.cookie,
            reply,
        }
    }

    fn nlm_lock<'a>(&self, context: &Context<'_>, args: &LockArgs<'a>, monitored: bool) -> Res<'a> {
        let asked = self.nlm_request(context, &args.lock, args.exclusive, Need::Right);
        let status = asked.map(|request| {
            let mode = LockMode {
                block: args.block,
                reclaim: args.reclaim,
                monitored,
                caller: Some((caller(context), args.lock.owner.0.to_vec())),
            };
            self.locks
                .with(|table, now| table.lock(now, &request, mode))
        });
        tracing::debug!(peer = %context.peer.remote, lock = ?args.lock, ?status, "LOCK");
        Res {
            cookie: args.cookie,
            status: status.unwrap_or_else(|status| status),
        }
    }

    fn nlm_cancel<'a>(&self, context: &Context<'_>, args: &CancelArgs<'a>) -> Res<'a> {
        let asked = self.nlm_request(context, &args.lock, args.exclusive, Need::File);
        let status = asked.map(|request| self.locks.with(|table, now| table.cancel(now, &request)));
        Res {
            cookie: args.cookie,
            status: status.unwrap_or_else(|status| status),
        }
    }

    fn nlm_unlock<'a>(&self, context: &Context<'_>, args: &UnlockArgs<'a>) -> Res<'a> {
        let asked = self.nlm_request(context, &args.lock, false, Need::File);
        let status = asked.map(|asked| {
            self.locks
                .with(|table, now| table.unlock(now, &asked.file, asked.owner, asked.range))
        });
        Res {
            cookie: args.cookie,
            status: status.unwrap_or_else(|status| status),
        }
    }
}

/// Answers a call with a status, without executing it. All arguments begin with the cookie.
fn answer_with(
    status: u32,
    context: &Context<'_>,
    mut from: Decoder<'_>,
    out: &mut Encoder,
) -> Result<(), Stop> {
    NetObj::decode(&mut from)?.encode(out);
    out.u32(status);
    if context.procedure == Test::NUMBER && status == Status::Denied as u32 {
        let holder = Holder {
            exclusive: true,
            svid: 1,
            owner: Text(b""),
            offset: 0,
            length: 0,
        };
        holder.encode(out);
    }
    Ok(())
}

fn host(context: &Context<'_>) -> Host {
    Host::Client(context.peer.remote.ip().to_canonical())
}

fn caller(context: &Context<'_>) -> CallerAddress {
    let remote = context.peer.remote;
    CallerAddress {
        source: SocketAddr::new(remote.ip().to_canonical(), remote.port()),
        udp: context.peer.udp,
    }
}
