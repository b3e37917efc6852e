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
//! Thousands may wait for one lock, so a change does not look at all of them. Each waiter whose turn
//! has not come is listed under one obstacle: an owner whose lock conflicts, or the waiter before it.
//! Only when this obstacle goes, or becomes smaller, is the waiter looked at again.
//!
//! Who waits for whom is a graph that programs make, so a search of it is bounded ([`SEARCH_MAX`]).
//! What a search has not found by then is taken to be not there, and the server decides.

use super::range::{ByteRange, Mode, RangeSet};
use std::cell::Cell;
use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

/// How many owners and waiters one change of the table, or one question to it, may look at before its
/// searches end. It takes less than a millisecond. (Linux looks for a deadlock among 10 owners.)
const SEARCH_MAX: u32 = 20_000;

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
    /// The obstacle under which it is listed; `None` if its turn had come when it was last looked at.
    behind: Option<Obstacle>,
}

#[derive(Debug, Default)]
struct File {
    held: BTreeMap<Owner, RangeSet>,
    /// The owners that hold exclusive locks.
    writers: BTreeSet<Owner>,
    /// The number of waiters.
    waiting: usize,
    /// The waiters for an exclusive lock of each range, in the order of arrival.
    lines: HashMap<ByteRange, BTreeSet<WaiterId>>,
}

impl File {
    /// The owners that may hold locks which conflict with a lock of this mode.
    fn holders(&self, mode: Mode) -> impl Iterator<Item = (Owner, &RangeSet)> {
        let any = (mode == Mode::Write).then(|| self.held.keys());
        let writers = (mode == Mode::Read).then_some(&self.writers);
        let owners = any.into_iter().flatten();
        let owners = owners.chain(writers.into_iter().flatten());
        owners.map(move |owner| (*owner, &self.held[owner]))
    }
}

/// What is left of [`SEARCH_MAX`].
#[derive(Debug)]
struct Effort {
    max: u32,
    left: Cell<u32>,
}

impl Default for Effort {
    fn default() -> Self {
        Self {
            max: SEARCH_MAX,
            left: Cell::new(SEARCH_MAX),
        }
    }
}

impl Effort {
    /// Another change or question begins.
    fn renew(&self) {
        self.left.set(self.max);
    }

    /// An owner or waiter is looked at.
    fn spend(&self) {
        #[cfg(test)]
        model::count_step();
        self.left.set(self.left.get().saturating_sub(1));
    }

    fn is_spent(&self) -> bool {
        self.left.get() == 0
    }
}

/// The locks of all files of a mount, as the server has granted them.
#[derive(Debug, Default)]
pub struct LockTable {
    files: HashMap<FileId, File>,
    waiters: BTreeMap<WaiterId, Waiter>,
    /// The waiters of each owner.
    of_owner: HashMap<Owner, BTreeSet<WaiterId>>,
    /// The waiters behind each obstacle.
    behind: HashMap<(FileId, Obstacle), BTreeSet<WaiterId>>,
    /// The number of owners with locks, of all files.
    holders: usize,
    next: WaiterId,
    effort: Effort,
}

impl LockTable {
    /// Whether no lock is held.
    pub fn is_empty(&self) -> bool {
        self.holders == 0
    }

    /// The number of ranges that all owners hold on all files.
    pub fn len(&self) -> usize {
        let sets = self.files.values().flat_map(|file| file.held.values());
        sets.map(|set| set.iter().count()).sum()
    }

    pub fn waiting(&self) -> usize {
        self.waiters.len()
    }

    /// The locks of `owner` on a file.
    pub fn held(&self, file: FileId, owner: Owner) -> Option<&RangeSet> {
        self.files.get(&file)?.held.get(&owner)
    }

    /// Whether `owner` holds or waits for a lock on a file.
    pub fn concerns(&self, file: FileId, owner: Owner) -> bool {
        let Some(of) = self.files.get(&file) else {
            return false;
        };
        let waits = self.of_owner.get(&owner);
        of.held.contains_key(&owner)
            || waits.is_some_and(|ids| ids.iter().any(|id| self.waiters[id].file == file))
    }

