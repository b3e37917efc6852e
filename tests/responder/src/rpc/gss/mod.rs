//! RPCSEC_GSS version 1 (RFC 2203), as Linux's server answers it: contexts, what a call is before
//! it is executed, and its reply.

mod context;
mod fault;
mod kerberos;
mod mechanism;
mod principal;
mod seal;
mod window;

pub use fault::Faulty;
pub use kerberos::Kerberos;
pub use mechanism::{Accepted, Mechanism, Protection, Refused};
pub use principal::Principal;
pub use seal::Seal;

use super::reply::{HEADROOM, Reply};
use crate::fs::{Identity, Mapping};
use context::Context;
use fault::{Fault, Faults};
use nfsrdma_xdr::codec::{Decode, Decoder, Encode, Encoder};
use nfsrdma_xdr::rpc::{self, Auth, AuthStat, Call};
use nfsrdma_xdr::rpcsec_gss::{
    self, Credential, GSS_S_COMPLETE, InitArgs, InitRes, IntegrityBody, MAX_SEQUENCE, Opaque,
    PrivacyBody, Procedure, Service,
};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// GSS_S_FAILURE (RFC 2744 section 3.9.1).
const GSS_S_FAILURE: u32 = 13 << 16;
/// "Clock skew too great" (RFC 4120 section 7.5.9, as MIT's library numbers it).
const KRB5KRB_AP_ERR_SKEW: u32 = 0x96c7_3a25;
/// By how much clocks may differ.
const SKEW_MAX: Duration = Duration::from_secs(300);
/// Most contexts at a time.
const CONTEXTS_MAX: usize = 4096;

/// The settings of [`Gss`].
#[derive(Debug, Clone, Default)]
pub struct Settings {
    /// Principals that are not listed are anonymous.
    pub principals: Vec<Principal>,
}

/// What is counted of calls under RPCSEC_GSS.
#[derive(Debug, Default)]
struct Counts {
    init: AtomicU64,
    destroy: AtomicU64,
    data: [AtomicU64; 3],
    /// Calls that were answered with an AUTH_ERROR.
    denied: AtomicU64,
    /// Calls whose sequence number was seen before or is too old.
    outside: AtomicU64,
}

/// The contexts of all clients.
pub struct Gss {
    mechanism: Box<dyn Mechanism>,
    settings: Settings,
    contexts: Mutex<HashMap<Vec<u8>, Arc<Context>>>,
    next: AtomicU64,
    faults: Mutex<Faults>,
    /// A principal whose INITs are not answered: their connections end.
    shunned: Mutex<Option<String>>,
    /// One whose contexts are forgotten before each call.
    refused: Mutex<Option<String>>,
    /// By how many seconds the server's clock is ahead.
    ahead: AtomicU64,
    counts: Counts,
}

impl fmt::Debug for Gss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Gss({})", self.describe())
    }
}

/// What a client is told of its new context.
struct Established {
    handle: Vec<u8>,
    token: Vec<u8>,
    /// The MIC of the window.
    mic: Vec<u8>,
}

/// A call whose caller is known.
pub(super) struct Entered<'a> {
    pub(super) who: Identity,
    /// Its flavor, as MOUNT names it.
    pub(super) flavor: u32,
    /// Its arguments.
    pub(super) from: Decoder<'a>,
    /// What its reply needs.
    pub(super) seal: Seal,
}

/// A call that is not executed.
pub(super) enum Closed {
    /// It is answered with this.
    Reply(Reply),
    Denied(AuthStat),
    /// It has no reply, and its connection ends.
    Hangup,
    /// An argument was reduced that must not be.
    BadChunks,
}

impl From<AuthStat> for Closed {
    fn from(status: AuthStat) -> Self {
        Closed::Denied(status)
    }
}

/// A principal without its realm.
fn short(principal: &str) -> &str {
    principal.split('@').next().unwrap_or_default()
}

fn bad<E>(_: E) -> Closed {
    Closed::Denied(AuthStat::BadCred)
}

