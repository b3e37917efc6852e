//! Calls under RPCSEC_GSS: each user's with that user's context, which is made when it is needed.
//!
//! A server that was restarted, or has no room for more contexts, knows a context no longer. It says
//! so, and has not run the call; the call is then made once more under a new one, with a new XID (RFC
//! 2203 section 5.3.3.3). If that is refused, too, the user is.

use crate::api::{Cred, NfsResult};
use crate::client::{Kept, Nfs3Client};
use nfsrdma_rpcrdma::error::LocalError;
use nfsrdma_rpcrdma::transport::{Reply as RpcReply, Request};
use nfsrdma_rpcrdma::{Error, Result};
use nfsrdma_xdr::codec::Encoder;
use nfsrdma_xdr::rpc::AuthStat;
use std::time::Duration;

/// Whether the context is at fault.
fn is_of_context(answer: &Result<RpcReply>) -> bool {
    match answer {
        Ok(reply) => matches!(
            reply.refusal(),
            Some(AuthStat::GssCredProblem | AuthStat::GssCtxProblem)
        ),
        Err(error) => matches!(error, Error::Local(LocalError::Security(_))),
    }
}

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
        // A call that fails leaves no payload.
        let kept = Kept::beside(&request.payload);
        let context = contexts.get(cred).await;
        let context = context.map_err(|why| failed(why.into()))?;
        let answer = engine.call_secured(request, &context, encode).await;
        if !is_of_context(&answer) {
            return answer.map_err(failed);
        }
        contexts.refused(cred, &context);
        let retransmitted = answer.is_ok_and(|reply| reply.retransmitted);
        let context = contexts.get(cred).await;
        let context = context.map_err(|why| failed(why.into()))?;
        let request = Request {
            procedure,
            max_results,
            max_ddp_result,
            payload: self.payload_of(kept).await?,
        };
        let answer = engine.call_secured(request, &context, encode).await;
        if is_of_context(&answer) {
            contexts.refused(cred, &context);
        }
        let mut reply = answer.map_err(failed)?;
        reply.retransmitted |= retransmitted;
        Ok(reply)
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
