//! Rounds of calls that overlap in time.
//!
//! The calls of a round are on one file, by several clients, also by two programs of one mount.
//! They are issued together, each from a thread of its own, and the round ends when all have
//! returned. Meanwhile the server may be restarted or its clock stepped. Names do not change during
//! a round; calls that change names are made between rounds.
//!
//! **The rule.** Each byte of a file takes part in the calls of a round in some order. So the
//! oracle applies the calls in every order. A read or fstat may show for each byte, and for the end
//! of the file, what any order allows at the place of that call. Different bytes may follow
//! different orders, because a read(2) is many READs, and a write(2) many WRITEs, between which
//! others may come. After the round the file may be what any order leaves ([`Object::merge`]).
//!
//! **Four exceptions** are allowed. A read(2) that overlaps with an ftruncate(2) of the same mount
//! may show zeros from the new end on: while a program of this machine sets the size, Linux ignores
//! the end of file in replies to READ (FUSE_I_SIZE_UNSTABLE in fuse_do_setattr), though the server
//! has cut the file already, and drops these pages afterwards. And a read(2) that overlaps with a
//! WRITE of the same mount may show zeros behind an end to which another client has cut the file:
//! if the WRITE is answered while the READ is under way, Linux ignores the end in the READ's reply
//! (docs/COHERENCE.md, "What remains"). So it does if a GETATTR or an OPEN is answered then. The
//! zeros are in its pages then, and later reads show them until the kernel is notified
//! ([`crate::oracle::Oracle::zeros_behind_end`]).
//! A write(2) may put zeros behind an end to which another client has cut the file, up to the end
//! of that page, if an open(2) or fstat(2) of the same mount overlaps with it: Linux cuts the page
//! that is filled and not yet sent ([`Run::cuts_to_learn`]). And a mount may miss a change that a
//! process at the server makes while one of its own is under way
//! ([`crate::oracle::Oracle::changed_beside`]).
//!
//! **What keeps it sharp.** Alternatives after a round become certain again at the next
//! [`Run::rest`]: all descriptors are closed, the file is read at the server, and every mount that
//! opens it must see these very bytes. Between rounds, single calls are made as well.

use super::{Descriptor, NAMES, Run, Step, differs, errno};
use crate::call::{Answer, Attributes, Call, Handle};
use crate::content::{Content, FILE_MAX};
use crate::executor::{Executor, Local};
use crate::oracle::{Id, Object, SERVER};
use nix::libc;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};

/// Most calls of a round, all of whose orders are tried.
const MOST: usize = 4;
/// The length of a read that shows the state right after the calls of a round.
const WHOLE: usize = 16 << 20;

/// The effect of a call of a round on the oracle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Read(u64, usize),
    Fstat,
    Write(u64, usize, u8),
    Truncate(u64),
    Fsync,
    Close,
    Open(&'static str),
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::Read(..) => "read",
            Kind::Fstat => "fstat",
            Kind::Write(..) => "write",
            Kind::Truncate(_) => "ftruncate",
            Kind::Fsync => "fsync",
            Kind::Close => "close",
            Kind::Open(_) => "open",
        }
    }
}

/// A call of a round.
struct Part {
    kind: Kind,
    actor: usize,
    /// Whether its descriptor can write, and the number of the descriptor.
    writes: bool,
    number: usize,
    file: Handle,
    call: Call,
    /// The possible contents of the file when the call is made, in any order.
    seen: Content,
    mtimes: Vec<Option<i64>>,
}

/// The result of a call.
struct Returned {
    answer: io::Result<Answer>,
    data: Vec<u8>,
    /// Its position among all issued calls, and among all returned ones.
    issued: usize,
    returned: usize,
}

impl Part {
    fn new(kind: Kind, actor: usize, descriptor: Option<&Descriptor>, call: Call) -> Self {
        Part {
            kind,
            actor,
            writes: descriptor.is_some_and(|d| d.writes),
            number: descriptor.map_or(0, |d| d.number),
            file: descriptor.map_or(0, |d| d.file),
            call,
            seen: Content::nothing(),
            mtimes: Vec::new(),
        }
    }

