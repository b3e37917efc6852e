//! One run: system calls one at a time, each judged by the oracle.

use crate::oracle::{Id, Oracle, SERVER};
use crate::random::Random;
use crate::signals;
use crate::stand::Stand;
use crate::variant::Variant;
use anyhow::Result;
use nix::errno::Errno;
use nix::sys::time::TimeSpec;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Names of the run, few so that actors meet.
const NAMES: &[&str] = &["f0", "f1", "f2", "d/f0", "d/f1"];
/// The group of a file tells which it is, whatever its fileid: this and its number.
const GROUPS: u32 = 100_000;
/// A call that takes longer hangs.
const HANGS: Duration = Duration::from_secs(100);
/// The same when the run is to end at once.
const HANGS_AT_END: Duration = Duration::from_secs(5);
/// Descriptors open at a time, at most.
const OPEN_MAX: usize = 12;

/// What to run.
#[derive(Debug)]
pub(crate) struct Plan<'a> {
    pub(crate) bin: &'a Path,
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
    file: File,
    writes: bool,
}

struct Run<'a> {
    plan: &'a Plan<'a>,
    stand: Stand,
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
    let stand = Stand::new(plan.bin, plan.variant, plan.mounts, plan.options)?;
    std::fs::create_dir(stand.roots[SERVER].join("d"))?;
    let names_trusted = match plan.options {
        // Two changes of a directory within a tick look like one.
        _ if plan.variant.name == "one-second" => Duration::from_secs(3600),
        options if options.contains("noac") => Duration::ZERO,
        options if options.contains("actimeo=1") => Duration::from_millis(1500),
        _ => Duration::from_secs(3600),
    };
    let tick = match plan.variant.name {
        "one-second" => Duration::from_millis(2100),
        _ => Duration::ZERO,
    };
    let actors = stand.roots.len();
    let mut run = Run {
        plan,
        stand,
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
    let watch = Watch::start(&run.stand.roots[1..]);
    let result = run.all(&watch);
    watch.end();
    let result = result.map_err(|difference| run.report(&difference));
    if result.is_err() {
        run.open.clear();
        if let Some(dir) = run.stand.keep() {
            println!("logs are kept in {}", dir.display());
        }
    }
    Ok((run.counts, result))
}

