//! A model of a server with one file, this client and another one, which sends, runs and answers
//! calls in random order and checks what the [`AttributeCache`] makes of the replies.

use super::super::attribute_cache::{Answered, AttributeCache, Kind, Seen, Span, Times, wcc};
use super::super::clock::Nanos;
use nfsrdma_xdr::nfs3::{Attributes, FileType, SpecData, Time, WccAttributes, WccData};
use proptest::prelude::*;

pub(super) const TIMES: Times = Times { min: 10, max: 80 };

pub(in crate::fs) fn attributes(size: u64, tick: u32) -> Attributes {
    let time = Time {
        seconds: tick,
        nanoseconds: 0,
    };
    Attributes {
        kind: FileType::Regular,
        mode: 0o644,
        nlink: 1,
        uid: 0,
        gid: 0,
        size,
        used: size,
        rdev: SpecData::default(),
        fsid: 1,
        fileid: 2,
        atime: time,
        mtime: time,
        ctime: time,
    }
}

pub(super) fn change(before: Option<&Attributes>, after: &Attributes) -> WccData {
    WccData {
        before: before.map(wcc),
        after: Some(*after),
    }
}

pub(super) fn answered(kind: Kind, data: &WccData) -> Answered<'_> {
    Answered {
        kind,
        data,
        floor: 0,
    }
}

/// The server's pre-operation attributes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Before {
    Atomic,
    Never,
    NotAtomic,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Clock {
    /// No two changes have the same time; the clock may step back.
    Fine,
    /// Many changes have the same time.
    Coarse,
}

#[derive(Debug, Clone)]
enum Step {
    /// A READ, which fills the cache.
    Read,
    Write {
        grows: bool,
    },
    Commit,
    /// An open, with the GETATTR or ACCESS of close-to-open.
    Open,
    /// The server runs a call.
    Run(usize),
    /// The server runs a WRITE, and takes the attributes for its reply later.
    RunChange(usize),
    Answer(usize),
    /// Somebody else changes the file.
    Foreign {
        grows: bool,
    },
    TurnClock(u32),
    Tick,
    Wait(Nanos),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        3 => Just(Step::Read),
        6 => any::<bool>().prop_map(|grows| Step::Write { grows }),
        1 => Just(Step::Commit),
        2 => Just(Step::Open),
        12 => any::<usize>().prop_map(Step::Run),
        2 => any::<usize>().prop_map(Step::RunChange),
        12 => any::<usize>().prop_map(Step::Answer),
        2 => any::<bool>().prop_map(|grows| Step::Foreign { grows }),
        1 => (0u32..100).prop_map(Step::TurnClock),
        1 => Just(Step::Tick),
        1 => (0u64..15).prop_map(Step::Wait),
    ];
    prop::collection::vec(step, 1..80)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Call {
    Read,
    Open,
    Write { grows: bool },
    Commit,
}

struct Flight {
    call: Call,
    sent: u64,
    /// The number of foreign changes when the call was sent.
    foreign_then: u64,
    /// How often the cache had been dropped when the call was sent.
    drops_then: u64,
    /// For a WRITE: it has changed the file.
    changed: bool,
    done: Option<Done>,
}

struct Done {
    before: Attributes,
    after: Attributes,
    foreign: u64,
}

struct World {
    before: Before,
    clock: Clock,
    /// The file as the server has it; `time` is the server's clock.
    now: Attributes,
    time: u32,
    unique: u32,
    history: Vec<Attributes>,
    foreign: u64,
    /// The client's cache; `event` and `nanos` are its order of events and its clock.
    cache: AttributeCache,
    event: u64,
    nanos: Nanos,
    flights: Vec<Flight>,
    /// If data is cached: how many foreign changes it contains.
    data: Option<u64>,
    drops: u64,
    /// Somebody else changed the file while WRITEs of this client were under way, or before one of which the
    /// reply does not show that.
    beside: bool,
    /// How many foreign changes the answers have shown that confirmed or replaced the contents.
    heard: u64,
    /// Two WRITEs of this client were under way at the same time.
    overlapped: bool,
}

