//! The newest attributes known of an object, how long they are valid, and whether the contents
//! cached with them are still those of the server. There is no I/O; time and the order of calls and
//! replies are arguments.
//!
//! **Order.** A reply shows the state at some moment between the sending of its call and its
//! arrival. If the call was sent after the known attributes had arrived, the reply is newer,
//! whatever the times in it say: a server's clock may step back, and may tick rarely. If the two
//! overlap, only pre-operation attributes can order them ([`Changes`]). Where these do not, and the
//! attributes differ, one of the replies is kept and expires at once, so that the next use asks the
//! server.
//!
//! **Contents.** If size, mtime or ctime differ from those to which the cached contents belong,
//! somebody else changed the object, unless changes by this mount ("own changes") explain it. A
//! reply that overlaps own changes decides nothing; the decision is made when the last of the
//! changes is answered ([`Verdict`]). If that cannot decide, the contents are *unverified*: they
//! are valid for a limited time, and not beyond the next open (docs/COHERENCE.md). This is the case
//! after every change without pre-operation attributes, except the first of a file that this mount
//! has created.

use super::changes::{Changes, Kind, Verdict, wcc};
use super::clock::Nanos;
use nfsrdma_xdr::nfs3::{Attributes, WccAttributes, WccData};

/// How many older states are remembered after changes, to recognize replies that were overtaken.
const MOST_PAST: usize = 8;

/// How long attributes are valid (`acregmin` to `acregmax`, and so on).
#[derive(Debug, Clone, Copy)]
pub(super) struct Times {
    pub(super) min: Nanos,
    pub(super) max: Nanos,
}

/// When a call was sent and when its reply arrived: numbers from one counter that only grows.
#[derive(Debug, Clone, Copy)]
pub(super) struct Span {
    pub(super) sent: u64,
    pub(super) arrived: u64,
}

/// What a reply showed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[must_use]
pub(super) struct Seen {
    /// Somebody else changed the contents: the cached ones are invalid.
    pub(super) foreign: bool,
    /// Mode, owner, group or ctime changed, so the rights that ACCESS granted may have, too.
    pub(super) changed: bool,
    /// Only the ctime changed, and own changes explain that: nobody has set an ACL.
    pub(super) own_ctime: bool,
    /// The server's pre-operation attributes are not atomic with the change.
    pub(super) not_atomic: bool,
    /// The reply cannot be ordered against what is known: file data in it may be older than
    /// somebody else's change.
    pub(super) ambiguous: bool,
}

#[derive(Debug, Default)]
pub(super) struct AttributeCache {
    known: Option<Attributes>,
    /// When the reply with the known attributes arrived.
    arrived: u64,
    fresh_until: Nanos,
    timeout: Nanos,
    /// When the latest call was sent whose reply confirmed or replaced the cached contents.
    verified: u64,
    /// The state to which the cached contents belong.
    contents: Option<WccAttributes>,
    /// Present once this mount has changed the object. Boxed, because there are many objects, most
    /// of which are never changed.
    own: Option<Box<Own>>,
}

/// What is remembered of own changes.
#[derive(Debug, Default)]
struct Own {
    /// The own changes that are under way.
    changes: Option<Box<Changes>>,
    /// When an own change last began or ended.
    changed: u64,
    /// States that own changes have replaced, the newest last.
    past: Box<[WccAttributes]>,
    /// If own changes left the cached contents unverified: until when those are valid.
    unverified_until: Option<Nanos>,
    /// This mount created the file, and it has been empty since.
    made: bool,
    /// A call on one of the object's names changed the ctime, and its reply did not show the new
    /// one.
    ctime_open: bool,
    /// When such a call was last answered: replies to calls sent before that may have the old
    /// number of links.
    named: u64,
}

impl Own {
    /// Limits the validity of the cached contents to `until`, and to the next open.
    fn unverified_by(&mut self, until: Nanos) {
        self.unverified_until = Some(self.unverified_until.unwrap_or(until).min(until));
    }
}

/// Whether both are equal except for the access time, which READ changes, and the space used, which
/// a server may determine later.
fn alike(a: &Attributes, b: &Attributes) -> bool {
    let (atime, used) = (a.atime, a.used);
    *a == Attributes { atime, used, ..*b }
}

impl AttributeCache {
    /// The newest attributes known, valid or not.
    pub(super) fn attributes(&self) -> Option<&Attributes> {
        self.known.as_ref()
    }

