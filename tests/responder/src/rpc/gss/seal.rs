//! Replies under a context.

use super::context::Context;
use super::fault::Fault;
use crate::rpc::reply::{HEADROOM, Reply};
use nfsrdma_xdr::codec::{Encode, Encoder, roundup};
use nfsrdma_xdr::rpcsec_gss::{self, Service};
use std::sync::Arc;

/// Where a reply says whether it is accepted: after XID and REPLY.
const STATUS_AT: usize = HEADROOM + 8;
/// Where its verifier begins, and where its accept_stat does behind the verifier AUTH_NONE.
const VERIFIER_AT: usize = STATUS_AT + 4;
const ACCEPTED_AT: usize = VERIFIER_AT + 8;

/// How the reply to a call is protected.
#[derive(Debug, Clone, Default)]
pub struct Seal(Option<Under>);

#[derive(Debug, Clone)]
struct Under {
    context: Arc<Context>,
    sequence: u32,
    service: Service,
    spoilt: Option<Fault>,
}

impl Seal {
    pub(super) fn new(
        context: Arc<Context>,
        sequence: u32,
        service: Service,
        spoilt: Option<Fault>,
    ) -> Self {
        Seal(Some(Under {
            context,
            sequence,
            service,
            spoilt,
        }))
    }

    /// Protects a reply that has the verifier AUTH_NONE. `None` if the context does not do it.
    pub fn close(&self, reply: Reply) -> Option<Reply> {
        match &self.0 {
            Some(under) => under.close(reply),
            None => Some(reply),
        }
    }
}

fn word(bytes: &[u8], at: usize) -> u32 {
    bytes[at..]
        .first_chunk()
        .map_or(u32::MAX, |word| u32::from_be_bytes(*word))
}

impl Under {
    fn close(&self, reply: Reply) -> Option<Reply> {
        let old = &reply.head;
        if word(old, STATUS_AT) != 0 {
            // A denial has no verifier.
            return Some(reply);
        }
        let mut mic = self.mic(&self.sequence.to_be_bytes())?;
        self.spoil(Fault::Verifier, &mut mic);
        let is_sealed = self.service != Service::None && word(old, ACCEPTED_AT) == 0;
        let payload = reply.payload.as_deref().filter(|_| is_sealed);
        let payload = payload.unwrap_or_default();
        let mut out = Encoder::with_capacity(old.len() + payload.len() + 512);
        out.opaque_fixed(&old[..VERIFIER_AT]);
        rpcsec_gss::verifier(&mic).encode(&mut out);
        out.opaque_fixed(&old[ACCEPTED_AT..ACCEPTED_AT + 4]);
        let results = &old[ACCEPTED_AT + 4..];
        // Without results there is nothing more to protect (RFC 2203 section 5.3.3.4).
        if !is_sealed {
            out.opaque_fixed(results);
            return Some(Reply {
                head: out.into_vec(),
                payload: reply.payload,
            });
        }
        // What is protected: the sequence number and the results, which are whole words but for the
        // payload at their end.
        let sequence = self.sequence.to_be_bytes();
        let len = 4 + results.len() + roundup(payload.len());
        let put = |out: &mut Encoder| {
            for part in [&sequence[..], results, payload] {
                out.opaque_fixed(part);
            }
        };
        if self.service == Service::Integrity {
            out.u32(len as u32);
            let begin = out.len();
            put(&mut out);
            let mut mic = self.mic(&out.as_slice()[begin..])?;
            self.spoil(Fault::Body, &mut mic);
            out.opaque(&mic);
        } else {
            let mut data = Encoder::with_capacity(len);
            put(&mut data);
            let mut token = self.context.protection.lock().wrap(data.as_slice())?;
            self.spoil(Fault::Body, &mut token);
            out.opaque(&token);
        }
        Some(Reply {
            head: out.into_vec(),
            payload: None,
        })
    }

    fn mic(&self, message: &[u8]) -> Option<Vec<u8>> {
        self.context.protection.lock().mic(message)
    }

    fn spoil(&self, fault: Fault, bytes: &mut [u8]) {
        if self.spoilt == Some(fault)
            && let Some(last) = bytes.last_mut()
        {
            *last ^= 1;
        }
    }
}
