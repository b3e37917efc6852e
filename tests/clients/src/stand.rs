//! The actors of a run: the server's side and the mounts. Either this program starts the server,
//! with a control socket, and mounts it; all of that ends when this is dropped. Or they exist
//! already, here or on another machine.

use crate::executor::{Executor, Remote};
use crate::oracle::SERVER;
use crate::variant::Variant;
use anyhow::{Context, Result, ensure};
use nfsrdma_test_support::{Launch, Responder};
use std::ffi::OsStr;
use std::fmt;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// The time limit for everything that must happen.
const LIMIT: Duration = Duration::from_secs(60);

/// The longest time for a call.
pub(crate) const HANGS: Duration = Duration::from_secs(100);

/// An actor that makes calls.
#[derive(Debug)]
pub(crate) struct Actor {
    pub(crate) name: String,
    pub(crate) executor: Executor,
}

impl Actor {
    fn local(name: impl Into<String>, root: &Path) -> Self {
        Actor {
            name: name.into(),
            executor: Executor::local(root),
        }
    }
}

/// A server and mounts that exist already: `NAME=DIR` and `NAME=HOST:PORT`.
#[derive(Debug, Clone, Default)]
pub(crate) struct Given {
    pub(crate) at: Vec<String>,
    pub(crate) remote: Vec<String>,
    /// The names of those that cache like Linux's client.
    pub(crate) linux: Vec<String>,
    /// The names of those that open with O_DIRECT.
    pub(crate) direct: Vec<String>,
    /// Changes of a file within this number of milliseconds may have the same time.
    pub(crate) tick: u64,
}

/// The name that stands for the server's side.
const SERVER_NAME: &str = "server";

impl Given {
    pub(crate) fn is_empty(&self) -> bool {
        self.at.is_empty() && self.remote.is_empty()
    }
}

impl fmt::Display for Given {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (option, texts) in [
            ("at", &self.at),
            ("remote", &self.remote),
            ("linux", &self.linux),
            ("direct", &self.direct),
        ] {
            for text in texts {
                write!(f, "--{option} {text} ")?;
            }
        }
        write!(f, "--tick {}", self.tick)
    }
}

/// A server that this program started, in a directory of its own, and mounts of it.
#[derive(Debug)]
struct Started {
    program: PathBuf,
    server: Responder,
    control: BufReader<UnixStream>,
    mounts: Vec<PathBuf>,
    dir: Option<tempfile::TempDir>,
}

/// The actors.
#[derive(Debug)]
pub(crate) struct Stand {
    /// The server's side, if calls are made there, then each mount. They are before `started`,
    /// because open files would keep the mounts busy.
    pub(crate) actors: Vec<Option<Actor>>,
    started: Option<Started>,
}

impl Stand {
    pub(crate) fn new(bin: &Path, variant: &Variant, mounts: usize, options: &str) -> Result<Self> {
        let dir = tempfile::Builder::new()
            .prefix("nfsrdma-clients.")
            .tempdir()?;
        let base = dir.path();
        let export = base.join("export");
        std::fs::create_dir(&export)?;
        let program = bin.join("nfsrdma-responder");
        let server = Launch::new(&program, &export, &base.join("state"))
            .arguments([OsStr::new("--control"), base.join("control").as_os_str()])
            .arguments(variant.arguments)
            .log(base.join("responder.log"))
            // A signal to this program's group must not end the server before the mounts.
            .own_group()
            .start()?;
        let (rdma, nfs) = (server.rdma, server.nfs);
        let control = UnixStream::connect(base.join("control"))?;
        control.set_read_timeout(Some(LIMIT))?;
        let mut started = Started {
            program: bin.join("nfsrdma"),
            server,
            control: BufReader::new(control),
            mounts: Vec::new(),
            dir: Some(dir),
        };
        let mut actors = vec![Some(Actor::local(SERVER_NAME, &export))];
        for n in 1..=mounts {
            let base = export.parent().context("a directory above")?;
            let at = base.join(format!("mnt{n}"));
            std::fs::create_dir(&at)?;
            let mut all = format!("port={rdma},mountport={nfs},mountproto=tcp,noresvport,timeo=20");
            if !options.is_empty() {
                all = format!("{all},{options}");
            }
            let result = Command::new(&started.program)
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
            actors.push(Some(Actor::local(format!("mnt{n}"), &at)));
            started.mounts.push(at);
        }
        Ok(Stand {
            actors,
            started: Some(started),
        })
    }

    /// Uses mounts that exist already.
    pub(crate) fn given(given: &Given) -> Result<Self> {
        let mut actors: Vec<Option<Actor>> = vec![None];
        let mut add = |name: &str, executor: Executor| {
            let actor = Actor {
                name: name.to_string(),
                executor,
            };
            ensure!(
                !actors.iter().flatten().any(|known| known.name == name),
                "two are called {name}"
            );
            match name {
                SERVER_NAME => actors[SERVER] = Some(actor),
                _ => actors.push(Some(actor)),
            }
            Ok(())
        };
        for text in &given.at {
            let (name, dir) = text.split_once('=').context("--at takes NAME=DIR")?;
            ensure!(Path::new(dir).is_dir(), "{dir} is no directory");
            add(name, Executor::local(Path::new(dir)))?;
        }
        for text in &given.remote {
            let (name, address) = text
                .split_once('=')
                .context("--remote takes NAME=HOST:PORT")?;
            add(name, Executor::Remote(Remote::connect(address, HANGS)?))?;
        }
        ensure!(actors.len() > 1, "no mount is given");
        Ok(Stand {
            actors,
            started: None,
        })
    }

    /// The mounts that may be aborted: those that were made here.
    pub(crate) fn mounts(&self) -> Vec<PathBuf> {
        self.started
            .as_ref()
            .map_or(Vec::new(), |started| started.mounts.clone())
    }

    /// Sends a command to the server.
    pub(crate) fn tell(&mut self, command: &str) -> Result<()> {
        let started = self.started.as_mut().context("no server was started")?;
        started.tell(command)
    }

    /// Sends a command after undoing the rest of an earlier one, because a call that ends several
    /// connections in a row would fail.
    pub(crate) fn command(&mut self, command: &str) -> Result<()> {
        if command.starts_with("hangup") {
            self.tell("clear")?;
        }
        self.tell(command)
    }

    /// Closes all files, and keeps the directory with the logs. Returns its path.
    pub(crate) fn keep(&mut self) -> Option<PathBuf> {
        self.actors.clear();
        let started = self.started.as_mut()?;
        started.unmount();
        started.dir.take().map(tempfile::TempDir::keep)
    }
}

impl Started {
    fn tell(&mut self, command: &str) -> Result<()> {
        writeln!(self.control.get_mut(), "{command}")?;
        let mut answer = String::new();
        self.control.read_line(&mut answer)?;
        ensure!(answer.starts_with("ok"), "{command}: {}", answer.trim());
        Ok(())
    }

    fn unmount(&mut self) {
        for at in self.mounts.drain(..) {
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

impl Drop for Started {
    fn drop(&mut self) {
        let _ = self.tell("clear");
        self.unmount();
        let _ = self.server.kill();
    }
}
