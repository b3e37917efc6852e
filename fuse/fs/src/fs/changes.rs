//! Changes of one object by this mount that overlap in time, and the decision whether anybody else
//! changed the object in between.
//!
//! Each reply to a change carries a pair of states (wcc_data, RFC 1813 section 2.6): size, mtime
//! and ctime just before the change and just after it. Replies arrive in any order, and the
//! times in them order nothing, because a server's clock steps and ticks coarsely. What orders
//! them is that one change's `after` is the next one's `before`. [`Changes`] follows that trail
//! from the state known when the first change was sent. A trail that uses every pair exactly
//! once means that this client alone changed the object; its end is the newest state. A pair
//! that is left over means that somebody else changed the object between two of ours.
//!
//! A trail is an Eulerian path. If it is followed greedily, it can only get stuck at its end, so
//! the pairs left over must form closed walks that touch the trail. (There are such walks where the
//! clock is so coarse that a state recurs.)

use nfsrdma_xdr::nfs3::{Attributes, WccAttributes};

/// Size, mtime and ctime of `attributes`.
pub(super) fn wcc(attributes: &Attributes) -> WccAttributes {
    WccAttributes {
        size: attributes.size,
        mtime: attributes.mtime,
        ctime: attributes.ctime,
    }
}

/// Whether size and mtime are the same; the ctime may differ.
fn same_data(a: &WccAttributes, b: &WccAttributes) -> bool {
    (a.size, a.mtime) == (b.size, b.mtime)
}

/// States of the trail that are remembered. A reply that is overtaken by more changes is not
/// recognized, which at worst drops clean data.
const MOST_PASSED: usize = 64;
/// Pairs that may wait for their place in the trail. There are more only if one change is overtaken
/// by so many others; the object then counts as changed by somebody else.
const MOST_PENDING: usize = 256;
/// States seen in replies to other calls. If there are more, they count as somebody else's.
pub(super) const MOST_OBSERVED: usize = 8;

/// What a change may do to an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// It changes contents: WRITE, SETATTR of size or mtime, calls that change a directory's
    /// entries.
    Contents,
    /// Of size, mtime and ctime it changes at most the ctime: COMMIT, LINK, SETATTR of mode or
    /// owner.
    Metadata,
}

/// Whether the object was unchanged between the last reply and the first change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Start {
    Unchecked,
    /// Nothing was cached that could be out of date.
    NotNeeded,
    /// No check is needed, because the file was empty. But if it is not as long now as what was
    /// written here, somebody else wrote as well.
    Empty,
    /// As `Empty`, and this mount has just created the file: it is assumed that nobody else writes
    /// to it meanwhile.
    Made,
    /// A GETATTR was sent just ahead of the first change, and is not answered yet.
    Asked,
    /// The GETATTR showed this state.
    Seen(WccAttributes),
}

#[derive(Debug, Clone, Copy)]
struct Pair {
    before: WccAttributes,
    after: Attributes,
}

/// What follows from the replies, once all changes are answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Nobody else changed the object; these are its attributes now.
    Own(Attributes),
    /// As `Own`, but only if nobody else changed the object while the WRITE was under way: such a
    /// change shows neither in the check, which ran before, nor in the attributes of the reply,
    /// which were taken after the WRITE.
    Likely(Attributes),
    /// Somebody else changed the object.
    Foreign,
    /// The replies do not say enough to decide.
    Unverified,
    /// As `Unverified`: the pairs contradict each other, which is possible only if the server's
    /// pre-operation attributes are not atomic with the change.
    NotAtomic,
}