    /// The attributes, if they are valid now.
    pub(super) fn fresh(&self, now: Nanos) -> Option<&Attributes> {
        self.known.as_ref().filter(|_| self.fresh_for(now) > 0)
    }

    /// How much longer the attributes are valid.
    pub(super) fn fresh_for(&self, now: Nanos) -> Nanos {
        let until = match (&self.known, self.unverified_until()) {
            (None, _) => return 0,
            (Some(_), Some(until)) => self.fresh_until.min(until),
            (Some(_), None) => self.fresh_until,
        };
        until.saturating_sub(now)
    }

    /// How long ago the attributes that are valid now became so.
    pub(super) fn age(&self, now: Nanos) -> Nanos {
        let since = self.fresh_until.saturating_sub(self.timeout);
        now.saturating_sub(since)
    }

    /// Ends the validity of the attributes: the next use asks the server.
    pub(super) fn expire(&mut self) {
        self.fresh_until = 0;
    }

    /// Whether no change by this mount has been under way since the call was sent.
    pub(super) fn undisturbed(&self, sent: u64) -> bool {
        let own = self.own.as_ref();
        own.is_none_or(|own| own.changes.is_none() && own.changed <= sent)
    }

    /// Whether no attributes have arrived since the call was sent.
    pub(super) fn unheard_since(&self, sent: u64) -> bool {
        self.arrived <= sent
    }

    /// Whether own changes are under way.
    pub(super) fn is_changing(&self) -> bool {
        self.changes().is_some()
    }

    fn changes(&self) -> Option<&Changes> {
        self.own.as_ref()?.changes.as_deref()
    }

    fn changes_mut(&mut self) -> Option<&mut Changes> {
        self.own.as_mut()?.changes.as_deref_mut()
    }

    fn unverified_until(&self) -> Option<Nanos> {
        self.own.as_ref()?.unverified_until
    }

    fn set_unverified(&mut self, until: Option<Nanos>) {
        if let Some(own) = &mut self.own {
            own.unverified_until = until;
        }
    }

    /// Whether a call sent at `since` or later has confirmed the cached contents, and no change by
    /// this mount leaves them unverified.
    pub(super) fn verified_since(&self, since: u64) -> bool {
        self.verified >= since && self.changes().is_none() && self.unverified_until().is_none()
    }

    /// Whether changes by this mount, all answered, have left the cached contents unverified.
    pub(super) fn is_unverified(&self) -> bool {
        self.changes().is_none() && self.unverified_until().is_some()
    }

    /// Whether a GETATTR is worth sending ahead of a change of the contents, which then is the
    /// first one under way.
    pub(super) fn wants_check(&self) -> bool {
        self.changes().is_none() && self.contents.is_some_and(|contents| contents.size > 0)
    }

    /// Makes the attributes valid from now on, unless their call was sent (at `sent`) before the
    /// last call on one of the object's names was answered.
    fn believe(&mut self, sent: u64, now: Nanos) {
        let named = self.own.as_ref().map_or(0, |own| own.named);
        self.fresh_until = match named > sent {
            true => 0,
            false => now + self.timeout,
        };
    }

    fn accept(&mut self, span: Span, new: &Attributes, now: Nanos, times: Times) -> bool {
        let old = self.known.replace(*new);
        let same = old.as_ref().is_some_and(|old| wcc(old) == wcc(new));
        if !same {
            self.timeout = times.min;
        } else if now >= self.fresh_until {
            self.timeout = (self.timeout * 2).clamp(times.min, times.max);
        }
        self.arrived = span.arrived;
        self.believe(span.sent, now);
        let rights = |a: &Attributes| (a.ctime, a.mode, a.uid, a.gid);
        old.is_none_or(|old| rights(&old) != rights(new))
    }