impl Gss {
    /// Contexts by `mechanism`.
    pub fn new(mechanism: Box<dyn Mechanism>, settings: Settings) -> Self {
        // Handles of an earlier process are unknown.
        let start = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        Gss {
            mechanism,
            settings,
            contexts: Mutex::default(),
            next: AtomicU64::new(start.map_or(0, |time| time.as_nanos() as u64)),
            faults: Mutex::default(),
            shunned: Mutex::default(),
            refused: Mutex::default(),
            ahead: AtomicU64::default(),
            counts: Counts::default(),
        }
    }

    /// Forgets all contexts, as a restart does.
    pub fn forget(&self) {
        self.contexts.lock().clear();
    }

    /// Adds a fault of calls.
    pub fn fault(&self, faulty: Faulty) {
        self.faults.lock().add(faulty);
    }

    /// Hangs up on INITs of this principal of the server's realm, as a daemon that fails over its ticket.
    pub fn shun(&self, principal: &str) {
        *self.shunned.lock() = Some(principal.to_owned());
    }

    /// Makes contexts for this principal of the server's realm, and forgets each before the first call.
    pub fn refuse(&self, principal: &str) {
        *self.refused.lock() = Some(principal.to_owned());
    }

    /// The server's clock is ahead by so many seconds from now on.
    pub fn set_ahead(&self, seconds: u64) {
        self.ahead.store(seconds, Ordering::Relaxed);
    }

    fn ahead(&self) -> Duration {
        Duration::from_secs(self.ahead.load(Ordering::Relaxed))
    }

    /// Takes all faults back.
    pub fn clear(&self) {
        self.faults.lock().clear();
        *self.shunned.lock() = None;
        *self.refused.lock() = None;
        self.set_ahead(0);
    }

    fn shuns(&self, accepted: &Accepted) -> bool {
        self.shunned.lock().as_deref() == Some(short(&accepted.principal))
    }

    /// The number of contexts and of calls, as words.
    pub fn describe(&self) -> String {
        let counts = &self.counts;
        let count = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let [none, integrity, privacy] = &counts.data;
        format!(
            "contexts={} init={} destroy={} krb5={} krb5i={} krb5p={} denied={} outside={}",
            self.contexts.lock().len(),
            count(&counts.init),
            count(&counts.destroy),
            count(none),
            count(integrity),
            count(privacy),
            count(&counts.denied),
            count(&counts.outside),
        )
    }

