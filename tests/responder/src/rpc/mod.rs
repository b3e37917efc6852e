//! Executes RPC calls, and makes their replies, for all transports.

mod acl;
mod acl_calls;
mod caller;
mod drc;
mod failing;
mod failure;
pub mod gss;
mod mount;
mod mounts;
mod nfs;
mod nlm;
mod portmap;
mod ports;
mod reply;
mod script;
mod security;
mod status_monitor;
mod turns;
mod weight;

pub use acl_calls::AclCalls;
pub use drc::{Admission, CallKey, Drc, Ticket};
pub use failing::{Failing, procedure};
pub use mounts::Mounts;
pub use ports::Ports;
pub use reply::{HEADROOM, Reply};
pub use script::{Delaying, Script, Stage};
pub use security::{Flavors, Security};
pub use weight::Weight;

use crate::fs::{FileSystem, Identity};
use crate::lock::LockService;
use failing::Failure;
use gss::{Closed, Entered, Seal};
use nfsrdma_rdma::{Buf, BufMut};
use nfsrdma_xdr::codec::{Decode, Decoder, Encode, Encoder};
use nfsrdma_xdr::procedure::Procedure;
use nfsrdma_xdr::rpc::{self, Accepted, Call, CallError, Denial};
use nfsrdma_xdr::rpcsec_gss::{self, Credential};
use nfsrdma_xdr::{mount3, nfs_acl, nfs3, nlm4, nsm, rpcbind};
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};

/// An RPC message as a transport passes it on.
#[derive(Debug, Clone, Copy)]
pub struct Message<'a> {
    /// The RPC call, without the bytes in `placed`.
    pub bytes: &'a [u8],
    /// A reduced argument.
    pub placed: Option<Placed<'a>>,
}

/// The contents of a Read chunk, in the pieces into which it was read.
#[derive(Debug, Clone, Copy)]
pub struct Placed<'a> {
    pub data: &'a [&'a [u8]],
    /// Their position in the message.
    pub position: usize,
}

impl Placed<'_> {
    /// The number of bytes of all pieces.
    pub fn len(&self) -> usize {
        self.data.iter().map(|piece| piece.len()).sum()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The offset of the data of a WRITE call and its length, if `head` is the beginning of such a call
/// and includes the length.
pub fn split_write(head: &[u8]) -> Option<(usize, usize)> {
    let mut from = Decoder::new(head);
    let call = Call::parse(&mut from).ok()?;
    if (call.program, call.procedure) != (nfs3::PROGRAM, nfs3::Write::NUMBER) || is_sealed(&call) {
        return None;
    }
    nfs3::FileHandle::decode(&mut from).ok()?;
    // offset, count, stable
    from.take(16).ok()?;
    let len = from.u32().ok()? as usize;
    Some((from.position(), len))
}

/// The service of a call under RPCSEC_GSS, unless its credential is malformed.
fn service_of(call: &Call<'_>) -> Option<rpcsec_gss::Service> {
    let credential = Credential::of(&call.credential)?.ok()?;
    Some(credential.service)
}

/// Whether the arguments of a call are in a body of RPCSEC_GSS, and not where others have them.
fn is_sealed(call: &Call<'_>) -> bool {
    service_of(call).is_some_and(|service| service != rpcsec_gss::Service::None)
}

impl<'a> Message<'a> {
    fn decoder(&self) -> Decoder<'a> {
        match &self.placed {
            Some(placed) => Decoder::with_placed(self.bytes, placed.len() as u32),
            None => Decoder::new(self.bytes),
        }
    }
}

/// The outcome of a call.
#[derive(Debug)]
pub enum Outcome {
    Reply(Reply),
    /// It is not a call, and has no answer (RFC 5531 has no reply for it).
    Discard,
    /// The same call is being executed. [`Service::wait`] provides its reply.
    InProgress(CallKey, Seal),
    /// The chunks do not match the procedure (RFC 8166 section 4.5: ERR_CHUNK).
    BadChunks,
}