    fn changes(&self) -> bool {
        matches!(self.kind, Kind::Write(..) | Kind::Truncate(_))
    }
}

/// All orders of `0..n`.
fn orders(n: usize) -> Vec<Vec<usize>> {
    let mut all = vec![Vec::new()];
    for _ in 0..n {
        all = all
            .iter()
            .flat_map(|order: &Vec<usize>| {
                (0..n).filter(|next| !order.contains(next)).map(|next| {
                    let mut longer = order.clone();
                    longer.push(next);
                    longer
                })
            })
            .collect();
    }
    all
}

/// Makes the calls at the same time.
fn together(parts: &[(Arc<Local>, Call)], meanwhile: impl FnOnce()) -> Vec<Returned> {
    let (barrier, clock) = (Barrier::new(parts.len() + 1), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        let threads: Vec<_> = parts
            .iter()
            .map(|(local, call)| {
                let (barrier, clock) = (&barrier, &clock);
                scope.spawn(move || {
                    let mut data = Vec::new();
                    barrier.wait();
                    let issued = clock.fetch_add(1, Ordering::SeqCst);
                    let answer = local.call(call, &mut data);
                    let returned = clock.fetch_add(1, Ordering::SeqCst);
                    Returned {
                        answer,
                        data,
                        issued,
                        returned,
                    }
                })
            })
            .collect();
        barrier.wait();
        meanwhile();
        threads
            .into_iter()
            .map(|thread| thread.join().expect("a system call does not panic"))
            .collect()
    })
}

