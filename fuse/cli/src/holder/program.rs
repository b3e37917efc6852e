//! The program of a mount, as the holder starts it anew.

use crate::holder::protocol::{Request, Why, pair, send};
use crate::mount::daemon::raise_descriptors;
use nix::fcntl::AtFlags;
use nix::sys::signal::SigSet;
use nix::unistd::{ForkResult, Pid, execveat, fork};
use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::io::{FdFlags, fcntl_setfd};
use std::ffi::{CString, OsStr, OsString};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The exit status of a process that could not start the program.
const NOT_STARTED: i32 = 127;
/// How often to try that with the holder's own program, and the time between: memory may be short.
const EXEC_TRIES: u32 = 20;
const EXEC_PAUSE: Duration = Duration::from_secs(1);
/// The first descriptor behind the standard ones.
const FIRST: libc::c_uint = 3;

const OOM_SCORE: &str = "/proc/self/oom_score_adj";
/// Never killed when memory is short. The holder has little, and what it holds ends with it.
const SPARED: &str = "-1000";

/// The program that runs, by its directory and name: a package's upgrade puts another file there.
#[derive(Debug)]
pub struct Program {
    directory: OwnedFd,
    name: OsString,
    /// The file of the holder's own program, which can go on with the mount in any case: a successor has refused what it
    /// does not know as long as another one served.
    own: OwnedFd,
    /// For those who list processes.
    words: Vec<OsString>,
    /// As it was before the holder was spared.
    oom_score: Option<Vec<u8>>,
}

/// As what the program is started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Start {
    /// As the one that serves, from the path.
    Alone,
    /// The same, of the holder's own program.
    Own,
    /// Beside the one that serves.
    Beside,
}

impl Program {
    /// The program of this process, which is to become the holder, and is spared when memory is
    /// short if it may ask for that. `words` are shown after those of the command `serve`.
    pub fn of_holder(words: Vec<OsString>) -> io::Result<Program> {
        let path = std::env::current_exe()?;
        let name = path.file_name().ok_or(io::ErrorKind::NotFound)?;
        let directory = path.parent().unwrap_or(Path::new("/"));
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let before = std::fs::read(OOM_SCORE).ok();
        Ok(Program {
            directory: openat(CWD, directory, flags, Mode::empty())?,
            name: name.to_owned(),
            own: openat(
                CWD,
                "/proc/self/exe",
                OFlags::PATH | OFlags::CLOEXEC,
                Mode::empty(),
            )?,
            words,
            oom_score: before.filter(|_| std::fs::write(OOM_SCORE, SPARED).is_ok()),
        })
    }

    /// In a child of the holder: it is not spared.
    pub(super) fn restore_oom_score(&self) {
        if let Some(score) = &self.oom_score
            && let Err(error) = std::fs::write(OOM_SCORE, score)
        {
            tracing::warn!("this process is spared when memory is short: {error}");
        }
    }

    /// Starts `nfsrdma serve --held N`, where N is an end of the connection of which the other one
    /// is returned. The caller must not have started a thread. `own`: the holder's own program, because what is at its
    /// path does not serve.
    pub(super) fn start(&self, own: bool) -> io::Result<(Pid, OwnedFd)> {
        self.start_as(if own { Start::Own } else { Start::Alone })
    }

    /// As [`Program::start`], beside a daemon that serves: with another word, so that no program goes on with the mount
    /// that does not know that it has to wait.
    pub(super) fn start_beside(&self) -> io::Result<(Pid, OwnedFd)> {
        self.start_as(Start::Beside)
    }

    fn start_as(&self, how: Start) -> io::Result<(Pid, OwnedFd)> {
        // It may have been lowered since the mount, for this process and its children.
        raise_descriptors();
        let (ours, theirs) = pair()?;
        // SAFETY: this process has one thread (the caller's promise), so the child may do whatever
        // the parent may.
        match unsafe { fork() }? {
            ForkResult::Parent { child } => Ok((child, ours)),
            ForkResult::Child => {
                self.restore_oom_score();
                for _ in 0..EXEC_TRIES {
                    let error = self.exec(&theirs, how);
                    let why = format!("cannot start {}: {error}", self.path().display());
                    tracing::error!("{why}");
                    let number = error.raw_os_error().unwrap_or(libc::EIO);
                    if how == Start::Beside {
                        // Who waits for an upgrade is told.
                        let refusal = Request::Refuse(Why::new(number, why)).encode();
                        let _ = send(&theirs, refusal.as_bytes(), &[]);
                    }
                    if how != Start::Own {
                        break;
                    }
                    std::thread::sleep(EXEC_PAUSE);
                }
                std::process::exit(NOT_STARTED);
            }
        }
    }

    /// Its path, as far as it is known now.
    fn path(&self) -> PathBuf {
        let link = format!("/proc/self/fd/{}", self.directory.as_raw_fd());
        let directory = std::fs::read_link(link).unwrap_or_default();
        directory.join(&self.name)
    }

    fn exec(&self, talk: &OwnedFd, how: Start) -> io::Error {
        // The holder has blocked signals, and a new program would inherit that.
        let ready = SigSet::empty().thread_set_mask().map_err(Into::into);
        if let Err(error) = ready.and_then(|()| close_others_at_exec(talk)) {
            return error;
        }
        let talk = OsString::from(talk.as_raw_fd().to_string());
        let word = match how {
            Start::Alone | Start::Own => "--held",
            Start::Beside => "--beside",
        };
        let first = ["nfsrdma", "serve", word].map(OsStr::new);
        let words = first.into_iter().chain([&*talk]);
        let words = words.chain(self.words.iter().map(|word| &**word));
        let variables = std::env::vars_os().map(|(mut name, value)| {
            name.push("=");
            name.push(value);
            name
        });
        let started = c_strings(words).and_then(|words| {
            let variables = c_strings(variables)?;
            let name = CString::new(self.name.as_bytes())?;
            match how {
                Start::Own => execveat(&self.own, c"", &words, &variables, AtFlags::AT_EMPTY_PATH)?,
                _ => execveat(&self.directory, &name, &words, &variables, AtFlags::empty())?,
            };
            Ok(())
        });
        // It returns with an error only.
        started.err().unwrap_or_else(|| io::ErrorKind::Other.into())
    }
}

fn c_strings(strings: impl Iterator<Item = impl AsRef<OsStr>>) -> io::Result<Vec<CString>> {
    let strings = strings.map(|string| Ok(CString::new(string.as_ref().as_bytes())?));
    strings.collect()
}

/// Makes all descriptors but the standard ones and `kept` end at exec, also those that the caller of
/// the command had left open.
fn close_others_at_exec(kept: &OwnedFd) -> io::Result<()> {
    // SAFETY: the call accesses no memory, and closes nothing now.
    let done = unsafe {
        libc::syscall(
            libc::SYS_close_range,
            FIRST,
            libc::c_uint::MAX,
            libc::CLOSE_RANGE_CLOEXEC,
        )
    };
    if done != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(fcntl_setfd(kept, FdFlags::empty())?)
}
