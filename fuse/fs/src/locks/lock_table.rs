//! The locks of a mount as the server has granted them, and the requests that wait for one. There
//! is no I/O.
//!
//! Requests of this mount that conflict wait here, in the order of their arrival, so that of many
//! that wait for one lock only the first polls the server. A request overtakes an earlier one only
//! if that one waits, directly or through others, for a lock of the request's own owner. A POSIX
//! request whose wait would close a cycle of owners fails with EDEADLK, as fcntl(2) requires.
//! [`LockTable::apply`] enters what the server has granted or unlocked; each change returns the
//! waiters whose turn has come.

use super::range::{ByteRange, Mode, RangeSet};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

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

#[derive(Debug, Clone, Copy)]
struct Waiter {
    file: FileId,
    owner: Owner,
    range: ByteRange,
    mode: Mode,
    /// It was returned as a waiter whose turn has come.
    told: bool,
}

#[derive(Debug, Default)]
struct File {
    held: BTreeMap<Owner, RangeSet>,
    waiters: BTreeSet<WaiterId>,
}

/// The locks of all files of a mount, as the server has granted them.
#[derive(Debug, Default)]
pub struct LockTable {
    files: HashMap<FileId, File>,
    waiters: BTreeMap<WaiterId, Waiter>,
    /// On how many files each owner holds locks.
    holders: HashMap<Owner, usize>,
    next: WaiterId,
}

