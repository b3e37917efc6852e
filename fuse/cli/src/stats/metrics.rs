//! Serves Prometheus text over HTTP/1.1 (RFC 9112), by GET and HEAD of `/metrics` only. A mount
//! serves its own metrics on the address or Unix socket of the option `metrics`, and `nfsrdma
//! metrics` serves those of all mounts.
//!
//! Anybody may connect. So a request has at most [`REQUEST_MAX`] bytes and must arrive within
//! [`ANSWER_LIMIT`], and its headers are ignored. Each connection carries one request. Of the
//! connections that send none the youngest [`CLIENTS`] stay, and so do as many of those that wait for
//! their answer: whoever does not send, or does not read, keeps nobody else from being answered. None
//! is ended before it has had [`TIME_TO_SEND`]; until then further ones wait to be accepted, so that
//! clients that come again and again leave others the time to send.
//! Rendering has a limit of its own, [`RENDERING`].

use super::prometheus::{self, CONTENT_TYPE};
use crate::cli::MetricsArgs;
use crate::failure::{Exit, Failure};
use crate::mount::privileges;
use crate::options::MetricsAt;
use crate::output::without_number;
use crate::stats::mount_list;
use parking_lot::Mutex;
use rustix::fs::Mode;
use rustix::process::umask;
use std::collections::VecDeque;
use std::fs::{Metadata, symlink_metadata};
use std::io;
use std::net::TcpListener;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Semaphore;
use tokio::task::AbortHandle;
use tokio::time::timeout;

/// Most connections that have not sent a request, and most that have.
const CLIENTS: usize = 16;
/// Most texts that are rendered at a time.
const RENDERED: usize = 4;
/// How long a connection may stay silent before a further one can end it.
const TIME_TO_SEND: Duration = Duration::from_millis(100);
/// How long receiving a request may take, and sending an answer.
const ANSWER_LIMIT: Duration = Duration::from_secs(5);
/// How long rendering the text may take.
const RENDERING: Duration = Duration::from_secs(60);
/// The text of all mounts is rendered again when it is older than this.
const FRESH: Duration = Duration::from_secs(1);
/// Longest request with its headers, in bytes.
const REQUEST_MAX: usize = 8 << 10;

/// A listener whose address is in use by it.
#[derive(Debug)]
pub(crate) enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener, SocketFile),
}

/// A Unix socket in the file system, which is removed when this is dropped.
#[derive(Debug)]
pub(crate) struct SocketFile {
    path: PathBuf,
    /// Device and inode number, since somebody may have replaced the socket.
    identity: (u64, u64),
}

fn identity(metadata: &Metadata) -> (u64, u64) {
    (metadata.dev(), metadata.ino())
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Listener::Tcp(listener) => listener.as_fd(),
            Listener::Unix(listener, _) => listener.as_fd(),
        }
    }
}