/// The caller and the transport of a call.
#[derive(Debug, Clone, Copy)]
pub struct Peer {
    pub remote: SocketAddr,
    /// The address to which the call was sent.
    pub local: SocketAddr,
    pub rdma: bool,
    pub udp: bool,
}

/// All programs that are served, and their shared state.
#[derive(Debug)]
pub struct Service {
    pub fs: FileSystem,
    pub locks: Arc<LockService>,
    /// Whether NFS_ACL is served.
    pub with_acl: bool,
    pub acl_calls: AclCalls,
    pub security: Arc<Security>,
    drc: Option<Arc<Drc>>,
    mounts: Mounts,
    /// The ports of the transports, once they listen.
    pub ports: OnceLock<Ports>,
    /// The commands of tests.
    pub script: Script,
    hangup: OnceLock<Hangup>,
}

/// A function that ends the connection of a peer.
pub struct Hangup(pub Box<dyn Fn(SocketAddr) + Send + Sync>);

impl std::fmt::Debug for Hangup {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Hangup")
    }
}

/// A reason to stop a call before its procedure runs.
enum Stop {
    Accepted(Accepted),
    BadChunks,
    /// For tests: the call is not answered.
    NoReply,
}

impl From<nfsrdma_xdr::codec::DecodeError> for Stop {
    fn from(_: nfsrdma_xdr::codec::DecodeError) -> Self {
        Stop::Accepted(Accepted::GarbageArgs)
    }
}

/// The outcome of a procedure. Its results are in the encoder, except for the payload.
type Done = Result<Option<Buf>, Stop>;

/// The context in which a procedure runs.
struct Context<'a> {
    who: Identity,
    /// The flavor of the call, as MOUNT names it.
    flavor: u32,
    peer: Peer,
    program: u32,
    procedure: u32,
    version: u32,
    placed: Option<Placed<'a>>,
    alloc: &'a dyn Fn(usize) -> Option<BufMut>,
}

fn begin(xid: u32, status: Accepted) -> Encoder {
    let mut out = Encoder::new(Vec::with_capacity(512));
    out.u32(0);
    rpc::Reply::accepted(xid, status).encode(&mut out);
    out
}

impl Service {
    /// A service of `fs`, with a duplicate-request cache of `drc` calls.
    pub fn new(fs: FileSystem, locks: Arc<LockService>, drc: usize, failing: &[Failing]) -> Self {
        let script = Script::default();
        for failing in failing {
            script.fail(*failing);
        }
        Service {
            fs,
            locks,
            with_acl: true,
            acl_calls: AclCalls::default(),
            security: Arc::default(),
            drc: Drc::new(drc),
            mounts: Mounts::default(),
            ports: OnceLock::new(),
            script,
            hangup: OnceLock::new(),
        }
    }

    /// Sets how to end connections, for failures that demand it. Must be called once.
    pub fn hang_up_by(&self, hangup: Hangup) {
        // Nobody else sets it.
        let _ = self.hangup.set(hangup);
    }

    /// Clears the duplicate-request cache and the contexts of RPCSEC_GSS, as a restart does.
    pub fn forget_calls(&self) {
        if let Some(drc) = &self.drc {
            drc.clear();
        }
        if let Some(gss) = &self.security.gss {
            gss.forget();
        }
    }

    /// Estimates how long a call takes, without executing it.
    pub fn weigh(&self, message: &Message<'_>) -> Weight {
        if self.script.is_slow() || self.fs.variants().gap().is_some() {
            return Weight::Heavy;
        }
        let mut from = message.decoder();
        match Call::parse(&mut from) {
            Ok(call) if call.program == nfs3::PROGRAM => match service_of(&call) {
                // What is encrypted may be anything.
                Some(rpcsec_gss::Service::Privacy) => Weight::Heavy,
                service => {
                    let sealed = service == Some(rpcsec_gss::Service::Integrity);
                    weight::weigh(&self.fs, call.procedure, sealed, from)
                }
            },
            _ => Weight::Light,
        }
    }

