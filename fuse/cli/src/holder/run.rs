//! The holder's process: one thread that waits for its daemon, and starts a successor when it dies.

use crate::failure::Exit;
use crate::holder::client::Held;
use crate::holder::failures::{Failures, is_unsound};
use crate::holder::program::Program;
use crate::holder::protocol::{Name, Received, Request, pair, receive, send};
use crate::holder::text;
use nix::sys::signal::{SigSet, SigmaskHow, Signal, kill};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, fork};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::RecvFlags;
use rustix::process::set_parent_process_death_signal;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};
use tracing::{error, warn};

/// The most descriptors that are kept.
const KEPT_MAX: usize = 128;
/// The time that a successor has until it serves. It does not wait for the server.
const START: Duration = Duration::from_secs(30);
/// How long to wait after the system has refused a process, the most of these waits together, after which
/// the mount is given up, and the longest of them: each is twice the one before.
const REFUSED: Duration = Duration::from_secs(1);
const REFUSED_ALL: Duration = Duration::from_secs(5 * 60);
const REFUSED_MAX: Duration = Duration::from_secs(8);

/// Which process this is after [`split`].
#[derive(Debug)]
pub enum Side {
    Holder(Box<Holder>),
    Daemon(Held),
}

/// The process that is served by a daemon.
#[derive(Debug)]
struct Daemon {
    pid: Pid,
    talk: Option<OwnedFd>,
    /// Hangs up when the daemon dies.
    life: Option<OwnedFd>,
    /// Where the daemon reads the signals that came to the holder.
    orders: Option<OwnedFd>,
    serving: Option<Instant>,
    /// When a successor must serve at the latest; the first daemon has no limit.
    deadline: Option<Instant>,
    is_first: bool,
    /// The exit status of the command, when the mount has ended.
    bye: Option<u8>,
}

/// The state of the holder, in memory that does not grow.
#[derive(Debug)]
pub struct Holder {
    program: Program,
    signals: SignalFd,
    kept: [Option<(Name, OwnedFd)>; KEPT_MAX],
    daemon: Daemon,
    /// The signals that came, of those that end a mount. A successor has to know them as well.
    ending: [u8; 2],
    failures: Failures,
    /// A predecessor whose end is not known, which may have been by itself.
    dying: Option<Pid>,
}

/// The signals that the holder passes on.
const PASSED: [Signal; 3] = [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP];

/// Forks: the child is the daemon, and this process becomes its holder. The caller must not have
/// started a thread.
pub fn split(program: Program) -> io::Result<Side> {
    let mut heard = SigSet::from_iter(PASSED);
    heard.add(Signal::SIGCHLD);
    let before = heard.thread_swap_mask(SigmaskHow::SIG_BLOCK)?;
    let (ours, theirs) = pair()?;
    // SAFETY: this process has one thread (the caller's promise), so the child may do whatever the
    // parent may.
    match unsafe { fork() }? {
        ForkResult::Child => {
            drop(ours);
            before.thread_set_mask()?;
            // Until it serves, a mount without its holder is none: see `Held::serving`.
            set_parent_process_death_signal(Some(rustix::process::Signal::TERM))?;
            program.restore_oom_score();
            Held::begin(theirs).map(Side::Daemon)
        }
        ForkResult::Parent { child } => {
            drop(theirs);
            let flags = SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK;
            Ok(Side::Holder(Box::new(Holder {
                program,
                signals: SignalFd::with_flags(&heard, flags)?,
                kept: [const { None }; KEPT_MAX],
                daemon: Daemon::new(child, ours, true)?,
                ending: [0; 2],
                failures: Failures::default(),
                dying: None,
            })))
        }
    }
}

impl Daemon {
    fn new(pid: Pid, talk: OwnedFd, is_first: bool) -> io::Result<Daemon> {
        // A daemon that does not read its answers must not stop the holder.
        rustix::io::ioctl_fionbio(&talk, true)?;
        Ok(Daemon {
            pid,
            talk: Some(talk),
            life: None,
            orders: None,
            serving: None,
            deadline: (!is_first).then(|| Instant::now() + START),
            is_first,
            bye: None,
        })
    }

    /// Whether it is the first one, and has no mount yet that could be kept.
    fn only_mounts(&self) -> bool {
        self.is_first && self.serving.is_none()
    }
}

/// What there is to do.
#[derive(Debug)]
struct Ready {
    signals: bool,
    talk: bool,
    life: bool,
    late: bool,
}

