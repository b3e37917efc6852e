//! The control socket, at which the process that serves a mount answers commands.
//!
//! It is named after the mount's device number (see [`sockets`]), and is a different socket from
//! the one of [`exit_watch`](crate::ipc::exit_watch). A client sends one line and gets one JSON
//! document. Only root and the user that the process runs as get an answer; other clients get an
//! error and are disconnected. At most [`CLIENTS`] conversations run at a time, each ends within
//! [`PATIENCE`], and a request has at most [`REQUEST_MAX`] bytes. Some requests are answered by a
//! [`Feed`], which goes on until the mount or the client ends; at most [`FEEDS`] run at a time.

use crate::ipc::keeper::Keeper;
use crate::ipc::sockets;
use parking_lot::Mutex;
use rustix::process::geteuid;
use std::fmt;
use std::future::Future;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::Semaphore;
use tokio::task::{JoinHandle, JoinSet};

/// Most conversations at a time.
const CLIENTS: usize = 4;
/// Longest time that one conversation may take.
const PATIENCE: Duration = Duration::from_secs(3);
/// Longest request, in bytes.
const REQUEST_MAX: usize = 4096;
/// Most feeds at a time.
const FEEDS: usize = 16;
/// How long feeds may take to write their last data when the mount ends.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// Longest answer that a client accepts, in bytes.
const ANSWER_MAX: u64 = 4 << 20;
/// How long a client waits for the whole answer.
pub(crate) const ANSWER_TIME: Duration = Duration::from_secs(10);
/// The request for the statistics.
pub(crate) const STATS: &str = "stats";
/// Why a client is refused.
pub(crate) const OF_ANOTHER: &str = "only root and the user who mounted it may ask";

/// The name of the listener at the holder.
const KEPT: &str = "control";
/// The suffix of the names of these sockets.
pub(crate) const SUFFIX: &str = ".control";

/// The name of the socket of the mount with this `major:minor`.
fn name(device: &str) -> String {
    format!("{device}{SUFFIX}")
}

/// A function that writes to the client until it is done, or until the client is gone.
pub(crate) type Feed =
    Box<dyn FnOnce(tokio::net::UnixStream) -> Pin<Box<dyn Future<Output = ()> + Send>> + Send>;

/// The reply to a request.
pub(crate) enum ControlReply {
    Document(String),
    Feed(Feed),
}

impl fmt::Debug for ControlReply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ControlReply::Document(text) => f.debug_tuple("Document").field(text).finish(),
            ControlReply::Feed(_) => f.debug_tuple("Feed").finish_non_exhaustive(),
        }
    }
}

/// Answers a request; `None` if there is no such request.
pub(crate) type Answer = Arc<dyn Fn(&str) -> Option<ControlReply> + Send + Sync>;

/// The server side of the socket.
pub(crate) struct Control {
    device: String,
    keeper: Keeper,
    answer: Answer,
    name: sockets::Name,
    task: JoinHandle<()>,
    feeds: Arc<Mutex<JoinSet<()>>>,
}

/// The feeds of a [`Control`] that was stopped.
pub(crate) struct Feeds(Arc<Mutex<JoinSet<()>>>);

impl fmt::Debug for Feeds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Feeds").finish_non_exhaustive()
    }
}

impl Feeds {
    /// Waits a short time for feeds whose source has ended.
    pub(crate) async fn finish(self) {
        let mut feeds = std::mem::take(&mut *self.0.lock());
        let all = async { while feeds.join_next().await.is_some() {} };
        // A client that has not read everything by then misses the rest.
        let _ = tokio::time::timeout(LAST_WORDS, all).await;
    }
}

impl fmt::Debug for Control {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Control").finish_non_exhaustive()
    }
}

fn refusal(why: &str) -> String {
    serde_json::json!({ "error": why }).to_string()
}

impl Control {
    /// Listens for the mount with this `major:minor`. Must be called within tokio.
    pub(crate) fn start(device: &str, answer: Answer) -> io::Result<Control> {
        Control::start_kept(device, answer, &Keeper::default())
    }

    /// The same, with a listener that the holder keeps: clients of a process that this one replaces are
    /// answered.
    pub(crate) fn start_kept(device: &str, answer: Answer, keeper: &Keeper) -> io::Result<Control> {
        let feeds = Arc::default();
        let kept = keeper
            .take(KEPT)
            .map(|kept| sockets::listen_on(kept, &name(device)));
        let socket = match kept {
            Some(Ok(socket)) => socket,
            Some(Err(_)) | None => sockets::listen(&name(device))?,
        };
        let (name, task) = begin_to_listen(socket, keeper, &answer, &feeds)?;
        Ok(Control {
            device: device.to_owned(),
            keeper: keeper.clone(),
            answer,
            name,
            task,
            feeds,
        })
    }