    /// Executes a call. `alloc` gives memory for payloads.
    pub fn handle(
        &self,
        peer: Peer,
        message: Message<'_>,
        alloc: &dyn Fn(usize) -> Option<BufMut>,
    ) -> Outcome {
        let mut from = message.decoder();
        let call = match Call::parse(&mut from) {
            Ok(call) => call,
            Err(CallError::RpcVersion { xid, .. }) => {
                let denial = Denial::RpcMismatch {
                    low: rpc::VERSION,
                    high: rpc::VERSION,
                };
                return Outcome::Reply(Reply::denied(xid, denial));
            }
            Err(CallError::Malformed(error)) => {
                tracing::debug!(%error, peer = %peer.remote, "not an RPC call");
                return Outcome::Discard;
            }
        };
        let mut plain = Vec::new();
        let entered = match self.enter(&call, &message, from, &mut plain) {
            Ok(entered) => entered,
            Err(Closed::Reply(reply)) => return Outcome::Reply(reply),
            Err(Closed::Denied(status)) => {
                return Outcome::Reply(Reply::denied(call.xid, Denial::AuthError(status)));
            }
            Err(Closed::BadChunks) => return Outcome::BadChunks,
            Err(Closed::Hangup) => {
                self.hang_up(peer);
                return Outcome::Discard;
            }
        };
        let seal = entered.seal.clone();
        match self.carry_out(peer, &call, entered, message.placed, alloc) {
            Outcome::Reply(reply) => match seal.close(reply, alloc) {
                Some(reply) => Outcome::Reply(reply),
                None => Outcome::Discard,
            },
            other => other,
        }
    }

    /// Executes a call whose caller is known.
    fn carry_out(
        &self,
        peer: Peer,
        call: &Call<'_>,
        entered: Entered<'_>,
        placed: Option<Placed<'_>>,
        alloc: &dyn Fn(usize) -> Option<BufMut>,
    ) -> Outcome {
        let key = CallKey::new(peer.remote, peer.rdma, call, entered.from.rest());
        let ticket = match self.admit(key, call) {
            None => None,
            Some(Admission::New(ticket)) => Some(ticket),
            Some(Admission::Done(reply)) => return Outcome::Reply(Reply::cached(&reply)),
            Some(Admission::InProgress) => return Outcome::InProgress(key, entered.seal),
        };
        let procedure = match (call.program, call.version) {
            (nfs3::PROGRAM, nfs3::VERSION) => nfs3::ProcedureNumber::try_from(call.procedure).ok(),
            _ => None,
        };
        let failure = procedure.and_then(|procedure| self.script.arrive(procedure));
        let mut out = begin(call.xid, Accepted::Success);
        if let (Some(procedure), Some(Failure::Status(status))) = (procedure, failure) {
            failure::fail(procedure, status, &mut out);
            let head = out.into_vec();
            if let Some(ticket) = ticket {
                ticket.finish(&head);
            }
            return Outcome::Reply(Reply::whole(head));
        }
        match failure {
            Some(Failure::Accepted(status)) => {
                return Outcome::Reply(Reply::whole(begin(call.xid, status).into_vec()));
            }
            Some(Failure::Denied(denial)) => {
                return Outcome::Reply(Reply::denied(call.xid, denial));
            }
            _ => {}
        }
        let reply = match self.run(peer, call, entered, placed, alloc, &mut out) {
            Ok(payload) => Reply {
                payload,
                ..Reply::whole(out.into_vec())
            },
            Err(Stop::Accepted(status)) => Reply::whole(begin(call.xid, status).into_vec()),
            Err(Stop::BadChunks) => return Outcome::BadChunks,
            Err(Stop::NoReply) => return Outcome::Discard,
        };
        if let Some(ticket) = ticket {
            ticket.finish(&reply.head);
        }
        if let Some(procedure) = procedure {
            self.script.depart(procedure);
        }
        match failure {
            Some(Failure::Lost) => Outcome::Discard,
            Some(Failure::Hangup) => {
                self.hang_up(peer);
                Outcome::Discard
            }
            _ => Outcome::Reply(reply),
        }
    }