/// Changes by this mount, from the first that was sent until none is under way.
#[derive(Debug)]
pub(super) struct Changes {
    /// Changes and checks that are not answered.
    under_way: u32,
    /// Changes that were begun and have not failed.
    begun: u32,
    /// When the last change was sent.
    last_sent: u64,
    origin: Option<WccAttributes>,
    start: Start,
    /// The end of the trail so far; the origin at first.
    head: Option<WccAttributes>,
    /// The attributes that belong to the head.
    newest: Option<Attributes>,
    /// States the trail went through, the newest last.
    passed: Vec<WccAttributes>,
    pending: Vec<Pair>,
    /// How many joints the trail may still have: places where one state and the next differ in the
    /// ctime, because an own change of kind [`Kind::Metadata`] was not answered with a pair.
    joints: u32,
    /// The trail has a joint.
    joined: bool,
    /// States after changes that were answered without a `before`.
    unpaired: Vec<WccAttributes>,
    /// How many changes were answered without a `before`; `no_after`: without an `after`.
    no_before: u32,
    no_after: u32,
    /// States that replies to other calls showed, whether or not they are in the trail.
    observed: Vec<WccAttributes>,
    /// Replies showed more states than can be remembered.
    observed_more: bool,
    /// More pairs arrived than can wait.
    overflow: bool,
    /// The file is at least this long, in bytes: WRITEs up to there were answered.
    floor: u64,
}

impl Changes {
    /// No change is under way yet. `origin`: the last known state of the object. `joint`: a call on
    /// one of its names has changed the ctime. `cached`: some of its contents are cached, so it
    /// matters whether they are still valid. `made`: this mount has just created the file.
    pub(super) fn new(
        origin: Option<WccAttributes>,
        joint: bool,
        cached: bool,
        made: bool,
    ) -> Self {
        Changes {
            under_way: 0,
            begun: 0,
            last_sent: 0,
            origin,
            start: match origin {
                Some(origin) if origin.size == 0 && made => Start::Made,
                Some(origin) if origin.size == 0 => Start::Empty,
                None if !cached => Start::NotNeeded,
                _ => Start::Unchecked,
            },
            head: origin,
            newest: None,
            passed: Vec::new(),
            pending: Vec::new(),
            joints: u32::from(joint),
            joined: false,
            unpaired: Vec::new(),
            no_before: 0,
            no_after: 0,
            observed: Vec::new(),
            observed_more: false,
            overflow: false,
            floor: 0,
        }
    }

    pub(super) fn under_way(&self) -> u32 {
        self.under_way
    }

    pub(super) fn begun(&self) -> u32 {
        self.begun
    }

    /// Whether any change was answered.
    pub(super) fn answered(&self) -> bool {
        self.newest.is_some()
            || !self.pending.is_empty()
            || self.no_before > 0
            || self.no_after > 0
            || self.overflow
    }

    pub(super) fn last_sent(&self) -> u64 {
        self.last_sent
    }

    /// A change is sent.
    pub(super) fn begin(&mut self, sent: u64) {
        self.under_way += 1;
        self.begun += 1;
        self.last_sent = sent;
    }

    /// A WRITE leaves a hole, whose zeros are cached though somebody else may have filled it.
    pub(super) fn leave_hole(&mut self) {
        if let Start::Empty | Start::Made = self.start {
            self.start = Start::Unchecked;
        }
    }

    /// A GETATTR is sent ahead of the first change, for the server to run before it.
    pub(super) fn begin_check(&mut self) {
        self.under_way += 1;
        self.start = Start::Asked;
    }

    /// The GETATTR ended; `seen`: `None` if it failed.
    pub(super) fn end_check(&mut self, seen: Option<&Attributes>) {
        self.under_way = self.under_way.saturating_sub(1);
        self.start = seen.map_or(Start::Unchecked, |seen| Start::Seen(wcc(seen)));
    }

    /// A change failed, or will not be answered: it has no place in the trail.
    pub(super) fn fail(&mut self) {
        self.under_way = self.under_way.saturating_sub(1);
        self.begun = self.begun.saturating_sub(1);
    }

