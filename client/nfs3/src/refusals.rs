//! Calls that the server refuses by RPC (RFC 5531 section 9). The program gets no more than an errno,
//! so the log says why, and whose fault it is.

use nfsrdma_rpcrdma::Error;
use nfsrdma_rpcrdma::error::{AuthError, Rejection};
use nfsrdma_rpcrdma::throttle::{Throttle, and_more};
use nfsrdma_xdr::procedure::Procedure;
use nfsrdma_xdr::rpc::AuthStat;
use parking_lot::Mutex;
use std::time::Instant;

/// The log of refusals, a line a minute at most.
#[derive(Debug, Default)]
pub(crate) struct Refusals(Mutex<Throttle<Instant>>);

impl Refusals {
    /// A call of procedure `P` failed.
    pub(crate) fn note<P: Procedure>(&self, server: &str, error: &Error) {
        let (why, fault) = match error {
            Error::Rejected(why) => (why.to_string(), fault(why)),
            Error::AuthError(why) => (why.to_string(), fault_of_credential(why)),
            _ => return,
        };
        if let Some(more) = self.0.lock().event(Instant::now()) {
            let (name, more) = (P::NAME, and_more(more));
            tracing::warn!("server {server} refused {name}: {why}; {fault}{more}");
        }
    }
}

fn fault(why: &Rejection) -> &'static str {
    match why {
        Rejection::ProgUnavail | Rejection::ProgMismatch { .. } | Rejection::ProcUnavail => {
            "NFS version 3 was switched off there, or another service has its port: see the \
             server's configuration"
        }
        Rejection::GarbageArgs => {
            "unless it was a WRITE, which is made again in smaller parts if the server takes less \
             by now, the server or this program is at fault: record the call with nfsrdma capture, \
             and report it"
        }
        Rejection::SystemErr => "a fault of the server: see its log",
        Rejection::RpcMismatch { .. } => "a fault of the server, which took other calls before",
    }
}

fn fault_of_credential(AuthError(why): &AuthError) -> &'static str {
    match why {
        AuthStat::TooWeak => "its export wants more than sec=sys: add sys there",
        _ => "its configuration keeps the user out: see the server's log",
    }
}
