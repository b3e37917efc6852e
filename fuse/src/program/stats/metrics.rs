//! Prometheus text over HTTP/1.1 (RFC 9112), on the address of option `metrics`: `GET /metrics`
//! and nothing else.
//!
//! Whoever connects may be anybody: a request has at most [`REQUEST_MAX`] bytes and
//! [`PATIENCE`], its headers are not looked at, and no more than [`CLIENTS`] are served at a
//! time. Each connection carries one request.

use super::{Source, prometheus};
use crate::program::failure::{Exit, Failure};
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;

/// Requests at a time; others wait in the listener's backlog.
const CLIENTS: usize = 4;
/// For one request and its answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// Longest request with its headers, in bytes.
const REQUEST_MAX: usize = 8 << 10;

/// Takes the address: before anything is mounted, so that a mistake is told.
pub(in crate::program) fn listen(address: SocketAddr) -> Result<TcpListener, Failure> {
    let listener = TcpListener::bind(address);
    let ready = listener.and_then(|l| l.set_nonblocking(true).map(|()| l));
    ready.map_err(|error| {
        Failure::new(
            Exit::System,
            format!(
                "cannot serve metrics at {address}: {error}; give metrics= another address or port"
            ),
        )
    })
}

/// Serves until it is dropped. Runs in tokio.
pub(in crate::program) async fn serve(
    listener: TcpListener,
    source: Arc<Source>,
) -> io::Result<()> {
    let listener = tokio::net::TcpListener::from_std(listener)?;
    let slots = Arc::new(Semaphore::new(CLIENTS));
    loop {
        let Ok(slot) = slots.clone().acquire_owned().await else {
            return Ok(());
        };
        match listener.accept().await {
            Ok((stream, _)) => {
                let source = source.clone();
                tokio::spawn(async move {
                    let talk = converse(stream, || prometheus::render(&source.document()));
                    let _ = tokio::time::timeout(PATIENCE, talk).await;
                    drop(slot);
                });
            }
            Err(error) => {
                tracing::debug!("metrics: {error}");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

async fn converse(mut stream: TcpStream, metrics: impl FnOnce() -> String) -> io::Result<()> {
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
    let (status, body) = match status(&request, whole) {
        "200 OK" => ("200 OK", metrics()),
        other => (other, format!("{other}\n")),
    };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n\
         Content-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).await?;
    stream.write_all(body.as_bytes()).await?;
    stream.shutdown().await
}

/// The answer to a request line (RFC 9112 section 3).
fn status(request: &[u8], whole: bool) -> &'static str {
    let line = request
        .split(|&byte| byte == b'\r')
        .next()
        .unwrap_or_default();
    let words: Vec<_> = line.split(|&byte| byte == b' ').collect();
    match words[..] {
        [_, _, version] if whole && version.starts_with(b"HTTP/1.") => match (words[0], words[1]) {
            (b"GET", b"/metrics") => "200 OK",
            (b"GET", _) => "404 Not Found",
            _ => "405 Method Not Allowed",
        },
        _ => "400 Bad Request",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn requests() {
        for (request, whole, answer) in [
            (
                &b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"[..],
                true,
                "200 OK",
            ),
            (b"GET /metrics HTTP/1.0\r\n\r\n", true, "200 OK"),
            (b"GET / HTTP/1.1\r\n\r\n", true, "404 Not Found"),
            (
                b"POST /metrics HTTP/1.1\r\n\r\n",
                true,
                "405 Method Not Allowed",
            ),
            (
                b"GET /metrics HTTP/1.1\r\nHost: x",
                false,
                "400 Bad Request",
            ),
            (b"GET /metrics\r\n\r\n", true, "400 Bad Request"),
            (b"", false, "400 Bad Request"),
        ] {
            assert_eq!(status(request, whole), answer);
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_answered(request: Vec<u8>, whole: bool) {
            prop_assert_ne!(status(&request, whole), "");
        }
    }
}
