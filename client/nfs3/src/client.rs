//! [`Nfs3Client`]: how a call of NFS is made, repeated and counted.
//!
//! `perform` computes the largest size of the results, for which the transport must provide room,
//! and encodes the call under the AUTH_SYS header of the caller's credential. `submit` repeats a
//! call that is answered with NFS3ERR_JUKEBOX, after growing pauses and with a new XID each time
//! (RFC 1813 section 2.6): with the old XID the server's duplicate request cache could return the
//! same answer again. During the pause a call holds no memory for the data that it asks for. A
//! restarted server may have other limits, so the first call after a lost connection also asks for
//! them again.

use crate::api::{Cred, NfsError, NfsResult};
use crate::limits::Known;
use crate::mount::identity::own_credential;
use crate::options::{ClientOptions, Flavor};
use crate::procedures::{ErrorCounters, NFS3};
use crate::refusals::Refusals;
use crate::transport::{Driver, Limits, Transport};
use crate::waiting::Waiting;
use nfsrdma_rdma::contract::Segs;
use nfsrdma_rdma::{Buf, BufMut, Instant, Pool};
use nfsrdma_rpcrdma::abandon::is_abandoned;
use nfsrdma_rpcrdma::rpc::Credentials;
use nfsrdma_rpcrdma::security::{Contexts, Service};
use nfsrdma_rpcrdma::tap::Tap;
use nfsrdma_rpcrdma::transport::{CallFuture, Engine, Payload, Reply as RpcReply, Request};
use nfsrdma_rpcrdma::{Error, Recovery, Stats};
use nfsrdma_xdr::codec::{Encode, Encoder, roundup};
use nfsrdma_xdr::nfs3::*;
use nfsrdma_xdr::rpc::CallTemplate;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

/// First and longest pause before a call is repeated that was answered with JUKEBOX.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// The client of a mounted server. Clones share connections and counters.
#[derive(Debug, Clone)]
pub struct Nfs3Client {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    engine: Arc<Engine>,
    credentials: Credentials,
    /// The contexts of the users, if calls are made under RPCSEC_GSS.
    contexts: Option<Contexts>,
    known: Known,
    recovery: Recovery,
    errors: ErrorCounters,
    /// Calls that the server puts off, and those of users without a context.
    put_off: Waiting,
    without_context: Waiting,
    refusals: Refusals,
    /// Whether the server has NFS_ACL and the mount uses it.
    acl: AtomicBool,
}

impl Nfs3Client {
    /// A client over connections that are up. `machine` is the name in AUTH_SYS credentials.
    pub(crate) fn new(
        engine: Arc<Engine>,
        machine: &[u8],
        options: &ClientOptions,
        flavor: Flavor,
    ) -> Self {
        let security = options.security(flavor);
        let contexts = security.map(|security| {
            if security.service == Service::Privacy {
                engine.prepare_for_privacy();
            }
            Contexts::new(security, engine.addresses(), own_credential())
        });
        Nfs3Client {
            inner: Arc::new(Inner {
                engine,
                credentials: Credentials::new(machine, NFS3, contexts.is_some()),
                contexts,
                known: Known::new(),
                recovery: options.transport.recovery,
                errors: ErrorCounters::default(),
                put_off: Waiting::default(),
                without_context: Waiting::default(),
                refusals: Refusals::default(),
                acl: AtomicBool::new(false),
            }),
        }
    }

    pub(crate) fn set_acl(&self, present: bool) {
        self.inner.acl.store(present, Ordering::Relaxed);
    }

    /// The header for calls of another program.
    pub(crate) fn template_of(&self, program: u32, version: u32, cred: &Cred) -> CallTemplate {
        self.inner.credentials.template_of(program, version, cred)
    }

    pub(crate) fn known(&self) -> &Known {
        &self.inner.known
    }

    pub(crate) fn contexts(&self) -> Option<&Contexts> {
        self.inner.contexts.as_ref()
    }

    pub(crate) fn refusals(&self) -> &Refusals {
        &self.inner.refusals
    }

    /// The calls of users who wait for a context.
    pub(crate) fn without_context(&self) -> &Waiting {
        &self.inner.without_context
    }

    pub(crate) fn engine(&self) -> &Arc<Engine> {
        &self.inner.engine
    }

