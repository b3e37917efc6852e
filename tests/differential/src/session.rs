//! The users' processes on both trees, and running a sequence of calls by them.

use crate::accepted;
use crate::call::{Call, Place, Reply, Request, Side, Step};
use crate::compare::{self, Difference};
use crate::history::{Feedback, USERS};
use crate::observe;
use crate::stand::Stand;
use anyhow::{Context, Result, ensure};
use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// The number of calls after which whole trees are compared.
const CHECK: usize = 250;
/// The time after which a call counts as hanging.
const PATIENCE: Duration = Duration::from_secs(60);

/// The process of one user on one tree.
#[derive(Debug)]
struct Hand {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl Hand {
    fn start(user: usize) -> Result<Self> {
        let (uid, gid, groups) = USERS[user];
        let groups: Vec<String> = groups.iter().map(u32::to_string).collect();
        let mut child = Command::new("/proc/self/exe")
            .arg("worker")
            .args([uid.to_string(), gid.to_string(), groups.join(",")])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("starting a worker")?;
        let to = child.stdin.take().context("a worker's input")?;
        let from = BufReader::new(child.stdout.take().context("a worker's output")?);
        Ok(Hand { child, to, from })
    }

    fn send(&mut self, request: &Request) -> Result<()> {
        let mut text = serde_json::to_vec(request)?;
        text.push(b'\n');
        Ok(self.to.write_all(&text)?)
    }

    fn receive(&mut self) -> Result<Reply> {
        let mut line = String::new();
        ensure!(self.from.read_line(&mut line)? > 0, "a worker ended");
        Ok(serde_json::from_str(&line)?)
    }
}

impl Drop for Hand {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The outcome of a sequence of calls.
#[derive(Debug, Default)]
pub(crate) struct Epoch {
    pub(crate) steps: Vec<Step>,
    /// Differences that no row accepts, each with the number of calls made until then.
    pub(crate) found: Vec<(usize, Difference)>,
}

#[derive(Debug)]
pub(crate) struct Session<'a> {
    stand: &'a Stand,
    mount: Vec<Hand>,
    local: Vec<Hand>,
    number: u64,
    log_read: u64,
    /// The number of calls made on the mount.
    pub(crate) calls: u64,
    /// How often a row of the table accepted a difference.
    pub(crate) accepted: BTreeMap<&'static str, u64>,
    /// The number of calls, and of those that succeeded, by name.
    pub(crate) succeeded: BTreeMap<String, (u64, u64)>,
    /// Whether a name was removed from a file that may be open, since the trees were begun.
    may_hide: bool,
    /// Whether permission was lost at some time (see [`Reply::lost`]); the log reports it later.
    lost: bool,
    current: Arc<Mutex<(Instant, String)>>,
}

impl<'a> Session<'a> {
    pub(crate) fn new(stand: &'a Stand, users: usize) -> Result<Self> {
        let start = || {
            (0..users.clamp(2, USERS.len()))
                .map(Hand::start)
                .collect::<Result<Vec<_>>>()
        };
        let current = Arc::new(Mutex::new((Instant::now(), String::new())));
        watch(current.clone());
        Ok(Session {
            stand,
            mount: start()?,
            local: start()?,
            number: 0,
            log_read: 0,
            calls: 0,
            accepted: BTreeMap::new(),
            succeeded: BTreeMap::new(),
            may_hide: false,
            lost: false,
            current,
        })
    }

    pub(crate) fn acls(&self) -> bool {
        self.stand.acls
    }

    pub(crate) fn server_checks(&self) -> bool {
        self.stand.server_checks
    }

