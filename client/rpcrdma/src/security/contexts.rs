//! The contexts of a mount's users.
//!
//! A context is made when its user makes a call. Calls that come meanwhile wait for it, and share its
//! failure: there is one attempt at a time for each user. It is replaced when it is over, and when the
//! server does not know it any more ([`Contexts::refused`]).

use super::{Context, NoContext, SecurityContext, Service};
use crate::rpc::Cred;
use crate::sync::Mutex;
use rustc_hash::FxHashMap;
use std::fmt;
use std::future::Future;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

/// The future of a new context.
pub type Establishing<'a> =
    Pin<Box<dyn Future<Output = Result<Box<dyn SecurityContext>, NoContext>> + Send + 'a>>;

/// Establishes contexts with one server.
pub trait Establish: Send + Sync {
    /// Makes a new context for the user of `cred` with the server, which has these addresses, for calls
    /// with `service`. The future is
    /// polled by threads that must not block, outside of any runtime: work that needs one is to be
    /// spawned there.
    fn establish<'a>(
        &'a self,
        servers: &'a [IpAddr],
        service: Service,
        cred: &'a Cred,
    ) -> Establishing<'a>;
}

/// How the calls of a mount are secured.
#[derive(Clone)]
pub struct Security {
    pub service: Service,
    pub establish: Arc<dyn Establish>,
}

impl fmt::Debug for Security {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Security").field(&self.service).finish()
    }
}

impl PartialEq for Security {
    fn eq(&self, other: &Self) -> bool {
        self.service == other.service && Arc::ptr_eq(&self.establish, &other.establish)
    }
}

impl Eq for Security {}

/// One context for each user.
pub struct Contexts {
    security: Security,
    /// Its addresses.
    servers: Vec<IpAddr>,
    /// Who serves the mount.
    own: Cred,
    /// Contexts that were made to see whether it can be done, until they are taken to be destroyed.
    tried: Mutex<Vec<Arc<Context>>>,
    /// By user: the groups are the server's business.
    of: Mutex<FxHashMap<u32, Arc<Entry>>>,
}

#[derive(Default)]
struct Entry {
    /// Held while a context is made.
    turn: tokio::sync::Mutex<()>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    made: Option<Arc<Context>>,
    /// Attempts that have failed.
    failures: u64,
    failure: Option<Failure>,
    /// How many contexts in a row the server has refused soon, or before any call was answered under them.
    useless: u32,
    /// How many attempts in a row had no answer, and whether others had one meanwhile.
    silent: u32,
    is_odd: bool,
    /// When something was counted here last, or a ticket had expired.
    failed: Option<Instant>,
}

/// The last attempt that has failed.
struct Failure {
    why: NoContext,
    at: Instant,
    took: Duration,
}

impl fmt::Debug for Contexts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let users = self.of.lock().len();
        f.debug_struct("Contexts").field("users", &users).finish()
    }
}

/// For how long a failure holds without another look: a program that goes through a tree would start a process for
/// each file. (Linux does not look again for five seconds if the ticket has expired. It does at once for who has no
/// ticket, and so does this; but written data of that user does not need another look earlier either.)
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// For how long a context that was refused, or could not be made though there may be a ticket, is remembered at least.
const REMEMBER: Duration = Duration::from_secs(60);

/// How many contexts in a row may be useless until the user's calls wait between them, as for a server that does not
/// answer. One that is restarted, or whose contexts are flushed, forgets them as fast as they are made, but not for long.
/// If it answers some calls under each of them and refuses others, there are as many between two waits.
const USELESS: u32 = 5;

/// How many attempts in a row may have no answer until it is tried whether it is so for others: a server under load may
/// leave some of them without one.
const SILENT: u32 = 10;

/// By how much the clocks of two machines may differ in a realm (the default of MIT's krb5.conf, `clockskew`).
const CLOCK_SKEW: Duration = Duration::from_secs(300);

/// Whether the context is over for a server whose clock is ahead of this machine's.
fn expires_soon(context: &Context) -> bool {
    let expires = context.security().expires();
    expires.is_some_and(|at| at <= SystemTime::now() + CLOCK_SKEW)
}

/// What a context is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Of {
    /// A program that waits for a call.
    Program,
    /// Data that programs have written.
    Data,
}

impl State {
    fn fail(&mut self, why: NoContext, took: Duration) {
        self.failures += 1;
        let at = Instant::now();
        if !matches!(why, NoContext::NoCredential(_)) {
            self.failed = Some(at);
        }
        self.failure = Some(Failure { why, at, took });
    }

    /// The failure that holds for a call that came when there had been `before` of them.
    fn failure(&self, before: u64, of: Of) -> Option<NoContext> {
        let last = self.failure.as_ref()?;
        let lasts = match last.why {
            NoContext::Expired(_) | NoContext::Unavailable(_) => LOOK_AGAIN,
            NoContext::NoCredential(_) if of == Of::Data => last.took.max(LOOK_AGAIN),
            // kinit is noticed at once. But where each look hangs, those who wait for one are too many for the
            // others on this mount: they are refused for half of the time.
            NoContext::NoCredential(_) => last.took,
        };
        let holds = last.at.elapsed() < lasts || self.failures > before;
        holds.then(|| last.why.clone())
    }
}