impl LockTable {
    /// Whether no lock is held.
    pub fn is_empty(&self) -> bool {
        self.holders.is_empty()
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

    /// Whether any owner holds or waits for a lock on a file.
    pub fn has_file(&self, file: FileId) -> bool {
        self.files.contains_key(&file)
    }

    /// Whether `owner` holds or waits for a lock on a file.
    pub fn concerns(&self, file: FileId, owner: Owner) -> bool {
        let Some(of) = self.files.get(&file) else {
            return false;
        };
        of.held.contains_key(&owner) || of.waiters.iter().any(|id| self.waiters[id].owner == owner)
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
        let others = self.files.get(&file)?.held.iter();
        let mut conflicts =
            others
                .filter(|(other, _)| **other != owner)
                .filter_map(|(&owner, set)| {
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
        let of = self.files.entry(file).or_default();
        let set = of.held.entry(owner).or_default();
        let had = !set.is_empty();
        set.set(range, mode);
        let has = !set.is_empty();
        if !has {
            of.held.remove(&owner);
        }
        match (had, has) {
            (false, true) => *self.holders.entry(owner).or_default() += 1,
            (true, false) => {
                let count = self.holders.get_mut(&owner);
                let count = count.expect("every owner that holds a lock is counted");
                *count -= 1;
                if *count == 0 {
                    self.holders.remove(&owner);
                }
            }
            _ => {}
        }
        self.drop_if_unused(file);
        self.due()
    }

    /// Adds a blocking request, or fails if that would be a deadlock. Its turn has come when
    /// [`LockTable::may_ask`] returns true, now or after a later call has returned its number. Also
    /// returns other waiters whose turn has come, because a waiter ahead of them now waits, through
    /// this one, for locks that they hold themselves.
    pub fn wait(
        &mut self,
        file: FileId,
        owner: Owner,
        range: ByteRange,
        mode: Mode,
    ) -> Result<(WaiterId, Vec<WaiterId>), Deadlock> {
        let waiter = Waiter {
            file,
            owner,
            range,
            mode,
            told: false,
        };
        if owner.is_posix() && self.closes_a_cycle(&waiter) {
            return Err(Deadlock);
        }
        let id = self.next;
        self.next += 1;
        self.waiters.insert(id, waiter);
        self.files.entry(file).or_default().waiters.insert(id);
        let mut due = self.due();
        due.retain(|other| *other != id);
        Ok((id, due))
    }

    /// Whether the turn of a waiter has come: no owner of this mount holds a conflicting lock, and
    /// no earlier waiter conflicts.
    pub fn may_ask(&self, id: WaiterId) -> bool {
        let Some(waiter) = self.waiters.get(&id) else {
            return false;
        };
        if self
            .conflict(waiter.file, waiter.owner, waiter.range, waiter.mode)
            .is_some()
        {
            return false;
        }
        // An earlier waiter may wait, through others, for a lock of this waiter's owner: if this
        // one waited for it, both would wait for ever.
        let holds = self.holders.contains_key(&waiter.owner);
        !self
            .ahead(id, waiter)
            .any(|earlier| !(holds && self.waits_for(earlier, waiter.owner)))
    }

    /// Removes a waiter that was granted or gives up. Returns the waiters whose turn has come.
    pub fn end_wait(&mut self, id: WaiterId) -> Vec<WaiterId> {
        if let Some(waiter) = self.waiters.remove(&id)
            && let Some(of) = self.files.get_mut(&waiter.file)
        {
            of.waiters.remove(&id);
            self.drop_if_unused(waiter.file);
        }
        self.due()
    }

    fn drop_if_unused(&mut self, file: FileId) {
        let of = self.files.get(&file);
        if of.is_some_and(|of| of.held.is_empty() && of.waiters.is_empty()) {
            self.files.remove(&file);
        }
    }

    /// Waiters whose turn has come and that were not returned yet.
    fn due(&mut self) -> Vec<WaiterId> {
        let ids: Vec<_> = self.waiters.keys().copied().collect();
        let mut due = Vec::new();
        for id in ids {
            let may = self.may_ask(id);
            let waiter = self.waiters.get_mut(&id).expect("listed just now");
            if may && !waiter.told {
                due.push(id);
            }
            waiter.told = may;
        }
        due
    }

    /// The earlier waiters of the file that conflict with a waiter.
    fn ahead<'a>(
        &'a self,
        id: WaiterId,
        waiter: &'a Waiter,
    ) -> impl Iterator<Item = WaiterId> + 'a {
        let of = self.files.get(&waiter.file);
        let earlier = of.into_iter().flat_map(move |of| of.waiters.range(..id));
        earlier.copied().filter(move |earlier| {
            let earlier = &self.waiters[earlier];
            earlier.owner != waiter.owner
                && earlier.range.overlaps(&waiter.range)
                && earlier.mode.conflicts(waiter.mode)
        })
    }

    /// The owners of this mount that hold locks which conflict with a waiter.
    fn holders_against<'a>(&'a self, waiter: &'a Waiter) -> impl Iterator<Item = Owner> + 'a {
        let of = self.files.get(&waiter.file);
        let held = of.into_iter().flat_map(|of| of.held.iter());
        held.filter(move |(owner, set)| {
            **owner != waiter.owner && set.conflict(waiter.range, waiter.mode).is_some()
        })
        .map(|(owner, _)| *owner)
    }

    /// Whether the owner of `new` would wait for itself. Only locks that are held count, and only
    /// through owners of POSIX locks, because a lock of flock(2) can be released by any process
    /// that has the open file.
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
            let waits = self.waiters.values().filter(|waiter| waiter.owner == owner);
            for waiter in waits {
                open.extend(self.holders_against(waiter));
            }
        }
        false
    }

    /// Whether a waiter waits for `owner`: for a lock that it holds, or for others that do.
    fn waits_for(&self, from: WaiterId, owner: Owner) -> bool {
        let mut seen: HashSet<WaiterId> = HashSet::from([from]);
        let mut open = vec![from];
        while let Some(id) = open.pop() {
            let waiter = &self.waiters[&id];
            open.extend(self.ahead(id, waiter).filter(|&ahead| seen.insert(ahead)));
            for holder in self.holders_against(waiter) {
                if holder == owner {
                    return true;
                }
                let waits = self.waiters.iter().filter(|(_, of)| of.owner == holder);
                open.extend(waits.map(|(&id, _)| id).filter(|&id| seen.insert(id)));
            }
        }
        false
    }
}

#[cfg(test)]
#[path = "model.rs"]
mod model;
