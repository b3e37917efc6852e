//! Makes the contexts of a mount's users with its server: a helper has the tickets, and this carries
//! the tokens to the server and back, by TCP as Linux does.

use crate::kerberos::driver::{Helper, Helpers, Progress};
use crate::kerberos::protocol::Refusal;
use crate::kerberos::secured::Secured;
use nfsrdma_gss::{Context, Kind};
use nfsrdma_rpcrdma::rpc::plain::{PlainError, Protocol, Target};
use nfsrdma_rpcrdma::rpc::{Cred, Initiated, initiate};
use nfsrdma_rpcrdma::security::{Establish, Establishing, NoContext, SecurityContext, Service};
use nfsrdma_xdr::nfs3;
use nfsrdma_xdr::rpcsec_gss::{GSS_S_COMPLETE, GSS_S_CONTINUE_NEEDED};
use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::timeout;

/// Most contexts that are begun at a time, for the sake of this machine, and for how long each counts: a
/// user whose KDC or ticket cache is slow holds nobody back for longer.
const AT_ONCE: usize = 8;
const BEGINNING: Duration = Duration::from_secs(1);
/// Most contexts that are made at a time.
const MOST: usize = 256;
/// Most tokens for one context.
const MAX_STEPS: usize = 8;
/// How long the server may take to answer a token. It may have to ask a daemon of its own.
const ANSWER: Duration = Duration::from_secs(20);

/// The contexts of a mount with Kerberos.
#[derive(Debug)]
pub struct Kerberos {
    making: Arc<Making>,
    runtime: Handle,
}

#[derive(Debug)]
struct Making {
    helpers: Helpers,
    /// The port at which the server has NFS over TCP.
    port: u16,
    beginning: Semaphore,
    making: Semaphore,
}

impl Kerberos {
    /// Contexts whose tokens go to `port` of the server by TCP. They are made on
    /// `runtime`.
    pub fn new(helpers: Helpers, port: u16, runtime: Handle) -> Self {
        let making = Arc::new(Making {
            helpers,
            port,
            beginning: Semaphore::new(AT_ONCE),
            making: Semaphore::new(MOST),
        });
        Kerberos { making, runtime }
    }
}

impl Establish for Kerberos {
    fn establish<'a>(
        &'a self,
        servers: &'a [IpAddr],
        service: Service,
        cred: &'a Cred,
    ) -> Establishing<'a> {
        let making = Arc::clone(&self.making);
        let (uid, gid) = (cred.uid, cred.gid);
        let servers = servers.to_vec();
        let made = self
            .runtime
            .spawn(async move { making.context(&servers, service, uid, gid).await });
        Box::pin(async move {
            match made.await {
                Ok(made) => made,
                Err(_) => Err(ends()),
            }
        })
    }
}

/// What a helper says: only what is certainly not one user's own doing may pass for everybody, and is waited for. What a
/// user's ticket cache can bring about is that user's.
impl From<Refusal> for NoContext {
    fn from(refusal: Refusal) -> Self {
        match refusal.kind {
            Kind::Expired => NoContext::Expired(refusal.sentence),
            Kind::ClockSkew | Kind::Realm => NoContext::Unavailable(refusal.sentence),
            Kind::NoCredential
            | Kind::NoServerKey
            | Kind::NotInstalled
            | Kind::Defective
            | Kind::Other => NoContext::NoCredential(refusal.sentence),
        }
    }
}

fn ends() -> NoContext {
    NoContext::Unavailable("the mount ends".into())
}

/// No process of this machine can look for the user's tickets.
fn not_started(error: &io::Error) -> NoContext {
    if error.kind() == io::ErrorKind::ResourceBusy {
        return NoContext::NoCredential(format!(
            "there is no Kerberos ticket that can be used: {error}; see where the user's ticket cache lies"
        ));
    }
    NoContext::Unavailable(format!(
        "no process for a Kerberos context can be started: {error}; free memory or raise its limits"
    ))
}

