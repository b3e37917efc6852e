//! The request `upgrade` of the control socket: the mount goes on with the program that is now at the path of
//! the one that serves it.
//!
//! The holder has the new program wait for the mount (see [`holder`](crate::holder)). Then nothing is read of the
//! kernel's requests, which wait there, until the server has all data that only this process has, and the
//! holder exchanges the processes. So nothing is lost; and if it cannot be done in time, this process goes on.
//! With `restart=data` that is hardly ever anything.
//!
//! The same request may bring other options into force ([`Change`]).
//!
//! The answer is one line of JSON, an object with `error`, or the holder's that the other program serves.

use crate::holder::client::Held;
use crate::holder::protocol::Why;
use crate::ipc::control::{self, ControlReply, Feed};
use crate::ipc::keeper::PLAN;
use nfsrdma_fs::adapter::Session;
use nfsrdma_fs::fs::Fs;
use nfsrdma_nfs3::Nfs3Client;
use serde::{Deserialize, Serialize};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};
use tokio::io::AsyncWriteExt;
use tokio::net::UnixStream;
use tokio::sync::{Mutex, oneshot};
use tokio::time::timeout;
use tracing::{info, warn};

/// The name of the request.
pub(crate) const UPGRADE: &str = "upgrade";
/// How long the server may take for what was written before. Programs go on meanwhile.
const WRITE_BACK: Duration = Duration::from_secs(10);
/// How long it may take for what was written meanwhile, while programs wait.
const REST: Duration = Duration::from_millis(500);
/// How often that is tried.
const ATTEMPTS: usize = 5;
/// No attempt begins later: the command waits no longer than that and one attempt.
const LIMIT: Duration = Duration::from_secs(60);
/// The error that the successor has for data that would be lost.
pub(crate) const UNSAFE: i32 = libc::EAGAIN;

/// The answer. That of an older program has an error only.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Answer {
    #[serde(default)]
    pub(crate) upgraded: bool,
    #[serde(default)]
    pub(crate) error: String,
    /// The mount can be upgraded, but was not now.
    #[serde(default)]
    pub(crate) possible: bool,
}

/// What an upgrade needs of the process that serves.
pub(crate) struct Upgradable {
    pub(crate) fs: Arc<Fs<Nfs3Client>>,
    pub(crate) session: Arc<Session>,
    /// `None`: nobody keeps the mount.
    pub(crate) held: Option<Held>,
    /// Locked by whoever gives the mount away.
    pub(crate) busy: Mutex<()>,
}

/// The records of a mount whose successor is to have other options.
pub(crate) struct Change {
    pub(crate) now: OwnedFd,
    pub(crate) next: OwnedFd,
    /// The successor has a pool of another size, in which no data are.
    pub(crate) other_memory: bool,
}

/// Reads none of the kernel's requests while it lives.
struct Paused<'a>(&'a Session);

impl<'a> Paused<'a> {
    fn new(session: &'a Session) -> Self {
        session.pause(true);
        Paused(session)
    }
}

impl Drop for Paused<'_> {
    fn drop(&mut self) {
        self.0.pause(false);
    }
}

/// Answers [`UPGRADE`] before `next`.
pub(crate) fn answer(of: Arc<Upgradable>, next: control::Answer) -> control::Answer {
    Arc::new(move |request| match request {
        UPGRADE => Some(ControlReply::Feed(feed(of.clone(), None))),
        _ => next(request),
    })
}

/// Gives the mount to a successor.
pub(crate) fn feed(of: Arc<Upgradable>, change: Option<Change>) -> Feed {
    Box::new(move |mut stream| {
        Box::pin(async move {
            let why = match &of.held {
                Some(held) => of.give(held, change, &stream).await,
                None => "it was mounted without restart=, by which a mount outlives its program: unmount it, and \
                         mount it again"
                    .into(),
            };
            info!("no upgrade: {why}");
            let answer = Answer {
                error: why,
                possible: of.held.is_some(),
                ..Answer::default()
            };
            if let Ok(mut line) = serde_json::to_string(&answer) {
                line.push('\n');
                // The client may be gone.
                let _ = stream.write_all(line.as_bytes()).await;
            }
        })
    })
}

impl Upgradable {
    /// Returns only if this process is to go on, and why.
    async fn give(&self, held: &Held, change: Option<Change>, stream: &UnixStream) -> String {
        let Ok(_busy) = self.busy.try_lock() else {
            return "another upgrade of this mount is under way".into();
        };
        let Some(change) = change else {
            return self.upgrade(held, false, stream).await;
        };
        if let Err(error) = held.keep(PLAN, change.next.as_fd()) {
            return error.to_string();
        }
        let why = self.upgrade(held, change.other_memory, stream).await;
        if let Err(error) = held.keep(PLAN, change.now.as_fd()) {
            warn!("the next process of this mount has other options: {error}");
        }
        why
    }

    /// The same. `all`: also what the successor would have is written back.
    async fn upgrade(&self, held: &Held, all: bool, stream: &UnixStream) -> String {
        let began = Instant::now();
        for _ in 0..ATTEMPTS {
            if began.elapsed() > LIMIT {
                break;
            }
            if timeout(WRITE_BACK, self.write_back(all)).await.is_err() {
                let limit = WRITE_BACK.as_secs();
                return format!(
                    "the server has not taken within {limit} s what programs have written: try again when it answers"
                );
            }
            let told = match stream.as_fd().try_clone_to_owned() {
                Ok(told) => told,
                Err(error) => return format!("this process has no descriptors left: {error}"),
            };
            let asked = held.clone();
            match aside(move || asked.upgrade(told.as_fd())).await {
                Ok(Ok(())) => {}
                Ok(Err(why)) => return why.text,
                Err(error) => return error.to_string(),
            }
            match self.hand_over(held, all).await {
                Ok(why) if i32::from(why.number) != UNSAFE => return why.text,
                Ok(_) => {}
                Err(error) => {
                    held.cancel_upgrade();
                    return error.to_string();
                }
            }
        }
        "programs write faster than the server takes it: try again when they write less".into()
    }

    async fn write_back(&self, all: bool) {
        match all {
            true => self.fs.write_back_all().await,
            false => self.fs.write_back_unkept().await,
        }
    }

    /// A successor waits: gives it the mount. Returns only if it does not have it, and why.
    async fn hand_over(&self, held: &Held, all: bool) -> io::Result<Why> {
        let paused = Paused::new(&self.session);
        if timeout(REST, self.write_back(all)).await.is_err() {
            drop(paused);
            held.cancel_upgrade();
            return Ok(Why::new(UNSAFE, ""));
        }
        let held = held.clone();
        aside(move || held.hand_over()).await
    }
}

/// Runs what blocks in a thread of its own, which may not be to be had.
async fn aside<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> io::Result<T> {
    let (tell, told) = oneshot::channel();
    thread::Builder::new()
        .name("upgrade".into())
        .spawn(move || tell.send(work()))?;
    told.await.map_err(io::Error::other)
}
