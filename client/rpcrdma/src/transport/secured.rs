//! Calls under RPCSEC_GSS (RFC 2203).
//!
//! Such a call is not the same in each transmission: each has a sequence number of its own, under the same
//! XID, because the server accepts a number once (section 5.3.3.1), and so another header and another
//! protected body. What is kept is the call without security; `seal` makes the message when a
//! transmission begins. Without integrity and privacy, chunks are used as ever. With them nothing may be
//! reduced, because the server must have the body as it was protected: data are a part of the message,
//! and results come inline or in the Reply chunk.

use super::memory::{Blocks, ReplyBytes, registered};
use crate::protocol::{Discard, Shape};
use crate::security::{Broken, Context, Service, open, results_len};
use nfsrdma_rdma::contract::Segs;
use nfsrdma_rdma::{Buf, Pool, QueuePair};
use nfsrdma_xdr::codec::{Encode, Encoder, padding, roundup};
use nfsrdma_xdr::rpc::CALL_HEAD_LEN;
use nfsrdma_xdr::rpcsec_gss::{
    Credential, INTEGRITY_HEAD_LEN, Procedure, integrity_head, integrity_len, privacy_len,
    verifier, verifier_len,
};
use std::sync::Arc;

/// Encoded length of the AUTH_NONE credential and verifier in a call without security.
const NO_AUTH_LEN: usize = 16;
/// How many sequence numbers of a call are remembered: a reply to an older transmission does not count.
const NUMBERS: usize = 64;

/// Why a call cannot be sent.
#[derive(Debug)]
pub(super) enum NotSealed {
    NoMemory,
    Broken(Broken),
}

impl From<Broken> for NotSealed {
    fn from(broken: Broken) -> Self {
        NotSealed::Broken(broken)
    }
}

/// What a call under RPCSEC_GSS has besides.
#[derive(Debug)]
pub(super) struct Secured {
    context: Arc<Context>,
    procedure: Procedure,
    /// The header up to the credential, and the arguments without the DDP-eligible one.
    plain: Box<[u8]>,
    /// The number of the transmission under way.
    number: Option<u32>,
    /// Those of all transmissions.
    numbers: Vec<u32>,
    /// What follows the head of the message: data and their MIC, or a wrapped body.
    tail: Segs<Buf>,
    /// The properties of the message as it is sent.
    shape: Shape,
}

impl Drop for Secured {
    fn drop(&mut self) {
        self.over();
    }
}

impl Secured {
    /// `call` is the encoded call under AUTH_NONE, `shape` what it would be without security.
    pub(super) fn new(
        context: Arc<Context>,
        procedure: Procedure,
        call: &[u8],
        shape: &Shape,
    ) -> Box<Self> {
        let (head, rest) = call.split_at(CALL_HEAD_LEN.min(call.len()));
        let arguments = rest.get(NO_AUTH_LEN..).unwrap_or_default();
        let mut secured = Secured {
            context,
            procedure,
            plain: [head, arguments].concat().into(),
            number: None,
            numbers: Vec::new(),
            tail: Segs::new(),
            shape: *shape,
        };
        secured.shape.head = secured.head_len(shape.argument);
        if secured.protects_body() {
            let results = shape.max_results + roundup(shape.max_ddp_result);
            let security = secured.context.security();
            secured.shape.max_results = results_len(security, secured.service(), results);
            secured.shape.max_ddp_result = 0;
            secured.shape.argument = 0;
            secured.shape.reducible = false;
        }
        Box::new(secured)
    }

    pub(super) fn context(&self) -> &Arc<Context> {
        &self.context
    }

    pub(super) fn shape(&self) -> &Shape {
        &self.shape
    }

    pub(super) fn tail(&self) -> &Segs<Buf> {
        &self.tail
    }

    /// The control message that destroys a context has no body (RFC 2203 section 5.4).
    fn service(&self) -> Service {
        match self.procedure {
            Procedure::Data => self.context.security().service(),
            Procedure::Init | Procedure::ContinueInit | Procedure::Destroy => Service::None,
        }
    }

    /// Whether arguments and results are protected, so that nothing may be reduced.
    pub(super) fn protects_body(&self) -> bool {
        self.service() != Service::None
    }

    /// Encoded length of the call, with an argument of `argument` bytes unless that is sent as it is.
    fn head_len(&self, argument: usize) -> usize {
        let security = self.context.security();
        let credential = Credential::data(0, self.service(), security.handle());
        let header =
            CALL_HEAD_LEN + 8 + credential.encoded_len() + verifier_len(security.mic_len());
        let arguments = self.plain.len() - CALL_HEAD_LEN.min(self.plain.len());
        header
            + match self.service() {
                Service::None => arguments,
                Service::Integrity => {
                    integrity_len(arguments + roundup(argument), security.mic_len())
                }
                Service::Privacy => {
                    privacy_len(arguments + roundup(argument), security.wrap_overhead())
                }
            }
    }