impl Making {
    async fn context(
        self: Arc<Self>,
        servers: &[IpAddr],
        service: Service,
        uid: u32,
        gid: u32,
    ) -> Result<Box<dyn SecurityContext>, NoContext> {
        let _one = self.making.acquire().await;
        let beginning = self.beginning.acquire().await;
        let mut attempt = pin!(self.attempt(servers, service, uid, gid));
        if let Ok(made) = timeout(BEGINNING, &mut attempt).await {
            return made;
        }
        drop(beginning);
        attempt.await
    }

    async fn attempt(
        self: &Arc<Self>,
        servers: &[IpAddr],
        service: Service,
        uid: u32,
        gid: u32,
    ) -> Result<Box<dyn SecurityContext>, NoContext> {
        let this = Arc::clone(self);
        let started = blocking(move || this.helpers.start(uid, gid)).await?;
        let mut helper = started.map_err(|error| not_started(&error))?;
        let mut target = None;
        let mut answer: Option<Initiated> = None;
        for _ in 0..MAX_STEPS {
            let (kept, stepped) = step(helper, answer.as_mut()).await?;
            helper = kept;
            match stepped? {
                Progress::Token(token) => {
                    let handle = answer.as_ref().map_or(&[][..], |answer| &answer.handle);
                    let program = (nfs3::PROGRAM, nfs3::VERSION);
                    // Who has no ticket costs the server nothing.
                    let target = match &mut target {
                        Some(target) => target,
                        none => none.insert(Target {
                            address: reachable(servers, self.port).await?,
                            protocol: Protocol::Tcp,
                            privileged: false,
                            timeout: ANSWER,
                        }),
                    };
                    let got = initiate(target, program, handle, &token.0).await;
                    answer = Some(accepted(got)?);
                }
                Progress::Done(context) => {
                    let answer = answer.ok_or_else(|| unproven("before it was asked"))?;
                    return Ok(Box::new(Self::proven(context, answer, service)?));
                }
            }
        }
        Err(unproven("after too many tokens"))
    }

    /// The context, if the server has proved that it has it as well.
    fn proven(context: Context, answer: Initiated, service: Service) -> Result<Secured, NoContext> {
        // "The verifier contains a checksum of the sequence window" (RFC 2203 section 5.2.3.1), which only
        // the peer of the context can make.
        let mic = answer.mic.unwrap_or_default();
        let window = answer.window.to_be_bytes();
        if answer.major != GSS_S_COMPLETE || answer.window == 0 || answer.handle.is_empty() {
            return Err(unproven("that it does not complete"));
        }
        context
            .verify_mic(&window, &mic)
            .map_err(|_| unproven("without its MIC"))?;
        Ok(Secured::new(context, answer.handle, service, answer.window))
    }
}

/// Which of the addresses of the server to use: of several, the one that answers first. The name of its principal is that
/// of the mounted one in any case.
async fn reachable(servers: &[IpAddr], port: u16) -> Result<SocketAddr, NoContext> {
    if let [only] = servers {
        return Ok(SocketAddr::new(*only, port));
    }
    let mut tried = JoinSet::new();
    for server in servers {
        let address = SocketAddr::new(*server, port);
        tried.spawn(async move {
            let connected = timeout(ANSWER, TcpStream::connect(address)).await;
            matches!(connected, Ok(Ok(_))).then_some(address)
        });
    }
    while let Some(answered) = tried.join_next().await {
        if let Ok(Some(address)) = answered {
            return Ok(address);
        }
    }
    Err(no_answer("none of its addresses answers"))
}

/// Waits on another thread: for the KDC, or for the library.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, NoContext> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|_| ends())
}

/// A step of the helper with the server's last token.
async fn step(
    mut helper: Helper,
    answer: Option<&mut Initiated>,
) -> Result<(Helper, Result<Progress, Refusal>), NoContext> {
    let token = answer.map(|answer| std::mem::take(&mut answer.token));
    blocking(move || {
        let stepped = helper.step(token.as_deref());
        (helper, stepped)
    })
    .await
}

/// The routine error "no context" (RFC 2744 section 3.9.1) of a server whose clock is ahead. Linux's does not find the
/// context that it has just made, because the ticket's time is over.
const NO_CONTEXT: u32 = 8;

/// The daemon at the server that looks at tickets may not run yet.
fn no_answer(why: impl fmt::Display) -> NoContext {
    NoContext::Unavailable(format!(
        "the server makes no Kerberos context: {why}; it needs NFS over TCP, and rpc.svcgssd or gssproxy"
    ))
}