    /// The files and owners with locks, in order.
    pub fn all(&self) -> Vec<(FileId, Owner)> {
        let of_file = |(&file, of): (&FileId, &File)| {
            let owners: Vec<_> = of.held.keys().map(|&owner| (file, owner)).collect();
            owners
        };
        let mut all: Vec<_> = self.files.iter().flat_map(of_file).collect();
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
        let others = self.files.get(&file)?.holders(mode);
        let mut conflicts =
            others
                .filter(|(other, _)| *other != owner)
                .filter_map(|(owner, set)| {
                    let (range, mode) = set.conflict(range, mode)?;
                    Some(Conflict { owner, range, mode })
                });
        let first = conflicts.next()?;
        Some(conflicts.fold(first, |first, next| {
            match next.range.start < first.range.start {
                true => next,
                false => first,
            }
        }))
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
        self.effort.renew();
        let of = self.files.entry(file).or_default();
        let set = of.held.entry(owner).or_default();
        let had = !set.is_empty();
        set.set(range, mode);
        let has = !set.is_empty();
        match set.has_exclusive() {
            true => of.writers.insert(owner),
            false => of.writers.remove(&owner),
        };
        if !has {
            of.held.remove(&owner);
        }
        self.holders = self.holders + usize::from(has) - usize::from(had);
        self.drop_if_unused(file);
        // An exclusive lock takes nothing out of anybody's way, but that of its owner.
        let mut due = match mode {
            Some(Mode::Write) => Vec::new(),
            _ => self.look_behind(file, Obstacle::Holder(owner)),
        };
        if mode.is_some() {
            due.extend(self.look_at_own(file, owner));
        }
        due
    }

    /// Looks again at the waiters of an owner that wait for their turn: the lock which it now has may
    /// be what keeps those before them.
    fn look_at_own(&mut self, file: FileId, owner: Owner) -> Vec<WaiterId> {
        let in_line = |id: &WaiterId| {
            let waiter = &self.waiters[id];
            waiter.file == file && matches!(waiter.behind, Some(Obstacle::Waiter(_)))
        };
        let own = self.of_owner.get(&owner).into_iter().flatten();
        let mut ids: Vec<WaiterId> = own.copied().filter(in_line).collect();
        ids.retain(|&id| self.look(id));
        ids
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
        self.effort.renew();
        if owner.is_posix() && self.closes_a_cycle(&waiter) {
            return Err(Deadlock);
        }
        let id = self.next;
        self.next += 1;
        self.waiters.insert(id, waiter);
        self.of_owner.entry(owner).or_default().insert(id);
        let of = self.files.entry(file).or_default();
        of.waiting += 1;
        if mode == Mode::Write {
            of.lines.entry(range).or_default().insert(id);
        }
        self.look(id);
        Ok(id)
    }

    /// Whether the turn of a waiter has come. A waiter for which this was false is returned by the
    /// change that makes it true.
    pub fn may_ask(&mut self, id: WaiterId) -> bool {
        self.effort.renew();
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
        let of = self.files.get(&waiter.file)?;
        let own = of.held.get(&waiter.owner);
        if own.is_some_and(|set| set.conflict(waiter.range, Mode::Write).is_some()) {
            return None;
        }
        // Those for a shared lock have no line.
        let line = of.lines.get(&waiter.range)?;
        let before = line.range(..id).next_back().copied();
        before
            .filter(|_| waiter.mode == Mode::Write)
            .map(Obstacle::Waiter)
    }

    /// Looks for an obstacle of a waiter, and lists the waiter under it. True if there is none.
    fn look(&mut self, id: WaiterId) -> bool {
        let Some(mut waiter) = self.waiters.get(&id).copied() else {
            return false;
        };
        let found = self.obstacle(id, &waiter);
        if found != waiter.behind {
            self.unlist(id, &waiter);
            waiter.behind = found;
            self.waiters.insert(id, waiter);
            if let Some(found) = found {
                let behind = self.behind.entry((waiter.file, found)).or_default();
                behind.insert(id);
            }
        }
        found.is_none()
    }

