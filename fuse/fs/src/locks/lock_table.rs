//! The locks of a mount as the server has granted them, and the requests that wait for one. There
//! is no I/O.
//!
//! A request waits here while another owner of this mount holds a lock that conflicts. It also waits
//! for its turn behind an earlier request for an exclusive lock of the very same range, so that of
//! many that wait for one lock only the first polls the server. This only saves calls: a lock that blocks
//! the first waiter blocks the others as well. A waiter that itself holds a lock in the range may be the
//! one in the way, so it does not wait for its turn. Requests are ordered in no other way: that could make
//! requests wait for each other although their locks do not conflict, and the server knows of locks and
//! requests that are not known here.
//!
//! A POSIX request whose wait would close a cycle of owners fails with EDEADLK, as fcntl(2) requires.
//! [`LockTable::apply`] enters what the server has granted or unlocked; each change returns the
//! waiters whose turn has come.
//!
//! Thousands may wait for one lock, so a change does not search for all of them what is in their way. Each
//! waiter whose turn has not come has one obstacle: an owner whose lock conflicts, or the waiter before it.
//! Only when this obstacle goes, or becomes smaller, is the waiter looked at again.
//!
//! Who waits for whom is a graph that programs make, so a search of it is bounded ([`MOST_OWNERS`]).
//! A deadlock that it has not found by then is left to the server.

use super::range::{ByteRange, Mode, RangeSet};
use std::collections::{BTreeMap, HashMap, HashSet};

/// The most owners among whom a deadlock is looked for. (Linux looks among 10.)
const MOST_OWNERS: usize = 32;

/// A number for a file that the caller chooses and never uses again.
pub type FileId = u64;

/// The number of a request that waits, in the order of arrival.
pub type WaiterId = u64;

/// The owner of a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Owner {
    /// fcntl(2): a process, or (F_OFD_SETLK) an open file description; FUSE does not tell which.
    Posix(u64),
    /// flock(2): an open file description.
    Flock(u64),
}

impl Owner {
    /// The first and the last in order.
    pub const FIRST: Owner = Owner::Posix(0);
    pub const LAST: Owner = Owner::Flock(u64::MAX);

    fn is_posix(self) -> bool {
        matches!(self, Owner::Posix(_))
    }
}

/// A lock that conflicts with a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Conflict {
    pub owner: Owner,
    pub range: ByteRange,
    pub mode: Mode,
}

/// A blocking request could be granted only after its own owner releases a lock (EDEADLK).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deadlock;

/// What keeps a waiter from asking the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Obstacle {
    /// An owner that holds a conflicting lock of the file.
    Holder(Owner),
    /// The waiter before it for an exclusive lock of the same range.
    Waiter(WaiterId),
}

#[derive(Debug, Clone, Copy)]
struct Waiter {
    file: FileId,
    owner: Owner,
    range: ByteRange,
    mode: Mode,
    /// What was in its way when it was last looked at; `None` if its turn had come.
    behind: Option<Obstacle>,
}

/// The locks of all files of a mount, as the server has granted them.
#[derive(Debug, Default)]
pub struct LockTable {
    files: HashMap<FileId, BTreeMap<Owner, RangeSet>>,
    waiters: BTreeMap<WaiterId, Waiter>,
    next: WaiterId,
}

impl LockTable {
    /// Whether no lock is held.
    pub fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    /// The number of ranges that all owners hold on all files.
    pub fn len(&self) -> usize {
        let sets = self.files.values().flat_map(BTreeMap::values);
        sets.map(|set| set.iter().count()).sum()
    }

    pub fn waiting(&self) -> usize {
        self.waiters.len()
    }

    /// The locks of `owner` on a file.
    pub fn held(&self, file: FileId, owner: Owner) -> Option<&RangeSet> {
        self.files.get(&file)?.get(&owner)
    }

    /// Whether `owner` holds or waits for a lock on a file.
    pub fn concerns(&self, file: FileId, owner: Owner) -> bool {
        self.held(file, owner).is_some() || self.waits_of(file, owner).next().is_some()
    }

    /// The files and owners with locks, in order.
    pub fn all(&self) -> Vec<(FileId, Owner)> {
        let mut all: Vec<_> = Vec::new();
        for (&file, of) in &self.files {
            all.extend(of.keys().map(|&owner| (file, owner)));
        }
        all.sort_unstable();
        all
    }

    /// `range` of a file, divided into pieces by how `owner` has locked them.
    pub fn pieces(
        &self,
        file: FileId,
        owner: Owner,
        range: ByteRange,
    ) -> Vec<(ByteRange, Option<Mode>)> {
        match self.held(file, owner) {
            Some(set) => set.pieces(range),
            None => vec![(range, None)],
        }
    }

    /// The first lock of another owner of this mount that keeps `owner` from locking `range`.
    pub fn conflict(
        &self,
        file: FileId,
        owner: Owner,
        range: ByteRange,
        mode: Mode,
    ) -> Option<Conflict> {
        let of = self.files.get(&file)?;
        let others = of.iter().filter(|(other, _)| **other != owner);
        let conflicts = others.filter_map(|(&owner, set)| {
            let (range, mode) = set.conflict(range, mode)?;
            Some(Conflict { owner, range, mode })
        });
        conflicts.min_by_key(|of| of.range.start)
    }

