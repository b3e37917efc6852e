//! Calls that the server refuses by RPC (RFC 5531 section 9), and users who have no Kerberos context. The
//! program gets no more than an errno, so the log says why, and whose fault it is.

use nfsrdma_rpcrdma::Error;
use nfsrdma_rpcrdma::error::{AuthError, Rejection};
use nfsrdma_rpcrdma::throttle::{Throttle, and_more};
use nfsrdma_xdr::procedure::Procedure;
use nfsrdma_xdr::rpc::AuthStat;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// The log of refusals, a line a minute at most; and of each user, who is told the same once an hour.
#[derive(Debug, Default)]
pub(crate) struct Refusals {
    calls: Mutex<Throttle<Instant>>,
    users: Mutex<HashMap<u32, (Instant, String)>>,
}

/// How often another reason of the same user is logged, and the same one.
const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);

impl Refusals {
    /// A call of procedure `P` failed.
    pub(crate) fn note<P: Procedure>(&self, server: &str, error: &Error) {
        let (why, fault) = match error {
            Error::Rejected(why) => (why.to_string(), fault(why)),
            Error::AuthError(why) => (why.to_string(), fault_of_credential(why)),
            _ => return,
        };
        if let Some(more) = self.calls.lock().event(Instant::now()) {
            let (name, more) = (P::NAME, and_more(more));
            tracing::warn!("server {server} refused {name}: {why}; {fault}{more}");
        }
    }

    /// A user has no context. `why` is a sentence.
    pub(crate) fn note_user(&self, uid: u32, why: &str) {
        if self.is_new(uid, why, Instant::now()) {
            tracing::warn!("user {uid} has no Kerberos context: {why}");
        }
    }

    fn is_new(&self, uid: u32, why: &str, now: Instant) -> bool {
        let mut users = self.users.lock();
        users.retain(|_, (at, _)| now.saturating_duration_since(*at) < HOUR);
        if let Some((at, said)) = users.get(&uid)
            && (said == why || now.saturating_duration_since(*at) < MINUTE)
        {
            return false;
        }
        users.insert(uid, (now, why.to_owned()));
        true
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_user_is_told_why_and_nobody_all_the_time() {
        let refusals = Refusals::default();
        let start = Instant::now();
        let new =
            |uid, why, seconds| refusals.is_new(uid, why, start + Duration::from_secs(seconds));
        assert!(new(1, "no ticket", 0) && new(2, "no ticket", 0));
        assert!(!new(1, "no ticket", 1) && !new(1, "no key", 59));
        assert!(new(1, "no key", 60) && !new(1, "no key", 3600));
        assert!(new(1, "no key", 3660) && new(2, "no ticket", 3660));
    }
}
