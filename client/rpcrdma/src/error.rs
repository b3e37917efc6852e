//! Why a call has no result, as far as RPC and its transport are concerned. A status that the
//! called program returns is not an error here: it is part of the results.

use crate::protocol::{Discard, Failure, PlanError};
use crate::security::{Broken, NoContext};
use nfsrdma_xdr::codec::DecodeError;
use nfsrdma_xdr::rpc::AuthStat;
use thiserror::Error;

/// Why a call has no result. It can be cloned, so that several callers can get it.
#[derive(Debug, Clone, Error)]
pub enum Error {
    /// The server does not accept the caller's credential (RFC 5531 section 9, auth_stat).
    #[error("server refused the caller: {0}")]
    AuthError(#[source] AuthError),
    /// The server did not run the procedure (RFC 5531 section 9, accept_stat and
    /// reject_stat).
    #[error("server refused the call: {0}")]
    Rejected(#[source] Rejection),
    /// The server answered with RDMA_ERROR (RFC 8166 section 4.5).
    #[error("server refused the call: {0}")]
    RdmaError(#[source] Failure),
    /// No reply, retransmissions included, in the time that `soft` and `softerr` allow.
    #[error("no answer from the server in time")]
    TimedOut,
    /// The reply violates the protocol, or contradicts the call.
    #[error("server misbehaved: {0}")]
    PeerMisbehaved(#[source] ProtocolError),
    /// A failure of this machine, such as a lack of memory.
    #[error("{0}")]
    Local(#[source] LocalError),
    /// There is no security context for the caller (RFC 2203 section 5.2).
    #[error(transparent)]
    NoContext(#[from] NoContext),
    /// The caller gave up, or the transport was shut down.
    #[error("interrupted")]
    Cancelled,
}

pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Authentication failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("it did not accept the credential ({})", .0.name())]
pub struct AuthError(pub AuthStat);

/// The server received the call and did not run the procedure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Rejection {
    #[error("it does not have the program")]
    ProgUnavail,
    #[error("it has versions {low} to {high} of the program")]
    ProgMismatch { low: u32, high: u32 },
    #[error("it does not have the procedure")]
    ProcUnavail,
    #[error("it could not read the arguments")]
    GarbageArgs,
    #[error("it had an error of its own")]
    SystemErr,
    #[error("it speaks RPC versions {low} to {high}")]
    RpcMismatch { low: u32, high: u32 },
}

/// How the server broke the protocol.
#[derive(Debug, Clone, Error)]
pub enum ProtocolError {
    #[error("reply to {procedure}: {error}")]
    Reply {
        procedure: &'static str,
        #[source]
        error: DecodeError,
    },
    #[error("the XIDs of header and message differ")]
    Xid,
    /// Replies to two transmissions of the call in a row could not be used, for one reason (RFC
    /// 8166 section 4.5).
    #[error("{procedure} was sent twice, and each time the reply was discarded: {why}")]
    Discarded {
        procedure: &'static str,
        #[source]
        why: Discard,
    },
    /// The server ended several connections in a row right after this call was sent on them.
    #[error(
        "it ended {times} connections in a row over {procedure} sent alone; the last one: {last}"
    )]
    Disconnects {
        times: u32,
        procedure: &'static str,
        last: String,
    },
}

/// A failure of this machine.
#[derive(Debug, Clone, Error)]
pub enum LocalError {
    #[error(transparent)]
    Provider(#[from] nfsrdma_rdma::Error),
    #[error(transparent)]
    Plan(#[from] PlanError),
    #[error(transparent)]
    Security(#[from] Broken),
    #[error("the XID is in use")]
    XidInUse,
    #[error("the device kept a call's memory after its connection had ended")]
    MemoryKept,
}

impl From<LocalError> for Error {
    fn from(error: LocalError) -> Self {
        Error::Local(error)
    }
}