impl World {
    fn new(before: Before, clock: Clock) -> Self {
        let mut cache = AttributeCache::default();
        let span = Span {
            sent: 0,
            arrived: 1,
        };
        // The attributes of a LOOKUP.
        let first = cache.apply(span, &attributes(100, 50), 0, TIMES);
        assert!(!first.foreign);
        World {
            before,
            clock,
            now: attributes(100, 50),
            time: 50,
            unique: 0,
            history: vec![attributes(100, 50)],
            foreign: 0,
            cache,
            event: 1,
            nanos: 0,
            flights: Vec::new(),
            data: None,
            drops: 0,
            beside: false,
            heard: 0,
            overlapped: false,
        }
    }

    fn change(&mut self, grows: bool) {
        if self.clock == Clock::Fine {
            self.unique += 1;
        }
        let time = Time {
            seconds: self.time,
            nanoseconds: self.unique,
        };
        (self.now.mtime, self.now.ctime) = (time, time);
        self.now.size += u64::from(grows);
        self.history.push(self.now);
    }

    fn span(&mut self, sent: u64) -> Span {
        self.event += 1;
        Span {
            sent,
            arrived: self.event,
        }
    }

    fn send(&mut self, call: Call, sent: u64) {
        self.flights.push(Flight {
            call,
            sent,
            foreign_then: self.foreign,
            drops_then: self.drops,
            changed: false,
            done: None,
        });
    }

    /// The index of one of the calls that the server has not run.
    fn waiting(&self, at: usize) -> Option<usize> {
        let waiting: Vec<usize> = (0..self.flights.len())
            .filter(|&n| self.flights[n].done.is_none())
            .collect();
        waiting.get(at % waiting.len().max(1)).copied()
    }

    /// Only a server without pre-operation attributes takes the attributes after a change so late.
    fn run_change(&mut self, at: usize) {
        let Some(at) = self.waiting(at) else { return };
        let flight = &mut self.flights[at];
        if let Call::Write { grows, .. } = flight.call
            && self.before == Before::Never
            && !flight.changed
        {
            flight.changed = true;
            self.change(grows);
        }
    }

    fn run(&mut self, at: usize) {
        let Some(at) = self.waiting(at) else { return };
        let before = self.now;
        if let Call::Write { grows, .. } = self.flights[at].call
            && !self.flights[at].changed
        {
            self.change(grows);
        }
        let told = match self.before {
            Before::NotAtomic => self.history[self.history.len().saturating_sub(3)],
            Before::Atomic | Before::Never => before,
        };
        self.flights[at].done = Some(Done {
            before: told,
            after: self.now,
            foreign: self.foreign,
        });
    }

    fn follow(&mut self, seen: Seen) {
        if seen.foreign {
            if self.before == Before::Atomic && !self.overlapped {
                assert!(self.foreign > 0, "a false alarm");
            }
            self.data = None;
            self.drops += 1;
        }
    }

    fn answer(&mut self, at: usize) {
        let ready: Vec<usize> = (0..self.flights.len())
            .filter(|&n| self.flights[n].done.is_some())
            .collect();
        let Some(&at) = ready.get(at % ready.len().max(1)) else {
            return;
        };
        let flight = self.flights.swap_remove(at);
        let Some(done) = flight.done else { return };
        let span = self.span(flight.sent);
        let seen = match flight.call {
            Call::Read | Call::Open => self.cache.apply(span, &done.after, self.nanos, TIMES),
            Call::Write { .. } | Call::Commit => {
                let gives = self.before != Before::Never;
                let data = change(Some(&done.before).filter(|_| gives), &done.after);
                let kind = match flight.call {
                    Call::Write { .. } => Kind::Write,
                    _ => Kind::Metadata,
                };
                let floor = match flight.call {
                    Call::Write { grows: true } => done.after.size,
                    _ => 0,
                };
                let answered = Answered {
                    floor,
                    ..answered(kind, &data)
                };
                self.cache.end_change(span, &answered, self.nanos, TIMES)
            }
        };
        if !seen.ambiguous && self.cache.verified_since(flight.sent) {
            self.heard = self.heard.max(done.foreign);
        }
        self.follow(seen);
        match flight.call {
            // Data of a READ that was sent before the cache was dropped is not cached.
            Call::Read if flight.drops_then == self.drops => {
                self.data = Some(self.data.map_or(done.foreign, |had| had.min(done.foreign)));
            }
            Call::Open => self.opened(flight.sent, flight.foreign_then),
            _ => {}
        }
    }

