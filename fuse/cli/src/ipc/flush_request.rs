//! The request `sync` of the control socket. By it `nfsrdma umount` has the process write
//! everything, and learns whether the mount goes on elsewhere.
//!
//! The process answers with lines: from time to time the number of bytes still to be written, and
//! at the end one JSON object. A mount that was unmounted here may be in use in another mount
//! namespace, which got a copy of it when it was created. Then the connection to the kernel goes
//! on, and so does the process. If umount(2) removed the last copy, it aborts the connection before
//! it returns.

use crate::ipc::control::{self, Feed};
use crate::ipc::sockets;
use crate::mounts::Mount;
use crate::output::plain;
use nfsrdma_fs::fs::{Fs, Unwritten};
use nfsrdma_nfs3::Nfs3;
use nfsrdma_rpcrdma::words::counted;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::{Deserialize, Serialize};
use std::io::{BufRead, BufReader, Read};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::io::AsyncWriteExt;

/// The name of the request.
pub(crate) const SYNC: &str = "sync";
/// The interval between two lines about the bytes left.
pub(crate) const PROGRESS: Duration = Duration::from_millis(200);
/// How long the RELEASE of a file may take to arrive after its close. Files that are open after
/// that time mean that the mount is in use, and nobody waits for it.
const RELEASE: Duration = Duration::from_secs(1);
/// How long the last reference to a mount that is gone may take to be dropped.
const ABORT: Duration = Duration::from_millis(300);
/// Most bytes of an answer that a client accepts.
const ANSWER_MAX: u64 = 1 << 20;

/// The last line of the answer.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Answer {
    /// The kernel may still send requests, since the mount exists here or in another namespace.
    pub(crate) connected: bool,
    /// Programs have files open, so not all data was waited for.
    pub(crate) in_use: bool,
    /// Data that could not be written, and whose error no program has received.
    pub(crate) lost: Vec<String>,
}

/// A line about lost data. It is one line whatever the name has in it, which comes from users.
pub(crate) fn lost_line(unwritten: &Unwritten) -> String {
    let name = plain(unwritten.name.as_deref().unwrap_or("name not known"));
    let what = match unwritten.ranges {
        1 => "bytes".to_owned(),
        ranges => {
            let bytes = counted(unwritten.bytes, "byte");
            format!("{bytes} in {ranges} ranges of bytes")
        }
    };
    format!(
        "{what} {} to {} of {name} (file {}) are lost: {}",
        unwritten.range.start, unwritten.range.end, unwritten.fileid, unwritten.reason
    )
}

/// Whether the connection behind this descriptor of /dev/fuse still exists.
pub(crate) fn is_connected(device: &OwnedFd) -> bool {
    let mut poll_fd = [PollFd::new(device, PollFlags::IN)];
    let polled = poll(&mut poll_fd, Some(&Timespec::default()));
    let events = poll_fd[0].revents();
    polled.is_ok() && !events.intersects(PollFlags::ERR | PollFlags::NVAL)
}

/// Answers one request.
pub(crate) fn feed<N: Nfs3>(fs: Arc<Fs<N>>, device: Arc<OwnedFd>) -> Feed {
    Box::new(move |mut stream| {
        Box::pin(async move {
            let begin = Instant::now();
            let flush = fs.write_back_all();
            tokio::pin!(flush);
            let mut in_use = false;
            loop {
                tokio::select! {
                    () = &mut flush => break,
                    () = tokio::time::sleep(PROGRESS) => {}
                }
                if begin.elapsed() >= RELEASE && fs.has_open_files() && is_connected(&device) {
                    in_use = true;
                    break;
                }
                let line = format!("{}\n", fs.unsafe_bytes());
                if stream.write_all(line.as_bytes()).await.is_err() {
                    return;
                }
            }
            let end = Instant::now();
            while is_connected(&device) && !in_use && end.elapsed() < ABORT {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            let answer = Answer {
                connected: is_connected(&device),
                in_use,
                lost: fs.lost().iter().map(lost_line).collect(),
            };
            if let Ok(mut text) = serde_json::to_string(&answer) {
                text.push('\n');
                // The client may be gone.
                let _ = stream.write_all(text.as_bytes()).await;
            }
        })
    })
}

/// How a request ended.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Answered(Answer),
    /// Nobody listens, or the session has ended.
    NoAnswer,
    TimedOut,
}

/// Sends the request to the process that serves `mount`, and waits at most `limit`. A process that
/// is not `pid` serves a younger mount, to which the kernel has given the device number.
pub(crate) fn ask(
    mount: &Mount,
    pid: Option<i32>,
    limit: Duration,
    mut progress: impl FnMut(u64),
) -> Outcome {
    let Ok(stream) = control::begin_to_ask(&mount.device, mount.owner, SYNC) else {
        return Outcome::NoAnswer;
    };
    if pid.is_some_and(|pid| sockets::peer(&stream) != Some(pid)) {
        return Outcome::NoAnswer;
    }
    let begin = Instant::now();
    let Ok(timeouts) = stream.try_clone() else {
        return Outcome::NoAnswer;
    };
    let mut lines = BufReader::new(stream.take(ANSWER_MAX));
    let mut line = String::new();
    loop {
        let left = limit.saturating_sub(begin.elapsed());
        if left.is_zero() || timeouts.set_read_timeout(Some(left)).is_err() {
            return Outcome::TimedOut;
        }
        line.clear();
        match lines.read_line(&mut line) {
            Ok(0) => return Outcome::NoAnswer,
            Ok(_) => {}
            Err(error)
                if matches!(
                    error.kind(),
                    std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut
                ) =>
            {
                return Outcome::TimedOut;
            }
            Err(_) => return Outcome::NoAnswer,
        }
        if let Ok(bytes) = line.trim_end().parse() {
            progress(bytes);
            continue;
        }
        return match serde_json::from_str::<Answer>(&line) {
            Ok(answer) => Outcome::Answered(answer),
            Err(_) => Outcome::NoAnswer,
        };
    }
}
