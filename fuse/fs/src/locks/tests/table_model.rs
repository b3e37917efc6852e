//! A property test of [`LockTable`] against a map of bytes.

use super::*;
use proptest::prelude::*;
use std::cell::Cell;

thread_local! {
    static STEPS: Cell<u64> = const { Cell::new(0) };
}

/// Another owner is looked at.
pub(super) fn count_step() {
    STEPS.set(STEPS.get() + 1);
}

const BYTES: usize = 12;
const FILES: u64 = 2;
const OWNERS: u64 = 5;

#[derive(Debug, Clone, Copy)]
enum Step {
    /// A request that does not wait.
    Try(u64, u64, ByteRange, Mode),
    Wait(u64, u64, ByteRange, Mode),
    Unlock(u64, u64, ByteRange),
    /// The process ends: its waits end, and its locks are released.
    Exit(u64),
    /// The waiter at this index, if there is one, gets a signal.
    Interrupt(usize),
    /// The server grants the waiter at this index, if its turn has come.
    Grant(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let bytes = BYTES as u64;
    let range = (0..bytes, 0..bytes).prop_map(move |(a, b)| {
        let (start, end) = (a.min(b), a.max(b));
        let end = if end == bytes - 1 {
            super::super::LAST
        } else {
            end
        };
        ByteRange { start, end }
    });
    let mode = prop_oneof![Just(Mode::Read), Just(Mode::Write)];
    let request = (0..FILES, 0..OWNERS, range.clone(), mode);
    let step = prop_oneof![
        3 => request.clone().prop_map(|(f, o, r, m)| Step::Try(f, o, r, m)),
        5 => request.prop_map(|(f, o, r, m)| Step::Wait(f, o, r, m)),
        3 => (0..FILES, 0..OWNERS, range).prop_map(|(f, o, r)| Step::Unlock(f, o, r)),
        1 => (0..OWNERS).prop_map(Step::Exit),
        1 => (0usize..6).prop_map(Step::Interrupt),
        3 => (0usize..6).prop_map(Step::Grant),
    ];
    prop::collection::vec(step, 1..60)
}

fn owner(number: u64) -> Owner {
    match number {
        4 => Owner::Flock(0),
        number => Owner::Posix(number),
    }
}

/// For each file and byte, how each owner has locked it. The last byte stands for all after it.
#[derive(Debug, Default)]
struct Bytes(HashMap<(u64, usize, Owner), Mode>);

fn bytes(range: ByteRange) -> std::ops::RangeInclusive<usize> {
    let last = BYTES as u64 - 1;
    range.start.min(last) as usize..=range.end.min(last) as usize
}

impl Bytes {
    fn set(&mut self, file: u64, owner: Owner, range: ByteRange, mode: Option<Mode>) {
        for byte in bytes(range) {
            match mode {
                Some(mode) => self.0.insert((file, byte, owner), mode),
                None => self.0.remove(&(file, byte, owner)),
            };
        }
    }

    /// The owners that keep `owner` from locking the range.
    fn against(&self, file: u64, owner: Owner, range: ByteRange, mode: Mode) -> HashSet<Owner> {
        let held = self.0.iter().filter(|((of, byte, other), held)| {
            *of == file && *other != owner && bytes(range).contains(byte) && held.conflicts(mode)
        });
        held.map(|((_, _, owner), _)| *owner).collect()
    }
}

/// A request that waits, as the model has it.
#[derive(Debug, Clone, Copy)]
struct Pending {
    id: WaiterId,
    file: u64,
    owner: Owner,
    range: ByteRange,
    mode: Mode,
}

struct Run {
    table: LockTable,
    bytes: Bytes,
    pending: Vec<Pending>,
    /// The waiters whose turn has come according to the table.
    told: HashSet<WaiterId>,
}

impl Run {
    fn new() -> Self {
        Self {
            table: LockTable::default(),
            bytes: Bytes::default(),
            pending: Vec::new(),
            told: HashSet::new(),
        }
    }

    fn told(&mut self, ids: Vec<WaiterId>) {
        self.told.extend(ids);
    }

    fn set(&mut self, file: u64, owner: Owner, range: ByteRange, mode: Option<Mode>) {
        self.bytes.set(file, owner, range, mode);
        let due = self.table.apply(file, owner, range, mode);
        self.told(due);
    }

