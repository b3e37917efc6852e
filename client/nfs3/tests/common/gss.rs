//! RPCSEC_GSS at the server of the tests, with a mechanism that protects from nothing. It refuses what
//! Linux's server refuses, in the same way.

#[path = "../../../rpcrdma/src/security/fake.rs"]
mod fake;

use fake::Fake;
use nfsrdma_nfs3::Cred;
use nfsrdma_nfs3::options::Flavor;
use nfsrdma_rpcrdma::security::{Establish, Establishing, NoContext, SecurityContext, Service};
use nfsrdma_xdr::codec::{Decode, Encoder};
use nfsrdma_xdr::rpc::{Auth, AuthStat, AuthSys, Call};
use nfsrdma_xdr::rpcsec_gss::{
    Credential, IntegrityBody, PrivacyBody, Procedure, integrity_head, mic_of, split,
};
use parking_lot::Mutex;
use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::SystemTime;

/// The key distribution centre, and the contexts that the server has.
#[derive(Debug)]
pub struct Gss {
    service: Service,
    window: u32,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    contexts: HashMap<Vec<u8>, Known>,
    made: u64,
    destroyed: u64,
    /// Calls whose number was outside of the window, or came again.
    violations: u64,
    refuses: u32,
    expires: Option<SystemTime>,
    kdc: bool,
}

#[derive(Debug)]
struct Known {
    fake: Fake,
    uid: u32,
    seen: BTreeSet<u32>,
}

/// What the server makes of a call.
pub enum Verdict {
    Run(Sealed),
    Deny(AuthStat),
    /// No reply, and the connection is closed.
    Hangup,
}

/// A call that may be run.
pub struct Sealed {
    fake: Fake,
    service: Service,
    number: u32,
    pub uid: u32,
    pub arguments: Vec<u8>,
}

impl Gss {
    pub fn new(service: Service, window: u32) -> Arc<Self> {
        Arc::new(Gss {
            service,
            window,
            state: Mutex::default(),
        })
    }

    /// For the options of a mount.
    pub fn flavor(&self) -> Flavor {
        Flavor::Kerberos(self.service)
    }

    /// The server forgets all contexts.
    pub fn flush(&self) {
        self.state.lock().contexts.clear();
    }

    /// The server knows the contexts of this many more calls no more.
    pub fn refuse(&self, calls: u32) {
        self.state.lock().refuses = calls;
    }

    /// New contexts expire then.
    pub fn expire_at(&self, time: SystemTime) {
        self.state.lock().expires = Some(time);
    }

    /// Contexts made so far, those the server has, and those that were destroyed.
    pub fn counts(&self) -> (u64, usize, u64) {
        let state = self.state.lock();
        (state.made, state.contexts.len(), state.destroyed)
    }

    pub fn violations(&self) -> u64 {
        self.state.lock().violations
    }

    pub fn judge(&self, call: &Call<'_>, message: &[u8], body: &[u8]) -> Option<Verdict> {
        let credential = match Credential::of(&call.credential)? {
            Ok(credential) => credential,
            Err(_) => return Some(Verdict::Deny(AuthStat::BadCred)),
        };
        let mut state = self.state.lock();
        if state.refuses > 0 {
            state.refuses -= 1;
            state.contexts.remove(credential.handle.0);
        }
        let Some(known) = state.contexts.get_mut(credential.handle.0) else {
            return Some(Verdict::Deny(AuthStat::GssCredProblem));
        };
        let signed = &message[..call.signed_len()];
        let mic = mic_of(&call.verifier);
        if !mic.is_some_and(|mic| known.fake.verify(signed, mic)) {
            return Some(Verdict::Deny(AuthStat::GssCredProblem));
        }
        let number = credential.sequence;
        let highest = known.seen.last().copied().unwrap_or(0);
        if number + self.window <= highest || !known.seen.insert(number) {
            state.violations += 1;
            return Some(Verdict::Hangup);
        }
        let (fake, uid) = (known.fake.clone(), known.uid);
        if credential.procedure == Procedure::Destroy {
            state.contexts.remove(credential.handle.0);
            state.destroyed += 1;
        }
        let service = credential.service;
        let Some(arguments) = arguments(&fake, service, number, body) else {
            return Some(Verdict::Deny(AuthStat::BadCred));
        };
        Some(Verdict::Run(Sealed {
            fake,
            service,
            number,
            uid,
            arguments,
        }))
    }
}

