//! The program of a mount, as the holder starts it anew.

use crate::holder::protocol::pair;
use nix::sys::signal::SigSet;
use nix::unistd::{ForkResult, Pid, fork};
use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::io::{FdFlags, fcntl_setfd};
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

/// The exit status of a process that could not start the program.
const NOT_STARTED: i32 = 127;
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
    /// For those who list processes.
    words: Vec<OsString>,
    /// As it was before the holder was spared.
    oom_score: Option<Vec<u8>>,
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
    /// is returned. The caller must not have started a thread.
    pub(super) fn start(&self) -> io::Result<(Pid, OwnedFd)> {
        let (ours, theirs) = pair()?;
        // SAFETY: this process has one thread (the caller's promise), so the child may do whatever
        // the parent may.
        match unsafe { fork() }? {
            ForkResult::Parent { child } => Ok((child, ours)),
            ForkResult::Child => {
                self.restore_oom_score();
                let error = self.exec(&theirs);
                tracing::error!("cannot start {}: {error}", self.name.display());
                std::process::exit(NOT_STARTED);
            }
        }
    }

    fn exec(&self, talk: &OwnedFd) -> io::Error {
        // The holder has blocked signals, and a new program would inherit that.
        let ready = SigSet::empty().thread_set_mask().map_err(Into::into);
        if let Err(error) = ready.and_then(|()| close_others_at_exec(talk)) {
            return error;
        }
        let directory = Path::new("/proc/self/fd").join(self.directory.as_raw_fd().to_string());
        Command::new(directory.join(&self.name))
            .arg0(OsStr::new("nfsrdma"))
            .arg("serve")
            .arg("--held")
            .arg(talk.as_raw_fd().to_string())
            .args(&self.words)
            .exec()
    }
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
