//! Starts the responder's program with a directory of its own.

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
        let dir = tempfile::tempdir().unwrap();
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

/// Starts this crate's program, which serves `dirs` on free ports, with `more` options.
pub fn start(dirs: &Dirs, more: &[&str]) -> Responder {
    let program = Path::new(env!("CARGO_BIN_EXE_nfsrdma-responder"));
    let export = format!("/export={}", dirs.export().display());
    let launch = Launch::new(program, export, &dirs.root().join("state"));
    launch.arguments(more).start().unwrap()
}

/// Ends the program by SIGTERM. Returns its exit status.
pub fn stop(mut responder: Responder) -> ExitStatus {
    responder.terminate().unwrap()
}