/// The server's answer, unless it is an error.
fn accepted(answer: Result<Initiated, PlainError>) -> Result<Initiated, NoContext> {
    let answer = answer.map_err(no_answer)?;
    match answer.major {
        GSS_S_COMPLETE | GSS_S_CONTINUE_NEEDED => Ok(answer),
        major => Err(match Kind::of(major, answer.minor) {
            _ if major >> 16 == NO_CONTEXT => NoContext::expired_at_the_server(),
            Kind::Expired => NoContext::expired_at_the_server(),
            // As where this machine finds it: nobody's ticket is at fault.
            kind @ Kind::ClockSkew => NoContext::Unavailable(kind.to_string()),
            _ => NoContext::NoCredential(format!(
                "the server refuses the Kerberos ticket (GSS-API error {major:#x}, {}); its log says why: look at its \
                 keytab and its clock",
                answer.minor.cast_signed()
            )),
        }),
    }
}

fn unproven(how: &str) -> NoContext {
    NoContext::NoCredential(format!(
        "the server answers a Kerberos context {how}; somebody else may be answering"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_nobodys_own_doing_is_waited_for() {
        for kind in Kind::ALL {
            let waits = matches!(kind, Kind::ClockSkew | Kind::Realm);
            let why = NoContext::from(Refusal::new(*kind, "why"));
            assert_eq!(matches!(why, NoContext::Unavailable(_)), waits, "{why:?}");
            let expired = *kind == Kind::Expired;
            assert_eq!(matches!(why, NoContext::Expired(_)), expired, "{why:?}");
        }
        let busy = not_started(&io::ErrorKind::ResourceBusy.into());
        assert!(matches!(busy, NoContext::NoCredential(_)), "{busy:?}");
        let short = not_started(&io::ErrorKind::OutOfMemory.into());
        assert!(matches!(short, NoContext::Unavailable(_)), "{short:?}");
    }

    #[test]
    fn who_has_no_ticket_costs_the_server_no_connection() {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .build()
            .unwrap();
        let first = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = first.local_addr().unwrap().port();
        let second = std::net::TcpListener::bind(("127.0.0.2", port)).unwrap();
        let helpers = Helpers {
            // It ends without a token.
            program: "/bin/true".into(),
            ..Helpers::new("nfs@server")
        };
        let kerberos = Kerberos::new(helpers, port, runtime.handle().clone());
        let servers = ["127.0.0.1", "127.0.0.2"].map(|server| server.parse().unwrap());
        let cred = Cred::new(nfsrdma_rpcrdma::rpc::Credential {
            uid: 1000,
            gid: 1000,
            groups: Vec::new(),
        });
        let made = runtime.block_on(kerberos.establish(&servers, Service::None, &cred));
        assert!(made.is_err());
        for listener in [first, second] {
            listener.set_nonblocking(true).unwrap();
            let asked = listener.accept().map_err(|error| error.kind());
            assert!(matches!(asked, Err(io::ErrorKind::WouldBlock)), "{asked:?}");
        }
    }

    #[test]
    fn what_a_server_says_of_clocks() {
        let refused = |major, minor| {
            accepted(Ok(Initiated {
                major,
                handle: Vec::new(),
                minor,
                window: 0,
                token: Vec::new(),
                mic: None,
            }))
        };
        const KRB5: u32 = 0x96c7_3a00;
        let other = 13 << 16;
        for (major, minor) in [
            (8 << 16, 0),
            (11 << 16, 0),
            (12 << 16, 0),
            (other, KRB5 + 32),
        ] {
            let is = refused(major, minor);
            assert!(matches!(is, Err(NoContext::Expired(_))), "{is:?}");
        }
        let is = refused(other, KRB5 + 37);
        assert!(matches!(is, Err(NoContext::Unavailable(_))), "{is:?}");
        for (major, minor) in [(9 << 16, 0), (other, 0), (other, KRB5 + 44), (2, 0)] {
            let is = refused(major, minor);
            assert!(matches!(is, Err(NoContext::NoCredential(_))), "{is:?}");
        }
        assert!(refused(GSS_S_COMPLETE, 0).is_ok());
    }
}