    /// Takes the name again if it is gone. Feeds go on. Must be called within tokio.
    pub(crate) fn renew(&mut self) {
        if self.name.is_missing()
            && let Ok(socket) = sockets::listen(&name(&self.device))
            && let Ok((name, task)) =
                begin_to_listen(socket, &self.keeper, &self.answer, &self.feeds)
        {
            self.name = name;
            std::mem::replace(&mut self.task, task).abort();
        }
    }

    /// Removes the name, and ends all conversations except feeds.
    pub(crate) async fn stop(self) -> Feeds {
        drop(self.name);
        self.task.abort();
        // The task was aborted, so its result does not matter.
        let _ = self.task.await;
        Feeds(self.feeds)
    }
}

fn begin_to_listen(
    (listener, name): (UnixListener, sockets::Name),
    keeper: &Keeper,
    answer: &Answer,
    feeds: &Arc<Mutex<JoinSet<()>>>,
) -> io::Result<(sockets::Name, JoinHandle<()>)> {
    keeper.keep_listener(KEPT, listener.as_fd());
    listener.set_nonblocking(true)?;
    let listener = tokio::net::UnixListener::from_std(listener)?;
    let owner = geteuid().as_raw();
    let task = tokio::spawn(listen(listener, owner, answer.clone(), feeds.clone()));
    Ok((name, task))
}

/// Accepts clients until it is aborted, which also ends the conversations.
async fn listen(
    listener: tokio::net::UnixListener,
    owner: u32,
    answer: Answer,
    feeds: Arc<Mutex<JoinSet<()>>>,
) {
    let slots = Arc::new(Semaphore::new(CLIENTS));
    let mut clients = JoinSet::new();
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                // The likely cause is that the process has no descriptors left.
                tracing::debug!("control socket: {error}");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        while clients.try_join_next().is_some() {}
        let uid = stream.peer_cred().map(|peer| peer.uid());
        if !uid.is_ok_and(|uid| uid == 0 || uid == owner) {
            dismiss(stream, OF_ANOTHER);
            continue;
        }
        match slots.clone().try_acquire_owned() {
            Ok(slot) => {
                let (answer, feeds) = (answer.clone(), feeds.clone());
                clients.spawn(async move {
                    let said = tokio::time::timeout(PATIENCE, converse(stream, &answer)).await;
                    drop(slot);
                    if let Ok(Ok(Some((feed, stream)))) = said {
                        begin(feed, stream, &mut feeds.lock());
                    }
                });
            }
            Err(_) => dismiss(stream, "too many ask at a time: try again"),
        }
    }
}

/// Refuses a client without waiting: the buffer of a new socket has room for the text.
fn dismiss(stream: tokio::net::UnixStream, why: &str) {
    if let Ok(mut stream) = stream.into_std() {
        let _ = stream.write_all(refusal(why).as_bytes());
    }
}

fn begin(feed: Feed, stream: tokio::net::UnixStream, feeds: &mut JoinSet<()>) {
    while feeds.try_join_next().is_some() {}
    if feeds.len() < FEEDS {
        feeds.spawn(feed(stream));
    } else {
        dismiss(stream, "too many listen already: try again later");
    }
}