    fn end(&mut self, at: usize) -> Pending {
        let ended = self.pending.remove(at);
        let due = self.table.end_wait(ended.id);
        self.told(due);
        ended
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Try(file, by, range, mode) => {
                let by = owner(by);
                if self.pending.iter().any(|pending| pending.owner == by) {
                    // A process has one thread here, which waits.
                    return;
                }
                let against = self.bytes.against(file, by, range, mode);
                let conflict = self.table.conflict(file, by, range, mode);
                assert_eq!(conflict.is_some(), !against.is_empty());
                match conflict {
                    Some(conflict) => assert!(against.contains(&conflict.owner)),
                    None => self.set(file, by, range, Some(mode)),
                }
            }
            Step::Wait(file, by, range, mode) => {
                let by = owner(by);
                if self.pending.iter().any(|pending| pending.owner == by) {
                    return;
                }
                let deadlock = self.deadlock(file, by, range, mode);
                match self.table.wait(file, by, range, mode) {
                    Ok(id) => {
                        assert!(!deadlock, "not noticed");
                        if self.table.may_ask(id) {
                            self.told.insert(id);
                        }
                        self.pending.push(Pending {
                            id,
                            file,
                            owner: by,
                            range,
                            mode,
                        });
                    }
                    Err(Deadlock) => assert!(deadlock, "there was none"),
                }
            }
            Step::Unlock(file, by, range) => self.set(file, owner(by), range, None),
            Step::Exit(by) => {
                let by = owner(by);
                while let Some(at) = self.pending.iter().position(|p| p.owner == by) {
                    self.end(at);
                }
                for file in 0..FILES {
                    self.set(file, by, ByteRange::ALL, None);
                    assert!(!self.table.concerns(file, by));
                }
            }
            Step::Interrupt(at) if at < self.pending.len() => {
                self.end(at);
            }
            Step::Grant(at) if at < self.pending.len() => {
                let p = self.pending[at];
                if self.table.may_ask(p.id) {
                    assert!(
                        self.told.contains(&p.id),
                        "nobody said that its turn has come"
                    );
                    self.set(p.file, p.owner, p.range, Some(p.mode));
                    let at = self.pending.iter().position(|of| of.id == p.id).unwrap();
                    self.end(at);
                } else {
                    // It is told again.
                    self.told.remove(&p.id);
                }
            }
            Step::Interrupt(_) | Step::Grant(_) => {}
        }
    }

    /// Whether `by` would wait for itself, according to the map of bytes.
    fn deadlock(&self, file: u64, by: Owner, range: ByteRange, mode: Mode) -> bool {
        if !matches!(by, Owner::Posix(_)) {
            return false;
        }
        let mut open = self.bytes.against(file, by, range, mode);
        let mut seen = HashSet::new();
        while let Some(&next) = open.iter().find(|owner| !seen.contains(*owner)) {
            if next == by {
                return true;
            }
            seen.insert(next);
            if matches!(next, Owner::Flock(_)) {
                continue;
            }
            for p in self.pending.iter().filter(|p| p.owner == next) {
                open.extend(self.bytes.against(p.file, p.owner, p.range, p.mode));
            }
        }
        false
    }

    /// Whether the turn of a waiter has come, without asking the table for it.
    fn may(&self, of: &Pending) -> bool {
        let waiter = &self.table.waiters[&of.id];
        self.table.obstacle(of.id, waiter).is_none()
    }

    fn check(&self) {
        for file in 0..FILES {
            for byte in 0..BYTES {
                let at = |owner| self.bytes.0.get(&(file, byte, owner)).copied();
                let one = byte as u64;
                for number in 0..OWNERS {
                    let by = owner(number);
                    let one = ByteRange {
                        start: one,
                        end: one,
                    };
                    let pieces = self.table.pieces(file, by, one);
                    assert_eq!(pieces, [(one, at(by))]);
                }
            }
        }
        assert_eq!(self.table.is_empty(), self.bytes.0.is_empty());
        assert_eq!(self.table.waiting(), self.pending.len());
        // A waiter waits for a lock that is held, or for its turn behind an equal one. What keeps that
        // one is not a lock of its own.
        for (at, p) in self.pending.iter().enumerate() {
            let against = |p: &Pending| self.bytes.against(p.file, p.owner, p.range, p.mode);
            let equal = |other: &&Pending| {
                other.file == p.file
                    && other.range == p.range
                    && other.mode == Mode::Write
                    && p.mode == Mode::Write
            };
            let mut ahead = self.pending[..at].iter().filter(equal).peekable();
            let may = self.may(p);
            let listed = self.table.waiters[&p.id].behind;
            assert!(!may || listed.is_none(), "behind what is not there");
            assert!(!may || against(p).is_empty());
            if !may && against(p).is_empty() {
                assert!(ahead.peek().is_some(), "waits for nothing");
                let own = ahead.any(|of| of.owner != p.owner && against(of).contains(&p.owner));
                assert!(!own, "waits for itself");
            }
        }
        // Some owner can go on: a waiter, or one that holds a lock and does not wait. Otherwise the
        // queue has created a deadlock. (A deadlock through flock(2) is made by the programs.)
        let waits = |owner: Owner| self.pending.iter().any(|p| p.owner == owner);
        let stuck = !self.pending.is_empty()
            && !self.pending.iter().any(|p| self.may(p))
            && !self.bytes.0.keys().any(|(_, _, owner)| !waits(*owner));
        let made_by_programs = waits(Owner::Flock(0));
        assert!(!stuck || made_by_programs, "nobody can go on");
    }
}

proptest! {
    #[test]
    fn the_table_is_the_map_of_bytes(steps in steps()) {
        let mut run = Run::new();
        for step in steps {
            run.step(step);
            run.check();
        }
    }
}