/// Aborts mounts on which a call hangs, so that the run ends.
struct Watch {
    beat: Arc<AtomicU64>,
    over: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Watch {
    fn start(mounts: &[PathBuf]) -> Self {
        let (beat, over) = (
            Arc::new(AtomicU64::new(0)),
            Arc::new(AtomicBool::new(false)),
        );
        let mounts = mounts.to_vec();
        let (seen_beat, is_over) = (beat.clone(), over.clone());
        let thread = std::thread::spawn(move || {
            let (mut last, mut since) = (0, std::time::Instant::now());
            while !is_over.load(Ordering::Relaxed) {
                std::thread::park_timeout(Duration::from_millis(500));
                let now = seen_beat.load(Ordering::Relaxed);
                if now != last {
                    (last, since) = (now, std::time::Instant::now());
                } else if since.elapsed() > HANGS
                    || (signals::caught() && since.elapsed() > HANGS_AT_END)
                {
                    println!("a call hangs: the mounts are aborted");
                    for at in &mounts {
                        let flags = nix::mount::MntFlags::MNT_FORCE;
                        let _ = nix::mount::umount2(at, flags | nix::mount::MntFlags::MNT_DETACH);
                    }
                    return;
                }
            }
        });
        Watch {
            beat,
            over,
            thread: Some(thread),
        }
    }

    fn beat(&self) {
        self.beat.fetch_add(1, Ordering::Relaxed);
    }

    fn end(mut self) {
        self.over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}

fn errno(error: &io::Error) -> Errno {
    Errno::from_raw(error.raw_os_error().unwrap_or(0))
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
        for actor in 0..self.stand.roots.len() {
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
        report += &format!(
            "  again: nfsrdma-clients --variant {} --seed {} --calls {} --mounts {} --options '{}'\n",
            plan.variant.name, plan.seed, self.step, plan.mounts, plan.options
        );
        let lines = match difference.id {
            Some(id) => &self.oracle.objects[id].history,
            None => &self.said,
        };
        for line in &lines[lines.len().saturating_sub(40)..] {
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
        match self.random.chance(1, 7) {
            true => SERVER,
            false => 1 + self.random.below(self.stand.roots.len() - 1),
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

    fn path(&self, actor: usize, name: &str) -> PathBuf {
        self.stand.roots[actor].join(name)
    }

    fn who(&self, actor: usize) -> String {
        match actor {
            SERVER => "server".into(),
            n => format!("mnt{n}"),
        }
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
        let mut flags = 0;
        for (on, flag) in [
            (create, nix::libc::O_CREAT),
            (exclusive, nix::libc::O_EXCL),
            (truncate, nix::libc::O_TRUNC),
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
        let result = OpenOptions::new()
            .read(true)
            .write(writes)
            .custom_flags(flags)
            .mode(0o644)
            .open(self.path(actor, name));
        let head = format!("{}: open {name} {wanted}", self.who(actor));
        let file = match result {
            Ok(file) => file,
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
        let group = match file.metadata() {
            Ok(metadata) => metadata.gid(),
            Err(error) => return differs(format!("{head}, fstat = {error}"), current),
        };
        let id = match group.checked_sub(GROUPS) {
            Some(id) => id as Id,
            None => {
                let id = self.oracle.create();
                let now = self.oracle.current(name);
                self.oracle.bind(actor, name, Some(id));
                if let Err(error) = std::os::unix::fs::fchown(&file, None, Some(GROUPS + id as u32))
                {
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
        if self.oracle.is_surely_gone(id) {
            return differs(format!("{head} = file {id}, which was removed"), Some(id));
        }
        if self.oracle.current(name) == Some(id) {
            self.oracle.confirm(actor, name);
        }
        self.oracle.opened(actor, id);
        if truncate {
            self.oracle.truncate(actor, id, 0);
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
        drop(self.open.swap_remove(at).file);
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
            number, actor, id, ..
        } = self.open[at];
        let mut data = vec![0; len];
        let mut done = 0;
        while done < len {
            match self.open[at]
                .file
                .read_at(&mut data[done..], offset + done as u64)
            {
                Ok(0) => break,
                Ok(n) => done += n,
                Err(error) => return self.failed(at, "read", &error),
            }
        }
        let line = format!(
            "{}: read fd{number} {offset}+{len} = {done}",
            self.who(actor)
        );
        self.say("read", Some(id), line.clone());
        match self
            .oracle
            .view(actor, id)
            .check(offset, len as u64, &data[..done])
        {
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
            number, actor, id, ..
        } = self.open[at];
        let end = self.about_end(actor, id).min(7 << 20);
        let offset = match self.random.below(4) {
            0 => 0,
            1 => end,
            2 => self.random.below(end as usize + 5000) as u64,
            _ => (self.random.below(end as usize + 1) / 8 * 8) as u64,
        };
        let len = self.length();
        let value = self.next_value();
        if let Err(error) = self.open[at].file.write_all_at(&vec![value; len], offset) {
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
        let result = nix::unistd::close(file);
        let gone = self.oracle.is_gone(id);
        let line = match result {
            Ok(()) => format!("{}: close fd{number}", self.who(actor)),
            Err(errno) => format!("{}: close fd{number} = {errno}", self.who(actor)),
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
        }
        Ok(())
    }

    fn fsync(&mut self, at: usize) -> Step {
        let Descriptor {
            number, actor, id, ..
        } = self.open[at];
        if let Err(error) = self.open[at].file.sync_all() {
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
            number, actor, id, ..
        } = self.open[at];
        let end = self.about_end(actor, id);
        let size = match self.random.below(4) {
            0 => 0,
            1 => end / 2,
            2 => (end + 1000).min(8 << 20),
            _ => self.random.below(end as usize + 100) as u64,
        };
        if let Err(error) = self.open[at].file.set_len(size) {
            return self.failed(at, "ftruncate", &error);
        }
        let line = format!("{}: ftruncate fd{number} {size}", self.who(actor));
        self.say("ftruncate", Some(id), line);
        self.oracle.truncate(actor, id, size);
        Ok(())
    }

    fn utimes(&mut self, at: usize) -> Step {
        let Descriptor {
            number, actor, id, ..
        } = self.open[at];
        let mtime = 1_000_000_000 + self.random.below(1_000_000) as i64;
        let time = TimeSpec::new(mtime, 0);
        let file = self.open[at].file.as_fd();
        if let Err(errno) = nix::sys::stat::futimens(file, &time, &time) {
            return self.failed(at, "utimes", &errno.into());
        }
        let line = format!("{}: utimes fd{number} {mtime}", self.who(actor));
        self.say("utimes", Some(id), line);
        self.oracle.set_mtime(actor, id, mtime);
        Ok(())
    }

    fn fstat(&mut self, at: usize) -> Step {
        let Descriptor {
            number, actor, id, ..
        } = self.open[at];
        let metadata = match self.open[at].file.metadata() {
            Ok(metadata) => metadata,
            Err(error) => return self.failed(at, "fstat", &error),
        };
        let (size, mtime) = (metadata.size(), metadata.mtime());
        let line = format!(
            "{}: fstat fd{number} = size {size} mtime {mtime}",
            self.who(actor)
        );
        self.say("fstat", Some(id), line.clone());
        if metadata.gid() as usize != GROUPS as usize + id {
            return differs(format!("{line}: of another file"), Some(id));
        }
        if !self.oracle.view(actor, id).may_have_size(size) {
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
        match std::fs::symlink_metadata(self.path(actor, name)) {
            Ok(metadata) => {
                let (size, group) = (metadata.size(), metadata.gid());
                let id = (group.wrapping_sub(GROUPS)) as Id;
                let line = format!("{head} = file {id} size {size}");
                self.say("stat", current, line.clone());
                if !legal.contains(&Some(id)) {
                    return differs(format!("{line}, it may be {legal:?}"), current);
                }
                if Some(id) != current {
                    return Ok(());
                }
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
        let append = OpenOptions::new().append(true).open(self.path(actor, name));
        let file = match append {
            Ok(file) => file,
            Err(error) => return self.failed(at, "append", &error),
        };
        // A name that is old news may lead elsewhere the second time.
        let same = file
            .metadata()
            .is_ok_and(|m| m.gid() as usize == GROUPS as usize + id);
        if !same {
            return Ok(());
        }
        let len = 1 + self.random.below(300);
        let value = self.next_value();
        if let Err(error) = io::Write::write_all(&mut &file, &vec![value; len]) {
            return self.failed(at, "append", &error);
        }
        let line = format!(
            "{}: append to fd{number} {len} {value:#04x}",
            self.who(actor)
        );
        self.say("append", Some(id), line);
        self.oracle.write(actor, id, size, size + len as u64, value);
        if let Err(errno) = nix::unistd::close(file) {
            return self.failed(at, "close", &errno.into());
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
        let result = std::fs::rename(self.path(actor, from), self.path(actor, to));
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
        let result = std::fs::remove_file(self.path(actor, name));
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
        let result = std::fs::hard_link(self.path(actor, from), self.path(actor, to));
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