    /// Enters what the server has granted to `owner`, or unlocked (`None`). Returns the waiters
    /// whose turn has come.
    pub fn apply(
        &mut self,
        file: FileId,
        owner: Owner,
        range: ByteRange,
        mode: Option<Mode>,
    ) -> Vec<WaiterId> {
        if mode.is_none() && self.held(file, owner).is_none() {
            return Vec::new();
        }
        let of = self.files.entry(file).or_default();
        let set = of.entry(owner).or_default();
        set.set(range, mode);
        if set.is_empty() {
            of.remove(&owner);
            if of.is_empty() {
                self.files.remove(&file);
            }
        }
        // An exclusive lock takes nothing out of anybody's way, but that of its owner.
        let mut due = match mode {
            Some(Mode::Write) => Vec::new(),
            _ => {
                self.look_again(|of| of.file == file && of.behind == Some(Obstacle::Holder(owner)))
            }
        };
        if mode.is_some() {
            // The lock that the owner now has may be what keeps those before its own waiters.
            due.extend(self.look_again(|of| {
                let in_line = matches!(of.behind, Some(Obstacle::Waiter(_)));
                in_line && of.file == file && of.owner == owner
            }));
        }
        due
    }

    /// Adds a blocking request, or fails if that would be a deadlock. Its turn has come when
    /// [`LockTable::may_ask`] returns true, now or after a later call has returned its number.
    pub fn wait(
        &mut self,
        file: FileId,
        owner: Owner,
        range: ByteRange,
        mode: Mode,
    ) -> Result<WaiterId, Deadlock> {
        let waiter = Waiter {
            file,
            owner,
            range,
            mode,
            behind: None,
        };
        if owner.is_posix() && self.closes_a_cycle(&waiter) {
            return Err(Deadlock);
        }
        let id = self.next;
        self.next += 1;
        self.waiters.insert(id, waiter);
        self.look(id);
        Ok(id)
    }

    /// Whether the turn of a waiter has come. A waiter for which this was false is returned by the
    /// change that makes it true.
    pub fn may_ask(&mut self, id: WaiterId) -> bool {
        match self.waiters.get(&id) {
            None => false,
            Some(waiter) => waiter.behind.is_none() && self.look(id),
        }
    }

    /// What keeps a waiter from asking.
    fn obstacle(&self, id: WaiterId, waiter: &Waiter) -> Option<Obstacle> {
        if let Some(holder) = self.holders_against(waiter).next() {
            return Some(Obstacle::Holder(holder));
        }
        let own = self.held(waiter.file, waiter.owner);
        if own.is_some_and(|set| set.conflict(waiter.range, Mode::Write).is_some()) {
            return None;
        }
        let turn = |of: &Waiter| (of.file, of.range, of.mode);
        let mut before = self.waiters.range(..id).rev();
        let before = before.find(|(_, of)| turn(of) == turn(waiter));
        before
            .filter(|_| waiter.mode == Mode::Write)
            .map(|(id, _)| Obstacle::Waiter(*id))
    }

    /// Looks for an obstacle of a waiter. True if there is none.
    fn look(&mut self, id: WaiterId) -> bool {
        let waiter = self.waiters.get(&id);
        let found = waiter.and_then(|waiter| self.obstacle(id, waiter));
        match self.waiters.get_mut(&id) {
            Some(waiter) => waiter.behind = found,
            None => return false,
        }
        found.is_none()
    }

    /// Looks again at some of the waiters. Returns those whose turn has come.
    fn look_again(&mut self, which: impl Fn(&Waiter) -> bool) -> Vec<WaiterId> {
        let some = self.waiters.iter().filter(|(_, waiter)| which(waiter));
        let mut ids: Vec<WaiterId> = some.map(|(id, _)| *id).collect();
        ids.retain(|&id| self.look(id));
        ids
    }

    /// Removes a waiter that was granted or gives up. Returns the waiters whose turn has come.
    pub fn end_wait(&mut self, id: WaiterId) -> Vec<WaiterId> {
        self.waiters.remove(&id);
        self.look_again(|of| of.behind == Some(Obstacle::Waiter(id)))
    }

    /// The requests of an owner that wait for locks of a file.
    pub fn waits_of(&self, file: FileId, owner: Owner) -> impl Iterator<Item = (ByteRange, Mode)> {
        let all = self.waiters.values();
        all.filter(move |waiter| waiter.file == file && waiter.owner == owner)
            .map(|waiter| (waiter.range, waiter.mode))
    }

    /// The owners of this mount that hold locks which conflict with a waiter.
    fn holders_against<'a>(&'a self, waiter: &'a Waiter) -> impl Iterator<Item = Owner> + 'a {
        let holders = self.files.get(&waiter.file).into_iter().flatten();
        holders
            .filter(move |(owner, set)| {
                #[cfg(test)]
                model::count_step();
                **owner != waiter.owner && set.conflict(waiter.range, waiter.mode).is_some()
            })
            .map(|(owner, _)| *owner)
    }

    /// Whether the owner of `new` would wait for itself. Only locks that are held count, and only
    /// through owners of POSIX locks, because a lock of flock(2) can be released by any process
    /// that has the open file. False if it would take too much to find out.
    fn closes_a_cycle(&self, new: &Waiter) -> bool {
        let mut seen: HashSet<Owner> = HashSet::new();
        let mut open: Vec<Owner> = self.holders_against(new).collect();
        let mut waits: HashMap<Owner, Vec<&Waiter>> = HashMap::new();
        for waiter in self.waiters.values() {
            waits.entry(waiter.owner).or_default().push(waiter);
        }
        while let Some(owner) = open.pop() {
            if owner == new.owner {
                return true;
            }
            if !owner.is_posix() || !seen.insert(owner) {
                continue;
            }
            if seen.len() > MOST_OWNERS {
                return false;
            }
            for waiter in waits.get(&owner).into_iter().flatten() {
                open.extend(self.holders_against(waiter));
            }
        }
        false
    }
}

#[cfg(test)]
#[path = "tests/table_model.rs"]
mod model;
