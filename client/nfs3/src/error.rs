//! Maps the errors of the RPC transport to those of NFS calls.

use crate::api::NfsError;
use nfsrdma_rpcrdma::Error;
use nfsrdma_rpcrdma::error::ProtocolError;
use nfsrdma_rpcrdma::security::NoContext;

impl From<Error> for NfsError {
    fn from(error: Error) -> Self {
        match error {
            Error::AuthError(why) => NfsError::Denied(why.to_string()),
            Error::Rejected(why) => NfsError::Refused(why.to_string()),
            Error::RdmaError(why) => NfsError::Refused(why.to_string()),
            Error::TimedOut => NfsError::TimedOut,
            Error::PeerMisbehaved(why @ ProtocolError::Disconnects { .. }) => {
                NfsError::Disconnects(why.to_string())
            }
            // The transport has logged it.
            Error::PeerMisbehaved(why @ ProtocolError::Discarded { .. }) => {
                NfsError::PeerMisbehaved(why.to_string())
            }
            Error::PeerMisbehaved(why) => NfsError::misbehaved(why.to_string()),
            Error::Local(why) => NfsError::Local(why.to_string()),
            Error::NoContext(NoContext::NoCredential(why)) => NfsError::NoCredential(why),
            Error::NoContext(NoContext::Expired(why)) => NfsError::Expired(why),
            // It passes: a hard mount keeps what was written until there is a context.
            Error::NoContext(NoContext::Unavailable(why)) => NfsError::Local(why),
            Error::Cancelled => NfsError::Interrupted,
        }
    }
}
