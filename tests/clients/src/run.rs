//! One run: system calls one at a time, each judged by the oracle.

use crate::call::{Call, Handle, Place};
use crate::executor::Executor;
use crate::oracle::{Id, Oracle, SERVER};
use crate::random::Random;
use crate::signals;
use crate::stand::{Actor, Given, Stand};
use crate::variant::Variant;
use crate::watch::Watch;
use anyhow::{Context, Result, bail};
use nix::errno::Errno;
use nix::libc;
use std::io;
use std::path::Path;
use std::time::Duration;

/// Names of the run, few so that actors meet.
const NAMES: &[&str] = &["f0", "f1", "f2", "d/f0", "d/f1"];
/// The group of a file tells which it is, whatever its fileid: this and its number.
const GROUPS: u32 = 100_000;
/// Descriptors open at a time, at most.
const OPEN_MAX: usize = 12;

/// What to run.
#[derive(Debug)]
pub(crate) struct Plan<'a> {
    pub(crate) bin: &'a Path,
    /// What is there already, if anything is: no server is started then.
    pub(crate) given: &'a Given,
    pub(crate) variant: &'a Variant,
    pub(crate) seed: u64,
    pub(crate) calls: usize,
    pub(crate) mounts: usize,
    pub(crate) options: &'a str,
    pub(crate) verbose: bool,
    /// A file that is gone may be EIO, not only ESTALE.
    pub(crate) eio_when_gone: bool,
}

/// A difference from what was promised: what, and of which file.
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
    /// The directory of the run, with a slash, where it is not the exported one itself.
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

/// Runs the plan: how many calls of each kind were made, and what differed.
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

