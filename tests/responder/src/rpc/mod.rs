//! RPC calls to replies, whatever transport they came by.

mod acl;
mod acl_calls;
mod drc;
mod failing;
mod failure;
mod mount;
mod mounts;
mod nfs;
mod nlm;
mod portmap;
mod ports;
mod script;
mod status_monitor;
mod weight;

pub use acl_calls::AclCalls;
pub use drc::{Admission, CallKey, Drc, Ticket, Waiter};
pub use failing::{Failing, procedure};
pub use mounts::Mounts;
pub use ports::Ports;
pub use script::{Delaying, Script, Stage};
pub use weight::Weight;

use crate::fs::{FileSystem, Identity};
use crate::lock::LockService;
use failing::Failure;
use nfsrdma_rdma::{Buf, BufMut};
use nfsrdma_xdr::codec::{Decode, Decoder, Encode, Encoder};
use nfsrdma_xdr::procedure::Procedure;
use nfsrdma_xdr::rpc::{self, Accepted, Auth, AuthStat, Call, CallError, Denial};
use nfsrdma_xdr::{mount3, nfs_acl, nfs3, nlm4, nsm, rpcbind};
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// Room at the front of each reply for a transport to put its own words, in bytes.
pub const HEADROOM: usize = 4;

/// An RPC message as a transport hands it over.
#[derive(Debug, Clone, Copy)]
pub struct Message<'a> {
    /// The RPC call, without what `placed` holds.
    pub bytes: &'a [u8],
    /// A reduced argument.
    pub placed: Option<Placed<'a>>,
}

/// The contents of a Read chunk, in the pieces it was pulled in.
#[derive(Debug, Clone, Copy)]
pub struct Placed<'a> {
    pub data: &'a [&'a [u8]],
    /// Where in the message they belong.
    pub position: usize,
}

impl Placed<'_> {
    /// Bytes of all pieces.
    pub fn len(&self) -> usize {
        self.data.iter().map(|piece| piece.len()).sum()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Where the data of a WRITE call start and how many bytes there are, if `head` is the
/// beginning of one that goes that far.
pub fn split_write(head: &[u8]) -> Option<(usize, usize)> {
    let mut from = Decoder::new(head);
    let call = Call::parse(&mut from).ok()?;
    if (call.program, call.procedure) != (nfs3::PROGRAM, nfs3::Write::NUMBER) {
        return None;
    }
    nfs3::FileHandle::decode(&mut from).ok()?;
    // offset, count, stable
    from.take(16).ok()?;
    let len = from.u32().ok()? as usize;
    Some((from.position(), len))
}

impl<'a> Message<'a> {
    fn decoder(&self) -> Decoder<'a> {
        match &self.placed {
            Some(placed) => Decoder::with_placed(self.bytes, placed.len() as u32),
            None => Decoder::new(self.bytes),
        }
    }
}

/// An RPC reply: `head`, then `payload` and its padding.
#[derive(Debug)]
pub struct Reply {
    /// [`HEADROOM`] bytes for the transport, then the encoded reply.
    pub head: Vec<u8>,
    /// A DDP-eligible result, which comes last in every procedure that has one.
    pub payload: Option<Buf>,
}

/// What becomes of a call.
#[derive(Debug)]
pub enum Outcome {
    Reply(Reply),
    /// Not a call: nothing is answered (RFC 5531 has no reply for it).
    Discard,
    /// The same call is being carried out. Its reply comes from [`Service::wait`].
    InProgress(CallKey),
    /// Chunks do not fit the procedure (RFC 8166 section 4.5: ERR_CHUNK).
    BadChunks,
}

/// Who calls, and by which way.
#[derive(Debug, Clone, Copy)]
pub struct Peer {
    pub remote: SocketAddr,
    /// The address called.
    pub local: SocketAddr,
    pub rdma: bool,
    pub udp: bool,
}

