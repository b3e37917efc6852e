//! The directory of a benchmark, which is removed at the end, and what ends a measurement early.

use crate::failure::{Exit, Failure};
use crate::output::without_number;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;
use std::fs::{DirBuilder, remove_dir_all};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Whether somebody wants the end.
#[derive(Debug, Clone)]
pub(super) struct Stop(Arc<AtomicBool>);

impl Stop {
    /// From now on a first signal ends the measurement, and a second one the program.
    pub(super) fn on_signals() -> io::Result<Stop> {
        let stopped = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            let status = Exit::Interrupted as i32;
            flag::register_conditional_shutdown(signal, status, stopped.clone())?;
            flag::register(signal, stopped.clone())?;
        }
        Ok(Stop(stopped))
    }

    /// Of work that is to be done also after a signal.
    pub(super) fn never() -> Stop {
        Stop(Arc::new(AtomicBool::new(false)))
    }

    pub(super) fn is_asked(&self) -> bool {
        self.0.load(Relaxed)
    }

    /// A measurement that ends after `time` at the latest.
    pub(super) fn within(&self, time: Duration) -> Term {
        Term {
            stop: self.clone(),
            end: Instant::now() + time,
        }
    }
}

/// How long a measurement may go on.
#[derive(Debug, Clone)]
pub(super) struct Term {
    stop: Stop,
    end: Instant,
}

impl Term {
    pub(super) fn is_over(&self) -> bool {
        self.stop.is_asked() || Instant::now() >= self.end
    }
}

/// The directory. Dropping it removes it with all that is in it.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) dir: PathBuf,
}

impl Place {
    pub(super) fn make(parent: &Path) -> Result<Place, Failure> {
        let dir = parent.join(format!("nfsrdma-bench-{}", std::process::id()));
        DirBuilder::new()
            .mode(0o700)
            .create(&dir)
            .map_err(|error| broken(&dir, &error))?;
        Ok(Place { dir })
    }

    pub(super) fn file(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// Removes it. The error names what is left.
    pub(super) fn remove(mut self) -> Result<(), Failure> {
        let dir = std::mem::take(&mut self.dir);
        remove_dir_all(&dir).map_err(|error| broken(&dir, &error))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if !self.dir.as_os_str().is_empty() {
            // The measurement has failed, and the reason is told.
            let _ = remove_dir_all(&self.dir);
        }
    }
}

/// The failure of an operation on a file of the benchmark.
pub(super) fn broken(path: &Path, error: &io::Error) -> Failure {
    Failure::failed(format!(
        "cannot write {}: {}; choose another place, or make room there",
        path.display(),
        without_number(error)
    ))
}