    /// Close-to-open: what others did before the open began is in the cached data, or none is
    /// cached.
    fn opened(&mut self, since: u64, foreign_then: u64) {
        if !self.cache.verified_since(since) {
            self.data = None;
            self.drops += 1;
        } else if self.clock == Clock::Fine
            && self.before != Before::NotAtomic
            && !self.beside
            && let Some(data) = self.data
        {
            assert!(
                data >= foreign_then,
                "old data survive an open: {data} of {foreign_then}"
            );
        }
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Read => self.send(Call::Read, self.event),
            Step::Open => {
                // An event of its own, as `Stamp::mark` takes.
                self.event += 1;
                self.send(Call::Open, self.event);
            }
            Step::Write { grows } => {
                self.overlapped |= self.cache.is_changing();
                self.event += 1;
                self.cache.begin_change(self.event);
                let unheard = self.foreign > self.heard || self.cache.fresh(self.nanos).is_none();
                self.beside |= self.before == Before::Never && unheard;
                self.send(Call::Write { grows }, self.event);
            }
            Step::Commit => {
                self.event += 1;
                self.cache.begin_change(self.event);
                self.send(Call::Commit, self.event);
            }
            Step::Run(at) => self.run(at),
            Step::RunChange(at) => self.run_change(at),
            Step::Answer(at) => self.answer(at),
            Step::Foreign { grows } => {
                self.change(grows);
                self.foreign += 1;
                self.beside |= self.cache.is_changing();
            }
            Step::TurnClock(to) => self.time = to,
            Step::Tick => self.time += 1,
            Step::Wait(nanos) => self.nanos += nanos,
        }
    }

    /// Answers all calls, and then opens the file while nothing else is under way.
    fn end(mut self) {
        while self.flights.iter().any(|flight| flight.done.is_none()) {
            self.run(0);
        }
        while !self.flights.is_empty() {
            self.answer(0);
        }
        self.step(&Step::Open);
        self.run(0);
        self.answer(0);
        assert!(self.cache.fresh(self.nanos).is_some());
        let known = self.cache.attributes().map(wcc);
        let now: WccAttributes = wcc(&self.now);
        assert_eq!(known, Some(now), "the newest is not known");
        // Somebody else's change is seen at the next open.
        if self.clock == Clock::Fine {
            self.step(&Step::Read);
            self.run(0);
            self.answer(0);
            self.step(&Step::Foreign { grows: false });
            self.step(&Step::Open);
            self.run(0);
            self.answer(0);
            assert_eq!(self.data, None, "a foreign change is not noticed");
        }
    }
}

fn run(before: Before, clock: Clock, steps: &[Step]) {
    let mut world = World::new(before, clock);
    for step in steps {
        world.step(step);
    }
    world.end();
}

proptest! {
    #[test]
    fn atomic_before(steps in steps()) {
        run(Before::Atomic, Clock::Fine, &steps);
    }

    #[test]
    fn atomic_before_and_a_clock_that_ticks_rarely(steps in steps()) {
        run(Before::Atomic, Clock::Coarse, &steps);
    }

    #[test]
    fn no_before(steps in steps()) {
        run(Before::Never, Clock::Fine, &steps);
    }

    #[test]
    fn no_before_and_a_clock_that_ticks_rarely(steps in steps()) {
        run(Before::Never, Clock::Coarse, &steps);
    }

    #[test]
    fn a_before_that_is_not_atomic(steps in steps()) {
        run(Before::NotAtomic, Clock::Fine, &steps);
    }
}
