//! Starts the responder's program with a directory of its own.

pub mod client;
pub mod requester;

use nfsrdma_test_support::{Launch, Responder};
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use tempfile::TempDir;

/// The directories of a test, which are removed with this.
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

/// The launcher of a program that serves `dirs` on free ports, with `more` options.
pub fn launch(program: &Path, dirs: &Dirs, more: &[&str]) -> Launch {
    let export = format!("/export={}", dirs.export().display());
    Launch::new(program, export, &dirs.root().join("state"))
        .arguments(["--mount-port", "0", "--portmap-port", "0"])
        .arguments(more)
}

/// Starts this crate's program in that way.
pub fn start(dirs: &Dirs, more: &[&str]) -> Responder {
    let program = Path::new(env!("CARGO_BIN_EXE_nfsrdma-responder"));
    launch(program, dirs, more).start().unwrap()
}

/// Ends the program by SIGTERM. Returns its exit status.
pub fn stop(mut responder: Responder) -> ExitStatus {
    responder.terminate().unwrap()
}

/// Whether the test runs as root, which most tests of identities need.
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}