impl Holder {
    /// Runs until the mount has ended, and returns the exit status of the command. `detach` leaves
    /// the terminal.
    pub fn run(mut self, mut detach: impl FnMut() -> io::Result<()>) -> u8 {
        loop {
            text::give_back();
            let ready = match self.wait() {
                Ok(ready) => ready,
                Err(error) => {
                    error!("the process that holds the mount cannot wait: {error}");
                    return Exit::Internal as u8;
                }
            };
            if ready.talk {
                self.answer_requests(&mut detach);
            }
            let (mut status, daemon) = (None, self.daemon.pid);
            if ready.signals {
                status = self.hear(&mut detach);
            }
            if ready.life && status.is_none() && self.daemon.pid == daemon {
                status = self.life_ended(&mut detach);
            }
            if let Some(status) = status {
                return status;
            }
            if ready.late && self.daemon.deadline.take().is_some() {
                warn!("the new process does not serve after {} s", START.as_secs());
                self.kill_daemon();
            }
        }
    }

    fn wait(&self) -> io::Result<Ready> {
        let (signals, daemon) = (self.signals.as_fd(), &self.daemon);
        // In the place of what is not there stands one of which nothing is asked.
        let talk = daemon.talk.as_ref().map(OwnedFd::as_fd);
        let life = daemon.life.as_ref().map(OwnedFd::as_fd);
        let flags = |fd: Option<_>| fd.map_or(PollFlags::empty(), |_| PollFlags::IN);
        let mut fds = [
            PollFd::from_borrowed_fd(signals, PollFlags::IN),
            PollFd::from_borrowed_fd(talk.unwrap_or(signals), flags(talk)),
            PollFd::from_borrowed_fd(life.unwrap_or(signals), flags(life)),
        ];
        let now = Instant::now();
        let left = daemon.deadline.map(|at| at.saturating_duration_since(now));
        let limit = left.and_then(|left| Timespec::try_from(left).ok());
        let ready = match poll(&mut fds, limit.as_ref()) {
            Err(Errno::INTR) => 0,
            ready => ready?,
        };
        let is_ready = |at: usize| ready > 0 && !fds[at].revents().is_empty();
        Ok(Ready {
            signals: is_ready(0),
            talk: is_ready(1),
            life: is_ready(2),
            late: ready == 0 && left.is_some_and(|left| left.is_zero()),
        })
    }