    /// Runs the calls of `source` in a new directory of both trees, until they end or the trees
    /// differ.
    pub(crate) fn run(
        &mut self,
        mut source: impl FnMut(&Feedback, usize) -> Option<Step>,
    ) -> Result<Epoch> {
        self.number += 1;
        // The root is two levels down, so that a link may lead out of it, but not out of the mount.
        let name = format!("e{}", self.number);
        let roots = [&self.stand.mount, &self.stand.local].map(|base| base.join(&name));
        for root in &roots {
            fs::create_dir(root)?;
            fs::create_dir(root.join("t"))?;
            let all = std::os::unix::fs::PermissionsExt::from_mode(0o777);
            fs::set_permissions(root.join("t"), all)?;
        }
        self.begin([&roots[0].join("t"), &roots[1].join("t")])?;
        self.may_hide = false;
        let mut epoch = Epoch::default();
        let mut feedback = Feedback::new();
        let mut end = false;
        while !end {
            let next = source(&feedback, epoch.steps.len());
            end = next.is_none();
            let mut differences = Vec::new();
            let mut diverged = false;
            if let Some(step) = next {
                self.may_hide |= feedback.may_hide();
                let (made, found) = self.step(&step, &name)?;
                diverged = found.iter().any(|d| !d.harmless());
                differences = found;
                feedback.note(&step, &made);
                epoch.steps.push(step);
            }
            if !diverged && (end || epoch.steps.len().is_multiple_of(CHECK)) {
                let found = self.trees(&name, epoch.steps.last());
                diverged |= !found.is_empty();
                differences.extend(found);
            }
            let at = epoch.steps.len();
            epoch.found.extend(differences.into_iter().map(|d| (at, d)));
            end |= diverged;
        }
        let nothing = PathBuf::new();
        self.begin([&nothing, &nothing])?;
        let at = epoch.steps.len();
        epoch
            .found
            .extend(self.clean(&name)?.into_iter().map(|d| (at, d)));
        Ok(epoch)
    }

    fn begin(&mut self, roots: [&Path; 2]) -> Result<()> {
        self.note("the beginning".into());
        let server_checks = self.stand.server_checks;
        let sides = [
            (&mut self.mount, Side::Mount),
            (&mut self.local, Side::Local),
        ];
        for ((hands, side), root) in sides.into_iter().zip(roots) {
            for hand in hands {
                hand.send(&Request::Begin {
                    root: root.display().to_string(),
                    side,
                    server_checks,
                })?;
                let reply = hand.receive()?;
                ensure!(
                    reply.outcome.errno == 0,
                    "a worker cannot begin in {}: {reply:?}",
                    root.display()
                );
            }
        }
        Ok(())
    }

    fn note(&self, what: String) {
        if let Ok(mut current) = self.current.lock() {
            *current = (Instant::now(), what);
        }
    }

    fn both(&mut self, user: usize, request: &Request) -> Result<(Reply, Reply)> {
        self.mount[user].send(request)?;
        self.local[user].send(request)?;
        Ok((self.mount[user].receive()?, self.local[user].receive()?))
    }