    /// A change was answered. `floor`: the file is at least this long now.
    pub(super) fn end(
        &mut self,
        kind: Kind,
        before: Option<&WccAttributes>,
        after: Option<&Attributes>,
        floor: u64,
    ) {
        self.under_way = self.under_way.saturating_sub(1);
        self.floor = self.floor.max(floor);
        let before = match (before, after, kind) {
            (Some(before), _, _) => Some(*before),
            (None, Some(after), Kind::Metadata) => {
                self.joints += 1;
                Some(wcc(after))
            }
            (None, _, _) => None,
        };
        match (before, after) {
            (Some(before), Some(after)) => self.add(Pair {
                before,
                after: *after,
            }),
            (None, Some(after)) => {
                self.no_before += 1;
                remember(&mut self.unpaired, wcc(after), MOST_PASSED);
                if self.begun == 1 {
                    self.newest = Some(*after);
                }
            }
            (_, None) => self.no_after += 1,
        }
    }

    /// A call by this mount on one of the object's names changed the ctime, and its reply has no
    /// pair for the object.
    pub(super) fn allow_joint(&mut self) {
        self.joints += 1;
    }

    /// A reply to another call showed this state while changes were under way.
    pub(super) fn observe(&mut self, state: WccAttributes) {
        if self.observed.contains(&state) {
            return;
        }
        if self.observed.len() < MOST_OBSERVED {
            self.observed.push(state);
        } else {
            self.observed_more = true;
        }
    }

    /// Whether the trail has passed this state.
    pub(super) fn is_past(&self, state: &WccAttributes) -> bool {
        self.head != Some(*state) && self.passed.contains(state)
    }

    /// The newest states that the trail has passed, at most `most`.
    pub(super) fn past(&self, most: usize) -> &[WccAttributes] {
        &self.passed[self.passed.len().saturating_sub(most)..]
    }

    pub(super) fn floor(&self) -> u64 {
        self.floor
    }

    /// The attributes at the end of the trail, if they are the newest: all changes answered so far
    /// are in the trail, and the states in all other replies as well.
    pub(super) fn newest(&self) -> Option<&Attributes> {
        let complete = self.pending.is_empty() && self.no_before == 0 && self.no_after == 0;
        self.newest
            .as_ref()
            .filter(|_| complete && !self.saw_others(&[]))
    }

    /// Whether the trail begins at the origin and has no joint, at which somebody else may have
    /// changed mode, owner or ACL.
    pub(super) fn explain_ctime(&self) -> bool {
        self.origin.is_some() && !self.joined
    }

    /// Whether a reply to another call showed a state that is neither in a reply to a change nor
    /// among `past`, the states of earlier changes.
    pub(super) fn saw_others(&self, past: &[WccAttributes]) -> bool {
        let known = |state: &WccAttributes| {
            self.head == Some(*state)
                || self.passed.contains(state)
                || self.unpaired.contains(state)
                || past.contains(state)
        };
        self.observed_more || !self.observed.iter().all(known)
    }

    fn add(&mut self, pair: Pair) {
        if self.head.is_none() {
            // Without an origin, the trail begins here.
            self.head = Some(pair.before);
        }
        if self.pending.len() >= MOST_PENDING {
            self.overflow = true;
            return;
        }
        self.pending.push(pair);
        while self.advance() {}
    }

    /// Extends the trail by one pair; false if none fits.
    fn advance(&mut self) -> bool {
        let Some(head) = self.head else { return false };
        // A pair whose states are equal fits anywhere on the trail.
        let passed = &self.passed;
        let idle = |pair: &Pair| {
            let after = wcc(&pair.after);
            pair.before == after && (after == head || passed.contains(&after))
        };
        if let Some(at) = self.pending.iter().position(idle) {
            let pair = self.pending.swap_remove(at);
            if wcc(&pair.after) == head {
                self.newest = Some(pair.after);
            }
            return true;
        }
        let mut at = self.pending.iter().position(|pair| pair.before == head);
        if at.is_none() && self.joints > 0 {
            let fits = |pair: &Pair| same_data(&pair.before, &head);
            at = self.pending.iter().position(fits);
            if at.is_some() {
                self.joints -= 1;
                self.joined = true;
            }
        }
        let Some(at) = at else { return false };
        let pair = self.pending.swap_remove(at);
        remember(&mut self.passed, head, MOST_PASSED);
        if pair.before != head {
            remember(&mut self.passed, pair.before, MOST_PASSED);
        }
        self.head = Some(wcc(&pair.after));
        self.newest = Some(pair.after);
        true
    }

