//! What the holder knows: of its daemon, and of an upgrade.

use crate::holder::failures::Failures;
use crate::holder::program::Program;
use crate::holder::protocol::{Name, Why};
use nix::sys::signal::{Signal, kill};
use nix::sys::signalfd::SignalFd;
use nix::unistd::Pid;
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// The most descriptors that are kept.
pub(super) const KEPT_MAX: usize = 128;
/// The time that a successor has until it serves. It does not wait for the server.
pub(super) const START: Duration = Duration::from_secs(30);

/// A process that serves the mount, or is to.
#[derive(Debug)]
pub(super) struct Daemon {
    pub(super) pid: Pid,
    pub(super) talk: Option<Rc<OwnedFd>>,
    /// Hangs up when the daemon dies.
    pub(super) life: Option<OwnedFd>,
    /// Where the daemon reads the signals that came to the holder.
    pub(super) orders: Option<OwnedFd>,
    pub(super) serving: Option<Instant>,
    /// When a successor must serve at the latest; the first daemon has no limit.
    pub(super) deadline: Option<Instant>,
    pub(super) is_first: bool,
    /// Whether it was started again from the holder's own program, and not from the path.
    pub(super) own: bool,
    /// The exit status of the command, when the mount has ended.
    pub(super) bye: Option<u8>,
}

/// The state of the holder, in memory that does not grow.
#[derive(Debug)]
pub struct Holder {
    pub(super) program: Program,
    pub(super) signals: SignalFd,
    pub(super) kept: [Option<(Name, OwnedFd)>; KEPT_MAX],
    pub(super) daemon: Daemon,
    pub(super) upgrade: Option<Upgrade>,
    /// Is told when the daemon serves, which is a successor after an upgrade.
    pub(super) told: Option<OwnedFd>,
    /// The signals that came, of those that end a mount. A successor has to know them as well.
    pub(super) ending: [u8; 2],
    pub(super) failures: Failures,
    /// A predecessor whose end is not known, which may have been by itself.
    pub(super) dying: Option<Pid>,
}

/// A daemon that speaks with the holder: that of the mount, or the one that waits to be it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Of {
    Serving,
    Successor,
}

/// An upgrade under way.
#[derive(Debug)]
pub(super) struct Upgrade {
    pub(super) successor: Daemon,
    pub(super) stage: Stage,
    pub(super) deadline: Instant,
    /// Is told when the successor serves.
    pub(super) told: OwnedFd,
}

#[derive(Debug)]
pub(super) enum Stage {
    /// The daemon waits for the answer to [`Request::Upgrade`].
    Starting,
    /// The successor waits for the answer to [`Request::Ready`], and the daemon gets its data to the server.
    Waiting,
    /// The successor is gone, and the daemon is still to ask.
    Failed(Why),
    /// The daemon waits for the answer to [`Request::HandOver`], and is to stop until this time.
    Stopping(Instant),
    /// It has stopped, and the successor looks at what it has left.
    Restoring,
}

impl Daemon {
    pub(super) fn new(pid: Pid, talk: OwnedFd, is_first: bool) -> io::Result<Daemon> {
        // A daemon that does not read its answers must not stop the holder.
        rustix::io::ioctl_fionbio(&talk, true)?;
        Ok(Daemon {
            pid,
            talk: Some(Rc::new(talk)),
            life: None,
            orders: None,
            serving: None,
            deadline: (!is_first).then(|| Instant::now() + START),
            is_first,
            own: false,
            bye: None,
        })
    }

    /// Whether it is the first one, and has no mount yet that could be kept.
    pub(super) fn only_mounts(&self) -> bool {
        self.is_first && self.serving.is_none()
    }
}

impl Holder {
    pub(super) fn of(&mut self, of: Of) -> Option<&mut Daemon> {
        match of {
            Of::Serving => Some(&mut self.daemon),
            Of::Successor => self.upgrade.as_mut().map(|upgrade| &mut upgrade.successor),
        }
    }

    /// Its number cannot belong to another process: this one, its parent, has not waited for it yet.
    pub(super) fn kill_daemon(&self) {
        let _ = kill(self.daemon.pid, Signal::SIGKILL);
    }
}