impl Entry {
    fn usable(&self) -> Option<Arc<Context>> {
        let made = self.state.lock().made.clone();
        made.filter(|context| !context.is_over(SystemTime::now()))
    }

    fn has_failed_lately(&self) -> bool {
        let failed = self.state.lock().failed;
        failed.is_some_and(|at| at.elapsed() < REMEMBER)
    }
}

impl Contexts {
    fn make<'a>(&'a self, cred: &'a Cred) -> Establishing<'a> {
        let Security { service, establish } = &self.security;
        establish.establish(&self.servers, *service, cred)
    }

    /// No contexts yet with the server at these addresses, which are not none. The mount is served by the user of `own`.
    pub fn new(security: Security, servers: Vec<IpAddr>, own: Cred) -> Self {
        Contexts {
            security,
            servers,
            own,
            tried: Mutex::default(),
            of: Mutex::default(),
        }
    }

    /// How calls are protected.
    pub fn service(&self) -> Service {
        self.security.service
    }

    /// How many users have a context that can be used, and when the first of these expires.
    pub fn in_use(&self) -> (usize, Option<SystemTime>) {
        let of = self.of.lock();
        let usable = of.values().filter_map(|entry| entry.usable());
        usable.fold((0, None), |(count, first), context| {
            let expires = context.security().expires();
            (count + 1, first.into_iter().chain(expires).min())
        })
    }

    fn entry(&self, cred: &Cred) -> Arc<Entry> {
        let mut of = self.of.lock();
        if let Some(entry) = of.get(&cred.uid) {
            return entry.clone();
        }
        // A host with many users need not remember those who have left.
        of.retain(|_, entry| {
            Arc::strong_count(entry) > 1 || entry.usable().is_some() || entry.has_failed_lately()
        });
        of.entry(cred.uid).or_default().clone()
    }

    /// The context of the user of `cred`, which is made if there is none.
    pub async fn get(&self, cred: &Cred, of: Of) -> Result<Arc<Context>, NoContext> {
        let entry = self.entry(cred);
        if let Some(context) = entry.usable() {
            return Ok(context);
        }
        let before = entry.state.lock().failures;
        let _turn = entry.turn.lock().await;
        if let Some(context) = entry.usable() {
            return Ok(context);
        }
        if let Some(failure) = entry.state.lock().failure(before, of) {
            return Err(failure);
        }
        let begin = Instant::now();
        let made = match self.make(cred).await {
            Err(NoContext::Unavailable(why)) => Err(self.silence(&entry, cred, why).await),
            made => {
                let mut state = entry.state.lock();
                (state.silent, state.is_odd) = (0, false);
                made
            }
        };
        let mut state = entry.state.lock();
        match made {
            Ok(security) => {
                let context = Arc::new(Context::new(security));
                state.made = Some(context.clone());
                Ok(context)
            }
            Err(why) => {
                state.fail(why.clone(), begin.elapsed());
                Err(why)
            }
        }
    }

    /// Whose matter it is that an attempt had no answer: what a user's ticket makes a server or a KDC do is no
    /// reason to wait for them. If they answer the user who serves the mount, it is this user's own.
    async fn silence(&self, entry: &Entry, cred: &Cred, why: String) -> NoContext {
        let silent = {
            let mut state = entry.state.lock();
            state.failed = Some(Instant::now());
            state.silent += 1;
            state.silent
        };
        if silent.is_multiple_of(SILENT) && cred.uid != self.own.uid {
            let tried = self.make(&self.own).await;
            entry.state.lock().is_odd = tried.is_ok();
            let context = tried.map(|security| Arc::new(Context::new(security)));
            self.tried.lock().extend(context);
        }
        match entry.state.lock().is_odd {
            true => NoContext::NoCredential(format!(
                "the Kerberos ticket of this user alone cannot be used; get another one by kinit ({why})"
            )),
            false => NoContext::Unavailable(why),
        }
    }

    /// Takes the contexts that nobody uses, to be destroyed at the server.
    pub fn take_tried(&self) -> Vec<Arc<Context>> {
        std::mem::take(&mut *self.tried.lock())
    }

    /// The server has refused `context`: the next call of this user gets another one.
    pub fn refused(&self, cred: &Cred, context: &Arc<Context>) {
        let entry = self.entry(cred);
        let mut state = entry.state.lock();
        let made = &mut state.made;
        if made.take_if(|made| Arc::ptr_eq(made, context)).is_none() {
            return;
        }
        let known = context.is_known();
        state.failed = Some(Instant::now());
        state.useless = match known && context.age() >= LOOK_AGAIN {
            true => 1,
            false => state.useless + 1,
        };
        if state.useless >= USELESS {
            let why = match !known && expires_soon(context) {
                true => NoContext::expired_at_the_server(),
                false => NoContext::Unavailable(
                    "the server refuses each Kerberos context soon after it was made; its log may say why".to_owned(),
                ),
            };
            state.fail(why, Duration::ZERO);
            if known {
                state.useless = 0;
            }
        }
    }

    /// Takes all contexts that can be used, to be destroyed at the server.
    pub fn take(&self) -> Vec<Arc<Context>> {
        let entries = std::mem::take(&mut *self.of.lock());
        let usable = entries.into_values().filter_map(|entry| entry.usable());
        usable.chain(self.take_tried()).collect()
    }
}