impl Run<'_> {
    fn local(&self, actor: usize) -> Option<Arc<Local>> {
        match &self.stand.actors[actor].as_ref()?.executor {
            Executor::Local(local) => Some(local.clone()),
            Executor::Remote(_) => None,
        }
    }

    /// A round on one file. Does nothing if there is no file for it.
    pub(super) fn round(&mut self) -> Step {
        // Mostly an open file, but none without a name, which may disappear during the round.
        let ids: Vec<Id> = (self.open.iter().map(|d| d.id))
            .chain(NAMES.iter().filter_map(|name| self.oracle.current(name)))
            .filter(|id| self.oracle.has_name(*id))
            .collect();
        if ids.is_empty() {
            return self.open_name();
        }
        let id = *self.random.pick(&ids);
        let wanted = 2 + self.random.below(MOST - 1);
        let mut parts: Vec<Part> = Vec::new();
        for _ in 0..4 * MOST {
            if parts.len() < wanted
                && let Some(part) = self.part(id, &parts)
            {
                parts.push(part);
            }
        }
        if parts.len() < 2 {
            return self.open_name();
        }
        let calls: Option<Vec<_>> = parts
            .iter()
            .map(|part| Some((self.local(part.actor)?, part.call.clone())))
            .collect();
        let Some(calls) = calls else {
            return differs("calls of other machines do not overlap", None);
        };
        let commands = self.plan.variant.commands;
        let command = match !commands.is_empty() && self.random.chance(1, 6) {
            true => Some(*self.random.pick(commands)),
            false => None,
        };
        let stand = &mut self.stand;
        let mut told = String::new();
        let returned = together(&calls, || {
            if let Some(command) = command {
                told = format!(
                    "server, meanwhile: {command} = {:?}",
                    stand.command(command)
                );
            }
        });
        if command.is_some() {
            self.say("command", Some(id), told);
        }
        self.alternatives(id, &mut parts, &returned);
        // In the order of their return, for readers of the log.
        let mut all: Vec<_> = parts.into_iter().zip(returned).collect();
        all.sort_by_key(|(_, returned)| returned.returned);
        let lines: Vec<String> = (all.iter())
            .map(|(part, returned)| self.line(part, returned))
            .collect();
        for ((part, _), line) in all.iter().zip(&lines) {
            self.say(part.kind.name(), Some(id), line.clone());
        }
        for ((part, returned), line) in all.into_iter().zip(lines) {
            self.judge(id, part, returned, line)?;
        }
        Ok(())
    }

    /// Chooses a call on file `id` that is compatible with the chosen ones.
    fn part(&mut self, id: Id, others: &[Part]) -> Option<Part> {
        let choice = self.random.below(20);
        if choice < 3 {
            let actor = self.actor();
            let name = *self.random.pick(NAMES);
            if self.certain(actor, name) != Some(Some(id)) || self.open.len() + others.len() >= 24 {
                return None;
            }
            let flags = match self.random.chance(1, 2) {
                true => libc::O_RDWR,
                false => libc::O_RDONLY,
            };
            let call = Call::Open(self.path(name), flags | self.direct(actor), 0);
            let mut part = Part::new(Kind::Open(name), actor, None, call);
            part.writes = flags == libc::O_RDWR;
            return Some(part);
        }
        let at = self.random.below(self.open.len().max(1));
        let d = self.open.get(at).filter(|d| d.id == id)?;
        let (actor, file, writes, number) = (d.actor, d.file, d.writes, d.number);
        // A descriptor that is being closed is not used by another call, and changes by one mount
        // do not overlap.
        let closing = |part: &Part| part.kind == Kind::Close;
        let taken = |part: &Part| part.number == number && part.file == file;
        if others.iter().any(|other| taken(other) && closing(other)) {
            return None;
        }
        let alone = !others.iter().any(taken);
        let may_change = writes && !others.iter().any(|o| o.actor == actor && o.changes());
        let end = self.about_end(actor, id).min(7 << 20);
        let kind = match choice {
            3..=6 => {
                let offset = match self.random.below(2) {
                    0 => 0,
                    _ => self.random.below(end as usize + 1) as u64,
                };
                let len = *self.random.pick(&[100, 4096, 65536, 1 << 20, WHOLE]);
                Kind::Read(offset, len)
            }
            7 => Kind::Fstat,
            8..=12 if may_change => {
                let offset = match self.random.below(3) {
                    0 => 0,
                    1 => end,
                    _ => self.random.below((end as usize + 100).min(20_000)) as u64,
                };
                let (len, value) = (self.length(), self.next_value());
                Kind::Write(offset, len, value)
            }
            13..=14 if may_change => {
                let size = match self.random.below(4) {
                    0 => 0,
                    1 => end / 2,
                    2 => (end + 1000).min(8 << 20),
                    _ => self.random.below(end as usize + 100) as u64,
                };
                Kind::Truncate(size)
            }
            15..=16 => Kind::Fsync,
            17..=19 if alone => Kind::Close,
            _ => return None,
        };
        let call = match kind {
            Kind::Read(offset, len) => Call::Read(file, offset, len),
            Kind::Fstat => Call::Fstat(file),
            Kind::Write(offset, len, value) => Call::Write(file, offset, len, value),
            Kind::Truncate(size) => Call::Truncate(file, size),
            Kind::Fsync => Call::Fsync(file),
            Kind::Close => Call::Close(file),
            Kind::Open(_) => return None,
        };
        Some(Part::new(kind, actor, self.open.get(at), call))
    }

    /// Computes, over all orders, what the calls may show, and what they leave. `returned` are their
    /// results.
    fn alternatives(&mut self, id: Id, parts: &mut [Part], returned: &[Returned]) {
        let history = std::mem::take(&mut self.oracle.objects[id].history);
        let before = self.oracle.objects[id].clone();
        // It may be written back during the round.
        let dirty: Vec<usize> = (1..self.stand.actors.len())
            .filter(|actor| self.oracle.has_dirty(*actor, id))
            .collect();
        let mut after = None;
        for order in orders(parts.len()) {
            self.oracle.objects[id] = before.clone();
            for n in order {
                let part = &mut parts[n];
                let actor = part.actor;
                part.seen.add(&self.oracle.seen(actor, id));
                part.mtimes.push(self.oracle.mtime(actor, id));
                match part.kind {
                    Kind::Read(..) | Kind::Fstat => self.oracle.touch(actor, id),
                    Kind::Write(offset, len, value) => {
                        let end = offset + len as u64;
                        self.oracle.write(actor, id, offset, end, value);
                    }
                    Kind::Truncate(size) => self.oracle.truncate(actor, id, size),
                    Kind::Fsync => self.oracle.flush(actor, id),
                    Kind::Close if part.writes => self.oracle.flush(actor, id),
                    Kind::Close => {}
                    Kind::Open(_) => self.oracle.opened(actor, id, part.writes),
                }
            }
            let left = self.oracle.objects[id].clone();
            after = match after {
                None => Some(left),
                Some(object) => Some(left.merge(object)),
            };
        }
        // Who asked for attributes, by fstat(2) or by the fstat that follows an open, and the end
        // that was shown.
        let asked: Vec<(usize, u64)> = (parts.iter().zip(returned))
            .filter_map(|(part, returned)| match &returned.answer {
                Ok(Answer::Attributes(found) | Answer::Opened(_, found)) => {
                    Some((part.actor, found.size))
                }
                _ => None,
            })
            .collect();
        let learned = self.cuts_to_learn(&before, parts, &asked);
        let cuts: Vec<(usize, u64)> = (parts.iter())
            .filter_map(|part| match part.kind {
                Kind::Truncate(size) if part.actor != SERVER => Some((part.actor, size)),
                _ => None,
            })
            .collect();
        // By write(2), or by a call that writes dirty data.
        let wrote: Vec<usize> = (parts.iter())
            .filter(|part| match part.kind {
                Kind::Write(..) | Kind::Fsync => true,
                Kind::Close => part.writes,
                _ => false,
            })
            .map(|part| part.actor)
            .collect();
        let changed_at_server = parts.iter().any(|p| p.actor == SERVER && p.changes());
        let mut object = after.unwrap_or(before);
        object.history = history;
        self.oracle.objects[id] = object;
        for part in parts.iter_mut() {
            for (_, size) in cuts.iter().filter(|(actor, _)| *actor == part.actor) {
                part.seen.maybe_zero(*size, FILE_MAX);
            }
            let mut asking = asked.iter().map(|(actor, _)| *actor);
            let beside = wrote.contains(&part.actor) || asking.any(|actor| actor == part.actor);
            if matches!(part.kind, Kind::Read(..)) && beside {
                part.seen.maybe_zero_behind_end();
                self.oracle.zeros_behind_end(part.actor, id);
            }
        }
        for (actor, written, end) in learned {
            (self.oracle).cut_during_write(actor, id, written.start, written.end, end);
        }
        if changed_at_server {
            let cut = cuts.iter().map(|(actor, _)| *actor);
            for actor in wrote.into_iter().chain(cut).chain(dirty) {
                self.oracle.changed_beside(actor, id);
            }
        }
    }

    /// The writes of the round during which the kernel may learn of an end to which others have cut
    /// the file, by a call of one of `asked`: the actor, what it wrote, and the end, in bytes. Pages
    /// of O_DIRECT are not cut.
    fn cuts_to_learn(
        &self,
        before: &Object,
        parts: &[Part],
        asked: &[(usize, u64)],
    ) -> Vec<(usize, Range<u64>, u64)> {
        let mut learned = Vec::new();
        for part in parts {
            let (actor, Kind::Write(offset, len, _)) = (part.actor, part.kind) else {
                continue;
            };
            let shown: Vec<u64> = (asked.iter())
                .filter(|(who, _)| *who == actor)
                .map(|(_, end)| *end)
                .collect();
            if actor == SERVER || shown.is_empty() || self.direct(actor) != 0 {
                continue;
            }
            let by_others = parts.iter().filter(|other| other.actor != actor);
            let now = by_others.filter_map(|other| match other.kind {
                Kind::Truncate(size) => Some(size),
                _ => None,
            });
            let ends = now.chain(before.cuts_unknown_to(actor, &shown));
            learned.extend(ends.map(|end| (actor, offset..offset + len as u64, end)));
        }
        learned
    }

    fn line(&self, part: &Part, returned: &Returned) -> String {
        let what = match part.kind {
            Kind::Read(offset, len) => format!("{offset}+{len}"),
            Kind::Write(offset, len, value) => format!("{offset}+{len} {value:#04x}"),
            Kind::Truncate(size) => size.to_string(),
            Kind::Open(name) if part.writes => format!("{name} rdwr"),
            Kind::Open(name) => format!("{name} rdonly"),
            Kind::Fstat | Kind::Fsync | Kind::Close => String::new(),
        };
        let result = match &returned.answer {
            Ok(Answer::Data(len)) => len.to_string(),
            Ok(Answer::Attributes(found) | Answer::Opened(_, found)) => {
                format!("size {} mtime {}", found.size, found.mtime)
            }
            Ok(_) => "0".into(),
            Err(error) => errno(error).to_string(),
        };
        format!(
            "{}: [{}..{}] {} fd{} {what} = {result}",
            self.who(part.actor),
            returned.issued,
            returned.returned,
            part.kind.name(),
            part.number,
        )
    }

    fn judge(&mut self, id: Id, part: Part, returned: Returned, line: String) -> Step {
        let answer = match returned.answer {
            Ok(answer) => answer,
            Err(_) => return differs(line, Some(id)),
        };
        match (part.kind, answer) {
            (Kind::Read(offset, len), _) => {
                match part.seen.check(offset, len as u64, &returned.data) {
                    Ok(()) => Ok(()),
                    Err(why) => differs(format!("{line}: {why}"), Some(id)),
                }
            }
            (Kind::Fstat, Answer::Attributes(found)) => self.shown(id, &part, &found, &line),
            (Kind::Close, _) => {
                self.open.retain(|d| d.number != part.number);
                if !self.holds(part.actor, id) {
                    self.oracle.hide(part.actor, id, false);
                }
                Ok(())
            }
            (Kind::Open(name), Answer::Opened(file, found)) => {
                self.opened += 1;
                self.open.push(Descriptor {
                    number: self.opened,
                    actor: part.actor,
                    id,
                    file,
                    writes: part.writes,
                });
                self.oracle.confirm(part.actor, name);
                self.shown(id, &part, &found, &line)
            }
            _ => Ok(()),
        }
    }

    /// Checks the result of fstat.
    fn shown(&self, id: Id, part: &Part, found: &Attributes, line: &str) -> Step {
        if found.group as usize != super::GROUPS as usize + id {
            return differs(format!("{line}: of another file"), Some(id));
        }
        // The fstat that follows an open has its own place in the order.
        if part.kind != Kind::Fstat {
            return Ok(());
        }
        if !part.seen.may_have_size(found.size) {
            return differs(format!("{line}: no size it may have"), Some(id));
        }
        let fits = |set: &Option<i64>| set.is_none_or(|set| set == found.mtime);
        match part.mtimes.iter().any(fits) {
            true => Ok(()),
            false => differs(format!("{line}: {:?} was set", part.mtimes), Some(id)),
        }
    }

    /// Closes all descriptors, and compares what every mount then sees with the file at the server.
    pub(super) fn rest(&mut self) -> Step {
        while !self.open.is_empty() {
            self.close(0)?;
        }
        for name in NAMES {
            let Some(id) = self.oracle.current(name) else {
                continue;
            };
            if self.local(SERVER).is_none() || !self.oracle.is_at_rest(id) {
                continue;
            }
            let place = self.path(name);
            let executor = self.executor(SERVER);
            let found = executor
                .open(place, libc::O_RDONLY, 0)
                .and_then(|(file, _)| {
                    let data = executor.read(file, 0, WHOLE);
                    executor.run(&Call::Close(file))?;
                    data
                });
            let data = match found {
                Ok(data) => data,
                Err(error) => return differs(format!("server: {name}: {error}"), Some(id)),
            };
            let line = format!("server: all of {name} = {} bytes", data.len());
            self.say("compare", Some(id), line.clone());
            if let Err(why) = self.oracle.seen(SERVER, id).check(0, WHOLE as u64, &data) {
                return differs(format!("{line}: {why}"), Some(id));
            }
            self.oracle.found(id, &data);
        }
        for actor in self.present() {
            for name in NAMES {
                self.read_all(actor, name)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_order_once() {
        let mut all = orders(4);
        assert_eq!(all.len(), 24);
        all.sort();
        all.dedup();
        assert_eq!(all.len(), 24);
        assert!(all.iter().all(|order| (0..4).all(|n| order.contains(&n))));
    }
}
