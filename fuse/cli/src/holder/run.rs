//! The holder's process: one thread that waits for its daemon, and starts a successor when it dies.

use crate::failure::Exit;
use crate::holder::client::Held;
use crate::holder::failures::{Failures, is_unsound};
use crate::holder::program::Program;
use crate::holder::protocol::{Name, Received, Request, UNKNOWN, Why, pair, receive, send};
use crate::holder::state::{Daemon, Holder, KEPT_MAX, Of, START};
use crate::holder::text;
use crate::holder::upgrade::tell;
use nix::sys::signal::{SigSet, SigmaskHow, Signal, kill};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{ForkResult, fork};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::RecvFlags;
use rustix::process::set_parent_process_death_signal;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};
use tracing::{error, warn};

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
                upgrade: None,
                told: None,
                ending: [0; 2],
                failures: Failures::default(),
                dying: None,
            })))
        }
    }
}

/// What there is to do.
#[derive(Debug)]
struct Ready {
    signals: bool,
    talk: bool,
    life: bool,
    successor: bool,
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
                self.answer_requests(Of::Serving, &mut detach);
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
            if ready.successor {
                self.answer_requests(Of::Successor, &mut detach);
            }
            let now = Instant::now();
            if self.daemon.deadline.take_if(|at| *at <= now).is_some() {
                warn!("the new process does not serve after {} s", START.as_secs());
                self.kill_daemon();
            }
            let deadline = self.upgrade.as_ref().map(|upgrade| upgrade.deadline);
            if deadline.is_some_and(|at| at <= now) {
                self.upgrade_is_late();
            }
        }
    }

    fn wait(&self) -> io::Result<Ready> {
        let (signals, daemon) = (self.signals.as_fd(), &self.daemon);
        let upgrade = self.upgrade.as_ref();
        // In the place of what is not there stands one of which nothing is asked.
        let talk = daemon.talk.as_ref().map(|talk| talk.as_fd());
        let life = daemon.life.as_ref().map(OwnedFd::as_fd);
        let successor = upgrade.and_then(|upgrade| upgrade.successor.talk.as_ref());
        let successor = successor.map(|talk| talk.as_fd());
        let flags = |fd: Option<_>| fd.map_or(PollFlags::empty(), |_| PollFlags::IN);
        let mut fds = [
            PollFd::from_borrowed_fd(signals, PollFlags::IN),
            PollFd::from_borrowed_fd(talk.unwrap_or(signals), flags(talk)),
            PollFd::from_borrowed_fd(life.unwrap_or(signals), flags(life)),
            PollFd::from_borrowed_fd(successor.unwrap_or(signals), flags(successor)),
        ];
        let now = Instant::now();
        let deadlines = [daemon.deadline, upgrade.map(|upgrade| upgrade.deadline)];
        let deadline = deadlines.into_iter().flatten().min();
        let left = deadline.map(|at| at.saturating_duration_since(now));
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
            successor: is_ready(3),
        })
    }

    /// Answers what a daemon has asked so far.
    fn answer_requests(&mut self, of: Of, detach: &mut impl FnMut() -> io::Result<()>) {
        while let Some(talk) = self.of(of).and_then(|daemon| daemon.talk.clone()) {
            let received = match receive(&*talk, RecvFlags::DONTWAIT) {
                Ok(received) if !received.bytes().is_empty() => received,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                // The daemon ends: that is seen in another way.
                _ => {
                    if let Some(daemon) = self.of(of) {
                        daemon.talk = None;
                    }
                    return;
                }
            };
            let request = Request::decode(received.bytes()).filter(|_| !received.cut);
            let answer = match request {
                _ if received.lost_fds => Why::new(libc::EMFILE, "").answer(),
                None => Why::new(UNKNOWN, "").answer(),
                Some(request) if request.is_of_upgrade() => {
                    let [told, _] = received.fds;
                    match self.obey_upgrade(of, request, told) {
                        Some(answer) => answer,
                        None => continue,
                    }
                }
                Some(request) => match self.obey(of, &talk, request, received, detach) {
                    Ok(()) => Why::new(0, "").answer(),
                    Err(error) => Why::new(error, "").answer(),
                },
            };
            // A daemon that does not read it is ending.
            let _ = send(&*talk, answer.as_bytes(), &[]);
        }
    }

    fn obey(
        &mut self,
        of: Of,
        talk: &OwnedFd,
        request: Request,
        received: Received,
        detach: &mut impl FnMut() -> io::Result<()>,
    ) -> Result<(), i32> {
        let number = |error: io::Error| error.raw_os_error().unwrap_or(libc::EIO);
        match (request, received.fds) {
            (Request::Begin, [Some(life), Some(orders)]) => {
                rustix::io::ioctl_fionbio(&orders, true).map_err(|errno| errno.raw_os_error())?;
                for number in self.ending {
                    order(&orders, number);
                }
                let daemon = self.of(of).ok_or(libc::EINVAL)?;
                daemon.life = Some(life);
                daemon.orders = Some(orders);
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
            // Its end is seen.
            (Request::Bye(_), _) if of == Of::Successor => {}
            _ if of == Of::Successor => return Err(libc::EINVAL),
            (Request::Detach, _) => detach().map_err(number)?,
            (Request::Serving, _) => {
                self.daemon.serving = Some(Instant::now());
                self.daemon.deadline = None;
                if let Some(told) = self.told.take() {
                    tell(&told);
                }
            }
            (Request::Bye(status), _) => {
                self.end_upgrade();
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
        let flags = WaitPidFlag::WNOHANG | WaitPidFlag::WUNTRACED;
        while let Ok(ended) = waitpid(None, Some(flags)) {
            let (pid, status, how) = match ended {
                WaitStatus::Exited(pid, status) => (pid, status, format!("status {status}")),
                WaitStatus::Signaled(pid, signal, _) => {
                    (pid, 128 + signal as i32, signal.to_string())
                }
                WaitStatus::Stopped(pid, _) => {
                    self.has_stopped(pid);
                    continue;
                }
                _ => break,
            };
            let by_itself = !matches!(ended, WaitStatus::Signaled(_, Signal::SIGKILL, _));
            let mut outcome = None;
            if self.of(Of::Successor).is_some_and(|of| of.pid == pid) {
                self.answer_requests(Of::Successor, detach);
                self.successor_ended(&how);
            }
            if pid == self.daemon.pid {
                // What it has said last.
                self.answer_requests(Of::Serving, detach);
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
            let why = "a signal ends the mount";
            self.fail_upgrade(Why::new(libc::EINTR, why));
        }
        if let Some(orders) = &self.daemon.orders {
            order(orders, number);
        }
        if self.daemon.only_mounts() {
            let _ = kill(self.daemon.pid, signal);
        }
    }

    /// The daemon is dying, although its process may remain until its requests are answered.
    fn life_ended(&mut self, detach: &mut impl FnMut() -> io::Result<()>) -> Option<u8> {
        self.daemon.life = None;
        self.answer_requests(Of::Serving, detach);
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
        self.end_upgrade();
        // What is at the path does not serve, or has not yet: the holder's own program may.
        let own = self.daemon.serving.is_none();
        if has_failed && (!own || self.daemon.own) {
            match self.note_failure(how) {
                Ok(pause) => std::thread::sleep(pause),
                Err(status) => return Some(status),
            }
        }
        warn!("the process that served this mount has ended ({how}): starting another");
        let (mut waited, mut wait) = (Duration::ZERO, REFUSED);
        loop {
            let started = self.program.start(own);
            match started.and_then(|(pid, talk)| Daemon::new(pid, talk, false)) {
                Ok(daemon) => {
                    self.daemon = Daemon { own, ..daemon };
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

    /// Closes what is kept. If the mount still exists, its callers get ENOTCONN.
    fn close_all(&mut self) {
        self.kept = [const { None }; KEPT_MAX];
    }
}

/// Writes the number of a signal, unless it is 0, into a daemon's pipe.
fn order(orders: &OwnedFd, number: u8) {
    if number != 0 {
        let _ = rustix::io::write(orders, &[number]);
    }
}
