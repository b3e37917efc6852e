//! Detaches from the terminal: a child makes the mount, and the parent returns when it works.
//!
//! The child reports over a pipe. It sends any number of notices, and then one outcome: success (a
//! line for the user) or failure (exit status and sentence).

use crate::failure::{Exit, Failure};
use crate::holder::client::Held;
use crate::output;
use nix::sys::signal::{SigSet, Signal, kill};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, dup2_stderr, dup2_stdin, dup2_stdout, fork, setsid};
use rustix::process::{
    Resource, Rlimit, configure_io_flusher_behavior, getrlimit, set_parent_process_death_signal,
    setrlimit,
};
use std::fs::OpenOptions;
use std::io::{self, BufRead, BufReader, PipeReader, PipeWriter, Write};
use std::os::fd::AsRawFd;

/// The child's end of the pipe.
#[derive(Debug)]
pub(crate) struct Reporter {
    /// `None` in the foreground, and after the outcome was reported.
    pipe: Option<PipeWriter>,
    foreground: bool,
    /// Goes to the background as well.
    holder: Option<Held>,
}

/// Which process this is after [`fork_off`].
#[derive(Debug)]
pub(crate) enum Forked {
    /// The process that the caller waits for, with the outcome.
    Parent(Result<String, Failure>),
    /// The process that makes the mount.
    Child(Reporter),
}

/// Forks. The caller must not have started a thread. In the parent, it returns when the child has
/// reported its outcome; `notice` gets the notices that the child sends before.
pub(crate) fn fork_off(notice: impl FnMut(&str)) -> Result<Forked, Failure> {
    let system = |error: io::Error| {
        Failure::new(
            Exit::System,
            format!("cannot start a process of its own for the mount: {error}"),
        )
    };
    let (reader, writer) = io::pipe().map_err(system)?;
    // SAFETY: this process has one thread (the caller's promise), so the child may do
    // whatever the parent may.
    match unsafe { fork() }.map_err(|error| system(error.into()))? {
        ForkResult::Parent { child } => {
            drop(writer);
            Ok(Forked::Parent(listen(reader, child, notice)))
        }
        ForkResult::Child => {
            drop(reader);
            close_others(&writer);
            end_with_parent();
            Ok(Forked::Child(Reporter {
                pipe: Some(writer),
                foreground: false,
                holder: None,
            }))
        }
    }
}

/// Closes descriptors inherited from the caller, which would otherwise stay open as long as the
/// mount. It makes the system call by its number (Linux 5.9), because musl has no function for it.
fn close_others(keep: &PipeWriter) {
    let keep = keep.as_raw_fd() as u32;
    for (first, last) in [(3, keep.saturating_sub(1)), (keep + 1, u32::MAX)] {
        close_range(first, last);
    }
}

/// Closes what a process has inherited besides the standard descriptors. The caller has opened nothing.
pub(crate) fn close_inherited() {
    close_range(3, u32::MAX);
}

fn close_range(first: u32, last: u32) {
    if first <= last {
        // SAFETY: nothing in this process owns a descriptor in this range: it has just been started, before
        // anything was opened (the callers' promise).
        unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) };
    }
}

/// Sends SIGTERM to this process when its parent ends, until [`Reporter::success`].
fn end_with_parent() {
    let _ = set_parent_process_death_signal(Some(rustix::process::Signal::TERM));
}

/// This process goes on when its parent ends.
pub(crate) fn outlive_parent() {
    let _ = set_parent_process_death_signal(None);
}

/// Goes to the background: neither a terminal nor the caller's directory is used any more.
pub(crate) fn leave_terminal() -> io::Result<()> {
    let null = OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/null")?;
    std::env::set_current_dir("/")?;
    setsid()?;
    dup2_stdin(&null)?;
    dup2_stdout(&null)?;
    dup2_stderr(&null)?;
    Ok(())
}

/// The descriptors that a mount with many connections and clients of its sockets may need.
const DESCRIPTORS: u64 = 256;
/// The descriptors without which not even a mount of one connection works; and those that may be kept for the successors
/// of its process, with some more.
pub(crate) const FEWEST_DESCRIPTORS: u64 = 32;
pub(crate) const FEWEST_KEPT: u64 = 64;

