//! The holder's part of an upgrade: a successor is started beside the daemon, and gets the mount when it
//! is ready for it.
//!
//! The daemon asks for the successor, which waits. Then the daemon says that its mount can be had, and is stopped
//! (SIGSTOP): what it has left is as after its death. The successor looks at that and changes nothing. If it
//! can go on with it, the daemon is killed, and all that follows is as after a crash. If anything fails before,
//! the successor is killed and the daemon goes on (SIGCONT), which has lost nothing but the time.

use crate::holder::protocol::{Packet, Request, Why, send};
use crate::holder::state::{Daemon, Holder, Of, START, Stage, Upgrade};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rustix::net::SendFlags;
use std::fs;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};
use tracing::{info, warn};

/// The time that a successor has until it is ready for the mount. Nobody waits for it.
const READY: Duration = Duration::from_secs(10);
/// How long it may wait then until the daemon gives it the mount.
const WAIT: Duration = Duration::from_secs(60);
/// How long to wait until a daemon has stopped.
const STOP: Duration = Duration::from_secs(1);
/// After which time, and how often from then on, to look whether it only waits in the kernel. Waits for something else than
/// this process itself are shorter, and what the kernel does after them the successor has to find done.
const LASTS: Duration = Duration::from_millis(100);
const LOOK: Duration = Duration::from_millis(5);
/// The time that the successor has while nobody serves: mostly some milliseconds.
const GO: Duration = Duration::from_secs(10);
/// What is told when the successor serves: a line of JSON, as all answers to commands.
pub(super) const SERVES: &str = "{\"upgraded\":true}\n";

/// Tells who waits for it that the successor serves.
pub(super) fn tell(told: &OwnedFd) {
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    // Nobody may be left to read it.
    let _ = rustix::net::send(told, SERVES.as_bytes(), flags);
}

/// Whether no thread of a process that was told to stop runs code of the program again before it is told to go on: it has
/// stopped, or waits in the kernel, uninterruptibly. A thread that drops pages of the mount waits like that for a READ
/// which this process itself would have to answer.
fn has_no_thread_that_runs(pid: Pid) -> bool {
    let Ok(mut threads) = fs::read_dir(format!("/proc/{pid}/task")) else {
        return false;
    };
    threads.all(|thread| {
        // Its state stands behind its name, which may have any characters (proc_pid_stat(5)).
        let stat = thread.and_then(|thread| fs::read(thread.path().join("stat")));
        let stat = stat.unwrap_or_default();
        let name = stat.iter().rposition(|byte| *byte == b')');
        let state = name.and_then(|end| stat.get(end + 2));
        matches!(state, Some(b'T' | b't' | b'D' | b'Z' | b'X'))
    })
}

impl Holder {
    /// Does what an upgrade needs. Returns the answer, if it is to be given now.
    pub(super) fn obey_upgrade(
        &mut self,
        of: Of,
        request: Request,
        told: Option<OwnedFd>,
    ) -> Option<Packet> {
        let done = Packet::default().with(0);
        let stage = self.upgrade.as_ref().map(|upgrade| &upgrade.stage);
        match (of, request, stage) {
            (Of::Serving, Request::Upgrade, None) => {
                return self.begin_upgrade(told?).err().map(|why| why.answer());
            }
            (Of::Serving, Request::Upgrade, Some(_)) => {
                let why = "another upgrade of this mount is under way";
                return Some(Why::new(libc::EBUSY, why).answer());
            }
            (Of::Serving, Request::HandOver, Some(Stage::Waiting)) => {
                self.stop_daemon();
                return None;
            }
            (Of::Serving, Request::HandOver, Some(Stage::Failed(why))) => {
                let answer = why.answer();
                self.upgrade = None;
                return Some(answer);
            }
            (Of::Serving, Request::Cancel, _) => self.end_upgrade(),
            (Of::Successor, Request::Ready, Some(Stage::Starting)) => {
                self.enter(Stage::Waiting, WAIT);
                self.answer(Of::Serving, &done);
                return None;
            }
            (Of::Successor, Request::TakeOver, Some(Stage::Restoring)) => self.succeed(),
            (Of::Successor, Request::Refuse(why), Some(_)) => self.fail_upgrade(why),
            _ => return Some(Why::new(libc::EINVAL, "there is no upgrade").answer()),
        }
        Some(done)
    }