    /// The mount's `hard`, `soft` or `softerr`, which decides the error after a time-out.
    pub fn recovery(&self) -> Recovery {
        self.inner.recovery
    }

    /// How calls are secured.
    pub fn flavor(&self) -> Flavor {
        let contexts = self.inner.contexts.as_ref();
        contexts.map_or(Flavor::Sys, |contexts| Flavor::Kerberos(contexts.service()))
    }

    /// How many users have a security context now, and when the first of these expires; `None` under
    /// AUTH_SYS.
    pub fn contexts_in_use(&self) -> Option<(usize, Option<SystemTime>)> {
        Some(self.inner.contexts.as_ref()?.in_use())
    }

    /// The name of the provider: `iwarp` or `verbs`.
    pub fn provider(&self) -> &'static str {
        self.inner.engine.provider()
    }

    /// A snapshot of the counters.
    pub fn stats(&self) -> Stats {
        let mut stats = self.inner.engine.stats();
        self.inner.errors.add_to(&mut stats);
        for waiting in [&self.inner.put_off, &self.inner.without_context] {
            stats.waits = stats.waits.and(waiting.waits());
        }
        stats
    }

    /// Where the connections report what they do.
    pub fn tap(&self) -> &Arc<Tap> {
        self.inner.engine.tap()
    }

    /// Ends the connections and makes them anew, because the server may have forgotten them: `why`. Calls go on.
    pub fn connect_anew(&self, why: &'static str) {
        self.inner.engine.connect_anew(why);
    }

    /// Ends the connections; pending and later calls fail with `Interrupted`.
    pub fn shutdown(&self) {
        self.inner.engine.shut_down();
    }

    /// NULL: checks that the server has NFSv3.
    pub async fn null(&self, cred: &Cred) -> NfsResult<()> {
        let reply = self.perform::<Null>(cred, &Void {}, Payload::None).await?;
        reply.results::<Null>()?;
        Ok(())
    }

    /// Makes a call of NFS, with room for its largest reply.
    pub(crate) fn perform<'c, P: Procedure>(
        &'c self,
        cred: &Cred,
        args: &'c P::Args<'_>,
        payload: Payload,
    ) -> impl Future<Output = NfsResult<RpcReply>> + 'c {
        let template = self.inner.credentials.template(cred);
        let request = Request {
            procedure: P::NUMBER as usize,
            max_results: match &payload {
                Payload::Sink(_) => P::max_results(args),
                // The whole reply is inline or in a Reply chunk.
                Payload::None | Payload::Source(_) => {
                    P::max_results(args) + roundup(P::max_ddp_result(args))
                }
            },
            max_ddp_result: match &payload {
                Payload::Sink(_) => P::max_ddp_result(args),
                Payload::None | Payload::Source(_) => 0,
            },
            payload,
        };
        self.submit(cred, request, move |xid, to| {
            template.encode(xid, P::NUMBER, to);
            args.encode(to);
        })
    }

    /// Makes a call, and repeats it until the answer is not NFS3ERR_JUKEBOX: "The client should wait
    /// and then try the request with a new RPC transaction ID" (RFC 1813 section 2.6). On a `soft`
    /// mount a time-out becomes `GivenUp`.
    ///
    /// The reply counts as [retransmitted](RpcReply::retransmitted) if any of these calls was: the
    /// server may have run one transmission and answered the next one with JUKEBOX.
    pub(crate) fn submit<'c>(
        &'c self,
        cred: &Cred,
        request: Request,
        encode: impl Fn(u32, &mut Encoder) + 'c,
    ) -> impl Future<Output = NfsResult<RpcReply>> + 'c {
        let wanted = Wanted::of(&request);
        // Not inside the future, whose state would be larger.
        let begun = self.start(cred, request, &encode);
        async move {
            let call = match begun {
                Begun::Call(call) => call,
                Begun::Secured(secured) => {
                    return Box::pin(self.submit_secured(wanted, *secured, &encode)).await;
                }
            };
            match call.await {
                // Boxed, because it is rare, and its state is large.
                Ok(reply) if is_put_off(&reply) => {
                    Box::pin(self.submit_again(None, wanted, reply, &encode)).await
                }
                Ok(reply) => Ok(reply),
                Err(error) => Err(self.failed(error)),
            }
        }
    }

    async fn submit_secured(
        &self,
        wanted: Wanted,
        (cred, request): (Cred, Request),
        encode: &impl Fn(u32, &mut Encoder),
    ) -> NfsResult<RpcReply> {
        match self.call_secured(&cred, request, encode).await? {
            reply if is_put_off(&reply) => {
                self.submit_again(Some(cred), wanted, reply, encode).await
            }
            reply => Ok(reply),
        }
    }

    fn start(&self, cred: &Cred, request: Request, encode: &impl Fn(u32, &mut Encoder)) -> Begun {
        if self.inner.known.are_old(self.inner.engine.lost()) {
            self.renew_limits_soon();
        }
        match self.inner.contexts {
            None => Begun::Call(self.inner.engine.call(request, encode)),
            Some(_) => Begun::Secured(Box::new((cred.clone(), request))),
        }
    }

    /// The error of a call that has no reply. On a `soft` mount a time-out is `GivenUp`.
    pub(crate) fn failed(&self, error: Error) -> NfsError {
        match error.into() {
            NfsError::TimedOut if self.inner.recovery == Recovery::Soft => NfsError::GivenUp,
            other => other,
        }
    }

    /// Repeats a call that was answered with NFS3ERR_JUKEBOX by `reply`; under the context of `secured`, if
    /// calls are made under RPCSEC_GSS.
    async fn submit_again(
        &self,
        secured: Option<Cred>,
        wanted: Wanted,
        mut reply: RpcReply,
        encode: &impl Fn(u32, &mut Encoder),
    ) -> NfsResult<RpcReply> {
        let engine = &self.inner.engine;
        let server = engine.server();
        let over = format!("server {server} puts no call off any longer");
        // To the transport each of them is answered.
        let put_off = self.inner.put_off.begin(0, reply.started, over);
        let mut pause = FIRST_PAUSE;
        let mut retransmitted = reply.retransmitted;
        while is_put_off(&reply) {
            // A server may put calls off for hours, as until a file comes from a tape. Callers who do
            // not need that file must not wait as long for memory.
            let kept = Kept::beside(&reply.payload);
            drop(reply);
            if put_off.since().elapsed() >= engine.patience() {
                put_off.tell(|| {
                    format!("server {server} puts calls off (NFS3ERR_JUKEBOX), still trying")
                });
            }
            engine.sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
            // Nobody waits for the results any more, and others may meanwhile have changed what this
            // call was to change.
            if !sends_data(wanted.procedure) && is_abandoned() {
                return Err(NfsError::Status(Status::JukeBox));
            }
            let request = Request {
                procedure: wanted.procedure,
                max_results: wanted.max_results,
                max_ddp_result: wanted.max_ddp_result,
                payload: self.payload_of(kept).await?,
            };
            let answer = match &secured {
                None => self.inner.engine.call(request, encode).await,
                Some(cred) => Ok(self.call_secured(cred, request, encode).await?),
            };
            reply = answer.map_err(|error| self.failed(error))?;
            retransmitted |= reply.retransmitted;
            reply.retransmitted = retransmitted;
        }
        Ok(reply)
    }

    /// The results of a call.
    pub(crate) fn results<'r, P: Procedure>(&self, reply: &'r RpcReply) -> NfsResult<P::Res<'r>> {
        reply
            .results::<P>()
            .map_err(|error| self.no_results::<P>(error))
    }

    /// The error of a call whose reply has no results. Logged if the server refused to run the call.
    pub(crate) fn no_results<P: Procedure>(&self, error: Error) -> NfsError {
        let server = self.inner.engine.server();
        self.inner.refusals.note::<P>(server, &error);
        error.into()
    }

    /// Counts `status` under `counter` and returns it as an error.
    pub(crate) fn refused_at<T>(&self, counter: usize, status: Status) -> NfsResult<T> {
        self.inner.errors.count(counter, status);
        Err(NfsError::Status(status))
    }

    /// Counts `status` under `P` and returns it as an error.
    pub(crate) fn refused<P: Procedure, T>(&self, status: Status) -> NfsResult<T> {
        self.refused_at(P::NUMBER as usize, status)
    }

    /// The payload to make a call again.
    pub(crate) async fn payload_of(&self, kept: Kept) -> NfsResult<Payload> {
        Ok(match kept {
            Kept::Payload(payload) => payload,
            Kept::Sinks(lengths) => Payload::Sink(self.buffers(lengths).await?),
        })
    }

    /// Copies `bytes` into registered memory.
    pub(crate) async fn registered(&self, bytes: &[u8]) -> NfsResult<Buf> {
        let mut buf = self.buffer(bytes.len()).await?;
        buf.copy_from_slice(bytes);
        Ok(buf.freeze())
    }

    /// Allocates memory of the pool. If the pool is empty, the caches will return some soon: a hard
    /// mount waits for that without limit, others as long as `timeo`.
    pub(crate) async fn buffer(&self, len: usize) -> NfsResult<BufMut> {
        self.allocated(|pool| pool.alloc(len)).await
    }

    /// The same for a buffer of each length. It waits with none of them, because others that wait
    /// with a part would then wait for each other.
    async fn buffers(&self, lengths: Segs<usize>) -> NfsResult<Segs<BufMut>> {
        let all = |pool: &Pool| lengths.iter().map(|&len| pool.alloc(len)).collect();
        self.allocated(all).await
    }

    async fn allocated<T>(&self, alloc: impl Fn(&Pool) -> Option<T>) -> NfsResult<T> {
        let engine = &self.inner.engine;
        let begin = Instant::now();
        let mut pause = Duration::from_millis(5);
        loop {
            if let Some(allocated) = alloc(engine.pool()) {
                return Ok(allocated);
            }
            if engine.is_shut_down() {
                return Err(NfsError::Interrupted);
            }
            if self.inner.recovery != Recovery::Hard && begin.elapsed() >= engine.timeo() {
                return Err(NfsError::Local(
                    "the buffer pool is empty; ask for a larger cache".to_owned(),
                ));
            }
            engine.sleep(pause).await;
            pause = (pause * 2).min(Duration::from_secs(1));
        }
    }
}