    fn unlist(&mut self, id: WaiterId, waiter: &Waiter) {
        if let Some(obstacle) = waiter.behind
            && let Entry::Occupied(mut behind) = self.behind.entry((waiter.file, obstacle))
        {
            behind.get_mut().remove(&id);
            if behind.get().is_empty() {
                behind.remove();
            }
        }
    }

    /// Looks again at the waiters behind an obstacle, which is gone or smaller. Returns those whose
    /// turn has come.
    fn look_behind(&mut self, file: FileId, obstacle: Obstacle) -> Vec<WaiterId> {
        let listed = self.behind.get(&(file, obstacle));
        let mut ids: Vec<WaiterId> = listed.into_iter().flatten().copied().collect();
        ids.retain(|&id| self.look(id));
        ids
    }

    /// Removes a waiter that was granted or gives up. Returns the waiters whose turn has come.
    pub fn end_wait(&mut self, id: WaiterId) -> Vec<WaiterId> {
        let Some(waiter) = self.waiters.get(&id).copied() else {
            return Vec::new();
        };
        self.effort.renew();
        self.unlist(id, &waiter);
        self.waiters.remove(&id);
        if let Entry::Occupied(mut of) = self.of_owner.entry(waiter.owner) {
            of.get_mut().remove(&id);
            if of.get().is_empty() {
                of.remove();
            }
        }
        if let Some(of) = self.files.get_mut(&waiter.file) {
            of.waiting -= 1;
            if let Some(line) = of.lines.get_mut(&waiter.range) {
                line.remove(&id);
                if line.is_empty() {
                    of.lines.remove(&waiter.range);
                }
            }
            self.drop_if_unused(waiter.file);
        }
        self.look_behind(waiter.file, Obstacle::Waiter(id))
    }

    fn drop_if_unused(&mut self, file: FileId) {
        let of = self.files.get(&file);
        if of.is_some_and(|of| of.held.is_empty() && of.waiting == 0) {
            self.files.remove(&file);
        }
    }

    /// The requests of an owner that wait for locks of a file.
    pub fn waits_of(&self, file: FileId, owner: Owner) -> impl Iterator<Item = (ByteRange, Mode)> {
        let own = self.of_owner.get(&owner).into_iter().flatten();
        let own = own.map(|id| &self.waiters[id]);
        own.filter(move |waiter| waiter.file == file)
            .map(|waiter| (waiter.range, waiter.mode))
    }

    /// The owners of this mount that hold locks which conflict with a waiter, as far as the effort
    /// suffices to find them.
    fn holders_against<'a>(&'a self, waiter: &'a Waiter) -> impl Iterator<Item = Owner> + 'a {
        let of = self.files.get(&waiter.file);
        let holders = of.into_iter().flat_map(move |of| of.holders(waiter.mode));
        holders
            .take_while(|_| !self.effort.is_spent())
            .filter(move |(owner, set)| {
                self.effort.spend();
                *owner != waiter.owner && set.conflict(waiter.range, waiter.mode).is_some()
            })
            .map(|(owner, _)| owner)
    }

    /// Whether the owner of `new` would wait for itself. Only locks that are held count, and only
    /// through owners of POSIX locks, because a lock of flock(2) can be released by any process
    /// that has the open file. False if the effort does not suffice to find out.
    fn closes_a_cycle(&self, new: &Waiter) -> bool {
        let mut seen: HashSet<Owner> = HashSet::new();
        let mut open: Vec<Owner> = self.holders_against(new).collect();
        while let Some(owner) = open.pop() {
            if owner == new.owner {
                return true;
            }
            if !owner.is_posix() || !seen.insert(owner) {
                continue;
            }
            for id in self.of_owner.get(&owner).into_iter().flatten() {
                if self.effort.is_spent() {
                    return false;
                }
                open.extend(self.holders_against(&self.waiters[id]));
            }
        }
        false
    }
}

#[cfg(test)]
#[path = "model.rs"]
mod model;