    fn begin_upgrade(&mut self, told: OwnedFd) -> Result<(), Why> {
        let failed = |error: std::io::Error| {
            let number = error.raw_os_error().unwrap_or(libc::EIO);
            Why::new(number, format!("cannot start a process: {error}"))
        };
        let (pid, talk) = self.program.start_beside().map_err(failed)?;
        self.upgrade = Some(Upgrade {
            successor: Daemon::new(pid, talk, false).map_err(failed)?,
            stage: Stage::Starting,
            deadline: Instant::now() + READY,
            told,
        });
        Ok(())
    }

    fn enter(&mut self, stage: Stage, limit: Duration) {
        if let Some(upgrade) = &mut self.upgrade {
            upgrade.stage = stage;
            upgrade.deadline = Instant::now() + limit;
        }
    }

    fn stop_daemon(&mut self) {
        let _ = kill(self.daemon.pid, Signal::SIGSTOP);
        self.enter(Stage::Stopping(Instant::now() + STOP), LASTS);
    }

    /// A process has stopped.
    pub(super) fn has_stopped(&mut self, pid: Pid) {
        let stage = self.upgrade.as_ref().map(|upgrade| &upgrade.stage);
        if pid == self.daemon.pid && matches!(stage, Some(Stage::Stopping(_))) {
            self.enter(Stage::Restoring, GO);
            self.answer(Of::Successor, &Packet::default().with(0));
        }
    }

    /// The successor gets the mount.
    fn succeed(&mut self) {
        let Some(upgrade) = self.upgrade.take() else {
            return;
        };
        info!("another program goes on with the mount");
        self.kill_daemon();
        self.daemon = upgrade.successor;
        self.daemon.deadline = Some(Instant::now() + START);
        self.told = Some(upgrade.told);
    }

    /// The successor is not given the mount. The daemon serves on, and is told when it asks next.
    pub(super) fn fail_upgrade(&mut self, why: Why) {
        let Some(upgrade) = &self.upgrade else {
            return;
        };
        let _ = kill(upgrade.successor.pid, Signal::SIGKILL);
        match upgrade.stage {
            Stage::Waiting => self.enter(Stage::Failed(why), WAIT),
            Stage::Failed(_) => self.upgrade = None,
            Stage::Starting => {
                self.upgrade = None;
                self.answer(Of::Serving, &why.answer());
            }
            Stage::Stopping(_) | Stage::Restoring => {
                self.upgrade = None;
                let _ = kill(self.daemon.pid, Signal::SIGCONT);
                self.answer(Of::Serving, &why.answer());
            }
        }
    }

    /// The successor has ended.
    pub(super) fn successor_ended(&mut self, how: &str) {
        if matches!(&self.upgrade, Some(upgrade) if matches!(upgrade.stage, Stage::Failed(_))) {
            // The daemon has still to be told why.
            return;
        }
        let why = format!("the new program ended with {how} before it had the mount: see the log");
        self.fail_upgrade(Why::new(libc::EIO, why));
    }

    /// The time for what an upgrade waits for is over.
    pub(super) fn upgrade_is_late(&mut self) {
        let late = |what: &str, limit: Duration| {
            let why = format!("the new program {what} within {} s", limit.as_secs());
            warn!("{why}");
            Why::new(libc::ETIMEDOUT, why)
        };
        match self.upgrade.as_ref().map(|upgrade| &upgrade.stage) {
            Some(Stage::Stopping(_)) if has_no_thread_that_runs(self.daemon.pid) => {
                self.has_stopped(self.daemon.pid);
            }
            Some(&Stage::Stopping(until)) if Instant::now() < until => {
                self.enter(Stage::Stopping(until), LOOK);
            }
            Some(Stage::Stopping(_)) => self.fail_upgrade(late(
                "could not have the mount: the old one did not stop",
                STOP,
            )),
            Some(Stage::Starting) => self.fail_upgrade(late("was not ready", READY)),
            Some(Stage::Restoring) => self.fail_upgrade(late("did not go on", GO)),
            Some(Stage::Waiting | Stage::Failed(_)) => self.end_upgrade(),
            None => {}
        }
    }

    /// Kills the successor, and tells nobody.
    pub(super) fn end_upgrade(&mut self) {
        if let Some(upgrade) = self.upgrade.take() {
            let _ = kill(upgrade.successor.pid, Signal::SIGKILL);
            // If it had been stopped.
            let _ = kill(self.daemon.pid, Signal::SIGCONT);
        }
        self.told = None;
    }

    /// Answers the request that one of them waits for.
    fn answer(&mut self, of: Of, answer: &Packet) {
        if let Some(talk) = self.of(of).and_then(|daemon| daemon.talk.as_ref()) {
            // A daemon that does not read it is ending.
            let _ = send(&**talk, answer.as_bytes(), &[]);
        }
    }
}
