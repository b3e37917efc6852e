//! A process that makes the operations, and its parent's side. It is a separate process, because
//! programs that a process starts close copies of its files, which would wait for a server that is
//! away.

use crate::load::Load;
use crate::sys;
use crate::tree::Manifest;
use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

/// A message of a worker, which is one line.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Said {
    /// This number of operations is done.
    Alive(u64),
    Done(Outcome),
}

#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Outcome {
    pub(crate) operations: BTreeMap<String, u64>,
    pub(crate) compared: u64,
    /// The entries that the directory at the server has now.
    pub(crate) manifest: Manifest,
    pub(crate) failure: Option<String>,
}

/// What a worker does.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Task {
    #[arg(long)]
    mount: PathBuf,
    /// The exported directory
    #[arg(long)]
    direct: PathBuf,
    /// Directory to make there
    #[arg(long)]
    name: String,
    #[arg(long)]
    seed: u64,
}

fn say(said: &Said) -> Result<()> {
    let mut out = std::io::stdout().lock();
    serde_json::to_writer(&mut out, said)?;
    out.write_all(b"\n")?;
    out.flush()?;
    Ok(())
}

/// The worker's side.
pub(crate) fn run(task: &Task) -> Result<()> {
    sys::die_with_parent();
    let halt = Arc::new(AtomicBool::new(false));
    let flag = halt.clone();
    // The run ends with the end of its input.
    std::thread::spawn(move || {
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        flag.store(true, SeqCst);
    });
    let mut outcome = Outcome::default();
    if let Err(error) = load(task, &halt, &mut outcome) {
        outcome.failure = Some(format!("{error:#}"));
    }
    say(&Said::Done(outcome))?;
    Ok(())
}

/// Makes operations until the worker is told to stop.
fn repeat(load: &mut Load, halt: &AtomicBool) -> Result<()> {
    let mut last = Instant::now();
    let mut done = 0;
    while !halt.load(SeqCst) {
        load.step()?;
        done += 1;
        if last.elapsed() > Duration::from_millis(500) {
            last = Instant::now();
            say(&Said::Alive(done))?;
        }
    }
    Ok(())
}

fn owned(operations: &BTreeMap<&'static str, u64>) -> BTreeMap<String, u64> {
    operations
        .iter()
        .map(|(&k, &v)| (k.to_owned(), v))
        .collect()
}

fn load(task: &Task, halt: &AtomicBool, outcome: &mut Outcome) -> Result<()> {
    let mut load = Load::new(
        &task.mount.join(&task.name),
        &task.direct.join(&task.name),
        task.seed,
    )?;
    let result = repeat(&mut load, halt);
    let result = result.and_then(|()| load.finish());
    outcome.operations = owned(&load.operations);
    outcome.compared = load.compared;
    outcome.manifest = result?;
    Ok(())
}

/// The parent's side: a worker that was started.
#[derive(Debug)]
pub(crate) struct Worker {
    pub(crate) name: String,
    child: Child,
    input: Option<ChildStdin>,
    said: mpsc::Receiver<Said>,
    pub(crate) progress: u64,
    pub(crate) moved: Instant,
    pub(crate) outcome: Option<Outcome>,
}

impl Worker {
    pub(crate) fn start(name: String, mount: &Path, direct: &Path, seed: u64) -> Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("worker").args(["--name", &name]);
        command.args(["--seed", &seed.to_string()]);
        command.arg("--direct").arg(direct);
        command.arg("--mount").arg(mount);
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("starting a worker")?;
        let input = child.stdin.take();
        let output = child.stdout.take().context("a worker's output")?;
        let (tell, said) = mpsc::channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                let Ok(said) = serde_json::from_str(&line) else {
                    return;
                };
                if tell.send(said).is_err() {
                    return;
                }
            }
        });
        Ok(Worker {
            name,
            child,
            input,
            said,
            progress: 0,
            moved: Instant::now(),
            outcome: None,
        })
    }

    /// Reads a message, for at most `time`.
    pub(crate) fn listen(&mut self, time: Duration) -> Result<()> {
        match self.said.recv_timeout(time) {
            Ok(Said::Alive(progress)) => {
                if progress > self.progress {
                    (self.progress, self.moved) = (progress, Instant::now());
                }
            }
            Ok(Said::Done(outcome)) => self.outcome = Some(outcome),
            Err(mpsc::RecvTimeoutError::Timeout) => {}
            Err(mpsc::RecvTimeoutError::Disconnected) if self.outcome.is_some() => {}
            Err(mpsc::RecvTimeoutError::Disconnected) => {
                bail!("worker {} died: {:?}", self.name, self.child.wait()?)
            }
        }
        Ok(())
    }

    /// Tells the worker to stop.
    pub(crate) fn halt(&mut self) {
        self.input = None;
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