/// A call that was started.
enum Begun {
    Call(CallFuture),
    /// It needs a context first.
    Secured(Box<(Cred, Request)>),
}

/// The payload of a call that may be made again, without the memory for what it asks for.
pub(crate) enum Kept {
    Payload(Payload),
    Sinks(Segs<usize>),
}

impl Kept {
    /// What is kept of the payload of a call that is made, or was.
    pub(crate) fn beside(payload: &Payload) -> Self {
        match payload {
            Payload::Sink(sink) => Kept::Sinks(sink.iter().map(|buf| buf.len()).collect()),
            Payload::Source(data) => Kept::Payload(Payload::Source(data.clone())),
            Payload::None => Kept::Payload(Payload::None),
        }
    }
}

/// Which counter a call belongs to, and the size of its results, as in [`Request`].
struct Wanted {
    procedure: usize,
    max_results: usize,
    max_ddp_result: usize,
}

impl Wanted {
    fn of(request: &Request) -> Self {
        Wanted {
            procedure: request.procedure,
            max_results: request.max_results,
            max_ddp_result: request.max_ddp_result,
        }
    }
}

/// Whether a reply asks to try again later. All results except those of NULL begin with the status.
fn is_put_off(reply: &RpcReply) -> bool {
    reply.first_word() == Some(Status::JukeBox as u32)
}

impl Transport for Nfs3Client {
    fn limits(&self) -> Limits {
        self.inner.known.get()
    }

    fn sleep(&self, time: Duration) -> impl Future<Output = ()> + Send {
        self.inner.engine.sleep(time)
    }

    fn has_acl(&self) -> bool {
        self.inner.acl.load(Ordering::Relaxed)
    }

    fn deferred(&self) -> u32 {
        self.inner.engine.deferred()
    }

    fn kick(&self) {
        self.inner.engine.kick();
    }

    fn is_idle(&self) -> bool {
        self.inner.engine.is_idle()
    }

    fn drivers(&self) -> Vec<Driver> {
        self.inner.engine.drivers()
    }

    fn calls_at_a_time(&self) -> usize {
        self.inner.engine.granted()
    }
}

/// Whether a procedure, given by its counter, brings data of a program to the server. Such a call is
/// made until it is answered, because a part of that data may have been written, and other programs
/// that write or read the same range wait for it.
pub(crate) fn sends_data(procedure: usize) -> bool {
    [Write::NUMBER, Commit::NUMBER].contains(&(procedure as u32))
}
