//! Lets other processes wait for the end of the process that serves a mount.
//!
//! The serving process listens at a socket named after the mount's device number (see [`sockets`]).
//! A watcher that connects gets end of file when the process is gone, which is after the last
//! flush. Before that, it gets a line for each range of data that could not be written, and then
//! [`COMPLETE`]. A process that is killed before that has not told what is lost. Only root and the
//! owner of the mount can connect.
//!
//! The kernel gives the device number to the next mount as soon as the file system is gone, while
//! the process may still flush. So when its session has ended, the process gives up the name
//! ([`ExitNotifier::end_session`]) and keeps the connected watchers. During the last flush it sends
//! them lines with the number of bytes still to be written. A session may also end before its mount
//! is gone, because `umount -f` aborts the session and then fails if the mount is in use. For
//! watchers that connect after that, the process takes a second name.

use crate::ipc::keeper::Keeper;
use crate::ipc::sockets;
use nix::sys::socket::{setsockopt, sockopt};
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::{Duration, Instant};

fn name(device: &str) -> String {
    format!("{device}.end")
}

/// The second name: that of a process whose session has ended and that only flushes.
fn last_name(device: &str) -> String {
    format!("{device}.last")
}

/// The names of older processes, which do not send [`COMPLETE`].
fn old_name(device: &str) -> String {
    format!("{device}.watch")
}

fn old_last_name(device: &str) -> String {
    format!("{device}.flush")
}

/// The line after which nothing is left to be told: what was not named as lost is at the server.
const COMPLETE: &str = "complete";

/// The name of the listener at the holder.
const KEPT: &str = "end";

/// Most watchers at a time. Further ones are disconnected.
const MOST_WATCHERS: usize = 64;

/// The serving side. It lives until the process ends.
#[derive(Debug)]
pub(crate) struct ExitNotifier {
    device: String,
    /// The first or the second name, or `None` if a younger process has taken it.
    name: Option<sockets::Name>,
    listener: UnixListener,
    session_ended: bool,
    /// Watchers accepted since the end of the session.
    watchers: Vec<UnixStream>,
    /// Keeps the listener.
    keeper: Keeper,
}

impl ExitNotifier {
    /// Announces the mount with this `major:minor`. Watchers of a process that this one replaces go on.
    pub(crate) fn begin(device: &str, keeper: &Keeper) -> io::Result<ExitNotifier> {
        let kept = keeper
            .take(KEPT)
            .map(|kept| sockets::listen_on(kept, &name(device)));
        let mut notifier = match kept {
            Some(Ok(socket)) => ExitNotifier::of(device, socket)?,
            Some(Err(_)) | None => ExitNotifier::listen(device)?,
        };
        keeper.keep_listener(KEPT, notifier.listener.as_fd());
        notifier.keeper = keeper.clone();
        Ok(notifier)
    }

    fn listen(device: &str) -> io::Result<ExitNotifier> {
        ExitNotifier::of(device, sockets::listen(&name(device))?)
    }

    fn of(
        device: &str,
        (listener, name): (UnixListener, sockets::Name),
    ) -> io::Result<ExitNotifier> {
        listener.set_nonblocking(true)?;
        Ok(ExitNotifier {
            device: device.to_owned(),
            name: Some(name),
            listener,
            session_ended: false,
            watchers: Vec::new(),
            keeper: Keeper::default(),
        })
    }

    /// Exchanges the first name for the second. Watchers still see the end of the process.
    pub(crate) fn end_session(&mut self) {
        if std::mem::replace(&mut self.session_ended, true) {
            return;
        }
        let renamed = self
            .name
            .as_mut()
            .map(|own| own.rename(&last_name(&self.device)));
        if !matches!(renamed, Some(Ok(true))) {
            self.name = None;
        }
        self.accept();
    }

    /// Takes the name again if it is gone. Watchers stay connected.
    pub(crate) fn renew(&mut self) {
        if self.session_ended || !self.name.as_ref().is_some_and(sockets::Name::is_missing) {
            return;
        }
        self.accept();
        if let Ok(other) = ExitNotifier::listen(&self.device) {
            (self.listener, self.name) = (other.listener, other.name);
            self.keeper.keep_listener(KEPT, self.listener.as_fd());
        }
    }

    /// Removes the name, for a process that is about to end. Watchers stay connected.
    pub(crate) fn remove_name(&mut self) {
        self.name = None;
    }

    /// Accepts the watchers that have connected.
    fn accept(&mut self) {
        while let Ok((watcher, _)) = self.listener.accept() {
            if self.watchers.len() < MOST_WATCHERS && watcher.set_nonblocking(true).is_ok() {
                let _ = setsockopt(&watcher, sockopt::SndBuf, &ROOM_BEFORE_END);
                self.watchers.push(watcher);
            }
        }
    }

