//! The responder's program in a directory of its own.
#![allow(dead_code, reason = "each test binary uses some of it")]

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use tempfile::TempDir;

/// A running responder, killed when dropped.
pub struct Responder {
    child: Child,
    pub rdma: u16,
    pub nfs: u16,
    pub mount: u16,
    pub portmap: u16,
    pub lock: u16,
}

/// Directories of a test, removed with it.
pub struct Dirs {
    dir: TempDir,
}

impl Dirs {
    pub fn new() -> Self {
        Self::under(&std::env::temp_dir())
    }

    pub fn under(parent: &Path) -> Self {
        let dir = tempfile::tempdir_in(parent).unwrap();
        std::fs::create_dir(dir.path().join("export")).unwrap();
        Dirs { dir }
    }

    pub fn root(&self) -> &Path {
        self.dir.path()
    }

    pub fn export(&self) -> PathBuf {
        self.dir.path().join("export")
    }
}

impl Responder {
    /// Serves `dirs` on free ports, with `more` options.
    pub fn start(dirs: &Dirs, more: &[&str]) -> Self {
        Self::command(
            dirs,
            more,
            Command::new(env!("CARGO_BIN_EXE_nfsrdma-responder")),
        )
    }

    /// As [`Responder::start`], by a command that ends in the program.
    pub fn command(dirs: &Dirs, more: &[&str], mut command: Command) -> Self {
        let export = format!("/export={}", dirs.export().display());
        let mut child = command
            .args([
                &export,
                "--print-ports",
                "--rdma-port",
                "0",
                "--nfs-port",
                "0",
            ])
            .args(["--mount-port", "0", "--portmap-port", "0", "--state-dir"])
            .arg(dirs.root().join("state"))
            .args(more)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        let port = |name: &str| {
            let word = line.split_whitespace().find_map(|w| w.strip_prefix(name));
            word.and_then(|port| port.strip_prefix('='))
                .map_or(0, |p| p.parse().unwrap())
        };
        assert!(
            line.starts_with("ready"),
            "the responder did not start: {line:?}"
        );
        Responder {
            rdma: port("rdma"),
            nfs: port("nfs"),
            mount: port("mount"),
            portmap: port("portmap"),
            lock: port("lock"),
            child,
        }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Ends it by SIGTERM; its exit status.
    pub fn stop(mut self) -> std::process::ExitStatus {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        self.child.wait().unwrap()
    }

    /// Kills it without a chance to save anything.
    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Responder {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Whether the test runs as root, as most of what identities do needs.
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}
