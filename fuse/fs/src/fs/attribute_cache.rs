//! The newest attributes known of an object, how long they are valid, and whether the contents cached with them are
//! still those of the server. There is no I/O; time and the order of calls and replies are arguments.
//!
//! **Order.** A reply shows the state at some moment between the sending of its call and its
//! arrival. If the call was sent after the known attributes had arrived, the reply is newer,
//! whatever the times in it say: a server's clock may step back, and may tick rarely. If the two
//! overlap and the attributes differ, one of the replies is kept and expires at once, so that the
//! next use asks the server.
//!
//! **Contents.** If size, mtime or ctime differ from those to which the cached contents belong,
//! somebody else changed the object, unless changes by this mount ("own changes") explain it. The
//! reply to a change carries the state just before it and just after it (wcc_data, RFC 1813 section
//! 2.6), and one change's `after` is the next one's `before`. If one began elsewhere, somebody else changed the
//! object in between, or the replies to several own changes came in another order. A reply that overlaps own changes
//! decides nothing.
//!
//! WRITE is an exception: Linux's server gives no `before`, and other servers may take it at another
//! moment than the change. So, as in Linux's client, only the first and the last state count. If the
//! first WRITE began with the known state, as its `before` shows, or as is supposed where there is none, the
//! state after the last one is this mount's own. What somebody else changes while these WRITEs are under
//! way is not noticed, nor, without `before`, what was changed just ahead of them (docs/COHERENCE.md), unless
//! the size shows it: that is the one known before, or where these WRITEs end.

use super::clock::Nanos;
use nfsrdma_xdr::nfs3::{Attributes, Time, WccAttributes, WccData};

/// What a change may do to an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Write,
    /// It changes contents, too: SETATTR of size or mtime, calls that change a directory's entries.
    Contents,
    /// Of size, mtime and ctime it changes at most the ctime: COMMIT, LINK, SETATTR of mode or
    /// owner.
    Metadata,
}

/// Size, mtime and ctime of `attributes`.
pub(super) fn wcc(attributes: &Attributes) -> WccAttributes {
    WccAttributes {
        size: attributes.size,
        mtime: attributes.mtime,
        ctime: attributes.ctime,
    }
}

/// The state to which cached contents belong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Contents {
    size: u64,
    mtime: Time,
    /// `None`: a call of this mount has changed the ctime, and the new one is not known.
    ctime: Option<Time>,
}

impl Contents {
    fn of(state: &WccAttributes) -> Self {
        Contents {
            size: state.size,
            mtime: state.mtime,
            ctime: Some(state.ctime),
        }
    }

    fn is(&self, state: &WccAttributes) -> bool {
        (self.size, self.mtime) == (state.size, state.mtime)
            && self.ctime.is_none_or(|ctime| ctime == state.ctime)
    }
}

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

/// What the reply to a change said.
#[derive(Debug)]
pub(super) struct Answered<'a> {
    pub(super) kind: Kind,
    pub(super) data: &'a WccData,
    /// The file is at least this long now, in bytes, because the server accepted a WRITE up to there.
    pub(super) floor: u64,
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
    /// The reply cannot be ordered against what is known: file data in it may be older than
    /// somebody else's change.
    pub(super) ambiguous: bool,
}

#[derive(Debug, Default)]
pub struct AttributeCache {
    known: Option<Attributes>,
    /// When the reply with the known attributes arrived.
    arrived: u64,
    fresh_until: Nanos,
    timeout: Nanos,
    /// When the latest call was sent whose reply confirmed or replaced the cached contents.
    verified: u64,
    /// `None` as long as no attributes are known.
    contents: Option<Contents>,
    /// Present once this mount has changed the object. Boxed, because there are many objects, most
    /// of which are never changed.
    own: Option<Box<Own>>,
}