impl SocketFile {
    fn of(path: &Path) -> io::Result<Self> {
        Ok(SocketFile {
            path: path.to_owned(),
            identity: identity(&symlink_metadata(path)?),
        })
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if symlink_metadata(&self.path).is_ok_and(|found| identity(&found) == self.identity) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Listens at the address. This happens before anything is mounted, so that a mistake is reported.
/// `option` is the option that the error tells the user to change.
pub(crate) fn listen(at: &MetricsAt, option: &str) -> Result<Listener, Failure> {
    let ready = match at {
        MetricsAt::Tcp(address) => TcpListener::bind(address).and_then(|listener| {
            listener.set_nonblocking(true)?;
            Ok(Listener::Tcp(listener))
        }),
        MetricsAt::Unix(path) => bind(path),
    };
    ready.map_err(|error| {
        Failure::new(
            Exit::System,
            format!(
                "cannot serve metrics at {at}: {}; give {option} another address or port",
                without_number(&error)
            ),
        )
    })
}

/// The listener of a process that this one goes on for.
pub(crate) fn kept(at: &MetricsAt, listener: OwnedFd) -> io::Result<Listener> {
    Ok(match at {
        MetricsAt::Tcp(_) => Listener::Tcp(listener.into()),
        MetricsAt::Unix(path) => Listener::Unix(listener.into(), SocketFile::of(path)?),
    })
}

/// Makes the socket `path` for its owner only. Replaces one at which nobody listens.
fn bind(path: &Path) -> io::Result<Listener> {
    if symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket())
        && UnixStream::connect(path)
            .is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
    {
        std::fs::remove_file(path)?;
    }
    // The umask sets the mode of the socket (unix(7)). No other thread makes files yet.
    let before = umask(Mode::from_raw_mode(0o177));
    let bound = UnixListener::bind(path);
    umask(before);
    let listener = bound?;
    let file = SocketFile::of(path)?;
    listener.set_nonblocking(true)?;
    Ok(Listener::Unix(listener, file))
}

/// A TCP or Unix connection.
trait Connection: AsyncRead + AsyncWrite + Unpin + Send {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send> Connection for T {}

enum Ready {
    Tcp(tokio::net::TcpListener),
    Unix(tokio::net::UnixListener),
}

impl Ready {
    async fn accept(&self) -> io::Result<Box<dyn Connection>> {
        Ok(match self {
            Ready::Tcp(listener) => Box::new(listener.accept().await?.0),
            Ready::Unix(listener) => Box::new(listener.accept().await?.0),
        })
    }
}

/// A function that renders the text.
pub(crate) type Render = Arc<dyn Fn() -> String + Send + Sync>;

/// Serves until it is dropped. Must be called within tokio.
pub(crate) async fn serve(listener: Listener, render: Render) -> io::Result<()> {
    let (listener, _file) = match listener {
        Listener::Tcp(listener) => (
            Ready::Tcp(tokio::net::TcpListener::from_std(listener)?),
            None,
        ),
        Listener::Unix(listener, file) => {
            let listener = tokio::net::UnixListener::from_std(listener)?;
            (Ready::Unix(listener), Some(file))
        }
    };
    let slots = Arc::new(Semaphore::new(RENDERED));
    let answering = Arc::new(Mutex::new(Youngest::default()));
    let mut receiving = Youngest::default();
    loop {
        tokio::time::sleep(receiving.time_until_room()).await;
        match listener.accept().await {
            Ok(stream) => {
                let (render, slots, answering) = (render.clone(), slots.clone(), answering.clone());
                let task = tokio::spawn(async move {
                    // A client that hangs up or is too slow gets no answer.
                    if let Ok(Ok((stream, request))) = timeout(ANSWER_LIMIT, receive(stream)).await
                    {
                        let task = tokio::spawn(answer(stream, request, render, slots));
                        answering.lock().push(task.abort_handle());
                    }
                });
                receiving.push(task.abort_handle());
                // A request that has come is read before further connections are accepted.
                tokio::task::yield_now().await;
            }
            Err(error) => {
                tracing::debug!("metrics: {error}");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

/// The tasks of the youngest connections. An older one is ended, which closes its connection.
#[derive(Debug, Default)]
struct Youngest(VecDeque<(Instant, AbortHandle)>);

impl Youngest {
    /// How long until a further connection ends none that has had less than [`TIME_TO_SEND`].
    fn time_until_room(&mut self) -> Duration {
        self.0.retain(|(_, task)| !task.is_finished());
        match self.0.front() {
            Some((since, _)) if self.0.len() >= CLIENTS => {
                TIME_TO_SEND.saturating_sub(since.elapsed())
            }
            _ => Duration::ZERO,
        }
    }

    fn push(&mut self, task: AbortHandle) {
        self.0.retain(|(_, task)| !task.is_finished());
        if self.0.len() >= CLIENTS
            && let Some((_, oldest)) = self.0.pop_front()
        {
            oldest.abort();
        }
        self.0.push_back((Instant::now(), task));
    }
}

/// A request, and whether it is complete and not too long.
type Request = (Vec<u8>, bool);

/// Reads a request.
async fn receive(mut stream: Box<dyn Connection>) -> io::Result<(Box<dyn Connection>, Request)> {
    let mut request = Vec::with_capacity(1024);
    let whole = loop {
        if request.windows(4).any(|end| end == b"\r\n\r\n") {
            break true;
        }
        let room = REQUEST_MAX - request.len();
        if room == 0
            || (&mut stream)
                .take(room as u64)
                .read_buf(&mut request)
                .await?
                == 0
        {
            break false;
        }
    };
    Ok((stream, (request, whole)))
}

async fn answer(
    mut stream: Box<dyn Connection>,
    (request, whole): Request,
    render: Render,
    slots: Arc<Semaphore>,
) -> io::Result<()> {
    let (status, body) = match status(&request, whole) {
        // Rendering may wait for other processes, and goes on when its client is gone: the slot is
        // free when it has ended.
        "200 OK" => {
            let text = async {
                let slot = slots.acquire_owned().await.map_err(io::Error::other)?;
                let text = tokio::task::spawn_blocking(move || {
                    let text = render();
                    drop(slot);
                    text
                });
                text.await.map_err(io::Error::other)
            };
            ("200 OK", timeout(RENDERING, text).await??)
        }
        other => (other, format!("{other}\n")),
    };
    // A status 405 needs the header Allow (RFC 9110 section 15.5.6).
    let allow = match status.starts_with("405 ") {
        true => "Allow: GET, HEAD\r\n",
        false => "",
    };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {CONTENT_TYPE}\r\nContent-Length: {}\r\n\
         {allow}Connection: close\r\n\r\n",
        body.len()
    );
    let answer = async {
        stream.write_all(head.as_bytes()).await?;
        // HEAD gets the header of GET without the content (RFC 9110 section 9.3.2).
        if !request.starts_with(b"HEAD ") {
            stream.write_all(body.as_bytes()).await?;
        }
        stream.shutdown().await
    };
    timeout(ANSWER_LIMIT, answer).await?
}

impl Listener {
    /// The URL of the listener, for curl.
    fn url(&self) -> String {
        match self {
            Listener::Tcp(listener) => match listener.local_addr() {
                Ok(address) => format!("http://{address}/metrics"),
                Err(error) => format!("an unknown address: {error}"),
            },
            Listener::Unix(_, file) => format!("unix:{}", file.path.display()),
        }
    }
}

/// Renders the text of all mounts. Requests within [`FRESH`] get the same text, so that many
/// clients do not cause more requests to the mounts.
fn all_mounts() -> Render {
    let last: Mutex<Option<(Instant, String)>> = Mutex::new(None);
    Arc::new(move || {
        let mut last = last.lock();
        if let Some((at, text)) = &*last
            && at.elapsed() < FRESH
        {
            return text.clone();
        }
        let found = mount_list::all().unwrap_or_default();
        let text = prometheus::render_all(&mount_list::on_top(found));
        *last = Some((Instant::now(), text.clone()));
        text
    })
}

/// Runs `metrics` until a signal ends it.
pub(crate) fn run(args: &MetricsArgs) -> Result<(), Failure> {
    let listener = listen(&args.listen, "--listen")?;
    // Not before: the port may be a reserved one. And before there are other threads.
    privileges::give_up_for_metrics();
    let system = |error: io::Error| Failure::new(Exit::System, format!("cannot serve: {error}"));
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(system)?;
    let served = runtime.block_on(async {
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        crate::output::message(format_args!(
            "serving the metrics of all mounts at {}",
            listener.url()
        ));
        tokio::select! {
            served = serve(listener, all_mounts()) => served,
            _ = terminate.recv() => Ok(()),
            _ = interrupt.recv() => Ok(()),
        }
    });
    // This does not wait for a mount that does not answer.
    runtime.shutdown_background();
    served.map_err(system)
}

/// The status for a request line (RFC 9112 section 3).
fn status(request: &[u8], whole: bool) -> &'static str {
    let line = request
        .split(|&byte| byte == b'\r')
        .next()
        .unwrap_or_default();
    let words: Vec<_> = line.split(|&byte| byte == b' ').collect();
    match words[..] {
        [_, _, version] if whole && version.starts_with(b"HTTP/1.") => match (words[0], words[1]) {
            (b"GET" | b"HEAD", target) => match target.split(|&byte| byte == b'?').next() {
                Some(b"/metrics") => "200 OK",
                _ => "404 Not Found",
            },
            _ => "405 Method Not Allowed",
        },
        _ => "400 Bad Request",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_bytes_are_answered(request: Vec<u8>, whole: bool) {
            prop_assert_ne!(status(&request, whole), "");
        }
    }
}