    /// Applies the attributes in the reply to a call that changed nothing (post_op_attr).
    pub(super) fn apply(&mut self, span: Span, new: &Attributes, now: Nanos, times: Times) -> Seen {
        let mut result = Seen::default();
        let state = wcc(new);
        let same = self.known.as_ref().is_some_and(|known| alike(known, new));
        let newer = self.known.is_none() || self.arrived <= span.sent;
        if !newer && !same {
            let older = match self.changes() {
                Some(changes) => changes.is_past(&state),
                None => {
                    let past = self.own.as_ref().map(|own| &own.past);
                    past.is_some_and(|past| past.contains(&state)) && self.contents != Some(state)
                }
            };
            if let Some(changes) = self.changes_mut() {
                changes.observe(state);
            }
            if !older {
                self.expire();
                result.ambiguous = !self.is_changing();
            }
            return result;
        }
        result.changed = self.accept(span, new, now, times);
        if let Some(changes) = self.changes_mut() {
            changes.observe(state);
        }
        if !self.undisturbed(span.sent) {
            return result;
        }
        let late = self.unverified_until().is_some_and(|until| now >= until);
        result.foreign = self.is_other(&state) || late;
        self.contents = Some(state);
        self.verified = self.verified.max(span.sent);
        if result.foreign {
            self.set_unverified(None);
        }
        result
    }

    fn is_other(&mut self, seen: &WccAttributes) -> bool {
        let own = self.own.as_mut();
        let open = own.is_some_and(|own| std::mem::take(&mut own.ctime_open));
        self.contents.is_some_and(|known| {
            let same = (known.size, known.mtime) == (seen.size, seen.mtime);
            !(same && (open || known.ctime == seen.ctime))
        })
    }

    /// A RENAME or REMOVE of one of the object's names changed its ctime, and the reply does not
    /// show the new one. The ctime of the next reply is accepted if size and mtime are the same.
    pub(super) fn named_otherwise(&mut self, event: u64) {
        let own = self.own.get_or_insert_default();
        own.named = event;
        match &mut own.changes {
            Some(changes) => changes.allow_joint(),
            None => own.ctime_open = true,
        }
        self.fresh_until = 0;
    }

    /// This mount has just created the file.
    pub(super) fn made(&mut self) {
        self.own.get_or_insert_default().made = true;
    }

    fn begun(&mut self, event: u64, cached: bool) -> &mut Changes {
        let contents = self.contents;
        let own = self.own.get_or_insert_default();
        own.changed = event;
        let joint = std::mem::take(&mut own.ctime_open);
        let made = own.made;
        own.changes
            .get_or_insert_with(|| Box::new(Changes::new(contents, joint, cached, made)))
    }

    /// A call that changes the object is sent. `cached`: some of its contents are cached, here
    /// or in the kernel.
    pub(super) fn begin_change(&mut self, event: u64, cached: bool) {
        self.begun(event, cached).begin(event);
    }

    /// A WRITE that is under way does not begin at offset 0.
    pub(super) fn leave_hole(&mut self) {
        if let Some(changes) = self.changes_mut() {
            changes.leave_hole();
        }
    }

    /// A GETATTR is sent just ahead of the first change.
    pub(super) fn begin_check(&mut self, event: u64) {
        self.begun(event, true).begin_check();
    }

    /// The GETATTR of [`AttributeCache::begin_check`] ended; `seen`: `None` if it failed.
    pub(super) fn end_check(
        &mut self,
        span: Span,
        seen: Option<&Attributes>,
        now: Nanos,
        times: Times,
    ) -> Seen {
        if let Some(changes) = self.changes_mut() {
            changes.end_check(seen);
        }
        let mut result = match seen {
            Some(seen) => self.apply(span, seen, now, times),
            None => Seen::default(),
        };
        result.foreign |= self.ended(span, now, times, &mut result.not_atomic);
        result
    }

    /// A change was answered. `floor`: the file is at least that long now, in bytes, because the
    /// server accepted a WRITE up to there.
    pub(super) fn end_change(
        &mut self,
        span: Span,
        kind: Kind,
        data: &WccData,
        floor: u64,
        now: Nanos,
        times: Times,
    ) -> Seen {
        let mut result = Seen::default();
        let after = data.after.as_ref();
        let (mut newest, mut floor, mut explained) = (None, floor, false);
        if let Some(changes) = self.changes_mut() {
            changes.end(kind, data.before.as_ref(), after, floor);
            newest = changes.newest().copied();
            floor = changes.floor();
            explained = changes.explain_ctime();
        }
        if let Some(newest) = newest {
            let modes = |a: &Attributes| (a.mode, a.uid, a.gid);
            let same = self.known.as_ref().map(modes) == Some(modes(&newest));
            result.changed = self.accept(span, &newest, now, times);
            result.own_ctime = result.changed && same && explained;
        } else if let Some(after) = after {
            let same = self.known.as_ref().is_some_and(|known| alike(known, after));
            let newer = self.known.is_none() || self.arrived <= span.sent;
            let older = self
                .changes()
                .is_some_and(|changes| changes.is_past(&wcc(after)));
            if newer || same {
                result.changed = self.accept(span, after, now, times);
            } else if !older {
                result.changed = self.accept(span, after, now, times);
                self.expire();
                self.grow(floor);
            }
        } else {
            self.expire();
            self.grow(floor);
        }
        result.foreign = self.ended(span, now, times, &mut result.not_atomic);
        result
    }