/// What is remembered of own changes.
#[derive(Debug, Default)]
struct Own {
    under_way: u32,
    /// How many have been under way since there was none.
    begun: u32,
    /// When an own change last began or ended, and when the last one was sent.
    changed: u64,
    last_sent: u64,
    /// What the contents were when the first of those under way was sent.
    origin: Option<Contents>,
    /// The file is at least this long, in bytes: of the WRITEs since then, one that ended there was
    /// answered.
    floor: u64,
    /// Whether the `before` of any of them was `origin`; `None` if none has shown one.
    from_origin: Option<bool>,
    /// When a call on one of the object's names that changed the ctime was last answered: replies to
    /// calls sent before that may have the old number of links.
    named: u64,
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
        let until = self.known.as_ref().map_or(0, |_| self.fresh_until);
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
        own.is_none_or(|own| own.under_way == 0 && own.changed <= sent)
    }

    /// Whether no attributes have arrived since the call was sent.
    pub(super) fn unheard_since(&self, sent: u64) -> bool {
        self.arrived <= sent
    }

    /// Whether own changes are under way.
    pub(super) fn is_changing(&self) -> bool {
        self.own.as_ref().is_some_and(|own| own.under_way > 0)
    }

    /// Whether a call sent at `since` or later has confirmed the cached contents.
    pub(super) fn verified_since(&self, since: u64) -> bool {
        self.verified >= since && !self.is_changing()
    }

    fn is(&self, state: &WccAttributes) -> bool {
        self.contents.is_none_or(|contents| contents.is(state))
    }

    fn fits(&self, attributes: &Attributes) -> bool {
        self.is(&wcc(attributes))
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
        let same = self.known.as_ref().is_some_and(|known| alike(known, new));
        let newer = self.known.is_none() || self.arrived <= span.sent;
        if !newer && !same {
            self.expire();
            result.ambiguous = !self.is_changing();
            return result;
        }
        result.changed = self.accept(span, new, now, times);
        if !self.undisturbed(span.sent) {
            return result;
        }
        result.foreign = !self.fits(new);
        self.contents = Some(Contents::of(&wcc(new)));
        self.verified = self.verified.max(span.sent);
        result
    }

    /// A RENAME or REMOVE of one of the object's names changed its ctime, and the reply does not
    /// show the new one. The ctime of the next reply is accepted if size and mtime are the same.
    pub(super) fn named_otherwise(&mut self, event: u64) {
        self.own.get_or_insert_default().named = event;
        self.any_ctime();
        self.fresh_until = 0;
    }

    fn any_ctime(&mut self) {
        if let Some(contents) = &mut self.contents {
            contents.ctime = None;
        }
    }

    /// A call that changes the object is sent.
    pub(super) fn begin_change(&mut self, event: u64) {
        let origin = self.contents;
        let own = self.own.get_or_insert_default();
        if own.under_way == 0 {
            let named = own.named;
            **own = Own {
                origin,
                named,
                ..Own::default()
            };
        }
        own.under_way += 1;
        own.begun += 1;
        (own.changed, own.last_sent) = (event, event);
    }

    /// A change was answered.
    pub(super) fn end_change(
        &mut self,
        span: Span,
        change: &Answered<'_>,
        now: Nanos,
        times: Times,
    ) -> Seen {
        let mut result = Seen::default();
        let own = self.own.get_or_insert_default();
        own.floor = own.floor.max(change.floor);
        let (floor, alone) = (own.floor, own.begun == 1);
        let Some(after) = &change.data.after else {
            self.expire();
            self.grow(floor);
            result.foreign = self.ended(span, Some(change.kind));
            return result;
        };
        let order = |a: &Attributes| (a.ctime, a.size);
        let known = self.known.as_ref();
        // The later time is the better guess, and is no more than that.
        let later = known.is_none_or(|known| order(known) <= order(after));
        let newer = self.known.is_none() || self.arrived <= span.sent;
        let before = change.data.before;
        if let Some(shown) = before {
            let origin = own.origin.is_none_or(|of| of.is(&shown));
            own.from_origin = Some(origin || own.from_origin == Some(true));
        }
        match (&before, change.kind) {
            (_, Kind::Write) => {
                // One that began with the known state leads to the next, whatever the clock says.
                if newer || later || before.as_ref().is_some_and(|before| self.is(before)) {
                    self.contents = Some(Contents::of(&wcc(after)));
                }
            }
            (Some(before), _) => {
                if let Some(contents) = &mut self.contents
                    && contents.is(before)
                {
                    let ctime = contents.ctime.map(|_| after.ctime);
                    *contents = Contents {
                        ctime,
                        ..Contents::of(&wcc(after))
                    };
                }
            }
            (None, Kind::Metadata) => self.any_ctime(),
            // Nothing shows what the names in a directory were, for one.
            (None, Kind::Contents) => {}
        }
        let fits = self.fits(after);
        let accepted = newer || later || (fits && alone);
        if accepted {
            let modes = |a: &Attributes| (a.mode, a.uid, a.gid);
            let same = self.known.as_ref().map(modes) == Some(modes(after));
            let explained = fits && self.contents.is_some_and(|of| of.ctime.is_some());
            result.changed = self.accept(span, after, now, times);
            let shown = before.is_some() && change.kind != Kind::Write;
            result.own_ctime = result.changed && same && explained && shown;
        }
        if !(newer || fits) {
            self.expire();
        }
        result.foreign = self.ended(span, Some(change.kind));
        let fits = self.known.as_ref().is_some_and(|known| self.fits(known));
        // WRITEs may be answered in another order than the server made them.
        let ordered = accepted || change.kind == Kind::Write;
        if fits && ordered && !result.foreign && !self.is_changing() {
            let sent = self.own.as_ref().map_or(0, |own| own.last_sent);
            self.verified = self.verified.max(sent);
            self.believe(sent, now);
        }
        self.grow(floor);
        result
    }

    /// A change failed. `answered`: the server said so; otherwise it may have been made.
    pub(super) fn fail_change(&mut self, span: Span, answered: bool) -> Seen {
        if !answered {
            self.expire();
        }
        Seen {
            foreign: self.ended(span, None),
            ..Seen::default()
        }
    }

    /// A change ended. If it was the last one under way, returns whether somebody else is known to have
    /// changed the contents. After several changes that do not lead to the known attributes these may
    /// just not be the newest: the next reply decides. `kind`: of a change that succeeded.
    fn ended(&mut self, span: Span, kind: Option<Kind>) -> bool {
        let Some(own) = &mut self.own else {
            return false;
        };
        own.changed = span.arrived;
        own.under_way = own.under_way.saturating_sub(1);
        let Some(known) = self.known.as_ref().filter(|_| own.under_way == 0) else {
            return false;
        };
        let contents = self.contents.get_or_insert(Contents::of(&wcc(known)));
        if let (Some(Kind::Write), None, Some(origin)) = (kind, own.from_origin, own.origin) {
            contents.size = origin.size.max(own.floor);
        }
        let fits = contents.is(&wcc(known));
        let elsewhere = own.from_origin == Some(false);
        let foreign = elsewhere || (own.begun == 1 && !fits);
        if foreign {
            // What is read from now on belongs to the known state, or the next reply differs again.
            self.contents = Some(Contents::of(&wcc(known)));
        }
        if foreign || !fits {
            self.expire();
        }
        foreign
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
}

#[cfg(test)]
#[path = "attribute_cache/tests/model.rs"]
pub(super) mod model;

#[cfg(test)]
mod tests;