fn range(start: u64, end: u64) -> ByteRange {
    ByteRange::new(start, end).unwrap()
}

/// The one ahead may wait for another machine, which may wait for a lock of the one behind: nobody here
/// knows.
#[test]
fn requests_for_other_ranges_wait_for_no_turn() {
    let mut table = LockTable::default();
    let first = table.wait(1, Owner::Posix(1), range(0, 9), Mode::Write);
    assert!(table.may_ask(first.unwrap()));
    for (n, (range, mode)) in [
        (range(5, 9), Mode::Write),
        (range(0, 19), Mode::Write),
        (range(0, 9), Mode::Read),
    ]
    .into_iter()
    .enumerate()
    {
        let other = table.wait(1, Owner::Posix(n as u64 + 2), range, mode);
        assert!(table.may_ask(other.unwrap()), "{range:?}");
    }
    // Only its own lock keeps the first from it.
    let equal = Owner::Posix(9);
    let waits = table.wait(1, equal, range(0, 9), Mode::Write).unwrap();
    assert!(!table.may_ask(waits));
    let due = table.apply(1, equal, range(3, 3), Some(Mode::Read));
    assert_eq!(due, [waits]);
}

/// Steps for each waiter of `count`, from the first request to the last unlock. `holds`: each also
/// has a lock for which nobody waits.
fn steps_per_waiter(count: u64, holds: bool) -> u64 {
    STEPS.set(0);
    let mut table = LockTable::default();
    let last = Owner::Posix(0);
    table.apply(1, last, ByteRange::ALL, Some(Mode::Write));
    let mut waiting = HashMap::new();
    for n in 1..=count {
        let owner = Owner::Posix(n);
        if holds {
            table.apply(2, owner, ByteRange::ALL, Some(Mode::Read));
        }
        let id = table.wait(1, owner, ByteRange::ALL, Mode::Write).unwrap();
        assert!(!table.may_ask(id));
        waiting.insert(id, owner);
    }
    let mut due = table.apply(1, last, ByteRange::ALL, None);
    let mut held = Vec::new();
    while !waiting.is_empty() || !held.is_empty() {
        for id in std::mem::take(&mut due) {
            let owner = waiting[&id];
            if table.may_ask(id) {
                waiting.remove(&id);
                held.push(owner);
                due.extend(table.apply(1, owner, ByteRange::ALL, Some(Mode::Write)));
                due.extend(table.end_wait(id));
            }
        }
        let owner = held.pop().expect("one of them has the lock");
        due.extend(table.apply(1, owner, ByteRange::ALL, None));
    }
    STEPS.get() / count
}

#[test]
fn what_a_lock_costs_does_not_grow_with_those_that_wait() {
    for holds in [false, true] {
        let few = steps_per_waiter(10, holds);
        let many = steps_per_waiter(if holds { 100 } else { 1000 }, holds);
        assert!(
            many <= few + 10,
            "holds: {holds}: {many} steps instead of {few}"
        );
    }
}

/// Owners that hold a lock for which all others wait, and wait for a byte more than the one before:
/// who waits for whom takes the cube of their number to find out.
#[test]
fn a_change_costs_little_whatever_waits_for_what() {
    const OWNERS: u64 = 1000;
    // A search passes over all of them for each owner.
    let most = 2 * MOST_OWNERS as u64 * OWNERS;
    let counted = |what: &str, steps: u64| {
        assert!(steps <= most, "{what}: {steps} steps");
    };
    let mut table = LockTable::default();
    let first = Owner::Posix(0);
    table.apply(1, first, range(0, 0), Some(Mode::Write));
    let mut waiting = HashMap::new();
    let mut due = Vec::new();
    for n in 1..=OWNERS {
        let owner = Owner::Posix(n);
        table.apply(2, owner, range(n, n), Some(Mode::Read));
        STEPS.set(0);
        let id = table.wait(1, owner, range(n - 1, n), Mode::Write).unwrap();
        counted("wait", STEPS.get());
        due.push(id);
        waiting.insert(id, owner);
    }
    // Somebody waits for the locks of all.
    let outside = Owner::Posix(OWNERS + 1);
    STEPS.set(0);
    table.wait(2, outside, ByteRange::ALL, Mode::Write).unwrap();
    counted("wait for all", STEPS.get());
    STEPS.set(0);
    due.extend(table.apply(1, first, ByteRange::ALL, None));
    counted("unlock", STEPS.get());
    // All get their locks nevertheless.
    while !due.is_empty() {
        for id in std::mem::take(&mut due) {
            STEPS.set(0);
            let may = table.may_ask(id);
            counted("may_ask", STEPS.get());
            if may && let Some(owner) = waiting.remove(&id) {
                for mode in [Some(Mode::Write), None] {
                    STEPS.set(0);
                    due.extend(table.apply(1, owner, ByteRange::ALL, mode));
                    counted("apply", STEPS.get());
                }
                STEPS.set(0);
                due.extend(table.end_wait(id));
                counted("end_wait", STEPS.get());
            }
        }
    }
    assert!(waiting.is_empty(), "{} wait for ever", waiting.len());
}