    /// Sends the number of bytes still to be written to the watchers. Never blocks: a watcher that
    /// does not read misses it.
    pub(crate) fn report_unwritten(&mut self, bytes: u64) {
        self.accept();
        for watcher in &mut self.watchers {
            let _ = watcher.write_all(format!("{bytes}\n").as_bytes());
        }
    }

    /// Sends a line for each range of lost data to the watchers, and that this is all. Never blocks
    /// either. A watcher that has read nothing for a while has room for it nevertheless.
    pub(crate) fn report_end(&mut self, lost: &[String]) {
        self.accept();
        let mut lines = lost.join("\n");
        lines.truncate(lines.floor_char_boundary(LOST_MAX));
        if !lines.is_empty() {
            lines.push('\n');
        }
        lines.push_str(COMPLETE);
        lines.push('\n');
        for watcher in &mut self.watchers {
            let _ = setsockopt(&*watcher, sockopt::SndBuf, &ROOM_AT_END);
            let _ = watcher.write_all(lines.as_bytes());
        }
    }
}

/// The send buffer of a watcher's socket while there is only progress to tell, and at the end. The
/// lines of progress that a stopped watcher does not read leave room for the last words.
const ROOM_BEFORE_END: usize = 4 << 10;
const ROOM_AT_END: usize = 128 << 10;

/// Most bytes about lost data that a process sends and a watcher accepts, without [`COMPLETE`].
const LOST_MAX: usize = 16 << 10;

/// The waiting side. Connect before unmounting.
#[derive(Debug)]
pub(crate) struct ExitWatch {
    stream: UnixStream,
    /// The process sends [`COMPLETE`].
    says_when_complete: bool,
}

/// How the wait ended.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ExitOutcome {
    /// The process is gone. The text has a line for each range of data that it reported as lost.
    Exited(String),
    /// The process is gone, and has not told all that is lost. The text is what it told.
    Killed(String),
    /// The process is still there.
    TimedOut,
}

impl ExitWatch {
    /// Watches the process that serves `device` for `owner`. Fails if there is none, or if it is in
    /// another mount namespace.
    pub(crate) fn connect(device: &str, owner: Option<u32>) -> io::Result<ExitWatch> {
        Self::connect_to(&name(device), &old_name(device), owner)
    }

    /// Watches a process that still flushes after its session on `device` has ended.
    pub(crate) fn connect_last(device: &str, owner: Option<u32>) -> io::Result<ExitWatch> {
        Self::connect_to(&last_name(device), &old_last_name(device), owner)
    }

    fn connect_to(name: &str, old_name: &str, owner: Option<u32>) -> io::Result<ExitWatch> {
        let watch = |stream, says_when_complete| ExitWatch {
            stream,
            says_when_complete,
        };
        sockets::connect(name, owner)
            .map(|stream| watch(stream, true))
            .or_else(|error| match sockets::connect(old_name, owner) {
                Ok(stream) => Ok(watch(stream, false)),
                Err(_) => Err(error),
            })
    }

    /// The process ID, if the process is in this PID namespace.
    pub(crate) fn pid(&self) -> Option<i32> {
        sockets::peer(&self.stream)
    }

