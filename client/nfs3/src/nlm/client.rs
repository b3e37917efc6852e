//! Calls the server's lock manager (lockd), over TCP or, where it does not listen on TCP, over UDP.
//! Its port comes from an option or from rpcbind. rpcbind is asked again when lockd does not
//! answer, because a restarted server may use another port. If the server could not be asked while
//! mounting, each call asks again until it answers.
//!
//! Over TCP, the end of the connection is a sign that the server may have restarted
//! ([`LockServer::suspicions`]). Over UDP there is no connection, but two other signs: an answer
//! after unanswered calls, and a new NFS connection, because both programs of a server restart
//! together. (The end of the NFS connection is not a sign yet: a server that is shutting down may
//! still answer that it has all locks.)
//!
//! All calls go to the address that was mounted, also where NFS has several paths. Linux's lockd knows a client by
//! both addresses of a call: at another one it is another client, whose UNLOCK would leave the lock for ever, and
//! whose LOCK would wait for its own.

use super::callback::{CallbackOptions, Callbacks, LockManager};
use super::orphaned;
use super::{Done, LockAnswer, LockCall, LockFuture, LockHolder, LockServer, LockTarget};
use crate::Cred;
use crate::mount::identity;
use crate::mount::locate::{self, Service};
use crate::procedures::OTHER_COUNTER;
use nfsrdma_rpcrdma::rpc::auth;
use nfsrdma_rpcrdma::rpc::plain::{self, PlainError, Protocol, Target};
use nfsrdma_rpcrdma::rpc::stream::StreamClient;
use nfsrdma_rpcrdma::tap::{Ended, Outcome, Sent, Tap};
use nfsrdma_rpcrdma::throttle::{Throttle, and_more};
use nfsrdma_xdr::codec::{Encode, Encoder, Text};
use nfsrdma_xdr::nfs3::Void;
use nfsrdma_xdr::nlm4::{self, Holder, Lock, Res, TestReply, TestRes};
use nfsrdma_xdr::procedure::Procedure;
use nfsrdma_xdr::rpc::CallTemplate;
use parking_lot::Mutex;
use std::future::Future;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant, SystemTime};
use tokio::sync::{OnceCell, watch};

/// Time limit of one call, connecting included.
const CALL: Duration = Duration::from_secs(10);
/// Time limit of one question to rpcbind.
const LOOKUP: Duration = Duration::from_secs(3);

/// How long a server may take to close the connection of a process that has died. A call is not delayed longer.
const SETTLED: Duration = Duration::from_secs(1);

const SERVICE: Service = Service {
    program: nlm4::PROGRAM,
    version: nlm4::VERSION,
};

/// The transport protocol and port of lockd.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LockPlace {
    pub protocol: Protocol,
    pub port: u16,
}

/// Calls lockd, over TCP where it listens there, else over UDP.
#[derive(Debug)]
pub struct NlmClient {
    server: IpAddr,
    /// The port, if it is an option. Without it, rpcbind is asked again when lockd does not answer.
    port: Option<u16>,
    /// `None` until rpcbind has answered.
    place: Mutex<Option<LockPlace>>,
    /// Whether to ask rpcbind for the port before the next call.
    look_up: AtomicBool,
    /// Whether lockd has answered at `place`.
    answered: AtomicBool,
    privileged: bool,
    machine: String,
    stream: StreamClient,
    /// Counts the signs that the server may have restarted.
    suspicions: watch::Sender<u64>,
    /// Over UDP: whether the last call was unanswered.
    silent: AtomicBool,
    cookie: AtomicU64,
    /// Answers that make no sense are logged once a minute.
    senseless: Mutex<Throttle<Instant>>,
    callbacks: OnceLock<Arc<Callbacks>>,
    tap: OnceLock<Arc<Tap>>,
    /// Whether the calls of processes that died before this one began are over.
    settled: OnceCell<()>,
}