/// All programs served, with what they share.
#[derive(Debug)]
pub struct Service {
    pub fs: FileSystem,
    pub locks: Arc<LockService>,
    /// Whether NFS_ACL is there.
    pub with_acl: bool,
    pub acl_calls: AclCalls,
    drc: Option<Arc<Drc>>,
    mounts: Mounts,
    /// Where the transports listen, once they do.
    pub ports: OnceLock<Ports>,
    /// Added to every NFS call, for tests.
    pub delay: Duration,
    /// What tests have it do.
    pub script: Script,
    hangup: OnceLock<Hangup>,
}

/// Ends the connection of a peer.
pub struct Hangup(pub Box<dyn Fn(SocketAddr) + Send + Sync>);

impl std::fmt::Debug for Hangup {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Hangup")
    }
}

/// Something that stops a call before its procedure.
enum Stop {
    Accepted(Accepted),
    Denied(Denial),
    BadChunks,
    /// For tests: it is not answered.
    NoReply,
}

impl From<nfsrdma_xdr::codec::DecodeError> for Stop {
    fn from(_: nfsrdma_xdr::codec::DecodeError) -> Self {
        Stop::Accepted(Accepted::GarbageArgs)
    }
}

/// A procedure's work: its results are in the encoder, apart from the payload.
type Done = Result<Option<Buf>, Stop>;