    fn hang_up(&self, peer: Peer) {
        if let Some(Hangup(hangup)) = self.hangup.get() {
            hangup(peer.remote);
        }
    }

    /// Passes the reply of a call in progress to `waiter`, under the seal of the call that waits.
    pub fn wait(
        &self,
        key: &CallKey,
        seal: Seal,
        waiter: impl FnOnce(Option<Reply>) + Send + 'static,
    ) {
        let sealed = move |reply: Option<Arc<[u8]>>| {
            waiter(reply.and_then(|reply| seal.close(Reply::cached(&reply), &|_| None)));
        };
        match &self.drc {
            Some(drc) => drc.wait(key, Box::new(sealed)),
            None => sealed(None),
        }
    }

    /// Checks calls that must not be executed twice against the duplicate-request cache.
    fn admit(&self, key: CallKey, call: &Call<'_>) -> Option<Admission> {
        let drc = self.drc.as_ref()?;
        if call.program != nfs3::PROGRAM || call.version != nfs3::VERSION {
            return None;
        }
        let procedure = nfs3::ProcedureNumber::try_from(call.procedure).ok()?;
        if procedure.is_idempotent() {
            return None;
        }
        Some(drc.admit(key))
    }

    fn run(
        &self,
        peer: Peer,
        call: &Call<'_>,
        entered: Entered<'_>,
        placed: Option<Placed<'_>>,
        alloc: &dyn Fn(usize) -> Option<BufMut>,
        out: &mut Encoder,
    ) -> Done {
        let from = entered.from;
        // Only calls of NFS have arguments that may be in a Read chunk (RFC 8267 section 4).
        if placed.is_some() && call.program != nfs3::PROGRAM {
            return Err(Stop::BadChunks);
        }
        let (low, high) = match call.program {
            // NFS messages are too large for datagrams.
            nfs3::PROGRAM if !peer.udp => (nfs3::VERSION, nfs3::VERSION),
            // Version 1 has the same UMNT and lists, but its MNT returns other handles.
            mount3::PROGRAM => (mount3::VERSION, mount3::VERSION),
            rpcbind::PROGRAM if !peer.rdma => (rpcbind::portmap::VERSION, 4),
            nfs_acl::PROGRAM if self.with_acl && !peer.udp => (nfs_acl::VERSION, nfs_acl::VERSION),
            // Linux's server does not serve them on its RDMA port either.
            nlm4::PROGRAM if self.locks.is_on() && !peer.rdma => (nlm4::VERSION, nlm4::VERSION),
            nsm::PROGRAM if self.locks.is_on() && !peer.rdma => (nsm::VERSION, nsm::VERSION),
            _ => return Err(Stop::Accepted(Accepted::ProgUnavail)),
        };
        if !(low..=high).contains(&call.version) {
            return Err(Stop::Accepted(Accepted::ProgMismatch { low, high }));
        }
        let context = Context {
            who: entered.who,
            flavor: entered.flavor,
            peer,
            program: call.program,
            procedure: call.procedure,
            version: call.version,
            placed,
            alloc,
        };
        match call.program {
            nfs3::PROGRAM => self.nfs(&context, from, out),
            mount3::PROGRAM => self.mount(&context, from, out),
            nfs_acl::PROGRAM => self.acl(&context, from, out),
            nlm4::PROGRAM => self.nlm(&context, from, out),
            nsm::PROGRAM => self.nsm(&context, from, out),
            _ => self.portmap(&context, from, out),
        }
    }
}
