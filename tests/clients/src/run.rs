//! One run: makes system calls, and has the oracle check each of them.

use crate::call::{Call, Handle, Place};
use crate::executor::Executor;
use crate::oracle::{Id, Oracle, SERVER};
use crate::signals;
use crate::stand::{Actor, Given, Stand};
use crate::variant::Variant;
use crate::watch::Watch;
use anyhow::{Context, Result, bail};
use nfsrdma_test_support::Random;
use nix::errno::Errno;
use nix::libc;
use std::io;
use std::path::Path;
use std::time::Duration;

mod rounds;
mod steps;

/// The names of the run. They are few, so that actors meet.
const NAMES: &[&str] = &["f0", "f1", "f2", "d/f0", "d/f1"];
/// The group of a file identifies it, whatever its fileid is: this base and the number of the file.
const GROUPS: u32 = 100_000;
/// Most descriptors that are open at a time.
const OPEN_MAX: usize = 12;

/// Where rounds of calls overlap, all descriptors are closed after this number of steps.
const REST: usize = 25;

/// The plan of a run.
#[derive(Debug)]
pub(crate) struct Plan<'a> {
    pub(crate) bin: &'a Path,
    /// Mounts that exist already; if there are any, no server is started.
    pub(crate) given: &'a Given,
    pub(crate) variant: &'a Variant,
    pub(crate) seed: u64,
    pub(crate) calls: usize,
    pub(crate) mounts: usize,
    pub(crate) options: &'a str,
    pub(crate) verbose: bool,
    /// Whether several calls are made at a time.
    pub(crate) overlapping: bool,
    /// Whether EIO is permitted for a file that is gone, and not only ESTALE.
    pub(crate) eio_when_gone: bool,
}

/// A difference from the promises: its description, and the file.
struct Difference {
    what: String,
    id: Option<Id>,
}

type Step = std::result::Result<(), Difference>;

fn differs<T>(what: impl Into<String>, id: Option<Id>) -> std::result::Result<T, Difference> {
    Err(Difference {
        what: what.into(),
        id,
    })
}

#[derive(Debug, Clone, Copy)]
struct Descriptor {
    number: usize,
    actor: usize,
    id: Id,
    file: Handle,
    writes: bool,
}

struct Run<'a> {
    plan: &'a Plan<'a>,
    stand: Stand,
    /// The directory of the run, with a slash, if it is not the exported one itself.
    directory: String,
    oracle: Oracle,
    random: Random,
    open: Vec<Descriptor>,
    opened: usize,
    value: u8,
    said: Vec<String>,
    counts: Vec<(&'static str, u64)>,
    step: usize,
}