/// Asks rpcbind where lockd listens, TCP first; `None` if it knows no NLM version 4.
async fn find(server: IpAddr) -> Result<Option<LockPlace>, PlainError> {
    for protocol in [Protocol::Tcp, Protocol::Udp] {
        if let Some(port) = locate::port_of(server, SERVICE, protocol, LOOKUP).await? {
            return Ok(Some(LockPlace { protocol, port }));
        }
    }
    Ok(None)
}

impl LockManager for NlmClient {
    fn place(&self) -> Option<(SocketAddr, Protocol)> {
        let place = self.place()?;
        Some((SocketAddr::new(self.server, place.port), place.protocol))
    }

    fn is_privileged(&self) -> bool {
        self.privileged
    }
}

impl NlmClient {
    /// The lock manager of `server`, at `port` or where rpcbind says. Sends nothing yet.
    pub fn new(server: IpAddr, port: Option<u16>, privileged: bool) -> Self {
        let given = |port| LockPlace {
            protocol: Protocol::Tcp,
            port,
        };
        let suspicions = watch::Sender::new(0);
        NlmClient {
            server,
            port,
            place: Mutex::new(port.map(given)),
            look_up: AtomicBool::new(false),
            answered: AtomicBool::new(false),
            privileged,
            machine: identity::machine_name(),
            stream: StreamClient::telling(suspicions.clone()),
            suspicions,
            silent: AtomicBool::new(false),
            cookie: AtomicU64::new(1),
            senseless: Mutex::default(),
            callbacks: OnceLock::new(),
            tap: OnceLock::new(),
            settled: OnceCell::new(),
        }
    }