    /// Answers what the daemon has asked so far.
    fn answer_requests(&mut self, detach: &mut impl FnMut() -> io::Result<()>) {
        while let Some(talk) = self.daemon.talk.take() {
            let received = match receive(&talk, RecvFlags::DONTWAIT) {
                Ok(received) if !received.bytes().is_empty() => received,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.daemon.talk = Some(talk);
                    return;
                }
                // The daemon ends: that is seen in another way.
                _ => return,
            };
            let answer = match self.obey(&talk, received, detach) {
                Ok(()) => 0,
                Err(error) => error as u8,
            };
            // A daemon that does not read it is ending.
            let _ = send(&talk, &[answer], &[]);
            self.daemon.talk = Some(talk);
        }
    }

    fn obey(
        &mut self,
        talk: &OwnedFd,
        received: Received,
        detach: &mut impl FnMut() -> io::Result<()>,
    ) -> Result<(), i32> {
        let number = |error: io::Error| error.raw_os_error().unwrap_or(libc::EIO);
        if received.lost_fds {
            return Err(libc::EMFILE);
        }
        let request = Request::decode(received.bytes()).ok_or(libc::EPROTO)?;
        match (request, received.fds) {
            (Request::Begin, [Some(life), Some(orders)]) => {
                rustix::io::ioctl_fionbio(&orders, true).map_err(|errno| errno.raw_os_error())?;
                self.daemon.life = Some(life);
                self.daemon.orders = Some(orders);
                for number in self.ending {
                    self.order(number);
                }
            }
            (Request::Keep(name), [Some(fd), None]) => {
                let known = |kept: &Option<(Name, _)>| kept.as_ref().is_some_and(|k| k.0 == name);
                let place = self.kept.iter().position(known);
                let place = place.or_else(|| self.kept.iter().position(Option::is_none));
                self.kept[place.ok_or(libc::ENOSPC)?] = Some((name, fd));
            }
            (Request::Take, _) => {
                for (name, fd) in self.kept.iter().flatten() {
                    send(talk, name.as_bytes(), &[fd.as_fd()]).map_err(number)?;
                }
            }
            (Request::Detach, _) => detach().map_err(number)?,
            (Request::Serving, _) => {
                self.daemon.serving = Some(Instant::now());
                self.daemon.deadline = None;
            }
            (Request::Bye(status), _) => {
                self.daemon.bye = Some(status);
                self.close_all();
            }
            _ => return Err(libc::EINVAL),
        }
        Ok(())
    }

    /// Takes the signals that came. Returns the exit status if the mount has ended.
    fn hear(&mut self, detach: &mut impl FnMut() -> io::Result<()>) -> Option<u8> {
        while let Ok(Some(signal)) = self.signals.read_signal() {
            let signal = Signal::try_from(signal.ssi_signo.cast_signed()).ok()?;
            if signal != Signal::SIGCHLD {
                self.pass(signal);
            }
        }
        while let Ok(ended) = waitpid(None, Some(WaitPidFlag::WNOHANG)) {
            let (pid, status, how) = match ended {
                WaitStatus::Exited(pid, status) => (pid, status, format!("status {status}")),
                WaitStatus::Signaled(pid, signal, _) => {
                    (pid, 128 + signal as i32, signal.to_string())
                }
                _ => break,
            };
            let by_itself = !matches!(ended, WaitStatus::Signaled(_, Signal::SIGKILL, _));
            let mut outcome = None;
            if pid == self.daemon.pid {
                // What it has said last.
                self.answer_requests(detach);
                outcome = self.daemon_ended(status as u8, &how, by_itself);
            } else if self.dying.take_if(|dying| *dying == pid).is_some() && by_itself {
                outcome = self.note_failure(&how).err();
                if outcome.is_some() {
                    self.kill_daemon();
                }
            }
            if outcome.is_some() {
                return outcome;
            }
        }
        None
    }

    /// Passes a signal on. A daemon that serves counts those that it gets itself, and those that are
    /// passed on to it by the pipe: one that was sent to both, as a terminal does, must not count
    /// twice, since the second one ends the mount with the data that are unwritten.
    fn pass(&mut self, signal: Signal) {
        let number = signal as u8;
        if signal != Signal::SIGHUP
            && let Some(place) = self.ending.iter_mut().find(|place| **place == 0)
        {
            *place = number;
        }
        self.order(number);
        if self.daemon.only_mounts() {
            let _ = kill(self.daemon.pid, signal);
        }
    }

    /// Writes the number of a signal, which is not 0, into the daemon's pipe.
    fn order(&self, number: u8) {
        if let Some(orders) = self.daemon.orders.as_ref().filter(|_| number != 0) {
            let _ = rustix::io::write(orders, &[number]);
        }
    }

    /// The daemon is dying, although its process may remain until its requests are answered.
    fn life_ended(&mut self, detach: &mut impl FnMut() -> io::Result<()>) -> Option<u8> {
        self.daemon.life = None;
        self.answer_requests(detach);
        self.kill_daemon();
        if self.daemon.only_mounts() {
            self.close_all();
        }
        match self.daemon.bye.is_some() || self.daemon.only_mounts() {
            // Its exit status is still to come.
            true => None,
            false => {
                let has_failed = is_unsound(self.daemon.serving, Instant::now());
                // A failure that is known counts once.
                self.dying = (!has_failed).then_some(self.daemon.pid);
                self.restart("it was killed", has_failed)
            }
        }
    }

    /// The daemon's process is gone.
    fn daemon_ended(&mut self, status: u8, how: &str, by_itself: bool) -> Option<u8> {
        match self.daemon.bye {
            Some(status) => Some(status),
            None if self.daemon.only_mounts() => Some(status),
            None => {
                let unsound = is_unsound(self.daemon.serving, Instant::now());
                self.restart(how, by_itself || unsound)
            }
        }
    }

    /// Starts a successor. Returns the exit status if there is to be none.
    fn restart(&mut self, how: &str, has_failed: bool) -> Option<u8> {
        if has_failed {
            match self.note_failure(how) {
                Ok(pause) => std::thread::sleep(pause),
                Err(status) => return Some(status),
            }
        }
        warn!("the process that served this mount has ended ({how}): starting another");
        let (mut waited, mut wait) = (Duration::ZERO, REFUSED);
        loop {
            let started = self.program.start();
            match started.and_then(|(pid, talk)| Daemon::new(pid, talk, false)) {
                Ok(daemon) => {
                    self.daemon = daemon;
                    return None;
                }
                Err(error) if waited < REFUSED_ALL => {
                    warn!("cannot start a process, trying again: {error}");
                }
                Err(error) => {
                    return Some(self.give_up(&format!("no process can be started: {error}")));
                }
            }
            // Callers wait meanwhile: there may be memory or a process for them soon.
            std::thread::sleep(wait);
            waited += wait;
            wait = REFUSED_MAX.min(wait * 2);
        }
    }

    /// Notes that a daemon failed. Returns how long its successor waits, or, if there is to be none, the exit status.
    fn note_failure(&mut self, how: &str) -> Result<Duration, u8> {
        self.failures.note(Instant::now()).ok_or_else(|| {
            self.give_up(&format!(
                "the processes that serve this mount failed again and again, the last one with {how}"
            ))
        })
    }

    /// Ends the mount, and returns the exit status.
    fn give_up(&mut self, why: &str) -> u8 {
        self.close_all();
        error!("{why}: the mount has ended");
        Exit::Internal as u8
    }

    /// Its number cannot belong to another process: this one, its parent, has not waited for it yet.
    fn kill_daemon(&self) {
        let _ = kill(self.daemon.pid, Signal::SIGKILL);
    }

    /// Closes what is kept. If the mount still exists, its callers get ENOTCONN.
    fn close_all(&mut self) {
        self.kept = [const { None }; KEPT_MAX];
    }
}