    /// Makes one call on both trees. Returns the local result, and the differences.
    fn step(&mut self, step: &Step, name: &str) -> Result<(Reply, Vec<Difference>)> {
        self.note(format!("{step:?}"));
        self.calls += 1;
        let request = Request::Do {
            call: step.call.clone(),
        };
        let (mount, local) = if accepted::refusable(&step.call, self.stand.server_checks) {
            self.mount[step.user].send(&request)?;
            let mount = self.mount[step.user].receive()?;
            let export = self.stand.export.join(name);
            let hidden = || observe::tree(&export, true).only_hidden;
            if let Some(row) = accepted::refused(&step.call, &mount, hidden) {
                *self.accepted.entry(row.name).or_default() += 1;
                self.lost |= mount.lost;
                // The data stays in the kernel's cache until the file is next opened, or until the
                // mount notifies the kernel, which nobody waits for.
                if let Some(fd) = mount.refused {
                    let pid = self.mount[step.user].child.id();
                    let file = fs::File::open(format!("/proc/{pid}/fd/{fd}"))?;
                    // Those of other users are told of it, too, as where the kernel has written the data back.
                    let ino = file.metadata()?.ino();
                    for worker in &mut self.mount {
                        worker.send(&Request::Sync { ino })?;
                        worker.receive()?;
                    }
                }
                if !row.changes_nothing() {
                    return Ok((mount, Vec::new()));
                }
                // It is not made on the local file system, and must have had no effect here.
                let call = step.call.clone();
                self.local[step.user].send(&Request::Look { call })?;
                let local = Reply {
                    outcome: mount.outcome.clone(),
                    ..self.local[step.user].receive()?
                };
                let found = compare::replies(step, &mount, &local, false);
                let found = self.not_accepted(Some(step), found);
                return Ok((mount, found));
            }
            self.local[step.user].send(&request)?;
            (mount, self.local[step.user].receive()?)
        } else {
            self.both(step.user, &request)?
        };
        let counts = self.succeeded.entry(step.call.name()).or_default();
        counts.0 += 1;
        counts.1 += u64::from(local.outcome.errno == 0);
        let mut found = compare::replies(step, &mount, &local, false);
        if matches!(step.call, Call::Fchdir { .. }) && mount.outcome.errno != local.outcome.errno {
            // One worker is in the directory and the other one is not: see "the ACL of a removed
            // directory".
            let place = Place::root("");
            let call = Call::Chdir { place };
            self.both(step.user, &Request::Do { call })?;
        }
        let made = local;
        let places = step.observed();
        if !places.is_empty() && step.observer < self.mount.len() {
            let request = Request::Observe {
                places,
                contents: step.contents,
            };
            let (mount, local) = self.both(step.observer, &request)?;
            found.extend(compare::replies(step, &mount, &local, true));
        }
        for difference in &mut found {
            difference.removed = made.removed;
            difference.succeeded = made.outcome.errno == 0;
        }
        let found = self.not_accepted(Some(step), found);
        Ok((made, found))
    }

    fn not_accepted(&mut self, step: Option<&Step>, found: Vec<Difference>) -> Vec<Difference> {
        let mut rest = Vec::new();
        for mut difference in found {
            difference.may_hide = self.may_hide;
            if self.counts_left_names(&difference) {
                let row = accepted::HIDDEN_NAME_LEFT.0;
                *self.accepted.entry(row).or_default() += 1;
                continue;
            }
            let server_checks = self.stand.server_checks;
            match step.and_then(|step| accepted::tolerated(step, &difference, server_checks)) {
                Some(row) => *self.accepted.entry(row.name).or_default() += 1,
                None => rest.push(difference),
            }
        }
        rest
    }

    /// Whether the mount shows no more links than those of hidden names that, by the client's log,
    /// could not be removed; these are ordinary names from then on.
    fn counts_left_names(&self, difference: &Difference) -> bool {
        let links = |value: &str| accepted::last(value).parse::<u64>().ok();
        let more = match (links(&difference.mount), links(&difference.local)) {
            (Some(ours), Some(theirs)) if difference.field == "nlink" && ours > theirs => {
                ours - theirs
            }
            _ => return false,
        };
        let mut from = self.log_read;
        let said = self.stand.log_since(&mut from).unwrap_or_default();
        let left = said
            .lines()
            .filter(|line| accepted::leaves_hidden_name(line));
        left.count() as u64 >= more
    }

    /// Compares whole trees: the mount's with the local one, and then with the exported directory.
    fn trees(&mut self, name: &str, last: Option<&Step>) -> Vec<Difference> {
        self.note("comparing trees".into());
        let local = observe::tree(&self.stand.local.join(name), false);
        let mount = observe::tree(&self.stand.mount.join(name), false);
        let mut found = compare::trees("Tree", &mount, &local);
        if found.is_empty() {
            let server = observe::tree(&self.stand.export.join(name), true);
            found = compare::trees("ServerTree", &server, &local);
        }
        self.not_accepted(last, found)
    }