/// Makes the directories of the run, by the server's side or the first mount.
fn make_directories(stand: &mut Stand, plan: &Plan<'_>) -> Result<String> {
    let actor = stand.actors.iter_mut().flatten().next();
    let executor = &mut actor.context("nobody makes calls")?.executor;
    let mut mkdir = |path: &str| -> Result<io::Result<()>> {
        let place = path.parse()?;
        Ok(executor.run(&Call::Mkdir(place)))
    };
    let mut directory = String::new();
    if !plan.given.is_empty() {
        // Nobody may know the names in it from an earlier run.
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

/// The number of an error; EREMOTEIO for one of an executor's connection, which has none.
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
            self.one()?;
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
            "  again: nfsrdma-clients {stand} --seed {} --calls {} --options '{}'\n",
            plan.seed, self.step, plan.options
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

    /// What happens to the server, and how long nothing does.
    fn between(&mut self) {
        let commands = self.plan.variant.commands;
        if !commands.is_empty() && self.random.chance(1, 12) {
            let command = *self.random.pick(commands);
            // Not several at the next call: a call that ends connections in a row fails.
            let clear = match command.starts_with("hangup") {
                true => self.stand.tell("clear"),
                false => Ok(()),
            };
            let told = clear.and_then(|()| self.stand.tell(command));
            let line = match told {
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

    /// All who make calls.
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

    /// A call that returns nothing but its success.
    fn call(&mut self, actor: usize, call: &Call) -> io::Result<()> {
        self.executor(actor).run(call)
    }

    /// What a run made in a directory that others use as well.
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
                // Names that are not there, and directories that a file without name keeps.
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
            85..=89 => self.stat(),
            90..=92 => self.append(),
            93..=95 => self.rename(),
            96..=97 => self.unlink(),
            _ => self.link(),
        }
    }

    fn path(&self, name: &str) -> Place {
        let path = format!("{}{name}", self.directory);
        path.parse().expect("names of a run are plain")
    }

    /// O_DIRECT for those that are to use it.
    fn direct(&self, actor: usize) -> i32 {
        match self.plan.given.direct.contains(&self.who(actor)) {
            true => libc::O_DIRECT,
            false => 0,
        }
    }

    fn who(&self, actor: usize) -> String {
        let actor = self.stand.actors[actor].as_ref();
        actor.map_or(String::new(), |actor| actor.name.clone())
    }

    fn holds(&self, actor: usize, id: Id) -> bool {
        self.open.iter().any(|d| d.actor == actor && d.id == id)
    }

    fn open_name(&mut self) -> Step {
        let actor = self.actor();
        let name = *self.random.pick(NAMES);
        let (create, exclusive, truncate, writes) = match self.random.below(10) {
            0..=2 => (false, false, false, false),
            3..=4 => (false, false, false, true),
            5 => (false, false, true, true),
            6..=7 => (true, false, false, true),
            8 => (true, true, false, true),
            _ => (true, false, true, true),
        };
        if let Some(descriptor) = self.try_open(actor, name, create, exclusive, truncate, writes)? {
            self.open.push(descriptor);
        }
        Ok(())
    }

    fn try_open(
        &mut self,
        actor: usize,
        name: &'static str,
        create: bool,
        exclusive: bool,
        truncate: bool,
        writes: bool,
    ) -> std::result::Result<Option<Descriptor>, Difference> {
        let mut flags = match writes {
            true => libc::O_RDWR,
            false => libc::O_RDONLY,
        };
        for (on, flag) in [
            (create, libc::O_CREAT),
            (exclusive, libc::O_EXCL),
            (truncate, libc::O_TRUNC),
        ] {
            if on {
                flags |= flag;
            }
        }
        let wanted = format!(
            "{}{}{}{}",
            if writes { "rdwr" } else { "rdonly" },
            if create { "|creat" } else { "" },
            if exclusive { "|excl" } else { "" },
            if truncate { "|trunc" } else { "" },
        );
        let legal = self.oracle.bindings(actor, name);
        let current = self.oracle.current(name);
        let place = self.path(name);
        let flags = flags | self.direct(actor);
        let result = self.executor(actor).open(place, flags, 0o644);
        let head = format!("{}: open {name} {wanted}", self.who(actor));
        let (file, group) = match result {
            Ok((file, attributes)) => (file, attributes.group),
            Err(error) => {
                let errno = errno(&error);
                self.say("open", current, format!("{head} = {errno}"));
                let old = legal.iter().flatten().any(|id| Some(*id) != current);
                let fine = match errno {
                    Errno::EEXIST => exclusive && legal.iter().any(Option::is_some),
                    Errno::ENOENT => !create && (legal.contains(&None) || old),
                    Errno::ESTALE => old,
                    _ => false,
                };
                return match fine {
                    true => Ok(None),
                    false => differs(format!("{head} = {errno}, it may be {legal:?}"), current),
                };
            }
        };
        let id = match group.checked_sub(GROUPS) {
            Some(id) => id as Id,
            None => {
                let id = self.oracle.create();
                let now = self.oracle.current(name);
                self.oracle.bind(actor, name, Some(id));
                let chown = Call::Chown(file, GROUPS + id as u32);
                if let Err(error) = self.call(actor, &chown) {
                    return differs(format!("{head}, fchown = {error}"), Some(id));
                }
                if !create || now.is_some() {
                    return differs(format!("{head} made a file where {now:?} is"), now);
                }
                id
            }
        };
        self.opened += 1;
        let number = self.opened;
        let known = id < self.oracle.objects.len();
        self.say(
            "open",
            known.then_some(id),
            format!("{head} = fd{number} of file {id}"),
        );
        if !known {
            return differs(format!("{head}: a file nobody made, group {group}"), None);
        }
        let made = create && Some(id) != current && self.oracle.current(name) == Some(id);
        if exclusive && current == Some(id) {
            return differs(format!("{head}: exclusive, and it was there"), Some(id));
        }
        if !made && !legal.contains(&Some(id)) {
            return differs(format!("{head} = file {id}, it may be {legal:?}"), Some(id));
        }
        // knfsd finds a file without names by its handle as long as it is open there.
        let kept = !self.plan.given.is_empty() && self.holds(SERVER, id);
        if self.oracle.is_surely_gone(id) && !kept {
            return differs(format!("{head} = file {id}, which was removed"), Some(id));
        }
        if self.oracle.current(name) == Some(id) {
            self.oracle.confirm(actor, name);
        }
        self.oracle.opened(actor, id, writes);
        match (truncate, create) {
            (true, true) => self.oracle.created_empty(actor, id),
            (true, false) => self.oracle.truncate(actor, id, 0),
            (false, _) => {}
        }
        Ok(Some(Descriptor {
            number,
            actor,
            id,
            file,
            writes,
        }))
    }

    /// About where the file ends.
    fn about_end(&self, actor: usize, id: Id) -> u64 {
        let mut end = 0;
        for (_, stop, set) in self.oracle.view(actor, id).iter() {
            if set.without_end() != Default::default() {
                end = stop;
            }
        }
        end
    }

    /// After an error of a call by descriptor `at`: fine if the file is gone.
    fn failed(&mut self, at: usize, what: &'static str, error: &io::Error) -> Step {
        let Descriptor {
            number, actor, id, ..
        } = self.open[at];
        let who = self.who(actor);
        let errno = errno(error);
        let line = format!("{who}: {what} fd{number} = {errno}");
        self.say(what, Some(id), line.clone());
        let gone = errno == Errno::ESTALE || (self.plan.eio_when_gone && errno == Errno::EIO);
        if gone && self.oracle.is_gone(id) {
            self.forget(at);
            return Ok(());
        }
        differs(line, Some(id))
    }

    /// Closes a descriptor whose file is gone, whatever close says.
    fn forget(&mut self, at: usize) {
        let Descriptor { actor, file, .. } = self.open.swap_remove(at);
        let _ = self.call(actor, &Call::Close(file));
    }

    fn read(&mut self, at: usize) -> Step {
        let (actor, id) = (self.open[at].actor, self.open[at].id);
        let end = self.about_end(actor, id);
        let offset = match self.random.below(3) {
            0 => 0,
            _ => self.random.below(end as usize + 1) as u64,
        };
        let len = *self
            .random
            .pick(&[1, 8, 100, 4096, 65536, 1 << 20, 9 << 20]);
        self.read_at(at, offset, len)
    }

    fn read_at(&mut self, at: usize, offset: u64, len: usize) -> Step {
        let Descriptor {
            number,
            actor,
            id,
            file,
            ..
        } = self.open[at];
        let data = match self.executor(actor).read(file, offset, len) {
            Ok(data) => data,
            Err(error) => return self.failed(at, "read", &error),
        };
        let line = format!(
            "{}: read fd{number} {offset}+{len} = {}",
            self.who(actor),
            data.len()
        );
        self.say("read", Some(id), line.clone());
        self.oracle.touch(actor, id);
        match self.oracle.seen(actor, id).check(offset, len as u64, &data) {
            Ok(()) => Ok(()),
            Err(why) => differs(format!("{line}: {why}"), Some(id)),
        }
    }

    fn next_value(&mut self) -> u8 {
        self.value = self.value % 250 + 1;
        self.value
    }

    fn length(&mut self) -> usize {
        let most = *self
            .random
            .pick(&[8, 8, 100, 5000, 5000, 40_000, 300_000, 8 << 20]);
        // Large ones are rare: they take long.
        let most = if most > 300_000 && self.random.chance(3, 4) {
            4096
        } else {
            most
        };
        1 + self.random.below(most)
    }

    fn write(&mut self, at: usize) -> Step {
        if !self.open[at].writes {
            return self.read(at);
        }
        let Descriptor {
            number,
            actor,
            id,
            file,
            ..
        } = self.open[at];
        let end = self.about_end(actor, id).min(7 << 20);
        let offset = match self.random.below(5) {
            0 => 0,
            1 => end,
            2 => self.random.below(end as usize + 5000) as u64,
            3 => (self.random.below(end as usize + 1) / 8 * 8) as u64,
            // Small pieces of few pages, as those of several writers.
            _ => self.random.below((end as usize + 100).min(9000)) as u64,
        };
        let len = self.length();
        let value = self.next_value();
        if let Err(error) = self.call(actor, &Call::Write(file, offset, len, value)) {
            // Some of it may have been done before the file was gone.
            self.oracle
                .write(actor, id, offset, offset + len as u64, value);
            return self.failed(at, "write", &error);
        }
        let line = format!(
            "{}: write fd{number} {offset}+{len} {value:#04x}",
            self.who(actor)
        );
        self.say("write", Some(id), line);
        self.oracle
            .write(actor, id, offset, offset + len as u64, value);
        Ok(())
    }

    fn close(&mut self, at: usize) -> Step {
        let Descriptor {
            number,
            actor,
            id,
            file,
            writes,
        } = self.open.swap_remove(at);
        let result = self.call(actor, &Call::Close(file));
        let gone = self.oracle.is_gone(id);
        let line = match &result {
            Ok(()) => format!("{}: close fd{number}", self.who(actor)),
            Err(error) => format!("{}: close fd{number} = {}", self.who(actor), errno(error)),
        };
        self.say("close", Some(id), line.clone());
        if result.is_err() && !gone {
            return differs(line, Some(id));
        }
        // One that cannot write has nothing to write back.
        if result.is_ok() && writes {
            self.oracle.flush(actor, id);
        }
        if !self.holds(actor, id) {
            self.oracle.hide(actor, id, false);
            if actor == SERVER && !self.plan.given.is_empty() {
                self.oracle.closed_at_server(id);
            }
        }
        Ok(())
    }

    fn fsync(&mut self, at: usize) -> Step {
        let Descriptor {
            number,
            actor,
            id,
            file,
            ..
        } = self.open[at];
        if let Err(error) = self.call(actor, &Call::Fsync(file)) {
            return self.failed(at, "fsync", &error);
        }
        self.say(
            "fsync",
            Some(id),
            format!("{}: fsync fd{number}", self.who(actor)),
        );
        self.oracle.flush(actor, id);
        Ok(())
    }

    fn ftruncate(&mut self, at: usize) -> Step {
        if !self.open[at].writes {
            return self.fstat(at);
        }
        let Descriptor {
            number,
            actor,
            id,
            file,
            ..
        } = self.open[at];
        let end = self.about_end(actor, id);
        let size = match self.random.below(4) {
            0 => 0,
            1 => end / 2,
            2 => (end + 1000).min(8 << 20),
            _ => self.random.below(end as usize + 100) as u64,
        };
        if let Err(error) = self.call(actor, &Call::Truncate(file, size)) {
            return self.failed(at, "ftruncate", &error);
        }
        let line = format!("{}: ftruncate fd{number} {size}", self.who(actor));
        self.say("ftruncate", Some(id), line);
        self.oracle.truncate(actor, id, size);
        Ok(())
    }

    fn utimes(&mut self, at: usize) -> Step {
        let Descriptor {
            number,
            actor,
            id,
            file,
            ..
        } = self.open[at];
        let mtime = 1_000_000_000 + self.random.below(1_000_000) as i64;
        if let Err(error) = self.call(actor, &Call::SetTimes(file, mtime)) {
            return self.failed(at, "utimes", &error);
        }
        let line = format!("{}: utimes fd{number} {mtime}", self.who(actor));
        self.say("utimes", Some(id), line);
        self.oracle.set_mtime(actor, id, mtime);
        Ok(())
    }

    fn fstat(&mut self, at: usize) -> Step {
        let Descriptor {
            number,
            actor,
            id,
            file,
            ..
        } = self.open[at];
        let attributes = match self.executor(actor).attributes(&Call::Fstat(file)) {
            Ok(attributes) => attributes,
            Err(error) => return self.failed(at, "fstat", &error),
        };
        let (size, mtime) = (attributes.size, attributes.mtime);
        let line = format!(
            "{}: fstat fd{number} = size {size} mtime {mtime}",
            self.who(actor)
        );
        self.say("fstat", Some(id), line.clone());
        self.oracle.touch(actor, id);
        if attributes.group as usize != GROUPS as usize + id {
            return differs(format!("{line}: of another file"), Some(id));
        }
        if !self.oracle.seen(actor, id).may_have_size(size) {
            return differs(format!("{line}: no size it may have"), Some(id));
        }
        match self.oracle.mtime(actor, id) {
            Some(set) if set != mtime => differs(format!("{line}: {set} was set"), Some(id)),
            _ => Ok(()),
        }
    }

    fn stat(&mut self) -> Step {
        let actor = self.actor();
        let name = *self.random.pick(NAMES);
        let legal = self.oracle.bindings(actor, name);
        let current = self.oracle.current(name);
        let head = format!("{}: stat {name}", self.who(actor));
        let call = Call::Lstat(self.path(name));
        match self.executor(actor).attributes(&call) {
            Ok(attributes) => {
                let (size, group) = (attributes.size, attributes.group);
                let id = (group.wrapping_sub(GROUPS)) as Id;
                let line = format!("{head} = file {id} size {size}");
                self.say("stat", current, line.clone());
                if !legal.contains(&Some(id)) {
                    return differs(format!("{line}, it may be {legal:?}"), current);
                }
                if Some(id) != current {
                    return Ok(());
                }
                self.oracle.touch(actor, id);
                match self.oracle.view(actor, id).may_have_size(size) {
                    true => Ok(()),
                    false => differs(format!("{line}: no size it may have"), Some(id)),
                }
            }
            Err(error) => {
                let errno = errno(&error);
                self.say("stat", current, format!("{head} = {errno}"));
                let old = legal.iter().flatten().any(|id| Some(*id) != current);
                match errno {
                    Errno::ENOENT if legal.contains(&None) || old => Ok(()),
                    Errno::ESTALE if old => Ok(()),
                    _ => differs(format!("{head} = {errno}, it may be {legal:?}"), current),
                }
            }
        }
    }

    fn append(&mut self) -> Step {
        let actor = self.actor();
        // Linux's client takes O_APPEND and O_DIRECT together for EINVAL.
        if self.direct(actor) != 0 {
            return self.stat();
        }
        let name = *self.random.pick(NAMES);
        let Some(descriptor) = self.try_open(actor, name, false, false, false, true)? else {
            return Ok(());
        };
        let (id, number) = (descriptor.id, descriptor.number);
        let size = self.oracle.view(actor, id).size();
        self.open.push(descriptor);
        let at = self.open.len() - 1;
        let Some(size) = size.filter(|size| *size < 7 << 20) else {
            return Ok(());
        };
        let (place, flags) = (self.path(name), libc::O_WRONLY | libc::O_APPEND);
        let (file, attributes) = match self.executor(actor).open(place, flags, 0) {
            Ok(opened) => opened,
            Err(error) => return self.failed(at, "append", &error),
        };
        // A name that is old news may lead elsewhere the second time.
        if attributes.group as usize != GROUPS as usize + id {
            let _ = self.call(actor, &Call::Close(file));
            return Ok(());
        }
        let len = 1 + self.random.below(300);
        let value = self.next_value();
        if let Err(error) = self.call(actor, &Call::Append(file, len, value)) {
            let _ = self.call(actor, &Call::Close(file));
            return self.failed(at, "append", &error);
        }
        let line = format!(
            "{}: append to fd{number} {len} {value:#04x}",
            self.who(actor)
        );
        self.say("append", Some(id), line);
        self.oracle.write(actor, id, size, size + len as u64, value);
        if let Err(error) = self.call(actor, &Call::Close(file)) {
            return self.failed(at, "close", &error);
        }
        self.oracle.flush(actor, id);
        self.read_at(at, size.saturating_sub(10), 4096)
    }

    /// What a name leads to for `actor`, if that is certain.
    fn certain(&self, actor: usize, name: &str) -> Option<Option<Id>> {
        match self.oracle.bindings(actor, name)[..] {
            [only] => Some(only),
            _ => None,
        }
    }

    fn rename(&mut self) -> Step {
        let actor = self.actor();
        let (from, to) = (*self.random.pick(NAMES), *self.random.pick(NAMES));
        let (Some(Some(id)), Some(old)) = (self.certain(actor, from), self.certain(actor, to))
        else {
            return Ok(());
        };
        if from == to || old == Some(id) {
            return Ok(());
        }
        let head = format!("{}: rename {from} {to}", self.who(actor));
        let result = self.call(actor, &Call::Rename(self.path(from), self.path(to)));
        if let Some(old) = old {
            let line = format!("{head}: replaced");
            self.oracle.objects[old]
                .history
                .push(format!("{:5} {line}", self.step));
            if self.holds(actor, old) && result.is_ok() {
                self.oracle.hide(actor, old, true);
            }
        }
        self.say("rename", Some(id), format!("{head} = {result:?}"));
        if let Err(error) = result {
            return differs(format!("{head} = {error}"), Some(id));
        }
        self.oracle.bind(actor, to, Some(id));
        self.oracle.bind(actor, from, None);
        Ok(())
    }

    fn unlink(&mut self) -> Step {
        let actor = self.actor();
        let name = *self.random.pick(NAMES);
        let Some(Some(id)) = self.certain(actor, name) else {
            return Ok(());
        };
        let head = format!("{}: unlink {name}", self.who(actor));
        let result = self.call(actor, &Call::Unlink(self.path(name)));
        self.say("unlink", Some(id), format!("{head} = {result:?}"));
        if let Err(error) = result {
            return differs(format!("{head} = {error}"), Some(id));
        }
        if self.holds(actor, id) {
            self.oracle.hide(actor, id, true);
        }
        self.oracle.bind(actor, name, None);
        Ok(())
    }

    fn link(&mut self) -> Step {
        let actor = self.actor();
        let (from, to) = (*self.random.pick(NAMES), *self.random.pick(NAMES));
        let (Some(Some(id)), Some(None)) = (self.certain(actor, from), self.certain(actor, to))
        else {
            return Ok(());
        };
        let head = format!("{}: link {from} {to}", self.who(actor));
        let result = self.call(actor, &Call::Link(self.path(from), self.path(to)));
        self.say("link", Some(id), format!("{head} = {result:?}"));
        if let Err(error) = result {
            return differs(format!("{head} = {error}"), Some(id));
        }
        self.oracle.bind(actor, to, Some(id));
        Ok(())
    }

    /// At the end: everything a name leads to.
    fn read_all(&mut self, actor: usize, name: &'static str) -> Step {
        if let Some(descriptor) = self.try_open(actor, name, false, false, false, false)? {
            self.open.push(descriptor);
            let at = self.open.len() - 1;
            self.fstat(at)?;
            // It is gone from the list if its file turned out to be gone.
            if at < self.open.len() {
                self.read_at(at, 0, 16 << 20)?;
            }
            if at < self.open.len() {
                self.close(at)?;
            }
        }
        Ok(())
    }
}