/// Answers one request. For a feed, returns the feed and the stream to run it on.
async fn converse(
    mut stream: tokio::net::UnixStream,
    answer: &Answer,
) -> io::Result<Option<(Feed, tokio::net::UnixStream)>> {
    let mut request = Vec::with_capacity(REQUEST_MAX);
    while !request.contains(&b'\n') {
        if request.len() >= REQUEST_MAX {
            let said = refusal("the request is too long");
            stream.write_all(said.as_bytes()).await?;
            return Ok(None);
        }
        let room = REQUEST_MAX - request.len();
        if (&mut stream)
            .take(room as u64)
            .read_buf(&mut request)
            .await?
            == 0
        {
            break;
        }
    }
    let line = request.split(|&byte| byte == b'\n').next();
    let said = line
        .and_then(|line| std::str::from_utf8(line).ok())
        .and_then(|line| answer(line.trim_end()))
        .unwrap_or_else(|| ControlReply::Document(refusal("no such request")));
    match said {
        ControlReply::Feed(feed) => Ok(Some((feed, stream))),
        ControlReply::Document(text) => {
            stream.write_all(text.as_bytes()).await?;
            stream.shutdown().await?;
            Ok(None)
        }
    }
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AskError {
    /// Nobody listens.
    #[error("{0}")]
    Unreachable(io::Error),
    #[error("no whole answer: {0}")]
    Broken(io::Error),
}

/// Sends a request to the process that serves `device` of `owner`. The answer is not checked.
pub(crate) fn ask(device: &str, owner: Option<u32>, request: &str) -> Result<Vec<u8>, AskError> {
    ask_within(device, owner, request, ANSWER_TIME)
}

/// The same as [`ask`], with another time limit for the whole answer.
pub(crate) fn ask_within(
    device: &str,
    owner: Option<u32>,
    request: &str,
    limit: Duration,
) -> Result<Vec<u8>, AskError> {
    read_answer(&mut begin_to_ask(device, owner, request)?, limit).map_err(no_answer)
}

/// A process that is being killed resets the connections that it has not accepted.
fn no_answer(error: io::Error) -> AskError {
    match error.kind() {
        io::ErrorKind::ConnectionReset => AskError::Unreachable(error),
        _ => AskError::Broken(error),
    }
}

/// Connects and sends the request.
pub(crate) fn begin_to_ask(
    device: &str,
    owner: Option<u32>,
    request: &str,
) -> Result<UnixStream, AskError> {
    let mut stream = sockets::connect(&name(device), owner).map_err(AskError::Unreachable)?;
    // A server that refuses may have closed the socket already. Its answer can still be read.
    let _ = stream.write_all(format!("{request}\n").as_bytes());
    Ok(stream)
}

fn read_answer(stream: &mut UnixStream, limit: Duration) -> io::Result<Vec<u8>> {
    let begin = Instant::now();
    let mut answer = Vec::new();
    let mut piece = [0; 16 << 10];
    loop {
        let left = limit.saturating_sub(begin.elapsed());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut piece) {
            Ok(0) => return Ok(answer),
            Ok(n) => answer.extend_from_slice(&piece[..n]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                return Err(io::ErrorKind::TimedOut.into());
            }
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset && !answer.is_empty() => {
                return Ok(answer);
            }
            Err(error) => return Err(error),
        }
        if answer.len() as u64 > ANSWER_MAX {
            return Err(io::Error::other("it is too long"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer() -> Answer {
        Arc::new(|request| match request {
            STATS => Some(ControlReply::Document("x".repeat(300_000))),
            "feed" => Some(ControlReply::Feed(Box::new(|mut stream| {
                Box::pin(async move {
                    let _ = stream.write_all(b"first").await;
                    tokio::time::sleep(Duration::from_millis(300)).await;
                    let _ = stream.write_all(b"last").await;
                })
            }))),
            _ => None,
        })
    }

    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap()
    }

    fn own() -> Option<u32> {
        Some(geteuid().as_raw())
    }

    #[test]
    fn a_process_that_is_being_killed_is_not_there() {
        let device = format!("killed:{}", std::process::id());
        let listener = sockets::listen(&name(&device)).unwrap();
        let mut asked = begin_to_ask(&device, own(), STATS).unwrap();
        drop(listener);
        let error = read_answer(&mut asked, ANSWER_TIME).map_err(no_answer);
        assert!(matches!(error, Err(AskError::Unreachable(_))), "{error:?}");
    }

    #[test]
    fn a_feed_outlives_the_name() {
        let device = format!("feed:{}", std::process::id());
        let runtime = runtime();
        let start = || {
            runtime
                .block_on(async { Control::start(&device, answer()) })
                .unwrap()
        };
        let control = start();
        let mut feed = begin_to_ask(&device, own(), "feed").unwrap();
        let mut first = [0; 5];
        feed.read_exact(&mut first).unwrap();
        assert_eq!(&first, b"first");
        let feeds = runtime.block_on(control.stop());
        let other = start();
        runtime.block_on(feeds.finish());
        let mut rest = String::new();
        feed.read_to_string(&mut rest).unwrap();
        assert_eq!(rest, "last");
        let feeds: Vec<_> = (0..=FEEDS)
            .map(|_| begin_to_ask(&device, own(), "feed").unwrap())
            .map(|mut feed| {
                let mut said = [0; 5];
                feed.read_exact(&mut said).unwrap();
                (feed, said)
            })
            .collect();
        assert_eq!(
            feeds.iter().filter(|(_, said)| said == b"first").count(),
            FEEDS
        );
        runtime.block_on(other.stop());
    }
}
