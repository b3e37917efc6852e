//! The server, its control socket, and the mounts of it; all are gone when this is dropped.

use crate::variant::Variant;
use anyhow::{Context, Result, bail, ensure};
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// What has to happen happens within this, or never.
const LIMIT: Duration = Duration::from_secs(60);

/// A server with mounts, in a directory of its own.
#[derive(Debug)]
pub(crate) struct Stand {
    /// Where each actor finds the tree: the exported directory, then each mount.
    pub(crate) roots: Vec<PathBuf>,
    program: PathBuf,
    server: Child,
    control: BufReader<UnixStream>,
    dir: Option<tempfile::TempDir>,
}

impl Stand {
    pub(crate) fn new(bin: &Path, variant: &Variant, mounts: usize, options: &str) -> Result<Self> {
        let dir = tempfile::Builder::new()
            .prefix("nfsrdma-clients.")
            .tempdir()?;
        let base = dir.path();
        let export = base.join("export");
        std::fs::create_dir(&export)?;
        let mut server = Command::new(bin.join("nfsrdma-responder"))
            .arg(&export)
            .args(["--rdma-port", "0", "--nfs-port", "0", "--print-ports"])
            .arg("--state-dir")
            .arg(base.join("state"))
            .arg("--control")
            .arg(base.join("control"))
            .args(variant.arguments)
            // A signal to this program's group must not take the server away before the mounts.
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(File::create(base.join("responder.log"))?)
            .spawn()
            .context("starting nfsrdma-responder")?;
        let mut line = String::new();
        if let Some(out) = server.stdout.take() {
            BufReader::new(out).read_line(&mut line)?;
        }
        let port = |name: &str| -> Option<u16> {
            line.split_whitespace()
                .find_map(|word| word.strip_prefix(name)?.parse().ok())
        };
        let (Some(rdma), Some(nfs)) = (port("rdma="), port("nfs=")) else {
            let _ = server.kill();
            let _ = server.wait();
            bail!("the responder said `{}`", line.trim());
        };
        let control = UnixStream::connect(base.join("control"))?;
        control.set_read_timeout(Some(LIMIT))?;
        let mut stand = Stand {
            roots: vec![export.clone()],
            program: bin.join("nfsrdma"),
            server,
            control: BufReader::new(control),
            dir: Some(dir),
        };
        for n in 1..=mounts {
            let base = export.parent().context("a directory above")?;
            let at = base.join(format!("mnt{n}"));
            std::fs::create_dir(&at)?;
            let mut all = format!("port={rdma},mountport={nfs},mountproto=tcp,noresvport,timeo=20");
            if !options.is_empty() {
                all = format!("{all},{options}");
            }
            let result = Command::new(&stand.program)
                .arg("mount")
                .arg(format!("127.0.0.1:{}", export.display()))
                .arg(&at)
                .args(["-o", &all, "--log"])
                .arg(base.join(format!("mnt{n}.log")))
                .output()?;
            ensure!(
                result.status.success(),
                "mount: {}",
                String::from_utf8_lossy(&result.stderr)
            );
            stand.roots.push(at);
        }
        Ok(stand)
    }

    /// A command for the server.
    pub(crate) fn tell(&mut self, command: &str) -> Result<()> {
        writeln!(self.control.get_mut(), "{command}")?;
        let mut answer = String::new();
        self.control.read_line(&mut answer)?;
        ensure!(answer.starts_with("ok"), "{command}: {}", answer.trim());
        Ok(())
    }

    /// Keeps the directory with the logs; where it is.
    pub(crate) fn keep(&mut self) -> Option<PathBuf> {
        self.unmount();
        self.dir.take().map(tempfile::TempDir::keep)
    }

    fn unmount(&mut self) {
        for at in self.roots.drain(..).skip(1) {
            let mut child = match Command::new(&self.program)
                .arg("umount")
                .arg(&at)
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
            {
                Ok(child) => child,
                Err(_) => continue,
            };
            let ended = (0..300).any(|_| {
                std::thread::sleep(Duration::from_millis(10));
                !matches!(child.try_wait(), Ok(None))
            });
            if !ended || !child.wait().is_ok_and(|status| status.success()) {
                let _ = child.kill();
                let _ = child.wait();
                let _ = nix::mount::umount2(&at, nix::mount::MntFlags::MNT_DETACH);
            }
        }
    }
}

impl Drop for Stand {
    fn drop(&mut self) {
        let _ = self.tell("clear");
        self.unmount();
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}