/// Everything a procedure gets.
struct Context<'a> {
    who: Identity,
    peer: Peer,
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
    /// A service of `fs` that remembers `drc` calls.
    pub fn new(
        fs: FileSystem,
        locks: Arc<LockService>,
        drc: usize,
        delay: Duration,
        failing: &[Failing],
    ) -> Self {
        let script = Script::default();
        for failing in failing {
            script.fail(*failing);
        }
        Service {
            fs,
            locks,
            with_acl: true,
            acl_calls: AclCalls::default(),
            drc: Drc::new(drc),
            mounts: Mounts::default(),
            ports: OnceLock::new(),
            delay,
            script,
            hangup: OnceLock::new(),
        }
    }

    /// How connections are ended, for failures that ask for it. Said once.
    pub fn hang_up_by(&self, hangup: Hangup) {
        // Nobody else says it.
        let _ = self.hangup.set(hangup);
    }

    /// Forgets the calls remembered, as a restart does.
    pub fn forget_calls(&self) {
        if let Some(drc) = &self.drc {
            drc.clear();
        }
    }

    /// How long a call may take, without carrying it out.
    pub fn weigh(&self, message: &Message<'_>) -> Weight {
        if !self.delay.is_zero() || self.script.is_slow() || self.fs.variants().gap().is_some() {
            return Weight::Heavy;
        }
        let mut from = message.decoder();
        match Call::parse(&mut from) {
            Ok(call) if call.program == nfs3::PROGRAM => {
                weight::weigh(&self.fs, call.procedure, from)
            }
            _ => Weight::Light,
        }
    }

    /// Carries a call out. `alloc` gives memory for payloads.
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
                return denied(
                    xid,
                    Denial::RpcMismatch {
                        low: rpc::VERSION,
                        high: rpc::VERSION,
                    },
                );
            }
            Err(CallError::Malformed(error)) => {
                tracing::debug!(%error, peer = %peer.remote, "not an RPC call");
                return Outcome::Discard;
            }
        };
        let ticket = match self.admit(peer, &call, message.bytes) {
            None => None,
            Some(Admission::New(ticket)) => Some(ticket),
            Some(Admission::Done(reply)) => return Outcome::Reply(Reply::cached(&reply)),
            Some(Admission::InProgress) => {
                let key = CallKey::new(peer.remote, peer.rdma, call.xid, message.bytes);
                return Outcome::InProgress(key);
            }
        };
        if call.program == nfs3::PROGRAM && !self.delay.is_zero() {
            std::thread::sleep(self.delay);
        }
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
            return Outcome::Reply(Reply {
                head,
                payload: None,
            });
        }
        let reply = match self.run(peer, &call, from, message.placed, alloc, &mut out) {
            Ok(payload) => Reply {
                head: out.into_vec(),
                payload,
            },
            Err(Stop::Accepted(status)) => Reply {
                head: begin(call.xid, status).into_vec(),
                payload: None,
            },
            Err(Stop::Denied(denial)) => return denied(call.xid, denial),
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
                if let Some(Hangup(hangup)) = self.hangup.get() {
                    hangup(peer.remote);
                }
                Outcome::Discard
            }
            _ => Outcome::Reply(reply),
        }
    }

    /// Gives `waiter` the reply of a call in progress.
    pub fn wait(&self, key: &CallKey, waiter: Waiter) {
        match &self.drc {
            Some(drc) => drc.wait(key, waiter),
            None => waiter(None),
        }
    }

    /// Looks up calls that must not be carried out twice.
    fn admit(&self, peer: Peer, call: &Call<'_>, message: &[u8]) -> Option<Admission> {
        let drc = self.drc.as_ref()?;
        if call.program != nfs3::PROGRAM || call.version != nfs3::VERSION {
            return None;
        }
        let procedure = nfs3::ProcedureNumber::try_from(call.procedure).ok()?;
        if procedure.is_idempotent() {
            return None;
        }
        Some(drc.admit(CallKey::new(peer.remote, peer.rdma, call.xid, message)))
    }

    fn run(
        &self,
        peer: Peer,
        call: &Call<'_>,
        from: Decoder<'_>,
        placed: Option<Placed<'_>>,
        alloc: &dyn Fn(usize) -> Option<BufMut>,
        out: &mut Encoder,
    ) -> Done {
        // Only NFS has arguments that a Read chunk may hold (RFC 8267 section 4).
        if placed.is_some() && call.program != nfs3::PROGRAM {
            return Err(Stop::BadChunks);
        }
        let (low, high) = match call.program {
            // Too large for datagrams.
            nfs3::PROGRAM if !peer.udp => (nfs3::VERSION, nfs3::VERSION),
            // Version 1 has UMNT and lists in the same form; its MNT gives other handles.
            mount3::PROGRAM => (mount3::VERSION, mount3::VERSION),
            rpcbind::PROGRAM if !peer.rdma => (rpcbind::portmap::VERSION, 4),
            nfs_acl::PROGRAM if self.with_acl && !peer.udp => (nfs_acl::VERSION, nfs_acl::VERSION),
            // Linux's server does not have them on its RDMA port either.
            nlm4::PROGRAM if self.locks.is_on() && !peer.rdma => (nlm4::VERSION, nlm4::VERSION),
            nsm::PROGRAM if self.locks.is_on() && !peer.rdma => (nsm::VERSION, nsm::VERSION),
            _ => return Err(Stop::Accepted(Accepted::ProgUnavail)),
        };
        if !(low..=high).contains(&call.version) {
            return Err(Stop::Accepted(Accepted::ProgMismatch { low, high }));
        }
        let bad = |status| Err(Stop::Denied(Denial::AuthError(status)));
        let who = match &call.credential {
            Auth::None => self.fs.settings().mapping.identity(None),
            Auth::Sys(sys) => {
                let credential = Some((sys.uid, sys.gid, &sys.groups[..]));
                self.fs.settings().mapping.identity(credential)
            }
            Auth::Other { .. } => return bad(AuthStat::BadCred),
        };
        let context = Context {
            who,
            peer,
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

fn denied(xid: u32, denial: Denial) -> Outcome {
    let mut out = Encoder::new(vec![0; HEADROOM]);
    rpc::Reply::denied(xid, denial).encode(&mut out);
    Outcome::Reply(Reply {
        head: out.into_vec(),
        payload: None,
    })
}

impl Reply {
    /// A reply recorded by the duplicate-request cache.
    pub fn cached(bytes: &[u8]) -> Self {
        Reply {
            head: bytes.to_vec(),
            payload: None,
        }
    }
}