    /// Removes both trees. All files are closed, so no hidden name may be left.
    fn clean(&mut self, name: &str) -> Result<Vec<Difference>> {
        self.note("removing the trees".into());
        let (mount, local) = (self.stand.mount.join(name), self.stand.local.join(name));
        let export = self.stand.export.join(name);
        let mut found = Vec::new();
        let mut difference = |field: &str, mount: String| {
            found.push(Difference {
                call: "End".into(),
                field: field.into(),
                mount,
                local: String::new(),
                observed: false,
                kind: String::new(),
                may_hide: false,
                removed: false,
                succeeded: false,
            });
        };
        // A FUSE file system learns of a close later.
        let limit = Instant::now() + Duration::from_secs(5);
        let mut left = observe::tree(&export, true).hidden;
        while left > 0 && Instant::now() < limit {
            std::thread::sleep(Duration::from_millis(2));
            left = observe::tree(&export, true).hidden;
        }
        let said = self.stand.log_since(&mut self.log_read)?;
        let denied = said
            .lines()
            .filter(|line| accepted::leaves_hidden_name(line))
            .count();
        if left > 0 && left <= denied {
            *self
                .accepted
                .entry(accepted::HIDDEN_NAME_LEFT.0)
                .or_default() += 1;
        } else if left > 0 {
            let named = said.lines().filter(|line| line.contains("unlinked"));
            let named = named.collect::<Vec<_>>().join("; ");
            difference("hidden names are left", format!("{left}; the log: {named}"));
        }
        if let Some(line) = said
            .lines()
            .filter(|line| !(self.lost && accepted::refused_data(line)))
            .find(|line| line.contains("panicked") || line.contains("ERROR"))
        {
            difference("the client's log", line.to_owned());
        }
        if let Err(error) = fs::remove_dir_all(&mount) {
            let left = observe::tree(&export, true);
            difference("the tree cannot be removed", format!("{error}; {left:?}"));
            let _ = fs::remove_dir_all(&export);
        }
        fs::remove_dir_all(&local).context("removing the local tree")?;
        Ok(found)
    }

    /// Looks for a shorter sequence of calls that has a difference with the same signature.
    pub(crate) fn shrink(
        &mut self,
        steps: &[Step],
        signature: &str,
        limit: Duration,
    ) -> Result<Option<Vec<Step>>> {
        let end = Instant::now() + limit;
        let mut again = |steps: &[Step]| -> Result<Option<usize>> {
            let mut rest = steps.iter();
            let epoch = self.run(|_, _| rest.next().cloned())?;
            let at = epoch.found.iter().find(|(_, d)| d.signature() == signature);
            Ok(at.map(|&(at, _)| at))
        };
        let Some(at) = again(steps)? else {
            return Ok(None);
        };
        let mut best = steps[..at].to_vec();
        let mut size = best.len().div_ceil(2);
        while size > 0 && Instant::now() < end {
            let mut from = 0;
            let mut shorter = false;
            while from < best.len() && Instant::now() < end {
                let to = (from + size).min(best.len());
                let rest = [&best[..from], &best[to..]].concat();
                match again(&rest)? {
                    Some(at) => {
                        best = rest[..at].to_vec();
                        shorter = true;
                    }
                    None => from = to,
                }
            }
            if size == 1 && !shorter {
                break;
            }
            size = if size == 1 { 1 } else { size.div_ceil(2) };
        }
        Ok(Some(best))
    }
}

/// Ends the program when a call does not return. It is the first process of a PID namespace, so all
/// processes that it started end with it.
fn watch(current: Arc<Mutex<(Instant, String)>>) {
    std::thread::spawn(move || {
        loop {
            std::thread::sleep(Duration::from_secs(1));
            if let Ok(current) = current.lock()
                && current.0.elapsed() > PATIENCE
            {
                println!("FAILED   no answer within {PATIENCE:?}: {}", current.1);
                println!("0 passed, 1 failed, 0 skipped");
                std::process::exit(1);
            }
        }
    });
}
