//! The locks of a mount as the server has granted them, and the requests that wait for one. No I/O.
//!
//! Requests of this mount that conflict wait here, in the order of their arrival, so that of many
//! that wait for one lock only the first polls the server. A request overtakes an earlier one only
//! if that one waits, directly or by way of others, for a lock of the request's own owner. A POSIX
//! request whose wait would close a cycle of owners fails with EDEADLK, as fcntl(2) asks.
//! [`LockTable::apply`] takes in what the server has granted or unlocked; each change returns the
//! waiters whose turn has come by it.

use super::range::{ByteRange, Mode, RangeSet};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

/// A file, by a number of the caller's choice that is never used again.
pub type FileId = u64;

/// A request that waits. Numbers grow with arrival.
pub type WaiterId = u64;

/// What a lock belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Owner {
    /// Locks of fcntl(2): of a process, or (F_OFD_SETLK) of an open file description, which FUSE
    /// does not tell apart.
    Posix(u64),
    /// flock(2): of an open file description.
    Flock(u64),
}

impl Owner {
    fn is_posix(self) -> bool {
        matches!(self, Owner::Posix(_))
    }
}

/// A lock that keeps somebody from another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Conflict {
    pub owner: Owner,
    pub range: ByteRange,
    pub mode: Mode,
}

/// A blocking request cannot be granted before its own owner lets go of something (EDEADLK).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deadlock;

#[derive(Debug, Clone, Copy)]
struct Waiter {
    file: FileId,
    owner: Owner,
    range: ByteRange,
    mode: Mode,
    /// It was returned as one whose turn has come.
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
    /// On how many files an owner holds locks.
    holders: HashMap<Owner, usize>,
    next: WaiterId,
}

impl LockTable {
    /// Whether nothing is held.
    pub fn is_empty(&self) -> bool {
        self.holders.is_empty()
    }

    /// Ranges held, of all files and owners.
    pub fn len(&self) -> usize {
        let sets = self.files.values().flat_map(|file| file.held.values());
        sets.map(|set| set.iter().count()).sum()
    }

    pub fn waiting(&self) -> usize {
        self.waiters.len()
    }

    /// What `owner` holds of a file.
    pub fn held(&self, file: FileId, owner: Owner) -> Option<&RangeSet> {
        self.files.get(&file)?.held.get(&owner)
    }

    /// Whether anybody holds or waits for something of a file.
    pub fn has_file(&self, file: FileId) -> bool {
        self.files.contains_key(&file)
    }

    /// Whether `owner` holds or waits for something of a file.
    pub fn concerns(&self, file: FileId, owner: Owner) -> bool {
        let Some(of) = self.files.get(&file) else {
            return false;
        };
        of.held.contains_key(&owner) || of.waiters.iter().any(|id| self.waiters[id].owner == owner)
    }

    /// Everything held, by file and owner.
    pub fn all(&self) -> Vec<(FileId, Owner)> {
        let of_file = |(&file, of): (&FileId, &File)| {
            let owners: Vec<_> = of.held.keys().map(|&owner| (file, owner)).collect();
            owners
        };
        let mut all: Vec<_> = self.files.iter().flat_map(of_file).collect();
        all.sort_unstable();
        all
    }

    /// `range` of a file, cut by how `owner` has locked it.
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

    /// The lock of another owner that keeps `owner` from `range`, if this mount has one.
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

    /// What the server has granted to `owner`, or taken back, takes effect. Returns the waiters
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

    /// A blocking request arrives. Its turn has come when [`LockTable::may_ask`] says so, now or
    /// when a later call names it; or it cannot come, as each waits for the other. Also returns
    /// other waiters whose turn has come by that: who is ahead of them now waits, by way of this
    /// one, for what they hold themselves.
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

    /// Whether the turn of a waiter has come: nobody of this mount holds what conflicts, and
    /// nobody waits for it longer.
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
        // Who holds a lock may be the one that an earlier waiter waits for, by way of others:
        // behind that one it would wait for ever.
        let holds = self.holders.contains_key(&waiter.owner);
        !self
            .ahead(id, waiter)
            .any(|earlier| !(holds && self.waits_for(earlier, waiter.owner)))
    }

    /// A waiter is granted, or gives up. Returns those whose turn has come by that.
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

    /// Waiters that may ask and were not told.
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

    /// Earlier waiters of the file that conflict with a waiter.
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

    /// Owners of this mount that hold what a waiter wants.
    fn holders_against<'a>(&'a self, waiter: &'a Waiter) -> impl Iterator<Item = Owner> + 'a {
        let of = self.files.get(&waiter.file);
        let held = of.into_iter().flat_map(|of| of.held.iter());
        held.filter(move |(owner, set)| {
            **owner != waiter.owner && set.conflict(waiter.range, waiter.mode).is_some()
        })
        .map(|(owner, _)| *owner)
    }

    /// Whether, if `new` waited, its owner would wait for itself: by locks held only, and by
    /// way of owners of POSIX locks only (a lock of an open file can be freed by any process
    /// that has the file).
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

    /// Whether a waiter waits for `owner`: for a lock it holds, or behind another that does.
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