type Counts = Vec<(&'static str, u64)>;

/// Runs the plan. Returns the number of calls of each kind, and the difference, if any.
pub(crate) fn run(plan: &Plan<'_>) -> Result<(Counts, std::result::Result<(), String>)> {
    let mut stand = match plan.given.is_empty() {
        true => Stand::new(plan.bin, plan.variant, plan.mounts, plan.options)?,
        false => Stand::given(plan.given)?,
    };
    let directory = make_directories(&mut stand, plan)?;
    let names_trusted = match plan.options {
        // Two changes of a directory within a tick look like one.
        _ if plan.variant.name == "one-second" => Duration::from_secs(3600),
        options if options.contains("noac") => Duration::ZERO,
        options if options.contains("actimeo=1") => Duration::from_millis(1500),
        _ => Duration::from_secs(3600),
    };
    let tick = match plan.variant.name {
        "one-second" => Duration::from_millis(2100),
        // Changes by others while a WRITE is on its way may be missed (docs/COHERENCE.md).
        "not-atomic" | "not-for-write" | "never" | "all" if plan.overlapping => {
            Duration::from_millis(100)
        }
        // The times of held data come from a finer clock than those of writes on the server's side.
        _ if plan.overlapping && plan.variant.arguments.contains(&"--fake-unstable") => {
            Duration::from_millis(20)
        }
        _ => Duration::from_millis(plan.given.tick),
    };
    let actors = stand.actors.len();
    let mut run = Run {
        plan,
        stand,
        directory,
        oracle: Oracle::new(NAMES, actors, names_trusted, tick),
        random: Random::new(plan.seed ^ 0x5eed),
        open: Vec::new(),
        opened: 0,
        value: 0,
        said: Vec::new(),
        counts: Vec::new(),
        step: 0,
    };
    if plan.variant.commands.iter().any(|c| c.starts_with("clock")) {
        run.oracle.clock_is_off();
    }
    // Linux's server does not, either.
    if !plan.given.is_empty()
        || plan
            .variant
            .arguments
            .iter()
            .any(|a| ["not-for-write", "never"].contains(a))
    {
        run.oracle.nothing_before_writes();
    }
    for (n, actor) in run.stand.actors.iter().enumerate() {
        let kernels = |actor: &Actor| plan.given.linux.contains(&actor.name);
        if n != SERVER && actor.as_ref().is_some_and(kernels) {
            run.oracle.page_cache(n);
        }
        let given = |actor: &Actor| kernels(actor) || plan.given.direct.contains(&actor.name);
        if n != SERVER && actor.as_ref().is_some_and(given) {
            run.oracle.hides_by_name(n);
        }
    }
    let watch = Watch::start(run.stand.mounts());
    let result = run.all(&watch);
    watch.end();
    let result = result.map_err(|difference| run.report(&difference));
    if result.is_ok() {
        run.remove_directories();
    } else {
        if let Some(dir) = run.stand.keep() {
            println!("logs are kept in {}", dir.display());
        }
    }
    Ok((run.counts, result))
}

/// Makes the directories of the run, on the server's side or by the first mount.
fn make_directories(stand: &mut Stand, plan: &Plan<'_>) -> Result<String> {
    let actor = stand.actors.iter_mut().flatten().next();
    let executor = &mut actor.context("nobody makes calls")?.executor;
    let mut mkdir = |path: &str| -> Result<io::Result<()>> {
        let place = path.parse()?;
        Ok(executor.run(&Call::Mkdir(place)))
    };
    let mut directory = String::new();
    if !plan.given.is_empty() {
        // Use a new directory, whose names nobody has cached in an earlier run.
        for n in 0.. {
            let name = format!("run-{}-{n}", plan.seed);
            match mkdir(&name)? {
                Ok(()) => {
                    directory = name + "/";
                    break;
                }
                Err(error) if error.raw_os_error() == Some(libc::EEXIST) && n < 1000 => {}
                Err(error) => bail!("mkdir {name}: {error}"),
            }
        }
    }
    mkdir(&format!("{directory}d"))?.context("mkdir d")?;
    Ok(directory)
}

/// The errno of an error; EREMOTEIO for an error of an executor's connection, which has none.
fn errno(error: &io::Error) -> Errno {
    Errno::from_raw(error.raw_os_error().unwrap_or(libc::EREMOTEIO))
}

impl Run<'_> {
    fn all(&mut self, watch: &Watch) -> Step {
        while self.step < self.plan.calls {
            if signals::caught() {
                return Ok(());
            }
            self.step += 1;
            watch.beat();
            self.between();
            self.oracle.calls_begin();
            match self.plan.overlapping && self.random.chance(3, 4) {
                true => self.round()?,
                false => self.one()?,
            }
            if self.plan.overlapping && self.step.is_multiple_of(REST) {
                self.oracle.calls_begin();
                self.rest()?;
            }
        }
        while !self.open.is_empty() {
            watch.beat();
            self.close(0)?;
        }
        for actor in self.present() {
            for name in NAMES {
                watch.beat();
                self.read_all(actor, name)?;
            }
        }
        Ok(())
    }

    fn report(&self, difference: &Difference) -> String {
        let plan = self.plan;
        let mut report = format!(
            "DIFFERENCE variant={} seed={} call={} options={:?}: {}\n",
            plan.variant.name, plan.seed, self.step, plan.options, difference.what
        );
        let stand = match plan.given.is_empty() {
            true => format!("--variant {} --mounts {}", plan.variant.name, plan.mounts),
            false => plan.given.to_string(),
        };
        report += &format!(
            "  again: nfsrdma-clients {stand} --mode {} --seed {} --calls {} --options '{}'\n",
            match plan.overlapping {
                true => "overlapping",
                false => "one-by-one",
            },
            plan.seed,
            self.step,
            plan.options
        );
        let lines = match difference.id {
            Some(id) => &self.oracle.objects[id].history,
            None => &self.said,
        };
        for line in &lines[lines.len().saturating_sub(100)..] {
            report += &format!("  {line}\n");
        }
        report
    }

    fn say(&mut self, what: &'static str, id: Option<Id>, line: String) {
        match self.counts.iter_mut().find(|(known, _)| *known == what) {
            Some((_, count)) => *count += 1,
            None => self.counts.push((what, 1)),
        }
        let line = format!("{:5} {line}", self.step);
        if self.plan.verbose {
            println!("{line}");
        }
        if let Some(id) = id {
            self.oracle.objects[id].history.push(line.clone());
        }
        self.said.push(line);
    }

    /// Lets something happen to the server, or some time pass.
    fn between(&mut self) {
        let commands = self.plan.variant.commands;
        if !commands.is_empty() && self.random.chance(1, 12) {
            let command = *self.random.pick(commands);
            let line = match self.stand.command(command) {
                Ok(()) => format!("server: {command}"),
                Err(error) => format!("server: {command}: {error}"),
            };
            for object in &mut self.oracle.objects {
                object.history.push(format!("{:5} {line}", self.step));
            }
            self.say("command", None, line);
        }
        if self.random.chance(1, 8) {
            std::thread::sleep(Duration::from_millis(12));
        }
        if self.plan.variant.name == "one-second" && self.random.chance(1, 60) {
            std::thread::sleep(Duration::from_millis(2200));
        }
    }

    fn actor(&mut self) -> usize {
        match self.random.chance(1, 7) && self.stand.actors[SERVER].is_some() {
            true => SERVER,
            false => 1 + self.random.below(self.stand.actors.len() - 1),
        }
    }

    /// All actors that make calls.
    fn present(&self) -> Vec<usize> {
        (0..self.stand.actors.len())
            .filter(|actor| self.stand.actors[*actor].is_some())
            .collect()
    }

    fn executor(&mut self, actor: usize) -> &mut Executor {
        let actor = self.stand.actors[actor].as_mut();
        &mut actor
            .expect("only those that are there are chosen")
            .executor
    }

    /// Makes a call that returns nothing but its success.
    fn call(&mut self, actor: usize, call: &Call) -> io::Result<()> {
        self.executor(actor).run(call)
    }

    /// Removes what a run has made in a directory that others use as well.
    fn remove_directories(&mut self) {
        if self.plan.given.is_empty() {
            return;
        }
        let directory = self.directory.trim_end_matches('/').to_string();
        let parent = directory.parse().map(Call::Rmdir);
        let mut calls: Vec<Call> = NAMES.iter().map(|n| Call::Unlink(self.path(n))).collect();
        calls.push(Call::Rmdir(self.path("d")));
        calls.extend(parent.ok());
        if let Some(actor) = self.present().first() {
            for call in calls {
                // This fails for missing names, and for directories with hidden names.
                let _ = self.call(*actor, &call);
            }
        }
    }

    fn one(&mut self) -> Step {
        let choice = self.random.below(100);
        if self.open.is_empty() || (choice < 18 && self.open.len() < OPEN_MAX) {
            return self.open_name();
        }
        let at = self.random.below(self.open.len());
        match choice {
            0..=39 => self.read(at),
            40..=59 => self.write(at),
            60..=70 => self.close(at),
            71..=74 => self.fsync(at),
            75..=78 => self.ftruncate(at),
            79..=82 => self.fstat(at),
            83..=84 => self.utimes(at),
            85..=87 => self.stat(),
            88..=89 => self.list(),
            90..=91 => self.append(),
            92 => self.map(at),
            93..=94 => self.rename(),
            95 => self.truncate(),
            96..=97 => self.unlink(),
            _ => self.link(),
        }
    }

    fn path(&self, name: &str) -> Place {
        let path = format!("{}{name}", self.directory);
        path.parse().expect("names of a run are plain")
    }

    /// O_DIRECT for actors that have to use it.
    fn direct(&self, actor: usize) -> i32 {
        match self.plan.given.direct.contains(&self.who(actor)) {
            true => libc::O_DIRECT,
            false => 0,
        }
    }

    /// Whether the actor caches like Linux's client, or not at all.
    fn is_special(&self, actor: usize) -> bool {
        let (given, who) = (self.plan.given, self.who(actor));
        given.linux.contains(&who) || given.direct.contains(&who)
    }

    fn who(&self, actor: usize) -> String {
        let actor = self.stand.actors[actor].as_ref();
        actor.map_or(String::new(), |actor| actor.name.clone())
    }

    fn holds(&self, actor: usize, id: Id) -> bool {
        self.open.iter().any(|d| d.actor == actor && d.id == id)
    }
}
