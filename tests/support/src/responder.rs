//! Runs `nfsrdma-responder` as a process: starts it on free ports, finds out these ports, and kills
//! it with its owner.

use rustix::process::{Pid, Signal, kill_process};
use std::ffi::{OsStr, OsString};
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

/// The settings for starting a responder.
#[derive(Debug, Clone)]
pub struct Launch {
    program: PathBuf,
    arguments: Vec<OsString>,
}

impl Launch {
    /// The program, an export (`DIR` or `/NAME=DIR`), and the directory for its state.
    pub fn new(program: &Path, export: impl AsRef<OsStr>, state: &Path) -> Self {
        Launch {
            program: program.to_owned(),
            arguments: vec![
                export.as_ref().into(),
                "--print-ports".into(),
                "--state-dir".into(),
                state.into(),
            ],
        }
    }

    /// With more arguments.
    pub fn arguments(mut self, more: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Self {
        let more = more.into_iter().map(|word| word.as_ref().to_owned());
        self.arguments.extend(more);
        self
    }

    /// Starts it on free ports, and waits until it serves them.
    pub fn start(self) -> io::Result<Responder> {
        let mut command = Command::new(&self.program);
        command
            .args(&self.arguments)
            .args(["--rdma-port", "0", "--nfs-port", "0"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        let mut child = command.spawn().map_err(|error| {
            let program = self.program.display();
            io::Error::new(error.kind(), format!("starting {program}: {error}"))
        })?;
        let out = child.stdout.take();
        // It owns the process before anything can fail, because dropping it ends the process.
        let mut responder = Responder {
            child: Some(child),
            rdma: 0,
            nfs: 0,
            mount: 0,
            portmap: 0,
            lock: 0,
        };
        let mut line = String::new();
        if let Some(out) = out {
            BufReader::new(out).read_line(&mut line)?;
        }
        if !line.starts_with("ready") {
            let line = line.trim();
            let text = format!("the responder did not start: it said {line:?} on its output");
            return Err(io::Error::other(text));
        }
        let port = |name: &str| {
            let mut words = line.split_whitespace();
            words
                .find_map(|word| word.strip_prefix(name)?.parse().ok())
                .unwrap_or(0)
        };
        responder.rdma = port("rdma=");
        responder.nfs = port("nfs=");
        responder.mount = port("mount=");
        responder.portmap = port("portmap=");
        responder.lock = port("lock=");
        Ok(responder)
    }
}

/// A running responder, which is killed when this is dropped. Ports that are not served are 0.
#[derive(Debug)]
pub struct Responder {
    child: Option<Child>,
    pub rdma: u16,
    /// The port of NFS over TCP, which also serves MOUNT and the other programs.
    pub nfs: u16,
    pub mount: u16,
    pub portmap: u16,
    pub lock: u16,
}

impl Responder {
    /// Its process id.
    pub fn pid(&self) -> io::Result<u32> {
        let child = self.child.as_ref();
        child.map(Child::id).ok_or_else(ended)
    }

    /// Kills it, so that it cannot save anything. Does nothing if it has ended.
    pub fn kill(&mut self) -> io::Result<()> {
        if let Some(mut child) = self.child.take() {
            child.kill()?;
            child.wait()?;
        }
        Ok(())
    }

    /// Ends it by SIGTERM. Returns its exit status.
    pub fn terminate(&mut self) -> io::Result<ExitStatus> {
        let mut child = self.child.take().ok_or_else(ended)?;
        kill_process(Pid::from_child(&child), Signal::TERM)?;
        child.wait()
    }
}

fn ended() -> io::Error {
    io::Error::other("the responder does not run")
}

impl Drop for Responder {
    fn drop(&mut self) {
        // If this fails, there is nothing else to be done.
        let _ = self.kill();
    }
}

/// The path of the responder, for tests of crates that do not depend on it. It is in the directory
/// NFSRDMA_BIN, or else it is built with the profile of the running test.
pub fn build_responder() -> io::Result<PathBuf> {
    if let Some(programs) = std::env::var_os("NFSRDMA_BIN") {
        return Ok(PathBuf::from(programs).join("nfsrdma-responder"));
    }
    let mut program = std::env::current_exe()?;
    while program.file_name().is_some_and(|name| name != "deps") {
        program.pop();
    }
    program.set_file_name("nfsrdma-responder");
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut build = Command::new(cargo);
    build.args(["build", "--quiet", "-p", "nfsrdma-responder"]);
    if program.parent().is_some_and(|dir| dir.ends_with("release")) {
        build.arg("--release");
    }
    match build.status()?.success() {
        true => Ok(program),
        false => Err(io::Error::other("the responder does not build")),
    }
}