    /// Opens a call with a credential of RPCSEC_GSS. `signed` is what its verifier covers, `from`
    /// stands at its body, and `placed` says whether a Read chunk has a part of it. `plain` is
    /// memory for a decrypted body.
    pub(super) fn open<'a>(
        &self,
        mapping: &Mapping,
        call: &Call<'a>,
        signed: &[u8],
        from: Decoder<'a>,
        placed: bool,
        plain: &'a mut Vec<u8>,
    ) -> Result<Entered<'a>, Closed> {
        let opened = match Credential::of(&call.credential) {
            Some(Ok(credential)) => match credential.procedure {
                Procedure::Init => self.init(mapping, call, from),
                // Kerberos needs one token of each side.
                Procedure::ContinueInit => Err(AuthStat::GssCredProblem.into()),
                Procedure::Data | Procedure::Destroy => {
                    self.data(call, &credential, signed, from, placed, plain)
                }
            },
            _ => Err(AuthStat::BadCred.into()),
        };
        let count = match &opened {
            Err(Closed::Denied(_)) => &self.counts.denied,
            Err(Closed::Hangup) => &self.counts.outside,
            _ => return opened,
        };
        count.fetch_add(1, Ordering::Relaxed);
        opened
    }

    fn init<'a>(
        &self,
        mapping: &Mapping,
        call: &Call<'a>,
        mut from: Decoder<'a>,
    ) -> Result<Entered<'a>, Closed> {
        // INIT is a call of NULL (RFC 2203 section 5.2.2).
        if call.procedure != 0 {
            return Err(AuthStat::BadCred.into());
        }
        let args = InitArgs::decode(&mut from).map_err(bad)?;
        self.counts.init.fetch_add(1, Ordering::Relaxed);
        let skewed = self.ahead() > SKEW_MAX;
        let fault = self.faults.lock().next(true);
        let refused = (skewed || fault == Some(Fault::Init)).then(|| Refused {
            major: GSS_S_FAILURE,
            minor: KRB5KRB_AP_ERR_SKEW,
            why: "a test wants it".into(),
        });
        let accepted = refused
            .map_or(Ok(()), Err)
            .and_then(|()| self.accept(mapping, args.token.0));
        if accepted.as_ref().is_ok_and(|accepted| self.shuns(accepted)) {
            return Err(Closed::Hangup);
        }
        let accepted = accepted.and_then(|accepted| self.establish(mapping, accepted));
        let results = |handle, major, minor, window, token| InitRes {
            handle: Opaque(handle),
            major,
            minor,
            window,
            token: Opaque(token),
        };
        Err(Closed::Reply(match accepted {
            Ok(mut new) => {
                if fault == Some(Fault::Proof) {
                    new.mic[0] ^= 1;
                }
                let results = results(&new.handle, GSS_S_COMPLETE, 0, window::SIZE, &new.token);
                answer(call.xid, rpcsec_gss::verifier(&new.mic), Some(&results))
            }
            Err(refused) => {
                tracing::info!(why = refused.why, "no context");
                let results = results(&[], refused.major, refused.minor, 0, &[]);
                answer(call.xid, Auth::None, Some(&results))
            }
        }))
    }

    fn accept(&self, mapping: &Mapping, token: &[u8]) -> Result<Accepted, Refused> {
        // The keys are the server's, whoever the thread worked for.
        mapping.assume(&Identity::SERVER).map_err(|_| Refused {
            major: GSS_S_FAILURE,
            minor: 0,
            why: "the thread cannot take the server's identity".into(),
        })?;
        self.mechanism.accept(token)
    }

    /// Keeps a context.
    fn establish(&self, mapping: &Mapping, accepted: Accepted) -> Result<Established, Refused> {
        let failure = |why: &str| Refused {
            major: GSS_S_FAILURE,
            minor: 0,
            why: why.into(),
        };
        let mic = accepted
            .context
            .mic(&[&window::SIZE.to_be_bytes()])
            .ok_or_else(|| failure("no MIC of the window"))?;
        let known = Principal::identity(&self.settings.principals, &accepted.principal);
        let who = known.map_or_else(|| mapping.identity(None), Identity::clone);
        tracing::info!(principal = accepted.principal, uid = who.uid, "context");
        let until = accepted
            .lifetime
            .and_then(|after| Instant::now().checked_add(after));
        let principal = short(&accepted.principal).to_owned();
        let context = Context::new(accepted.context, who, principal, until);
        let handle = self.next.fetch_add(1, Ordering::Relaxed).to_be_bytes();
        let mut contexts = self.contexts.lock();
        let ahead = self.ahead();
        contexts.retain(|_, context| !context.has_expired(ahead));
        if contexts.len() >= CONTEXTS_MAX {
            return Err(failure("too many contexts"));
        }
        contexts.insert(handle.to_vec(), Arc::new(context));
        Ok(Established {
            handle: handle.to_vec(),
            token: accepted.token,
            mic,
        })
    }

    fn data<'a>(
        &self,
        call: &Call<'a>,
        credential: &Credential<'a>,
        signed: &[u8],
        from: Decoder<'a>,
        placed: bool,
        plain: &'a mut Vec<u8>,
    ) -> Result<Entered<'a>, Closed> {
        let fault = self.faults.lock().next(false);
        match fault {
            Some(Fault::Forget) => self.forget(),
            Some(Fault::CredProblem) => return Err(AuthStat::GssCredProblem.into()),
            Some(Fault::CtxProblem) => return Err(AuthStat::GssCtxProblem.into()),
            Some(Fault::Window) => return Err(Closed::Hangup),
            _ => {}
        }
        let context = self.context(credential.handle.0);
        let context = context.ok_or(AuthStat::GssCredProblem)?;
        if self.refused.lock().as_ref() == Some(&context.principal) {
            self.contexts.lock().remove(credential.handle.0);
            return Err(AuthStat::GssCtxProblem.into());
        }
        rpcsec_gss::mic_of(&call.verifier)
            .and_then(|mic| context.protection.verify(signed, mic))
            .ok_or(AuthStat::GssCredProblem)?;
        let sequence = credential.sequence;
        if sequence > MAX_SEQUENCE {
            return Err(AuthStat::GssCtxProblem.into());
        }
        if !context.window.lock().take(sequence) {
            return Err(Closed::Hangup);
        }
        let service = credential.service;
        let spoilt = fault.filter(|fault| matches!(fault, Fault::Verifier | Fault::Body));
        let who = context.who.clone();
        if credential.procedure == Procedure::Destroy {
            // It has no arguments and no results (RFC 2203 section 5.4).
            let seal = Seal::new(context, sequence, Service::None, spoilt);
            self.counts.destroy.fetch_add(1, Ordering::Relaxed);
            self.contexts.lock().remove(credential.handle.0);
            let reply = answer(call.xid, Auth::None, None);
            return Err(seal
                .close(reply, &|_| None)
                .map_or(Closed::Hangup, Closed::Reply));
        }
        if fault == Some(Fault::BadCred) {
            return Err(AuthStat::BadCred.into());
        }
        let from = match service {
            Service::None => from,
            // Their bodies have no data that may be reduced.
            Service::Integrity | Service::Privacy if placed => return Err(Closed::BadChunks),
            Service::Integrity => open_integrity(&context, sequence, from)?,
            Service::Privacy => open_privacy(&context, sequence, from, plain)?,
        };
        self.counts.data[service as usize - 1].fetch_add(1, Ordering::Relaxed);
        Ok(Entered {
            who,
            flavor: service.pseudo_flavor(),
            from,
            seal: Seal::new(context, sequence, service, spoilt),
        })
    }

    fn context(&self, handle: &[u8]) -> Option<Arc<Context>> {
        let mut contexts = self.contexts.lock();
        let context = contexts.get(handle)?.clone();
        if context.has_expired(self.ahead()) {
            contexts.remove(handle);
            return None;
        }
        Some(context)
    }
}