fn arguments(fake: &Fake, service: Service, number: u32, body: &[u8]) -> Option<Vec<u8>> {
    let data = match service {
        Service::None => return Some(body.to_vec()),
        Service::Integrity => {
            let body = IntegrityBody::from_xdr(body).ok()?;
            let good = fake.verify(body.data.0, body.mic.0);
            good.then(|| body.data.0.to_vec())?
        }
        Service::Privacy => {
            let mut wrapped = PrivacyBody::from_xdr(body).ok()?.wrapped.0.to_vec();
            let part = fake.unwrap(&mut wrapped)?;
            wrapped[part].to_vec()
        }
    };
    let (inner, arguments) = split(&data).ok()?;
    (inner == number).then(|| arguments.to_vec())
}

impl Sealed {
    /// The call as of this user under AUTH_SYS.
    pub fn open<'a>(&self, call: &Call<'a>) -> Call<'a> {
        Call {
            credential: Auth::Sys(AuthSys {
                stamp: 0,
                machine: b"",
                uid: self.uid,
                gid: 100,
                groups: Default::default(),
            }),
            ..call.clone()
        }
    }

    /// The verifier's MIC.
    pub fn mic(&self) -> Vec<u8> {
        self.mic_of(&[&self.number.to_be_bytes()])
    }

    fn mic_of(&self, message: &[&[u8]]) -> Vec<u8> {
        let mut mic = vec![0; self.fake.mic_len()];
        self.fake.mic(message, &mut mic).unwrap();
        mic
    }

    pub fn protect(&self, results: &[u8]) -> Vec<u8> {
        let plain = [&self.number.to_be_bytes(), results].concat();
        let mut to = Encoder::default();
        match self.service {
            Service::None => return results.to_vec(),
            Service::Integrity => {
                to.opaque_fixed(&integrity_head(self.number, results.len()));
                to.opaque_fixed(results);
                to.opaque(&self.mic_of(&[&plain]));
            }
            Service::Privacy => {
                let mut wrapped = vec![0; plain.len() + self.fake.wrap_overhead()];
                self.fake.wrap(&[&plain], &mut wrapped).unwrap();
                to.opaque(&wrapped);
            }
        }
        to.into_vec()
    }
}

impl Establish for Gss {
    /// Users from 5000 on have no tickets, those from 6000 on have expired ones, for those from 7000 on the KDC
    /// answers only the second time, and for those from 8000 on never.
    fn establish<'a>(&'a self, _: IpAddr, _: Service, cred: &'a Cred) -> Establishing<'a> {
        Box::pin(async move {
            match cred.uid {
                5000..6000 => return Err(NoContext::NoCredential("no ticket".to_owned())),
                6000..7000 => return Err(NoContext::Expired("old ticket".to_owned())),
                7000..8000 if !std::mem::replace(&mut self.state.lock().kdc, true) => {
                    return Err(NoContext::Unavailable("no KDC".to_owned()));
                }
                8000..9000 => return Err(NoContext::Unavailable("no KDC".to_owned())),
                _ => {}
            }
            let mut state = self.state.lock();
            state.made += 1;
            let mut fake = Fake::new(state.made, self.service);
            fake.window = self.window;
            fake.expires = state.expires;
            let known = Known {
                fake: fake.server(),
                uid: cred.uid,
                seen: BTreeSet::new(),
            };
            state.contexts.insert(fake.handle.clone(), known);
            Ok(Box::new(fake) as Box<dyn SecurityContext>)
        })
    }
}
