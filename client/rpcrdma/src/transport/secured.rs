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
use nfsrdma_xdr::rpcsec_gss::{Credential, Procedure, integrity_head, verifier};
use std::sync::Arc;

/// Encoded length of the AUTH_NONE credential and verifier in a call without security.
const NO_AUTH_LEN: usize = 16;
/// How many sequence numbers of a call are remembered: a reply to an older transmission does not count.
const NUMBERS: usize = 64;

/// Memory for what is sent.
pub(super) struct Room<'a> {
    pub(super) pool: &'a Pool,
    /// Short buffers, which are used first.
    pub(super) short: &'a Blocks,
    /// For a wrapped body when the pool is empty.
    pub(super) long: &'a Blocks,
}

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
    /// Whether there is a DDP-eligible argument.
    has_data: bool,
    /// What follows the head of the message: data and their MIC, or a wrapped body.
    tail: Segs<Buf>,
    /// The properties of the message as it is sent; those of the call itself once it is sealed.
    shape: Shape,
}

impl Drop for Secured {
    fn drop(&mut self) {
        self.over();
    }
}

fn length(data: &[Buf]) -> usize {
    data.iter().map(|buf| buf.len()).sum()
}

/// The padding of data of this length.
fn pad(len: usize) -> &'static [u8] {
    &[0; 3][..padding(len)]
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
            has_data: shape.argument > 0,
            tail: Segs::new(),
            shape: *shape,
        };
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
    /// argument.
    pub(super) fn seal(
        &mut self,
        data: &[Buf],
        to: &mut Encoder,
        memory: &Room<'_>,
    ) -> Result<(), NotSealed> {
        let number = self.number.unwrap_or_default();
        let start = to.len();
        self.encode_header(number, to)?;
        self.tail = match self.service() {
            Service::None => {
                to.opaque_fixed(self.arguments());
                Segs::new()
            }
            Service::Integrity => self.integrity(number, data, to, memory)?,
            Service::Privacy => self.privacy(number, data, to, memory)?,
        };
        if self.protects_body() {
            self.shape.argument = length(&self.tail);
        }
        self.shape.head = to.len() - start;
        Ok(())
    }

    fn arguments(&self) -> &[u8] {
        &self.plain[CALL_HEAD_LEN..]
    }

    /// What is protected: the sequence number and all arguments, in pieces (RFC 2203 section 5.3.2).
    fn body<'a>(&'a self, number: &'a [u8; 4], data: &'a [Buf]) -> Vec<&'a [u8]> {
        let mut body = vec![&number[..], self.arguments()];
        body.extend(data.iter().map(|buf| &buf[..]));
        body.push(pad(length(data)));
        body
    }

    /// Appends the body with integrity as far as the data. Returns the data and what follows them.
    fn integrity(
        &self,
        number: u32,
        data: &[Buf],
        to: &mut Encoder,
        memory: &Room<'_>,
    ) -> Result<Segs<Buf>, NotSealed> {
        let security = self.context.security();
        let arguments = self.arguments();
        let len = length(data);
        let mut mic = vec![0; security.mic_len()];
        security.mic(&self.body(&number.to_be_bytes(), data), &mut mic)?;
        to.opaque_fixed(&integrity_head(number, arguments.len() + roundup(len)));
        to.opaque_fixed(arguments);
        if len == 0 {
            to.opaque(&mic);
            return Ok(Segs::new());
        }
        let mut end = Encoder::new(pad(len).to_vec());
        end.opaque(&mic);
        let end = registered(memory.short, memory.pool, end.as_slice());
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
        memory: &Room<'_>,
    ) -> Result<Segs<Buf>, NotSealed> {
        let security = self.context.security();
        let len = length(data);
        let number = number.to_be_bytes();
        let message = self.body(&number, data);
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
        let size = roundup(wrapped);
        let body = match size <= memory.short.size() {
            true => memory.short.take(),
            false => memory.pool.alloc(size).or_else(|| memory.long.take_kept()),
        };
        let body = body.filter(|body| body.capacity() >= size);
        let mut body = body.ok_or(NotSealed::NoMemory)?;
        body.resize(size);
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

    /// The context and the number of a call without data, to be marked as posted.
    pub(super) fn to_post(&self) -> Option<(Arc<Context>, u32)> {
        let number = self.number.filter(|_| !self.has_data)?;
        Some((self.context.clone(), number))
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::security::SecurityContext;
    use crate::security::fake::Fake;
    use nfsrdma_xdr::codec::Decoder;
    use nfsrdma_xdr::rpc::{Auth, Call, CallTemplate};
    use nfsrdma_xdr::rpcsec_gss::{IntegrityBody, PrivacyBody, mic_of, split};

    /// GETATTR of a file handle of 8 bytes, with `data` behind it.
    fn secured(service: Service, procedure: Procedure, data: usize) -> (Box<Secured>, Fake) {
        let mut fake = Fake::new(5, service);
        fake.handle = vec![0, 0, 0, 9];
        let server = fake.server();
        let mut to = Encoder::default();
        CallTemplate::new(100_003, 3, Auth::None).encode(7, 1, &mut to);
        to.opaque(b"a handle");
        let shape = Shape {
            head: to.len(),
            argument: data,
            reducible: data > 0,
            max_results: 100,
            max_ddp_result: 50,
        };
        let context = Arc::new(Context::new(Box::new(fake)));
        let secured = Secured::new(context, procedure, to.as_slice(), &shape);
        (secured, server)
    }

    fn message(secured: &mut Secured, data: &[Buf], pool: &Pool) -> Vec<u8> {
        let blocks = Blocks::new(pool.clone(), 4096, 4);
        let room = Room {
            pool,
            short: &blocks,
            long: &blocks,
        };
        let mut to = Encoder::default();
        secured.seal(data, &mut to, &room).unwrap();
        let tail = secured.tail().iter().flat_map(|buf| buf.to_vec());
        to.into_vec().into_iter().chain(tail).collect()
    }

    /// The sizes are those of Linux's client with aes256-cts-hmac-sha1-96.
    #[test]
    fn calls_are_as_long_as_those_of_linux() {
        let pool = Pool::new(1 << 20).unwrap();
        for (service, size) in [
            (Service::None, 104),
            (Service::Integrity, 144),
            (Service::Privacy, 172),
        ] {
            let (mut secured, server) = secured(service, Procedure::Data, 0);
            let bytes = message(&mut secured, &[], &pool);
            assert_eq!((bytes.len(), secured.shape().head), (size, size));
            let mut from = Decoder::new(&bytes);
            let call = Call::parse(&mut from).unwrap();
            assert_eq!((call.xid, call.procedure), (7, 1));
            let signed = &bytes[..call.signed_len()];
            assert!(server.verify(signed, mic_of(&call.verifier).unwrap()));
        }
    }

    /// What the server opens is the arguments with the data, whose padding is in the message.
    #[test]
    fn data_are_a_part_of_a_protected_body() {
        let pool = Pool::new(1 << 20).unwrap();
        for len in [1, 4, 4095, 5002] {
            let pieces = [len / 3, len - len / 3].map(|len| {
                let mut buf = pool.alloc(len.max(1)).unwrap();
                buf.resize(len);
                buf.fill(b'd');
                buf.freeze()
            });
            let mut arguments = [&8u32.to_be_bytes(), &b"a handle"[..]].concat();
            arguments.resize(12 + len, b'd');
            arguments.resize(12 + roundup(len), 0);
            for service in [Service::Integrity, Service::Privacy] {
                let (mut secured, server) = secured(service, Procedure::Data, len);
                let bytes = message(&mut secured, &pieces, &pool);
                let shape = *secured.shape();
                assert_eq!(bytes.len(), shape.head + shape.argument);
                assert_eq!(shape.argument % 4, 0);
                assert!(!shape.reducible && shape.max_ddp_result == 0);
                let results = results_len(&server, service, 152);
                assert_eq!(shape.max_results, results);
                let mut from = Decoder::new(&bytes);
                Call::parse(&mut from).unwrap();
                let data = match service {
                    Service::Privacy => {
                        let body: PrivacyBody<'_> = decoded(from.rest());
                        let mut wrapped = body.wrapped.0.to_vec();
                        let part = server.unwrap(&mut wrapped).unwrap();
                        wrapped[part].to_vec()
                    }
                    _ => {
                        let body: IntegrityBody<'_> = decoded(from.rest());
                        assert!(server.verify(body.data.0, body.mic.0));
                        body.data.0.to_vec()
                    }
                };
                assert_eq!(split(&data).unwrap(), (0, &arguments[..]));
            }
        }
    }

    fn decoded<'a, T: nfsrdma_xdr::codec::Decode<'a>>(bytes: &'a [u8]) -> T {
        T::from_xdr(bytes).unwrap()
    }

    #[test]
    fn the_end_of_a_context_has_no_body() {
        let pool = Pool::new(1 << 20).unwrap();
        let (mut secured, _) = secured(Service::Privacy, Procedure::Destroy, 0);
        let bytes = message(&mut secured, &[], &pool);
        let mut from = Decoder::new(&bytes);
        let call = Call::parse(&mut from).unwrap();
        let credential = Credential::of(&call.credential).unwrap().unwrap();
        assert_eq!(credential.procedure, Procedure::Destroy);
        assert_eq!(credential.service, Service::None);
    }
}