    /// Whether the pairs left over form closed walks that touch the trail.
    fn closed(&self) -> bool {
        let balance = |state: &WccAttributes| {
            self.pending.iter().fold(0i64, |sum, pair| {
                sum + i64::from(pair.before == *state) - i64::from(wcc(&pair.after) == *state)
            })
        };
        if !self.pending.iter().all(|pair| balance(&pair.before) == 0) {
            return false;
        }
        let mut reached = self.passed.clone();
        reached.extend(self.head);
        let mut rest: Vec<&Pair> = self.pending.iter().collect();
        loop {
            let left = rest.len();
            rest.retain(|pair| {
                let touches = reached.contains(&pair.before);
                if touches {
                    reached.push(wcc(&pair.after));
                }
                !touches
            });
            if rest.is_empty() {
                return true;
            }
            if rest.len() == left {
                return false;
            }
        }
    }

    /// Whether two changes claim to have begun, or ended, at the same state. That cannot be if the
    /// server takes `before` atomically with the change.
    fn contradicts(&self) -> bool {
        let real = |pair: &&Pair| pair.before != wcc(&pair.after);
        self.pending.iter().filter(real).any(|pair| {
            let after = wcc(&pair.after);
            let same_start = |other: &&Pair| other.before == pair.before;
            let same_end = |other: &&Pair| wcc(&other.after) == after;
            self.passed.contains(&pair.before)
                || (self.begun > 1 && (self.head == Some(after) || self.passed.contains(&after)))
                || self.pending.iter().filter(real).filter(same_start).count() > 1
                || self.pending.iter().filter(real).filter(same_end).count() > 1
        })
    }

    /// The verdict. Call it once no change is under way.
    pub(super) fn verdict(&self) -> Verdict {
        if self.overflow {
            return Verdict::Foreign;
        }
        if let (Start::Seen(seen), Some(origin)) = (self.start, self.origin)
            && seen != origin
            && !(self.joints > 0 && same_data(&seen, &origin))
            && !self.unpaired.contains(&seen)
            && !self.passed.contains(&seen)
            && self.head != Some(seen)
        {
            return Verdict::Foreign;
        }
        if self.no_after > 0 || (self.origin.is_none() && self.start != Start::NotNeeded) {
            return Verdict::Unverified;
        }
        if self.no_before > 0 {
            let Some(newest) = self.newest.filter(|_| self.begun == 1) else {
                return Verdict::Unverified;
            };
            return match self.start {
                Start::Made if newest.size == self.floor => Verdict::Own(newest),
                Start::Empty if newest.size == self.floor => Verdict::Likely(newest),
                Start::NotNeeded => Verdict::Likely(newest),
                Start::Seen(seen) if self.origin == Some(seen) => Verdict::Likely(newest),
                _ => Verdict::Unverified,
            };
        }
        match self.newest {
            Some(newest) if self.pending.is_empty() || self.closed() => Verdict::Own(newest),
            _ if self.pending.is_empty() => Verdict::Unverified,
            _ if self.contradicts() => Verdict::NotAtomic,
            _ => Verdict::Foreign,
        }
    }
}

/// Adds `state`, and forgets the oldest state if there are more than `most`.
fn remember(states: &mut Vec<WccAttributes>, state: WccAttributes, most: usize) {
    if states.contains(&state) {
        return;
    }
    if states.len() >= most {
        states.remove(0);
    }
    states.push(state);
}