fn open_integrity<'a>(
    context: &Context,
    sequence: u32,
    mut from: Decoder<'a>,
) -> Result<Decoder<'a>, Closed> {
    let body = IntegrityBody::decode(&mut from).map_err(bad)?;
    let verified = context.protection.verify(body.data.0, body.mic.0);
    verified.ok_or(AuthStat::BadCred)?;
    inside(sequence, body.data.0)
}

fn open_privacy<'a>(
    context: &Context,
    sequence: u32,
    mut from: Decoder<'_>,
    plain: &'a mut Vec<u8>,
) -> Result<Decoder<'a>, Closed> {
    let body = PrivacyBody::decode(&mut from).map_err(bad)?;
    plain.clear();
    plain.extend_from_slice(body.wrapped.0);
    let message = context.protection.unwrap(plain);
    inside(sequence, &plain[message.ok_or(AuthStat::BadCred)?])
}

/// The arguments of a body. Its sequence number must be that of the header.
fn inside(sequence: u32, data: &[u8]) -> Result<Decoder<'_>, Closed> {
    match rpcsec_gss::split(data) {
        Ok((number, arguments)) if number == sequence => Ok(Decoder::new(arguments)),
        _ => Err(AuthStat::BadCred.into()),
    }
}

/// The reply to a call that was accepted; DESTROY has no results.
fn answer(xid: u32, verifier: Auth<'_>, results: Option<&InitRes<'_>>) -> Reply {
    let mut out = Encoder::new(vec![0; HEADROOM]);
    rpc::Reply {
        xid,
        body: rpc::ReplyBody::Accepted(verifier, rpc::Accepted::Success),
    }
    .encode(&mut out);
    if let Some(results) = results {
        results.encode(&mut out);
    }
    Reply::whole(out.into_vec())
}
