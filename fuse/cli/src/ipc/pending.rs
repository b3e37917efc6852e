//! Attempts to mount that are still going on, perhaps for days in the background (`bg`). `nfsrdma
//! stats` lists them and `nfsrdma umount` cancels them.
//!
//! Without a mount there is no device number to name a socket after. The process listens at a
//! control socket named `pending-PID`, from its first failed attempt until the last one.

use crate::ipc::control::{self, AskError, Control, ControlReply};
use crate::ipc::{LONGEST, shorten, sockets};
use nfsrdma_rdma::nanoseconds;
use parking_lot::Mutex;
use rustix::process::geteuid;
use serde::{Deserialize, Serialize};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::io::AsyncWriteExt;
use tokio::sync::Notify;

/// The request that ends the attempts.
const CANCEL: &str = "cancel";
/// The prefix of the names of these sockets; the process ID follows.
const PREFIX: &str = "pending-";
/// Most sockets that are looked at.
const MOST: usize = 1024;
/// How long a process may take to end.
const END: Duration = Duration::from_secs(30);

/// The state of the attempts. Times are in nanoseconds.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct Pending {
    pub pid: u32,
    /// SERVER:/EXPORT.
    pub source: String,
    pub directory: String,
    /// The directory, if its name is not UTF-8.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub directory_bytes: Vec<u8>,
    /// The options as the user gave them.
    pub options: String,
    pub background: bool,
    /// The number of attempts so far, and why the last one failed.
    pub attempts: u64,
    pub error: String,
    /// The time since the first attempt.
    pub age_ns: u64,
}

impl Pending {
    #[must_use]
    fn shortened(mut self) -> Self {
        let all = [
            &mut self.source,
            &mut self.directory,
            &mut self.options,
            &mut self.error,
        ];
        for text in all {
            shorten(text);
        }
        self.directory_bytes.truncate(LONGEST);
        self.directory_bytes.shrink_to_fit();
        self
    }

    fn is_on(&self, dir: &Path) -> bool {
        match &self.directory_bytes[..] {
            [] => Path::new(&self.directory) == dir,
            bytes => Path::new(OsStr::from_bytes(bytes)) == dir,
        }
    }
}

/// The server side, in the process that tries to mount.
#[derive(Debug)]
pub(crate) struct Announcement {
    shared: Arc<Shared>,
    /// `None` if the socket could not be made; the attempts go on without it.
    control: Option<Control>,
}

#[derive(Debug)]
struct Shared {
    pending: Mutex<Pending>,
    since: Instant,
    cancelled: Notify,
}

impl Shared {
    fn answer(self: &Arc<Self>, request: &str) -> Option<ControlReply> {
        match request {
            control::STATS => {
                let mut pending = self.pending.lock().clone();
                pending.age_ns = nanoseconds(self.since.elapsed());
                serde_json::to_string(&pending)
                    .ok()
                    .map(ControlReply::Document)
            }
            CANCEL => {
                let shared = self.clone();
                Some(ControlReply::Feed(Box::new(move |mut stream| {
                    Box::pin(async move {
                        let _ = stream.write_all(b"{}\n").await;
                        shared.cancelled.notify_one();
                        // The connection stays open until the process ends.
                        std::future::pending::<()>().await;
                    })
                })))
            }
            _ => None,
        }
    }
}

impl Announcement {
    /// Announces `pending`, which has been tried since `since`. Must be called within tokio.
    pub(crate) fn new(pending: Pending, since: Instant) -> Self {
        let name = format!("{PREFIX}{}", pending.pid);
        let shared = Arc::new(Shared {
            pending: Mutex::new(pending),
            since,
            cancelled: Notify::new(),
        });
        let answering = shared.clone();
        let control = Control::start(&name, Arc::new(move |request| answering.answer(request)))
            .inspect_err(|error| tracing::debug!("it cannot be listed: {error}"))
            .ok();
        Announcement { shared, control }
    }

    /// Records that one more attempt failed.
    pub(crate) fn failed(&self, error: &str) {
        let mut pending = self.shared.pending.lock();
        pending.attempts += 1;
        error.clone_into(&mut pending.error);
    }

    /// Waits for a request to cancel.
    pub(crate) async fn cancelled(&self) {
        self.shared.cancelled.notified().await;
    }

    /// Removes the name, when the mount works or the attempts have ended.
    pub(crate) async fn stop(self) {
        if let Some(control) = self.control {
            drop(control.stop().await);
        }
    }
}

/// The socket of such a process, and the user it belongs to.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Place {
    name: String,
    owner: Option<u32>,
}

/// All sockets that this user may connect to; for root, those of all users.
pub(crate) fn places() -> Vec<Place> {
    sockets::names(PREFIX, control::SUFFIX, MOST)
        .into_iter()
        .map(|(name, owner)| Place { name, owner })
        .collect()
}

impl Place {
    /// Asks the process for its state. `None` if it has ended meanwhile.
    pub(crate) fn ask(&self, limit: Duration) -> Option<Pending> {
        let answer = control::ask_within(&self.name, self.owner, control::STATS, limit).ok()?;
        let said = serde_json::from_slice::<Pending>(&answer).ok();
        said.map(Pending::shortened)
    }

    /// Whether the process runs as the user of this one.
    fn is_own(&self) -> bool {
        self.owner.unwrap_or(0) == geteuid().as_raw()
    }

    /// Cancels the attempts, and waits for the end of the process. False if it ended before that.
    fn cancel(&self, limit: Duration) -> Result<bool, AskError> {
        match control::ask_within(&self.name, self.owner, CANCEL, limit) {
            Ok(said) => Ok(!said.is_empty()),
            Err(AskError::Unreachable(_)) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

/// Cancels all attempts to mount something on `dir`. Returns what was cancelled. Root asks processes
/// of other users last, and all of these together for as long as it would wait for one of its own:
/// a user may have many sockets that do not answer.
pub(crate) fn cancel(dir: &Path) -> Result<Vec<Pending>, AskError> {
    let mut cancelled = Vec::new();
    let (own, others): (Vec<_>, Vec<_>) = places().into_iter().partition(Place::is_own);
    for place in own {
        if let Some(pending) = place.ask(control::ANSWER_TIME)
            && pending.is_on(dir)
            && place.cancel(END)?
        {
            cancelled.push(pending);
        }
    }
    let begin = Instant::now();
    for place in others {
        let left = END.saturating_sub(begin.elapsed());
        if left.is_zero() {
            break;
        }
        if let Some(pending) = place.ask(left.min(control::ANSWER_TIME))
            && pending.is_on(dir)
            && place.cancel(END.saturating_sub(begin.elapsed()))?
        {
            cancelled.push(pending);
        }
    }
    Ok(cancelled)
}