/// Raises the limit on descriptors, as far as it may be, if it is too low for a mount. Returns what it is.
pub(crate) fn raise_descriptors() -> u64 {
    let limit = getrlimit(Resource::Nofile);
    let (now, most) = (
        limit.current.unwrap_or(u64::MAX),
        limit.maximum.unwrap_or(u64::MAX),
    );
    if now >= DESCRIPTORS {
        return now;
    }
    let wanted = Rlimit {
        current: Some(DESCRIPTORS.min(most)),
        ..limit
    };
    let _ = setrlimit(Resource::Nofile, wanted);
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// The same for a mount that is made now, which fails if the limit is too low. `kept`: it is to outlive its process.
pub(crate) fn allow_descriptors(kept: bool) -> Result<(), Failure> {
    let fewest = if kept {
        FEWEST_KEPT
    } else {
        FEWEST_DESCRIPTORS
    };
    let allowed = raise_descriptors();
    match allowed < fewest {
        true => Err(Failure::new(
            Exit::System,
            format!(
                "a mount needs {fewest} descriptors, and only {allowed} are allowed here: raise the limit with \
                 'ulimit -n {DESCRIPTORS}', or LimitNOFILE= of the unit"
            ),
        )),
        false => Ok(()),
    }
}

/// Lets the kernel know that memory reclaim may wait for this process, so that it must not
/// wait for reclaim itself (prctl(2)). Needs CAP_SYS_RESOURCE; without it, nothing happens.
pub(crate) fn mark_io_flusher() {
    let _ = configure_io_flusher_behavior(true);
}

/// Signals that have no meaning for a mount, and whose default action would end the process and
/// with it the mount. SIGQUIT is among them, although a terminal sends it: SIGINT and SIGTERM
/// unmount. With SIGXFSZ ignored, a write past a limit on file sizes fails instead.
const IGNORED: [libc::c_int; 11] = [
    libc::SIGQUIT,
    libc::SIGUSR1,
    libc::SIGUSR2,
    libc::SIGALRM,
    libc::SIGVTALRM,
    libc::SIGPROF,
    libc::SIGIO,
    libc::SIGPWR,
    libc::SIGSTKFLT,
    libc::SIGXCPU,
    libc::SIGXFSZ,
];

pub(crate) fn ignore_other_signals() {
    for number in IGNORED
        .into_iter()
        .chain(libc::SIGRTMIN()..=libc::SIGRTMAX())
    {
        // SAFETY: SIG_IGN runs no code, and nothing in this process handles these signals.
        unsafe { libc::signal(number, libc::SIG_IGN) };
    }
}

/// Passes SIGINT, SIGTERM and SIGHUP on to the child, which ends its attempt and reports that. This
/// process waits for the report, so that the user sees it.
fn pass_signals_on(child: Pid) -> io::Result<()> {
    let mut signals = SigSet::empty();
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
        signals.add(signal);
    }
    signals.thread_block()?;
    // The thread ends with this process. A signal after the end of the child reaches nobody.
    std::thread::Builder::new()
        .name("signals".into())
        .spawn(move || {
            let mut passed_on = false;
            while let Ok(signal) = signals.wait() {
                if std::mem::replace(&mut passed_on, true) {
                    // The child gets SIGTERM when this process ends.
                    output::message("interrupted: the process that mounts does not end at once");
                    std::process::exit(Exit::Interrupted as i32);
                }
                // The child would take SIGHUP as the request to open its log again.
                let passed = match signal {
                    Signal::SIGHUP => Signal::SIGTERM,
                    signal => signal,
                };
                let _ = kill(child, passed);
            }
        })
        .map(|_| ())
}

fn listen(reader: PipeReader, child: Pid, mut notice: impl FnMut(&str)) -> Result<String, Failure> {
    // If this fails, a signal ends this process, and the child with it.
    let _ = pass_signals_on(child);
    for line in BufReader::new(reader).split(b'\n') {
        let Ok(line) = line else { break };
        let Some((&kind, text)) = line.split_first() else {
            continue;
        };
        let text = String::from_utf8_lossy(text).into_owned();
        match kind {
            b'n' => notice(&text),
            b'o' => return Ok(text),
            kind => {
                let exit = match kind {
                    b'1' => Exit::Usage,
                    b'2' => Exit::System,
                    b'8' => Exit::Interrupted,
                    b'f' => Exit::Failed,
                    _ => Exit::Internal,
                };
                return Err(Failure::new(exit, text));
            }
        }
    }
    let how = match waitpid(child, None) {
        Ok(WaitStatus::Signaled(_, signal, _)) => format!("was ended by {signal}"),
        Ok(WaitStatus::Exited(_, status)) => format!("ended with status {status}"),
        _ => "is gone".into(),
    };
    Err(Failure::new(
        Exit::Internal,
        format!(
            "the process that mounts {how} without a word; 'nfsrdma mount -f -v' shows its log"
        ),
    ))
}

impl Reporter {
    /// A reporter for the foreground, where nobody waits for a report.
    pub(crate) fn foreground() -> Self {
        Reporter {
            pipe: None,
            foreground: true,
            holder: None,
        }
    }

    /// This process has a holder.
    pub(crate) fn set_holder(&mut self, holder: Held) {
        self.holder = Some(holder);
    }

    fn say(&mut self, kind: u8, text: &str) {
        if let Some(pipe) = &mut self.pipe {
            let mut line = vec![kind];
            line.extend(text.bytes().map(|b| if b == b'\n' { b' ' } else { b }));
            line.push(b'\n');
            // If the pipe is broken, the parent was killed, and this process ends as well.
            let _ = pipe.write_all(&line);
        }
    }

    /// Reports something that the user should read while waiting.
    pub(crate) fn notice(&mut self, text: &str) {
        if self.foreground {
            output::message(text);
        }
        self.say(b'n', text);
    }

    /// Reports that the mount works. The parent prints `line` and returns, and this process
    /// detaches from the terminal. Later calls do nothing.
    pub(crate) fn success(&mut self, line: &str) -> io::Result<()> {
        if self.pipe.is_none() {
            return Ok(());
        }
        leave_terminal()?;
        match &self.holder {
            // Its bond to the holder, its parent, stays until it serves: see `Held::serving`.
            Some(holder) => holder.detach()?,
            None => outlive_parent(),
        }
        self.say(b'o', line);
        self.pipe = None;
        Ok(())
    }

    /// Reports that the mount failed. The parent prints the sentence.
    pub(crate) fn failure(&mut self, failure: &Failure) {
        let kind = match failure.exit {
            Exit::Usage => b'1',
            Exit::System => b'2',
            Exit::Internal => b'4',
            Exit::Interrupted => b'8',
            Exit::Failed => b'f',
        };
        self.say(kind, &failure.message);
        self.pipe = None;
    }

    /// Whether somebody still waits for the outcome.
    pub(crate) fn reports(&self) -> bool {
        self.pipe.is_some()
    }

    /// Whether this is the process that the user started.
    pub(crate) fn is_foreground(&self) -> bool {
        self.foreground
    }
}