    /// Whether the server has a lock manager. An error leaves that open: later calls look for it
    /// again. Runs in tokio.
    pub async fn probe(&self) -> Result<bool, PlainError> {
        let mut answer = self.null().await;
        if self.port.is_some() && answer.as_ref().is_err_and(PlainError::is_transient) {
            // It may listen on UDP only.
            answer = self.null().await;
        }
        match answer {
            Ok(()) => Ok(true),
            Err(PlainError::NoProgram) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Where lockd was found, or where it is according to the options.
    pub fn place(&self) -> Option<LockPlace> {
        *self.place.lock()
    }

    pub fn server(&self) -> IpAddr {
        self.server
    }

    /// Connects the client with the tap of the mount's transport, which gets its calls, and whose
    /// new connections are a sign of a restart over UDP.
    pub fn set_tap(self: &Arc<Self>, tap: Arc<Tap>) {
        let this = Arc::downgrade(self);
        tap.on_connection(move || {
            if let Some(this) = this.upgrade() {
                this.nfs_connected();
            }
        });
        let _ = self.tap.set(tap);
    }

    fn nfs_connected(&self) {
        if self
            .place()
            .is_some_and(|place| place.protocol == Protocol::Udp)
        {
            self.suspect();
        }
    }

    fn suspect(&self) {
        self.suspicions.send_modify(|count| *count += 1);
    }

    /// Over UDP: a call was answered, or not.
    fn heard(&self, answered: bool) {
        let silent = self.silent.swap(!answered, Ordering::AcqRel);
        if silent && answered {
            self.suspect();
        }
    }

    /// Enables the server's call-backs and its monitoring, from the first lock on.
    pub fn listen(self: &Arc<Self>, options: CallbackOptions) -> Arc<Callbacks> {
        let uid = identity::own_credential().uid;
        let new = || {
            let this: Arc<dyn LockManager> = self.clone();
            Callbacks::new(self.server, Arc::downgrade(&this), options, uid)
        };
        self.callbacks.get_or_init(new).clone()
    }

    /// Where to send the next call. rpcbind is asked until it has named a port, and again after a
    /// call without an answer.
    async fn look(&self) -> Result<LockPlace, PlainError> {
        let known = self.place();
        if let Some(place) = known
            && (self.port.is_some() || !self.look_up.load(Ordering::Acquire))
        {
            return Ok(place);
        }
        let place = match (find(self.server).await, known) {
            (Ok(Some(place)), _) => place,
            (_, Some(place)) => return Ok(place),
            (Ok(None), None) => return Err(PlainError::NoProgram),
            (Err(error), None) => return Err(error),
        };
        *self.place.lock() = Some(place);
        self.look_up.store(false, Ordering::Release);
        // The mount began without a lock manager.
        if known.is_none() && self.callbacks.get().is_some() {
            let (server, over, port) = (self.server, place.protocol.name(), place.port);
            tracing::info!("locks go to {server}, NLM over {over} port {port}");
        }
        Ok(place)
    }

    async fn target(&self) -> Result<Target, PlainError> {
        let place = self.look().await?;
        Ok(Target {
            address: SocketAddr::new(self.server, place.port),
            protocol: place.protocol,
            privileged: self.privileged,
            timeout: CALL,
        })
    }

    /// A call has no result.
    fn failed(&self, target: &Target, error: &PlainError) {
        self.look_up.store(true, Ordering::Release);
        let silent = error.is_transient() && !self.answered.load(Ordering::Acquire);
        if self.port.is_some() && silent {
            // The option does not name a protocol: try the other one with the next call.
            *self.place.lock() = Some(LockPlace {
                protocol: match target.protocol {
                    Protocol::Tcp => Protocol::Udp,
                    Protocol::Udp => Protocol::Tcp,
                },
                port: target.address.port(),
            });
        }
    }

    async fn run<P: Procedure, T>(
        &self,
        cred: &Cred,
        args: &P::Args<'_>,
        with: impl FnOnce(P::Res<'_>) -> T,
        status: impl FnOnce(&T) -> u32,
    ) -> Result<T, PlainError> {
        let begun = Instant::now();
        let target = self.target().await;
        let sent = Instant::now();
        let credential = auth(self.machine.as_bytes(), cred);
        let result = match &target {
            Ok(target) if target.protocol == Protocol::Tcp => {
                let call = self.stream.call::<P, T>(target, credential, args, with);
                call.await
            }
            Ok(target) => {
                let result = plain::call::<P, T>(target, credential, args, with).await;
                self.heard(!result.as_ref().is_err_and(PlainError::is_transient));
                result
            }
            Err(error) => Err(error.clone()),
        };
        match &result {
            Ok(_) => self.answered.store(true, Ordering::Release),
            Err(error) => {
                if let Ok(target) = &target {
                    self.failed(target, error);
                }
                tracing::debug!(procedure = P::NAME, %error, "NLM");
            }
        }
        if let Some(tap) = self.tap.get().filter(|tap| tap.wanted().calls()) {
            let outcome = match &result {
                Ok(answer) => Outcome::Status(status(answer)),
                Err(PlainError::Refused(why)) => Outcome::Refused(why.clone()),
                Err(error) => Outcome::Failed(error.to_string()),
            };
            let credential = auth(self.machine.as_bytes(), cred);
            let mut head = Encoder::default();
            let header = CallTemplate::new(P::PROGRAM, P::VERSION, credential);
            header.encode(0, P::NUMBER, &mut head);
            args.encode(&mut head);
            let now = SystemTime::now();
            tap.ended(&Arc::new(Ended {
                time: now,
                sent: Arc::new(Sent {
                    time: now.checked_sub(sent.elapsed()).unwrap_or(now),
                    xid: 0,
                    pid: 0,
                    procedure: OTHER_COUNTER,
                    head: head.into_vec().into(),
                    argument: 0,
                    transport: None,
                }),
                outcome,
                queued: sent - begun,
                round_trip: sent.elapsed(),
                received: 0,
                placed: 0,
            }));
        }
        result
    }

    /// Makes a call. An answer that makes no sense (a status that NLM does not define, say) would come
    /// again and again: after one more attempt, in case lockd has another port now, it is FAILED.
    async fn perform(
        &self,
        cred: &Cred,
        target: &LockTarget,
        call: LockCall,
    ) -> Result<LockAnswer, PlainError> {
        let mut result = self.send(cred, target, call).await;
        if let Err(PlainError::Misbehaved(_)) = result {
            result = self.send(cred, target, call).await;
        }
        let Err(error @ PlainError::Misbehaved(_)) = result else {
            return result;
        };
        if let Some(more) = self.senseless.lock().event(Instant::now()) {
            let (server, procedure, more) = (self.server, call.name(), and_more(more));
            tracing::error!(
                "the lock manager of {server}: {error}; {procedure} fails with ENOLCK{more}; \
                 check its version"
            );
        }
        Ok(LockAnswer {
            status: nlm4::Status::Failed,
            holder: None,
        })
    }

    async fn send(
        &self,
        cred: &Cred,
        target: &LockTarget,
        call: LockCall,
    ) -> Result<LockAnswer, PlainError> {
        let mut state = 0;
        if let (LockCall::Lock { .. }, Some(callbacks)) = (call, self.callbacks.get()) {
            callbacks.before_lock().await;
            state = callbacks.state();
        }
        let cookie = self.cookie.fetch_add(1, Ordering::Relaxed).to_be_bytes();
        let cookie = Text(&cookie);
        let owner = format!("{:x}@{}", target.svid, self.machine);
        let lock = Lock {
            caller_name: Text(self.machine.as_bytes()),
            file: target.file,
            owner: Text(owner.as_bytes()),
            svid: target.svid,
            offset: target.offset,
            length: target.length,
        };
        let answer = |status| LockAnswer {
            status,
            holder: None,
        };
        let of_res = |res: Res<'_>| answer(res.status);
        let of = |answer: &LockAnswer| answer.status as u32;
        let result = match call {
            LockCall::Test { exclusive } => {
                let args = nlm4::TestArgs {
                    cookie,
                    exclusive,
                    lock,
                };
                self.run::<nlm4::Test, _>(cred, &args, tested, of).await
            }
            LockCall::Lock {
                exclusive,
                block,
                reclaim,
            } => {
                let args = nlm4::LockArgs {
                    cookie,
                    block,
                    exclusive,
                    lock,
                    reclaim,
                    state,
                };
                self.run::<nlm4::LockRange, _>(cred, &args, of_res, of)
                    .await
            }
            LockCall::Cancel { exclusive } => {
                let args = nlm4::CancelArgs {
                    cookie,
                    block: true,
                    exclusive,
                    lock,
                };
                self.run::<nlm4::Cancel, _>(cred, &args, of_res, of).await
            }
            LockCall::Unlock => {
                let args = nlm4::UnlockArgs { cookie, lock };
                self.run::<nlm4::Unlock, _>(cred, &args, of_res, of).await
            }
        }?;
        tracing::trace!(
            svid = target.svid,
            offset = target.offset,
            length = target.length,
            ?call,
            ?result,
            "NLM"
        );
        Ok(result)
    }
}

fn tested(res: TestRes<'_>) -> LockAnswer {
    match res.reply {
        TestReply::Denied(Holder {
            exclusive,
            svid,
            offset,
            length,
            ..
        }) => LockAnswer {
            status: nlm4::Status::Denied,
            holder: Some(LockHolder {
                exclusive,
                svid,
                offset,
                length,
            }),
        },
        TestReply::Other(status) => LockAnswer {
            status,
            holder: None,
        },
    }
}

impl LockServer for NlmClient {
    fn call<'a>(
        &'a self,
        cred: &'a Cred,
        target: &'a LockTarget,
        call: LockCall,
    ) -> LockFuture<'a> {
        Box::pin(self.perform(cred, target, call))
    }

    fn null(&self) -> Pin<Box<dyn Future<Output = Result<(), PlainError>> + Send + '_>> {
        Box::pin(async {
            let cred = identity::own_credential();
            self.run::<nlm4::Null, _>(&cred, &Void {}, |_| (), |()| 0)
                .await
        })
    }

