//! Replies under a context.

use super::context::Context;
use super::fault::Fault;
use crate::rpc::reply::{HEADROOM, Reply};
use nfsrdma_rdma::{Buf, BufMut};
use nfsrdma_xdr::codec::{Encode, Encoder, padding, roundup};
use nfsrdma_xdr::rpcsec_gss::{self, Service};
use std::sync::Arc;

/// Where a reply says whether it is accepted: after XID and REPLY.
const STATUS_AT: usize = HEADROOM + 8;
/// Where its verifier begins, and where its accept_stat does behind the verifier AUTH_NONE.
const VERIFIER_AT: usize = STATUS_AT + 4;
const ACCEPTED_AT: usize = VERIFIER_AT + 8;

/// Payloads up to this size are copied into the message; longer ones are sent from where they are.
const SHORT: usize = 8192;

/// Gives memory that the transport can send.
type Alloc<'a> = &'a dyn Fn(usize) -> Option<BufMut>;

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
    /// `alloc` gives memory for long results.
    pub fn close(&self, reply: Reply, alloc: Alloc<'_>) -> Option<Reply> {
        match &self.0 {
            Some(under) => under.close(reply, alloc),
            None => Some(reply),
        }
    }
}

fn word(bytes: &[u8], at: usize) -> u32 {
    bytes[at..]
        .first_chunk()
        .map_or(u32::MAX, |word| u32::from_be_bytes(*word))
}

/// What is protected: the sequence number and the results, which are whole words but for the payload at their end.
struct Body<'a> {
    parts: [&'a [u8]; 4],
    len: usize,
    /// The payload, if it is not to be copied.
    long: Option<&'a Buf>,
}

impl<'a> Body<'a> {
    fn new(sequence: &'a [u8; 4], results: &'a [u8], payload: Option<&'a Buf>) -> Self {
        let long = payload.filter(|payload| payload.len() > SHORT);
        let payload = payload.map(|payload| &payload[..]).unwrap_or_default();
        let parts = [
            &sequence[..],
            results,
            payload,
            &[0; 3][..padding(payload.len())],
        ];
        let len = parts.iter().map(|part| part.len()).sum();
        Body { parts, len, long }
    }
}

impl Under {
    fn close(&self, reply: Reply, alloc: Alloc<'_>) -> Option<Reply> {
        let old = &reply.head;
        if word(old, STATUS_AT) != 0 {
            // A denial has no verifier.
            return Some(reply);
        }
        let mut mic = self
            .context
            .protection
            .mic(&[&self.sequence.to_be_bytes()])?;
        self.spoil(Fault::Verifier, &mut mic);
        let is_sealed = self.service != Service::None && word(old, ACCEPTED_AT) == 0;
        let mut out = Encoder::with_capacity(old.len() + 512);
        out.opaque_fixed(&old[..VERIFIER_AT]);
        rpcsec_gss::verifier(&mic).encode(&mut out);
        out.opaque_fixed(&old[ACCEPTED_AT..ACCEPTED_AT + 4]);
        let results = &old[ACCEPTED_AT + 4..];
        // Without results there is nothing more to protect (RFC 2203 section 5.3.3.4).
        if !is_sealed {
            out.opaque_fixed(results);
            return Some(Reply {
                head: out.into_vec(),
                ..reply
            });
        }
        let sequence = self.sequence.to_be_bytes();
        let body = Body::new(&sequence, results, reply.payload.as_ref());
        let rest = match self.service {
            Service::Privacy => self.encrypt(&body, &mut out, alloc)?,
            _ => self.sign(&body, &mut out, alloc)?,
        };
        let head = out.into_vec();
        Some(Reply {
            rest,
            ..Reply::whole(head)
        })
    }

    /// Appends the results with their MIC. Returns a long payload and what follows it.
    fn sign(&self, body: &Body<'_>, out: &mut Encoder, alloc: Alloc<'_>) -> Option<Vec<Buf>> {
        let mut mic = self.context.protection.mic(&body.parts)?;
        self.spoil(Fault::Body, &mut mic);
        out.u32(body.len as u32);
        let [sequence, results, payload, padding] = body.parts;
        out.opaque_fixed(sequence);
        out.opaque_fixed(results);
        let Some(long) = body.long else {
            out.opaque_fixed(payload);
            out.opaque(&mic);
            return Some(Vec::new());
        };
        let mut end = Encoder::new(padding.to_vec());
        end.opaque(&mic);
        let mut buf = alloc(end.len())?;
        buf.copy_from_slice(end.as_slice());
        Some(vec![long.clone(), buf.freeze()])
    }

    /// Appends encrypted results. Returns long ones, in a buffer of their own.
    fn encrypt(&self, body: &Body<'_>, out: &mut Encoder, alloc: Alloc<'_>) -> Option<Vec<Buf>> {
        let protection = &self.context.protection;
        let len = body.len + protection.wrap_overhead();
        let wrap = |into: &mut [u8]| {
            let (token, padding) = into.split_at_mut(len);
            padding.fill(0);
            protection.wrap(&body.parts, token)?;
            self.spoil(Fault::Body, token);
            Some(())
        };
        out.u32(len as u32);
        if body.long.is_none() {
            let mut token = vec![0; roundup(len)];
            wrap(&mut token)?;
            out.opaque_fixed(&token);
            return Some(Vec::new());
        }
        let mut buf = alloc(roundup(len))?;
        wrap(&mut buf)?;
        Some(vec![buf.freeze()])
    }

    fn spoil(&self, fault: Fault, bytes: &mut [u8]) {
        if self.spoilt == Some(fault)
            && let Some(last) = bytes.last_mut()
        {
            *last ^= 1;
        }
    }
}
