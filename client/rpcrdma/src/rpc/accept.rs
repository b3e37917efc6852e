//! Whether the server ran a call.

use crate::error::{AuthError, Error, Rejection, Result};
use nfsrdma_xdr::rpc::{Accepted, Denial, ReplyBody};

/// Returns an error unless the server ran the call (RFC 5531 section 9).
pub fn accepted(body: &ReplyBody<'_>) -> Result<()> {
    let why = match *body {
        ReplyBody::Accepted(_, Accepted::Success) => return Ok(()),
        ReplyBody::Accepted(_, Accepted::ProgUnavail) => Rejection::ProgUnavail,
        ReplyBody::Accepted(_, Accepted::ProgMismatch { low, high }) => {
            Rejection::ProgMismatch { low, high }
        }
        ReplyBody::Accepted(_, Accepted::ProcUnavail) => Rejection::ProcUnavail,
        ReplyBody::Accepted(_, Accepted::GarbageArgs) => Rejection::GarbageArgs,
        ReplyBody::Accepted(_, Accepted::SystemErr) => Rejection::SystemErr,
        ReplyBody::Denied(Denial::RpcMismatch { low, high }) => {
            Rejection::RpcMismatch { low, high }
        }
        ReplyBody::Denied(Denial::AuthError(status)) => {
            return Err(Error::AuthError(AuthError(status)));
        }
    };
    Err(Error::Rejected(why))
}