    fn suspicions(&self) -> watch::Receiver<u64> {
        self.suspicions.subscribe()
    }

    fn state(&self) -> u32 {
        self.callbacks
            .get()
            .map_or(0, |callbacks| callbacks.state())
    }

    fn resume(&self, state: u32) {
        if let Some(callbacks) = self.callbacks.get().cloned() {
            callbacks.resume(state);
        }
    }

    fn settled(&self) -> Done<'_> {
        Box::pin(async {
            let settle = async {
                let target = self.target().await?;
                let over_tcp = target.protocol == Protocol::Tcp;
                let begun = Instant::now();
                while over_tcp && begun.elapsed() < SETTLED && orphaned::any_to(target.address) {
                    tokio::time::sleep(SETTLED / 500).await;
                }
                Ok::<(), PlainError>(())
            };
            // Once: what others ask for later, this process itself has sent. If rpcbind does not answer, the calls that
            // follow ask it again.
            let _ = self.settled.get_or_try_init(|| settle).await;
        })
    }

    fn idle<'a>(&'a self, still: &'a (dyn Fn() -> bool + Send + Sync)) -> Done<'a> {
        Box::pin(async move {
            if let Some(callbacks) = self.callbacks.get() {
                callbacks.idle(still).await;
            }
        })
    }

    fn end(&self) -> Done<'_> {
        Box::pin(async {
            if let Some(callbacks) = self.callbacks.get() {
                callbacks.end().await;
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nfsrdma_xdr::rpc::{Accepted, Reply};
    use std::net::Ipv4Addr;
    use tokio::net::UdpSocket;

    /// Answers one call.
    async fn answer(socket: &UdpSocket) {
        let mut call = [0; 1024];
        let (len, from) = socket.recv_from(&mut call).await.unwrap();
        assert!(len > 24);
        let xid = u32::from_be_bytes(call[..4].try_into().unwrap());
        let reply = Reply::accepted(xid, Accepted::Success).to_xdr();
        socket.send_to(&reply, from).await.unwrap();
    }

    #[tokio::test]
    async fn over_udp_an_answer_after_none_and_a_new_connection_of_nfs_are_suspicions() {
        let host = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let server = UdpSocket::bind((host, 0)).await.unwrap();
        let port = server.local_addr().unwrap().port();
        // Nobody listens there over TCP.
        let client = Arc::new(NlmClient::new(host, Some(port), false));
        let (found, ()) = tokio::join!(client.probe(), answer(&server));
        assert!(found.unwrap());
        assert_eq!(client.place().unwrap().protocol, Protocol::Udp);
        let suspicions = client.suspicions();
        let (answered, ()) = tokio::join!(client.null(), answer(&server));
        answered.unwrap();
        assert!(
            !suspicions.has_changed().unwrap(),
            "it was there all the time"
        );

        drop(server);
        client.null().await.unwrap_err();
        assert!(
            !suspicions.has_changed().unwrap(),
            "it can be claimed nowhere"
        );
        let server = UdpSocket::bind((host, port)).await.unwrap();
        let (answered, ()) = tokio::join!(client.null(), answer(&server));
        answered.unwrap();
        assert_eq!(*suspicions.borrow(), 1);
        let (answered, ()) = tokio::join!(client.null(), answer(&server));
        answered.unwrap();
        assert_eq!(*suspicions.borrow(), 1, "once");

        client.nfs_connected();
        assert_eq!(*suspicions.borrow(), 2);
        let tcp = LockPlace {
            protocol: Protocol::Tcp,
            port,
        };
        *client.place.lock() = Some(tcp);
        client.nfs_connected();
        assert_eq!(*suspicions.borrow(), 2, "its own connection tells");
    }
}
