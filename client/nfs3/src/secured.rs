//! Calls under RPCSEC_GSS: each user's with that user's context, which is made when it is needed.
//!
//! A server that was restarted, or has no room for more contexts, knows a context no longer. It says
//! so, and has not run the call; the call is then made again under a new one, with a new XID (RFC 2203
//! section 5.3.3.3). A server that forgets all of them is waited for like one that does not answer.

use crate::api::{Cred, NfsError, NfsResult};
use crate::client::{Kept, Nfs3Client, sends_data};
use crate::waiting::WaitingCall;
use nfsrdma_rdma::Instant;
use nfsrdma_rpcrdma::abandon::is_abandoned;
use nfsrdma_rpcrdma::error::LocalError;
use nfsrdma_rpcrdma::exec;
use nfsrdma_rpcrdma::options::Recovery;
use nfsrdma_rpcrdma::security::{Context, Contexts, NoContext, Of};
use nfsrdma_rpcrdma::transport::{Reply as RpcReply, Request};
use nfsrdma_rpcrdma::{Error, Result};
use nfsrdma_xdr::codec::Encoder;
use nfsrdma_xdr::rpc::AuthStat;
use std::sync::Arc;
use std::time::Duration;

/// Whether the context is at fault. Linux's server also answers AUTH_BADCRED if a context expires after it has
/// checked the header and before it opens the body, so one such answer is taken for that, too.
fn is_of_context(answer: &Result<RpcReply>, doubted: &mut bool) -> bool {
    match answer {
        Ok(reply) => match reply.refusal() {
            Some(AuthStat::GssCredProblem | AuthStat::GssCtxProblem) => true,
            Some(AuthStat::BadCred) => !std::mem::replace(doubted, true),
            _ => false,
        },
        Err(error) => matches!(error, Error::Local(LocalError::Security(_))),
    }
}

/// Between two attempts to make a context.
const PAUSE: Duration = Duration::from_secs(1);

impl Nfs3Client {
    /// Makes a call under the context of the user of `cred`.
    pub(crate) async fn call_secured(
        &self,
        cred: &Cred,
        request: Request,
        encode: &impl Fn(u32, &mut Encoder),
    ) -> NfsResult<RpcReply> {
        let engine = self.engine();
        let failed = |error| self.failed(error);
        let Some(contexts) = self.contexts() else {
            return engine.call(request, encode).await.map_err(failed);
        };
        let (procedure, max_results) = (request.procedure, request.max_results);
        let max_ddp_result = request.max_ddp_result;
        let begin = Instant::now();
        let (mut request, mut retransmitted) = (request, false);
        let (mut broken, mut doubted) = (false, false);
        let mut waiting = None;
        loop {
            // A call that fails leaves no payload.
            let kept = Kept::beside(&request.payload);
            let context = self.context(contexts, cred, (procedure, begin), &mut waiting);
            let context = context.await?;
            let answer = engine.call_secured(request, &context, encode).await;
            if !is_of_context(&answer, &mut doubted) {
                let mut reply = answer.map_err(failed)?;
                context.note_known();
                reply.retransmitted |= retransmitted;
                return Ok(reply);
            }
            contexts.refused(cred, &context);
            match answer {
                Ok(reply) => retransmitted |= reply.retransmitted,
                // Not even this machine can use a second one.
                Err(error) if std::mem::replace(&mut broken, true) => return Err(failed(error)),
                Err(_) => {}
            }
            request = Request {
                procedure,
                max_results,
                max_ddp_result,
                payload: self.payload_of(kept).await?,
            };
        }
    }

    /// The context of a user, for a call that began at `begin`. A KDC or a server that makes none now, or none that
    /// lasts, is waited for as `hard` and `soft` say. The call counts as `waiting` from then on until it ends, though
    /// it is made now and then.
    async fn context<'a>(
        &'a self,
        contexts: &Contexts,
        cred: &Cred,
        (procedure, begin): (usize, Instant),
        waiting: &mut Option<WaitingCall<'a>>,
    ) -> NfsResult<Arc<Context>> {
        let engine = self.engine();
        let of = match sends_data(procedure) {
            true => Of::Data,
            false => Of::Program,
        };
        loop {
            let made = contexts.get(cred, of).await;
            for tried in contexts.take_tried() {
                let destroyed = engine.destroy(&tried);
                exec::spawn(async move {
                    let _ = destroyed.await;
                });
            }
            let why = match made {
                Ok(context) => return Ok(context),
                Err(NoContext::Unavailable(why)) => why,
                Err(why) => {
                    self.refusals().note_user(cred.uid, &why.to_string());
                    return Err(self.failed(why.into()));
                }
            };
            if engine.is_shut_down() {
                return Err(NfsError::Interrupted);
            }
            if self.recovery() != Recovery::Hard && begin.elapsed() >= engine.timeo() {
                return Err(self.failed(NoContext::Unavailable(why).into()));
            }
            let uid = cred.uid;
            let waits = waiting.get_or_insert_with(|| {
                let over = format!("no call of user {uid} waits for a Kerberos context any longer");
                self.without_context().begin(uid, begin, over)
            });
            waits.tell(|| format!("calls of user {uid} wait for a Kerberos context: {why}"));
            engine.sleep(PAUSE).await;
            // Others may meanwhile have changed what a call was to change that nobody waits for.
            if of == Of::Program && is_abandoned() {
                return Err(NfsError::Interrupted);
            }
        }
    }

    /// Makes the context of a user, if it is needed, without waiting for what does not answer.
    pub(crate) async fn try_context(&self, cred: &Cred) -> Result<(), NoContext> {
        match self.contexts() {
            Some(contexts) => contexts.get(cred, Of::Program).await.map(drop),
            None => Ok(()),
        }
    }

    /// Tells the server to forget the contexts of all users. The answers do not matter.
    pub(crate) async fn destroy_contexts(&self, limit: Duration) {
        let contexts = self.contexts().map(|contexts| contexts.take());
        let engine = self.engine();
        let calls: Vec<_> = contexts
            .into_iter()
            .flatten()
            .map(|context| engine.destroy(&context))
            .collect();
        let all = async {
            for call in calls {
                let _ = call.await;
            }
        };
        let _ = tokio::time::timeout(limit, all).await;
    }
}