    /// Waits at most `limit` until the process has ended. `progress` gets each report of the bytes
    /// still to be written.
    pub(crate) fn wait(mut self, limit: Duration, mut progress: impl FnMut(u64)) -> ExitOutcome {
        let begin = Instant::now();
        let (mut line, mut said) = (Vec::new(), Vec::new());
        let mut complete = !self.says_when_complete;
        let mut piece = [0; 4096];
        loop {
            let left = limit.saturating_sub(begin.elapsed());
            if left.is_zero() || self.stream.set_read_timeout(Some(left)).is_err() {
                return ExitOutcome::TimedOut;
            }
            let read = match self.stream.read(&mut piece) {
                Ok(0) => break,
                Ok(n) => n,
                Err(error) => match error.kind() {
                    io::ErrorKind::Interrupted => continue,
                    io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
                        return ExitOutcome::TimedOut;
                    }
                    // The connection was reset: the process ended without reading.
                    _ => break,
                },
            };
            for &byte in &piece[..read] {
                if line.len() < LOST_MAX {
                    line.push(byte);
                }
                if byte != b'\n' {
                    continue;
                }
                match std::str::from_utf8(&line).map(|line| line.trim_end().parse()) {
                    Ok(Ok(bytes)) => progress(bytes),
                    _ if line.trim_ascii_end() == COMPLETE.as_bytes() => complete = true,
                    _ if said.len() < LOST_MAX => said.append(&mut line),
                    _ => {}
                }
                line.clear();
            }
        }
        // The last line may be an incomplete report of bytes, which is dropped.
        if !line.iter().all(u8::is_ascii_digit) {
            said.append(&mut line);
        }
        let said = String::from_utf8_lossy(&said).into_owned();
        match complete {
            true => ExitOutcome::Exited(said),
            false => ExitOutcome::Killed(said),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::geteuid;

    fn own() -> Option<u32> {
        Some(geteuid().as_raw())
    }

    #[test]
    fn the_end_is_seen() {
        let device = format!("test:{}", std::process::id());
        assert!(ExitWatch::connect(&device, own()).is_err());
        let mut notifier = ExitNotifier::listen(&device).unwrap();
        let early = ExitWatch::connect(&device, own()).unwrap();
        assert_eq!(early.pid(), Some(std::process::id() as i32));
        assert!(early.wait(Duration::from_millis(10), |_| ()) == ExitOutcome::TimedOut);
        let watch = ExitWatch::connect(&device, own()).unwrap();
        notifier.report_end(&[]);
        drop(notifier);
        assert!(watch.wait(Duration::from_secs(60), |_| ()) == ExitOutcome::Exited(String::new()));
    }

    #[test]
    fn a_process_of_an_older_version_is_believed_to_have_written_all() {
        let device = format!("old:{}", std::process::id());
        let (listener, _name) = sockets::listen(&old_name(&device)).unwrap();
        let watch = ExitWatch::connect(&device, own()).unwrap();
        drop(listener);
        assert!(watch.wait(Duration::from_secs(60), |_| ()) == ExitOutcome::Exited(String::new()));
        let (listener, _name) = sockets::listen(&old_last_name(&device)).unwrap();
        let watch = ExitWatch::connect_last(&device, own()).unwrap();
        drop(listener);
        assert!(watch.wait(Duration::from_secs(60), |_| ()) == ExitOutcome::Exited(String::new()));
    }

    #[test]
    fn the_name_goes_to_the_next_mount_before_the_process_ends() {
        let device = format!("next:{}", std::process::id());
        let mut old = ExitNotifier::listen(&device).unwrap();
        let watch = ExitWatch::connect(&device, own()).unwrap();
        let name = device.clone();
        let next = std::thread::spawn(move || ExitNotifier::listen(&name).unwrap());
        old.end_session();
        let next = next.join().unwrap();
        assert!(watch.wait(Duration::from_millis(10), |_| ()) == ExitOutcome::TimedOut);
        let other = ExitWatch::connect(&device, own()).unwrap();
        drop(old);
        assert!(other.wait(Duration::from_millis(10), |_| ()) == ExitOutcome::TimedOut);
        drop(next);
    }

    #[test]
    fn who_comes_after_the_session_is_told_too() {
        let device = format!("late:{}", std::process::id());
        let mut notifier = ExitNotifier::listen(&device).unwrap();
        assert!(ExitWatch::connect_last(&device, own()).is_err());
        notifier.end_session();
        assert!(ExitWatch::connect(&device, own()).is_err());
        let watch = ExitWatch::connect_last(&device, own()).unwrap();
        notifier.end_session();
        notifier.report_unwritten(17);
        notifier.report_end(&["bytes 1-2 of /a are lost".into()]);
        drop(notifier);
        let (said, mut told) = ("bytes 1-2 of /a are lost\n".to_owned(), Vec::new());
        let end = watch.wait(Duration::from_secs(60), |bytes| told.push(bytes));
        assert_eq!((end, told), (ExitOutcome::Exited(said), vec![17]));
        assert!(ExitWatch::connect_last(&device, own()).is_err());
    }

    #[test]
    fn progress_is_told_and_nobody_waited_for() {
        let device = format!("progress:{}", std::process::id());
        let mut notifier = ExitNotifier::listen(&device).unwrap();
        let watch = ExitWatch::connect(&device, own()).unwrap();
        let deaf = ExitWatch::connect(&device, own()).unwrap();
        notifier.end_session();
        for bytes in (0..100_000).rev() {
            notifier.report_unwritten(bytes);
        }
        let mut told = Vec::new();
        let early = Instant::now();
        notifier.report_end(&[]);
        drop(notifier);
        let end = watch.wait(Duration::from_secs(60), |bytes| told.push(bytes));
        assert_eq!(
            end,
            ExitOutcome::Exited(String::new()),
            "room was left for the end"
        );
        assert!(early.elapsed() < Duration::from_secs(60));
        assert!(!told.is_empty() && told[0] < 100_000, "{told:?}");
        drop(deaf);
    }

    #[test]
    fn long_last_words_are_cut_at_a_character() {
        let device = format!("words:{}", std::process::id());
        let mut notifier = ExitNotifier::listen(&device).unwrap();
        let watch = ExitWatch::connect(&device, own()).unwrap();
        notifier.end_session();
        notifier.report_end(&["é".repeat(LOST_MAX)]);
        drop(notifier);
        let end = watch.wait(Duration::from_secs(60), |_| ());
        let said = "é".repeat(LOST_MAX / 2);
        assert_eq!(end, ExitOutcome::Exited(said));
    }
}
