//! The test bench: a responder, the proxy before it, mounts, and their cleanup.

use crate::proxy::Proxy;
use crate::sys;
use anyhow::{Context, Result, ensure};
use nfsrdma_test_support::{Launch, Responder};
use serde_json::Value;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// The time limit for everything that must happen.
pub(crate) const LIMIT: Duration = Duration::from_secs(120);

/// A mount, from `mount` to `umount`.
#[derive(Debug)]
pub(crate) struct Mount {
    program: PathBuf,
    pub(crate) dir: PathBuf,
    pub(crate) pid: u32,
}

impl Mount {
    /// The output of `stats --json`.
    pub(crate) fn stats(&self) -> Result<Value> {
        stats(&self.program, &self.dir)
    }

    /// Unmounts, and waits for the end of the process.
    pub(crate) fn unmount(&self) -> Result<()> {
        let output = Command::new(&self.program)
            .arg("umount")
            .arg(&self.dir)
            .output()?;
        ensure!(
            output.status.success(),
            "umount {}: {}",
            self.dir.display(),
            String::from_utf8_lossy(&output.stderr)
        );
        let proc = PathBuf::from(format!("/proc/{}", self.pid));
        until("the end of the client", || Ok(!proc.exists()))
    }
}

fn stats(program: &Path, dir: &Path) -> Result<Value> {
    let output = Command::new(program)
        .args(["stats", "--json"])
        .arg(dir)
        .output()?;
    ensure!(
        output.status.success(),
        "stats {}: {}",
        dir.display(),
        String::from_utf8_lossy(&output.stderr)
    );
    serde_json::from_slice(&output.stdout).context("stats --json")
}

/// Waits for a condition.
pub(crate) fn until(what: &str, mut condition: impl FnMut() -> Result<bool>) -> Result<()> {
    let end = Instant::now() + LIMIT;
    while !condition()? {
        ensure!(Instant::now() < end, "{what}: not within {LIMIT:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// The whole test bench.
#[derive(Debug)]
pub(crate) struct Stand {
    pub(crate) base: PathBuf,
    bin: PathBuf,
    pub(crate) server: Responder,
    pub(crate) proxy: Proxy,
    pub(crate) mounts: Vec<Mount>,
    /// Whether to keep the directory, because something failed.
    pub(crate) keep: bool,
}

impl Stand {
    pub(crate) fn new(bin: &Path, arguments: &[&str]) -> Result<Self> {
        let base = tempfile::Builder::new()
            .prefix("nfsrdma-soak.")
            .tempdir()?
            .keep()
            .canonicalize()?;
        for dir in ["export", "state"] {
            fs::create_dir(base.join(dir))?;
        }
        let program = bin.join("nfsrdma-responder");
        let server = Launch::new(&program, base.join("export"), &base.join("state"))
            .arguments(arguments)
            .log(base.join("responder.log"))
            .start()?;
        let proxy = Proxy::start(SocketAddr::from(([127, 0, 0, 1], server.rdma)))?;
        Ok(Stand {
            base,
            bin: bin.to_owned(),
            server,
            proxy,
            mounts: Vec::new(),
            keep: false,
        })
    }

    pub(crate) fn export(&self) -> PathBuf {
        self.base.join("export")
    }

    /// Mounts the export once more, through the proxy.
    pub(crate) fn mount(&mut self, options: &str) -> Result<()> {
        let number = self.mounts.len();
        let dir = self.base.join(format!("mnt{number}"));
        fs::create_dir_all(&dir)?;
        let program = self.bin.join("nfsrdma");
        let output = Command::new(&program)
            .arg("mount")
            .arg(format!("127.0.0.1:{}", self.export().display()))
            .arg(&dir)
            .arg("--log")
            .arg(self.base.join(format!("client{number}.log")))
            .args([
                "-o",
                &format!(
                    "port={},mountport={},mountproto=tcp,noresvport,{options}",
                    self.proxy.port, self.server.nfs
                ),
            ])
            .output()?;
        ensure!(
            output.status.success(),
            "mounting: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        let pid = stats(&program, &dir)?["pid"].as_u64().unwrap_or(0);
        let pid = u32::try_from(pid).context("a process id")?;
        self.mounts.push(Mount { program, dir, pid });
        Ok(())
    }

    /// Unmounts all mounts, which are gone when this returns.
    pub(crate) fn unmount(&mut self) -> Result<()> {
        for mount in std::mem::take(&mut self.mounts) {
            mount.unmount()?;
        }
        Ok(())
    }

    /// Messages in the clients' logs that must not be there.
    pub(crate) fn complaints(&self) -> Vec<String> {
        let mut found = Vec::new();
        for entry in fs::read_dir(&self.base).into_iter().flatten().flatten() {
            if entry.path().extension().is_some_and(|e| e == "log") {
                let text = fs::read(entry.path()).unwrap_or_default();
                let text = String::from_utf8_lossy(&text);
                let bad = |line: &&str| line.contains("panicked") || line.contains("ERROR");
                let name = entry.file_name();
                found.extend(
                    text.lines()
                        .filter(bad)
                        .take(5)
                        .map(|line| format!("{}: {line}", name.to_string_lossy())),
                );
            }
        }
        found
    }
}

/// The process that would start another one in the place of `pid`.
fn holder(pid: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let parent = status.lines().find_map(|line| line.strip_prefix("PPid:"))?;
    let parent = parent.trim().parse().ok()?;
    let name = fs::read_to_string(format!("/proc/{parent}/comm")).ok()?;
    (name.trim() == "nfsrdma").then_some(parent)
}

impl Drop for Stand {
    fn drop(&mut self) {
        let _ = self.server.freeze(false);
        for mount in &self.mounts {
            // By force, because this cleans up after a failure.
            let _ = Command::new("umount").arg("-l").arg(&mount.dir).status();
            for pid in holder(mount.pid).into_iter().chain([mount.pid]) {
                let _ = sys::signal(pid, libc::SIGKILL);
            }
        }
        let _ = self.server.kill();
        if self.keep {
            eprintln!("left for inspection: {}", self.base.display());
        } else {
            let _ = fs::remove_dir_all(&self.base);
        }
    }
}