    /// Appends the header with its verifier.
    fn encode_header(&self, number: u32, to: &mut Encoder) -> Result<(), Broken> {
        let security = self.context.security();
        let start = to.len();
        to.opaque_fixed(&self.plain[..CALL_HEAD_LEN]);
        let data = Credential::data(number, self.service(), security.handle());
        let procedure = self.procedure;
        Credential { procedure, ..data }.encode_auth(to);
        let mut mic = vec![0; security.mic_len()];
        security.mic(&[&to.as_slice()[start..]], &mut mic)?;
        verifier(&mic).encode(to);
        Ok(())
    }

    /// Appends the message of a transmission to `to`, except for the tail. `data` are the DDP-eligible
    /// argument. `blocks` has short buffers, which are used before those of `pool`.
    pub(super) fn seal(
        &mut self,
        data: &[Buf],
        to: &mut Encoder,
        blocks: &Blocks,
        pool: &Pool,
    ) -> Result<(), NotSealed> {
        let number = self.number.unwrap_or_default();
        let start = to.len();
        self.encode_header(number, to)?;
        self.tail = match self.service() {
            Service::None => {
                to.opaque_fixed(&self.plain[CALL_HEAD_LEN..]);
                Segs::new()
            }
            Service::Integrity => self.integrity(number, data, to, blocks, pool)?,
            Service::Privacy => self.privacy(number, data, to, pool)?,
        };
        if self.protects_body() {
            self.shape.argument = self.tail.iter().map(|buf| buf.len()).sum();
        }
        self.shape.head = to.len() - start;
        Ok(())
    }

    /// Appends the body with integrity as far as the data. Returns the data and what follows them.
    fn integrity(
        &self,
        number: u32,
        data: &[Buf],
        to: &mut Encoder,
        blocks: &Blocks,
        pool: &Pool,
    ) -> Result<Segs<Buf>, NotSealed> {
        let security = self.context.security();
        let arguments = &self.plain[CALL_HEAD_LEN..];
        let len: usize = data.iter().map(|buf| buf.len()).sum();
        let pad = &[0; 3][..padding(len)];
        let head = integrity_head(number, arguments.len() + roundup(len));
        let mut mic = vec![0; security.mic_len()];
        let mut message: Vec<&[u8]> = vec![&head[INTEGRITY_HEAD_LEN - 4..], arguments];
        message.extend(data.iter().map(|buf| &buf[..]));
        message.push(pad);
        security.mic(&message, &mut mic)?;
        to.opaque_fixed(&head);
        to.opaque_fixed(arguments);
        if len == 0 {
            to.opaque(&mic);
            return Ok(Segs::new());
        }
        let mut end = Encoder::new(pad.to_vec());
        end.opaque(&mic);
        let end = registered(blocks, pool, end.as_slice());
        let mut tail: Segs<Buf> = data.iter().filter(|buf| !buf.is_empty()).cloned().collect();
        tail.push(end.ok_or(NotSealed::NoMemory)?);
        Ok(tail)
    }

    /// Appends a short body with privacy. Returns a longer one, in a buffer of its own.
    fn privacy(
        &self,
        number: u32,
        data: &[Buf],
        to: &mut Encoder,
        pool: &Pool,
    ) -> Result<Segs<Buf>, NotSealed> {
        let security = self.context.security();
        let arguments = &self.plain[CALL_HEAD_LEN..];
        let len: usize = data.iter().map(|buf| buf.len()).sum();
        let number = number.to_be_bytes();
        let mut message: Vec<&[u8]> = vec![&number, arguments];
        message.extend(data.iter().map(|buf| &buf[..]));
        message.push(&[0; 3][..padding(len)]);
        let plain: usize = message.iter().map(|piece| piece.len()).sum();
        let wrapped = plain + security.wrap_overhead();
        let wrap = |into: &mut [u8]| {
            into[wrapped..].fill(0);
            security.wrap(&message, &mut into[..wrapped])
        };
        to.u32(wrapped as u32);
        if len == 0 {
            let mut body = vec![0; roundup(wrapped)];
            wrap(&mut body)?;
            to.opaque_fixed(&body);
            return Ok(Segs::new());
        }
        let body = pool.alloc(roundup(wrapped));
        let mut body = body.ok_or(NotSealed::NoMemory)?;
        wrap(&mut body)?;
        Ok(Segs::from_iter([body.freeze()]))
    }

    /// Takes a number for a transmission on the connection of `queue_pair`, which is woken later if
    /// there is none now.
    pub(super) fn take_number(&mut self, queue_pair: &Arc<dyn QueuePair>) -> bool {
        let Some(number) = self.context.take(queue_pair) else {
            return false;
        };
        self.number = Some(number);
        if self.numbers.len() == NUMBERS {
            self.numbers.remove(0);
        }
        self.numbers.push(number);
        true
    }

    /// The transmission is over: it was answered, or never will be. Returns the last piece of what
    /// was sent behind the head.
    pub(super) fn over(&mut self) -> Option<Buf> {
        if let Some(number) = self.number.take() {
            self.context.give(number);
        }
        std::mem::take(&mut self.tail).pop()
    }

    /// Opens the reply, and leaves in `bytes` the one without security.
    pub(super) fn open(&self, xid: u32, bytes: &mut ReplyBytes) -> Result<(), Discard> {
        let security = self.context.security();
        let reply = bytes.as_mut_slice();
        let plain = open(security, self.service(), reply, xid, &self.numbers)?;
        bytes.cut(plain);
        Ok(())
    }
}
