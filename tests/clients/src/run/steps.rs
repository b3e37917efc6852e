//! The single calls of a run: chooses their arguments, and has the oracle check the results.

use super::{Descriptor, Difference, GROUPS, NAMES, Run, Step, differs, errno};
use crate::call::Call;
use crate::oracle::{Id, SERVER};
use nix::errno::Errno;
use nix::libc;
use std::io;

/// The flags of open(2), and their names for the log.
fn open_flags(create: bool, exclusive: bool, truncate: bool, writes: bool) -> (i32, String) {
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
    (flags, wanted)
}

impl Run<'_> {
    pub(super) fn open_name(&mut self) -> Step {
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

    pub(super) fn try_open(
        &mut self,
        actor: usize,
        name: &'static str,
        create: bool,
        exclusive: bool,
        truncate: bool,
        writes: bool,
    ) -> std::result::Result<Option<Descriptor>, Difference> {
        let (flags, wanted) = open_flags(create, exclusive, truncate, writes);
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

    /// An offset near the end of the file.
    pub(super) fn about_end(&self, actor: usize, id: Id) -> u64 {
        let mut end = 0;
        for (_, stop, set) in self.oracle.view(actor, id).iter() {
            if set.without_end() != Default::default() {
                end = stop;
            }
        }
        end
    }

    /// How a call by a descriptor is logged.
    fn by(&self, descriptor: Descriptor, what: &str) -> String {
        let Descriptor { actor, number, .. } = descriptor;
        format!("{}: {what} fd{number}", self.who(actor))
    }

    /// Checks an error of a call by descriptor `at`, which is permitted if the file is gone.
    pub(super) fn failed(&mut self, at: usize, what: &'static str, error: &io::Error) -> Step {
        let d = self.open[at];
        let errno = errno(error);
        let line = format!("{} = {errno}", self.by(d, what));
        self.say(what, Some(d.id), line.clone());
        let gone = errno == Errno::ESTALE || (self.plan.eio_when_gone && errno == Errno::EIO);
        if gone && self.oracle.is_gone(d.id) {
            self.forget(at);
            return Ok(());
        }
        differs(line, Some(d.id))
    }

    /// Closes a descriptor whose file is gone, and ignores the result.
    pub(super) fn forget(&mut self, at: usize) {
        let d = self.open.swap_remove(at);
        let _ = self.call(d.actor, &Call::Close(d.file));
    }

    pub(super) fn read(&mut self, at: usize) -> Step {
        let d = self.open[at];
        let end = self.about_end(d.actor, d.id);
        let offset = match self.random.below(3) {
            0 => 0,
            _ => self.random.below(end as usize + 1) as u64,
        };
        let len = *self
            .random
            .pick(&[1, 8, 100, 4096, 65536, 1 << 20, 9 << 20]);
        self.read_at(at, offset, len)
    }

    pub(super) fn read_at(&mut self, at: usize, offset: u64, len: usize) -> Step {
        let d = self.open[at];
        let data = match self.executor(d.actor).read(d.file, offset, len) {
            Ok(data) => data,
            Err(error) => return self.failed(at, "read", &error),
        };
        let line = format!("{} {offset}+{len} = {}", self.by(d, "read"), data.len());
        self.say("read", Some(d.id), line.clone());
        self.oracle.touch(d.actor, d.id);
        match self
            .oracle
            .seen(d.actor, d.id)
            .check(offset, len as u64, &data)
        {
            Ok(()) => Ok(()),
            Err(why) => differs(format!("{line}: {why}"), Some(d.id)),
        }
    }

    pub(super) fn next_value(&mut self) -> u8 {
        self.value = self.value % 250 + 1;
        self.value
    }

    pub(super) fn length(&mut self) -> usize {
        let most = *self
            .random
            .pick(&[8, 8, 100, 5000, 5000, 40_000, 300_000, 8 << 20]);
        // Large ones take long, so they are rare.
        let most = if most > 300_000 && self.random.chance(3, 4) {
            4096
        } else {
            most
        };
        1 + self.random.below(most)
    }

    pub(super) fn write(&mut self, at: usize) -> Step {
        let d = self.open[at];
        if !d.writes {
            return self.read(at);
        }
        let end = self.about_end(d.actor, d.id).min(7 << 20);
        let offset = match self.random.below(5) {
            0 => 0,
            1 => end,
            2 => self.random.below(end as usize + 5000) as u64,
            3 => (self.random.below(end as usize + 1) / 8 * 8) as u64,
            // Small pieces in a few pages, as of several writers.
            _ => self.random.below((end as usize + 100).min(9000)) as u64,
        };
        let len = self.length();
        let value = self.next_value();
        if let Err(error) = self.call(d.actor, &Call::Write(d.file, offset, len, value)) {
            // Part of it may have been done before the file was gone.
            self.oracle
                .write(d.actor, d.id, offset, offset + len as u64, value);
            return self.failed(at, "write", &error);
        }
        let line = format!("{} {offset}+{len} {value:#04x}", self.by(d, "write"));
        self.say("write", Some(d.id), line);
        self.oracle
            .write(d.actor, d.id, offset, offset + len as u64, value);
        Ok(())
    }

    pub(super) fn close(&mut self, at: usize) -> Step {
        let d = self.open.swap_remove(at);
        let result = self.call(d.actor, &Call::Close(d.file));
        let gone = self.oracle.is_gone(d.id);
        let line = match &result {
            Ok(()) => self.by(d, "close"),
            Err(error) => format!("{} = {}", self.by(d, "close"), errno(error)),
        };
        self.say("close", Some(d.id), line.clone());
        if result.is_err() && !gone {
            return differs(line, Some(d.id));
        }
        // A descriptor that cannot write has no data to write back.
        if result.is_ok() && d.writes {
            self.oracle.flush(d.actor, d.id);
        }
        if !self.holds(d.actor, d.id) {
            self.oracle.hide(d.actor, d.id, false);
            if d.actor == SERVER && !self.plan.given.is_empty() {
                self.oracle.closed_at_server(d.id);
            }
        }
        Ok(())
    }

    pub(super) fn fsync(&mut self, at: usize) -> Step {
        let d = self.open[at];
        if let Err(error) = self.call(d.actor, &Call::Fsync(d.file)) {
            return self.failed(at, "fsync", &error);
        }
        self.say("fsync", Some(d.id), self.by(d, "fsync"));
        self.oracle.flush(d.actor, d.id);
        Ok(())
    }

    pub(super) fn ftruncate(&mut self, at: usize) -> Step {
        let d = self.open[at];
        if !d.writes {
            return self.fstat(at);
        }
        let end = self.about_end(d.actor, d.id);
        let size = match self.random.below(4) {
            0 => 0,
            1 => end / 2,
            2 => (end + 1000).min(8 << 20),
            _ => self.random.below(end as usize + 100) as u64,
        };
        if let Err(error) = self.call(d.actor, &Call::Truncate(d.file, size)) {
            return self.failed(at, "ftruncate", &error);
        }
        let line = format!("{} {size}", self.by(d, "ftruncate"));
        self.say("ftruncate", Some(d.id), line);
        self.oracle.truncate(d.actor, d.id, size);
        Ok(())
    }

    /// truncate(2), by path.
    pub(super) fn truncate(&mut self) -> Step {
        let actor = self.actor();
        let name = *self.random.pick(NAMES);
        let Some(Some(id)) = self.certain(actor, name) else {
            return self.stat();
        };
        let end = self.about_end(actor, id);
        let size = match self.random.below(3) {
            0 => end / 2,
            _ => self.random.below(end as usize + 100) as u64,
        };
        let line = format!("{}: truncate {name} {size}", self.who(actor));
        let result = self.call(actor, &Call::TruncatePath(self.path(name), size));
        self.say("truncate", Some(id), format!("{line} = {result:?}"));
        if let Err(error) = result {
            return differs(format!("{line} = {error}"), Some(id));
        }
        self.oracle.truncate(actor, id, size);
        Ok(())
    }

    /// Stores to a shared mapping, and msync(2).
    pub(super) fn map(&mut self, at: usize) -> Step {
        let d = self.open[at];
        // If the end of the file is not certain, a store may be behind it.
        let size = self.oracle.view(d.actor, d.id).size().unwrap_or(0);
        let special = self.is_special(d.actor);
        if !d.writes || size == 0 || special || self.oracle.is_gone(d.id) {
            return self.read(at);
        }
        let offset = self.random.below(size as usize) as u64;
        let len = (1 + self.random.below(20_000)).min((size - offset) as usize);
        let value = self.next_value();
        if let Err(error) = self.call(d.actor, &Call::Map(d.file, offset, len, value)) {
            return self.failed(at, "map", &error);
        }
        let line = format!("{} {offset}+{len} {value:#04x}, msync", self.by(d, "map"));
        self.say("map", Some(d.id), line);
        self.oracle
            .write_mapped(d.actor, d.id, offset, offset + len as u64, value);
        self.oracle.flush(d.actor, d.id);
        Ok(())
    }

    /// readdir(3): the listed names must be the existing ones.
    pub(super) fn list(&mut self) -> Step {
        let actor = self.actor();
        let directory = *self.random.pick(&["", "d"]);
        let place = match directory {
            "" if self.directory.is_empty() => ".".to_string(),
            "" => self.directory.trim_end_matches('/').to_string(),
            name => format!("{}{name}", self.directory),
        };
        let place = place.parse().expect("names of a run are plain");
        let head = format!("{}: list {directory:?}", self.who(actor));
        let listed = match self.executor(actor).list(place) {
            Ok(listed) => listed,
            Err(error) => return differs(format!("{head} = {}", errno(&error)), None),
        };
        self.say("list", None, format!("{head} = {listed:?}"));
        // A listing that was cached between two changes within one second stays valid after the
        // second change, because the directory's time is the same.
        let coarse = self.plan.variant.name == "one-second" && actor != SERVER;
        for name in NAMES {
            let (parent, last) = name.split_once('/').unwrap_or(("", name));
            if parent != directory {
                continue;
            }
            let times = listed.iter().filter(|listed| *listed == last).count();
            let legal = self.oracle.bindings(actor, name);
            let fine = match times {
                0 | 1 if coarse => true,
                0 => legal.contains(&None),
                1 => legal.iter().any(Option::is_some),
                _ => false,
            };
            if !fine {
                let what = format!("{head} = {listed:?}: {name} may be {legal:?}");
                return differs(what, self.oracle.current(name));
            }
        }
        Ok(())
    }

    pub(super) fn utimes(&mut self, at: usize) -> Step {
        let d = self.open[at];
        let mtime = 1_000_000_000 + self.random.below(1_000_000) as i64;
        if let Err(error) = self.call(d.actor, &Call::SetTimes(d.file, mtime)) {
            return self.failed(at, "utimes", &error);
        }
        let line = format!("{} {mtime}", self.by(d, "utimes"));
        self.say("utimes", Some(d.id), line);
        self.oracle.set_mtime(d.actor, d.id, mtime);
        Ok(())
    }

    pub(super) fn fstat(&mut self, at: usize) -> Step {
        let d = self.open[at];
        let attributes = match self.executor(d.actor).attributes(&Call::Fstat(d.file)) {
            Ok(attributes) => attributes,
            Err(error) => return self.failed(at, "fstat", &error),
        };
        let (size, mtime) = (attributes.size, attributes.mtime);
        let line = format!("{} = size {size} mtime {mtime}", self.by(d, "fstat"));
        self.say("fstat", Some(d.id), line.clone());
        self.oracle.touch(d.actor, d.id);
        if attributes.group as usize != GROUPS as usize + d.id {
            return differs(format!("{line}: of another file"), Some(d.id));
        }
        if !self.oracle.seen(d.actor, d.id).may_have_size(size) {
            return differs(format!("{line}: no size it may have"), Some(d.id));
        }
        match self.oracle.mtime(d.actor, d.id) {
            Some(set) if set != mtime => differs(format!("{line}: {set} was set"), Some(d.id)),
            _ => Ok(()),
        }
    }

    pub(super) fn stat(&mut self) -> Step {
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

    pub(super) fn append(&mut self) -> Step {
        let actor = self.actor();
        // Linux's client refuses O_APPEND together with O_DIRECT by EINVAL.
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
            // The first call may have opened the file by an old name, which this mount has looked up
            // again since.
            Err(error)
                if errno(&error) == Errno::ENOENT && self.oracle.current(name) != Some(id) =>
            {
                return Ok(());
            }
            Err(error) => return self.failed(at, "append", &error),
        };
        // With an old name, the second call may reach another file.
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

    /// The file to which a name leads for `actor`, if that is certain.
    pub(super) fn certain(&self, actor: usize, name: &str) -> Option<Option<Id>> {
        match self.oracle.bindings(actor, name)[..] {
            [only] => Some(only),
            _ => None,
        }
    }

    pub(super) fn rename(&mut self) -> Step {
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

    pub(super) fn unlink(&mut self) -> Step {
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

    pub(super) fn link(&mut self) -> Step {
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

    /// At the end of a run: reads the file to which a name leads.
    pub(super) fn read_all(&mut self, actor: usize, name: &'static str) -> Step {
        if let Some(descriptor) = self.try_open(actor, name, false, false, false, false)? {
            self.open.push(descriptor);
            let at = self.open.len() - 1;
            self.fstat(at)?;
            // If its file turned out to be gone, it is not in the list any more.
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
