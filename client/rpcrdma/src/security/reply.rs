//! Finds the results in a reply, and proves that the server made them for this call.
//!
//! The verifier of a reply is the MIC of the call's sequence number. It is checked first; with
//! integrity and privacy, so are the results and the number in them (RFC 2203 section 5.3.3.2).
//! The results are left where they are, and the header of a reply without any security is written
//! before them: whoever decodes a reply need not know of all this.

use super::{SecurityContext, Service};
use crate::protocol::Discard;
use nfsrdma_xdr::codec::{Decode, Decoder, Encode};
use nfsrdma_xdr::rpc::{Accepted, REPLY_LEN, Reply, ReplyBody};
use nfsrdma_xdr::rpcsec_gss::{IntegrityBody, PrivacyBody, mic_of, split};
use std::ops::Range;

/// Largest size of a reply's results, whose own largest size is `results`.
pub(crate) fn results_len(
    security: &dyn SecurityContext,
    service: Service,
    results: usize,
) -> usize {
    use nfsrdma_xdr::rpcsec_gss::{integrity_len, privacy_len};
    match service {
        Service::None => results,
        Service::Integrity => integrity_len(results, security.mic_len()),
        Service::Privacy => privacy_len(results, security.wrap_overhead()),
    }
}

/// Opens the reply to the call with this XID, which was sent with these sequence numbers. Returns where
/// the reply without security is. A refusal of the call has no verifier and is not proved (RFC 2203
/// section 5.3.3.3).
pub(crate) fn open(
    security: &dyn SecurityContext,
    service: Service,
    reply: &mut [u8],
    xid: u32,
    numbers: &[u32],
) -> Result<Range<usize>, Discard> {
    let whole = 0..reply.len();
    let mut from = Decoder::new(reply);
    let header = Reply::decode(&mut from).map_err(|_| Discard::NotAReply)?;
    let (verifier, status) = match &header.body {
        ReplyBody::Accepted(verifier, status) => (verifier, *status),
        ReplyBody::Denied(_) => return Ok(whole),
    };
    let mic = mic_of(verifier).ok_or(Discard::Verifier)?;
    let mut sent = numbers.iter().rev().copied();
    let number = sent
        .find(|number| security.verify(&number.to_be_bytes(), mic))
        .ok_or(Discard::Verifier)?;
    if status != Accepted::Success {
        return Ok(whole);
    }
    let start = from.position();
    let results = match service {
        Service::None => start..reply.len(),
        Service::Integrity => {
            let body = IntegrityBody::decode(&mut from).map_err(|_| Discard::Results)?;
            if !security.verify(body.data.0, body.mic.0) {
                return Err(Discard::Results);
            }
            let data = start + 4..start + 4 + body.data.0.len();
            counted(reply, data, number)?
        }
        Service::Privacy => {
            let body = PrivacyBody::decode(&mut from).map_err(|_| Discard::Results)?;
            let wrapped = start + 4..start + 4 + body.wrapped.0.len();
            let at = wrapped.start;
            let data = security
                .unwrap(&mut reply[wrapped])
                .ok_or(Discard::Results)?;
            counted(reply, at + data.start..at + data.end, number)?
        }
    };
    let start = results.start.checked_sub(REPLY_LEN);
    let start = start.ok_or(Discard::NotAReply)?;
    let plain = Reply::accepted(xid, Accepted::Success).to_xdr();
    reply[start..results.start].copy_from_slice(&plain);
    Ok(start..results.end)
}

/// Opens any bytes as a reply, as `transport` does with those that it receives; for fuzzers.
#[cfg(feature = "test-support")]
pub fn open_reply(
    security: &dyn SecurityContext,
    reply: &mut [u8],
    xid: u32,
    numbers: &[u32],
) -> Option<Range<usize>> {
    open(security, security.service(), reply, xid, numbers).ok()
}

/// Where the results are in `data`, which begin with the number of their call.
fn counted(reply: &[u8], data: Range<usize>, number: u32) -> Result<Range<usize>, Discard> {
    match reply.get(data.clone()).map(split) {
        Some(Ok((of, _))) if of == number => Ok(data.start + 4..data.end),
        _ => Err(Discard::Results),
    }
}