    /// A change failed. `answered`: the server said so; otherwise it may have been made.
    pub(super) fn fail_change(
        &mut self,
        span: Span,
        answered: bool,
        now: Nanos,
        times: Times,
    ) -> Seen {
        let mut result = Seen::default();
        if let Some(changes) = self.changes_mut() {
            changes.fail();
        }
        if !answered {
            self.expire();
        }
        result.foreign = self.ended(span, now, times, &mut result.not_atomic);
        result
    }

    /// A change or check ended; if it was the last, applies the verdict. Returns whether somebody
    /// else changed the contents.
    fn ended(&mut self, span: Span, now: Nanos, times: Times, not_atomic: &mut bool) -> bool {
        let Some(own) = &mut self.own else {
            return false;
        };
        own.changed = span.arrived;
        let over = own.changes.take_if(|changes| changes.under_way() == 0);
        let Some(changes) = over else { return false };
        let verdict = changes.verdict();
        if verdict == Verdict::Unverified && !changes.answered() {
            // All of them failed: what was known remains valid.
            return false;
        }
        own.made &= matches!(verdict, Verdict::Own(newest) if newest.size == 0);
        let others = changes.saw_others(&own.past);
        // States of earlier changes stay, too: several rounds of changes may overtake a reply.
        let newest = changes.past(MOST_PAST);
        let kept = own.past.len().min(MOST_PAST - newest.len());
        own.past = [&own.past[own.past.len() - kept..], newest].concat().into();
        match verdict {
            // A READ may have cached contents of a state that somebody else made meanwhile.
            Verdict::Own(_) | Verdict::Likely(_) if others => {
                self.forget_contents();
                self.expire();
                true
            }
            Verdict::Own(newest) | Verdict::Likely(newest) => {
                if let Verdict::Likely(_) = verdict {
                    own.unverified_by(now + times.max);
                }
                self.contents = Some(wcc(&newest));
                self.verified = self.verified.max(changes.last_sent());
                self.timeout = times.min;
                self.known = Some(newest);
                self.arrived = span.arrived;
                self.believe(changes.last_sent(), now);
                false
            }
            Verdict::Foreign => {
                // `known` need not be the newest state. But any other state counts as a foreign
                // change, so nothing out of date stays valid.
                self.forget_contents();
                self.expire();
                true
            }
            Verdict::Unverified | Verdict::NotAtomic => {
                *not_atomic = verdict == Verdict::NotAtomic;
                own.unverified_by(now + times.min);
                // With several changes it is not known whose `after` is the newest: the next reply
                // decides.
                self.contents = match changes.begun() {
                    1 => self.known.as_ref().map(wcc),
                    _ => None,
                };
                if self.contents.is_none() {
                    self.expire();
                }
                false
            }
        }
    }

    /// The file is at least this long, because the server accepted data up to there.
    pub(super) fn grow(&mut self, size: u64) {
        if let Some(attributes) = &mut self.known
            && attributes.size < size
        {
            attributes.size = size;
            self.fresh_until = 0;
        }
    }

    /// The server has set the size, and has not said to what attributes that has led.
    pub(super) fn set_size(&mut self, size: u64) {
        if let Some(attributes) = &mut self.known {
            attributes.size = size;
        }
        self.fresh_until = 0;
    }

    /// The cached contents are dropped; contents read from now on belong to the known attributes.
    /// If these are out of date, the next reply differs, and the contents are dropped again.
    pub(super) fn forget_contents(&mut self) {
        self.set_unverified(None);
        self.contents = self.known.as_ref().map(wcc);
    }
}

#[cfg(test)]
#[path = "attribute_model.rs"]
pub(super) mod model;

#[cfg(test)]
mod tests;
