//! The oracle: exactly what close-to-open promises of each file and name (RFC 1813 section 4.11).
//!
//! **Data.** For each file the oracle keeps what the server may have, and what each mount may show.
//! A write is visible on its own mount at once. It may reach the server, and so other mounts, at
//! any time until fsync or close of that mount, and has reached it by then. An open shows what the
//! server has at that moment, except for data that the mount itself has not written yet. A
//! truncation reaches the server at once, and so does every operation on the server's side.
//!
//! **Names.** A change of a name is at the server at once, and known to the mount that made it.
//! Other mounts may know the old name as long as attributes of directories are valid. Then the name
//! leads to a file to which it once led, or to an error, but never to another file.
//!
//! **Linux's own client** promises less when it caches data, so less is demanded of it
//! ([`Oracle::page_cache`]). While it has a file open for writing, it keeps old data, also at open
//! (and takes the server's change for its own). It writes whole pages, including its cached bytes
//! around the written ones. And it writes data from before a truncation by O_CREAT and O_TRUNC
//! after that ([`Oracle::created_empty`]).

use crate::content::{Content, FILE_MAX, Ranges};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// The number of a file.
pub(crate) type Id = usize;

/// Within this time a mount learns of a last close, and the hidden name is removed. A file also
/// counts as open for a while after an open of its name has failed.
const RELEASE: Duration = Duration::from_secs(2);

/// Within this time the kernel is notified of zeros that it holds behind an end to which another
/// client has cut the file. It takes less than a tenth of a second on a machine that is not busy
/// (docs/COHERENCE.md, "What remains").
const NOTIFIED: Duration = Duration::from_secs(2);

/// The most bytes of one WRITE.
const WRITE_MAX: u64 = 1 << 20;

/// The actor that works in the exported directory itself. The mounts have the next numbers.
pub(crate) const SERVER: usize = 0;

/// A file of the run.
#[derive(Debug, Clone)]
pub(crate) struct Object {
    server: Content,
    /// The contents that each actor may see.
    views: Vec<Content>,
    /// The bytes that each actor has written and that the server may not have, and since when.
    dirty: Vec<Ranges<Option<u8>>>,
    dirty_since: Vec<Instant>,
    /// The mtime that was set, as long as it must be shown.
    mtime: Option<i64>,
    /// The actor that set it.
    mtime_by: usize,
    /// The actors that must see it.
    mtime_shown: Vec<bool>,
    /// Bytes that each actor's pages may bring in addition to what it has written.
    pages: Vec<Content>,
    /// The actors that had it open for writing with a page cache that keeps old data then.
    keeps_old: Vec<bool>,
    /// Bytes that such a cache may have behind the end that it knows.
    behind: Vec<Content>,
    /// When each actor's pages may last have got zeros behind an end to which another actor has cut
    /// the file.
    zeros_since: Vec<Option<Instant>>,
    /// The number of its names.
    names: usize,
    /// The mounts that keep it under a hidden name, because it was removed while open.
    hidden: Vec<bool>,
    /// When a mount last removed a name of it or closed it. There may be a hidden name for a while
    /// after that.
    shown: Option<Instant>,
    /// When each actor last had a call on it, and whether the last change by another actor may have
    /// left the times that this actor knew. If so, the actor may keep its old data over every open,
    /// until a change that it notices.
    touched: Vec<Instant>,
    unnoticed: Vec<bool>,
    /// Whether others may have changed it since each actor's last open.
    outdated: Vec<bool>,
    pub(crate) history: Vec<String>,
}

impl Object {
    /// The ends at the server, in bytes, to which others may have cut the file without `actor`'s
    /// knowing. `shown` are the ends that its calls have returned meanwhile.
    pub(crate) fn cuts_unknown_to(&self, actor: usize, shown: &[u64]) -> Vec<u64> {
        // With data of its own that may not be written yet, a smaller end at the server is no cut,
        // unless it is shown, which it is only once the data is written.
        let ends: Vec<u64> = match is_dirty(&self.dirty[actor]) {
            true => shown.to_vec(),
            false => self.server.sizes().collect(),
        };
        let known = self.views[actor].sizes().last();
        ends.into_iter().filter(|end| Some(*end) < known).collect()
    }

    /// The file that may be either of the two, which result from different orders of overlapping
    /// calls.
    pub(crate) fn merge(mut self, other: Object) -> Object {
        self.server.add(&other.server);
        for (mine, theirs) in [
            (&mut self.views, &other.views),
            (&mut self.pages, &other.pages),
            (&mut self.behind, &other.behind),
        ] {
            mine.iter_mut().zip(theirs).for_each(|(m, t)| m.add(t));
        }
        // No mount writes a byte twice in a round. So a byte that is dirty in one order and clean
        // in another has the same value in both, and flushing it results in what the view shows.
        for (mine, theirs) in self.dirty.iter_mut().zip(&other.dirty) {
            mine.combine(theirs, |mine, theirs| mine.or(theirs));
        }
        if self.mtime != other.mtime || self.mtime_by != other.mtime_by {
            self.mtime = None;
        }
        let shown = self.mtime_shown.iter_mut().zip(&other.mtime_shown);
        shown.for_each(|(mine, theirs)| *mine &= theirs);
        for (mine, theirs) in [
            (&mut self.keeps_old, &other.keeps_old),
            (&mut self.unnoticed, &other.unnoticed),
            (&mut self.outdated, &other.outdated),
        ] {
            mine.iter_mut().zip(theirs).for_each(|(m, t)| *m |= t);
        }
        let touched = self.touched.iter_mut().zip(&other.touched);
        touched.for_each(|(mine, theirs)| *mine = (*mine).max(*theirs));
        let since = self.dirty_since.iter_mut().zip(&other.dirty_since);
        since.for_each(|(mine, theirs)| *mine = (*mine).min(*theirs));
        self
    }
}

#[derive(Debug)]
struct Name {
    /// The files to which it led, and since when.
    past: Vec<(Instant, Option<Id>)>,
    /// When each actor last knew for certain where it leads.
    known: Vec<Instant>,
}

/// The state of a run.
#[derive(Debug)]
pub(crate) struct Oracle {
    pub(crate) objects: Vec<Object>,
    names: BTreeMap<&'static str, Name>,
    actors: usize,
    /// How long old names may be used.
    names_trusted: Duration,
    /// Changes within this time may have equal times: the tick of the server's clock.
    tick: Duration,
    /// Whether the server shows the attributes from before a WRITE.
    before_writes: bool,
    /// The earliest time at which the calls that are being applied were made.
    made: Instant,
    /// Whether mounts see all times shifted, also those that are set at the server.
    clock_is_off: bool,
    /// The actors whose cache behaves like that of Linux's client.
    page_caches: Vec<bool>,
    /// The actors that hide an open file only if it is removed by the name by which it was opened.
    hides_by_name: Vec<bool>,
}

impl Oracle {
    pub(crate) fn new(
        names: &[&'static str],
        actors: usize,
        names_trusted: Duration,
        tick: Duration,
    ) -> Self {
        let now = Instant::now();
        let name = || Name {
            past: vec![(now, None)],
            known: vec![now; actors],
        };
        Oracle {
            objects: Vec::new(),
            names: names.iter().map(|n| (*n, name())).collect(),
            actors,
            names_trusted,
            tick,
            before_writes: true,
            made: now,
            clock_is_off: false,
            page_caches: vec![false; actors],
            hides_by_name: vec![false; actors],
        }
    }

    /// Calls begin now: their changes have times from now on, however late they are applied here.
    pub(crate) fn calls_begin(&mut self) {
        self.made = Instant::now();
    }

    /// The server's clock was stepped.
    pub(crate) fn clock_is_off(&mut self) {
        self.clock_is_off = true;
    }

    /// The server does not show the attributes from before a WRITE.
    pub(crate) fn nothing_before_writes(&mut self) {
        self.before_writes = false;
    }

    /// The cache of `actor` behaves like that of Linux's client.
    pub(crate) fn page_cache(&mut self, actor: usize) {
        self.page_caches[actor] = true;
    }

    /// `actor` is Linux's client. It hides an open file only if it is removed by the name by which
    /// it was opened, which others may have changed meanwhile.
    pub(crate) fn hides_by_name(&mut self, actor: usize) {
        self.hides_by_name[actor] = true;
    }

    /// Adds a new, empty file.
    pub(crate) fn create(&mut self) -> Id {
        let content = Content::empty();
        self.objects.push(Object {
            server: content.clone(),
            views: vec![content; self.actors],
            dirty: vec![Ranges::new(None); self.actors],
            dirty_since: vec![Instant::now(); self.actors],
            mtime: None,
            mtime_by: SERVER,
            mtime_shown: vec![false; self.actors],
            pages: vec![Content::nothing(); self.actors],
            keeps_old: vec![false; self.actors],
            behind: vec![Content::nothing(); self.actors],
            zeros_since: vec![None; self.actors],
            names: 0,
            hidden: vec![false; self.actors],
            shown: None,
            touched: vec![Instant::now(); self.actors],
            unnoticed: vec![false; self.actors],
            outdated: vec![false; self.actors],
            history: Vec::new(),
        });
        self.objects.len() - 1
    }

    /// The file to which a name leads.
    pub(crate) fn current(&self, name: &str) -> Option<Id> {
        self.names
            .get(name)
            .and_then(|name| name.past.last())
            .and_then(|(_, to)| *to)
    }

    /// The files to which a name may lead for `actor`.
    pub(crate) fn bindings(&self, actor: usize, name: &str) -> Vec<Option<Id>> {
        let mut all = vec![self.current(name)];
        let Some(name) = self.names.get(name) else {
            return all;
        };
        if actor == SERVER {
            return all;
        }
        let now = Instant::now();
        let since = now
            .checked_sub(self.names_trusted)
            .map_or(name.known[actor], |t| t.max(name.known[actor]));
        for (n, (_, to)) in name.past.iter().enumerate() {
            let until = name.past.get(n + 1).map_or(now, |next| next.0);
            // Without any caching, only the current one.
            if until > since && !self.names_trusted.is_zero() && !all.contains(to) {
                all.push(*to);
            }
        }
        all
    }

    /// `actor` changes where a name leads.
    pub(crate) fn bind(&mut self, actor: usize, name: &str, to: Option<Id>) {
        let old = self.current(name);
        if let Some(old) = old {
            self.objects[old].names -= 1;
            if actor != SERVER {
                self.objects[old].shown = Some(Instant::now());
            }
        }
        if let Some(to) = to {
            self.objects[to].names += 1;
        }
        if let Some(name) = self.names.get_mut(name) {
            let now = Instant::now();
            name.past.push((now, to));
            name.known[actor] = now;
        }
    }

    /// `actor` found out where the name leads.
    pub(crate) fn confirm(&mut self, actor: usize, name: &str) {
        if let Some(name) = self.names.get_mut(name) {
            name.known[actor] = Instant::now();
        }
    }

    /// `actor` keeps a file that it removed while open, or does not keep it any more.
    pub(crate) fn hide(&mut self, actor: usize, id: Id, hidden: bool) {
        if actor != SERVER {
            let object = &mut self.objects[id];
            object.shown = Some(Instant::now());
            object.hidden[actor] = hidden;
        }
    }

    /// A file was closed on a server that serves files without names while its own side has them
    /// open. It may keep the file for a while, as after a mount's last close.
    pub(crate) fn closed_at_server(&mut self, id: Id) {
        self.objects[id].shown = Some(Instant::now());
    }

    /// Whether the file has a name.
    pub(crate) fn has_name(&self, id: Id) -> bool {
        self.objects[id].names > 0
    }

    /// Whether all written data is at the server.
    pub(crate) fn is_at_rest(&self, id: Id) -> bool {
        let object = &self.objects[id];
        let written = object
            .pages
            .iter()
            .all(|pages| *pages == Content::nothing());
        written && !object.dirty.iter().any(is_dirty)
    }

    /// The server has exactly these bytes, and nobody has dirty data.
    pub(crate) fn found(&mut self, id: Id, data: &[u8]) {
        self.objects[id].server = Content::of(data);
    }

    /// Whether the server may have lost the file.
    pub(crate) fn is_gone(&self, id: Id) -> bool {
        let object = &self.objects[id];
        let mut hidden = object.hidden.iter().zip(&self.hides_by_name);
        object.names == 0 && !hidden.any(|(hidden, by_name)| *hidden && !by_name)
    }

    /// Whether the server has certainly lost the file.
    pub(crate) fn is_surely_gone(&self, id: Id) -> bool {
        let object = &self.objects[id];
        object.names == 0
            && !object.hidden.contains(&true)
            && object.shown.is_none_or(|shown| shown.elapsed() > RELEASE)
    }

    /// The contents of a file that `actor` may see.
    pub(crate) fn view(&self, actor: usize, id: Id) -> &Content {
        match actor {
            SERVER => &self.objects[id].server,
            _ => &self.objects[id].views[actor],
        }
    }

    /// The contents of a file that `actor` may see when it reads. If the file is gone at the
    /// server, the actor may have dropped data that the server refused.
    pub(crate) fn seen(&self, actor: usize, id: Id) -> Content {
        let mut seen = self.view(actor, id).clone();
        let since = self.objects[id].zeros_since[actor];
        // A read may be what tells of a cut, and show zeros itself.
        let outdated = actor != SERVER && self.objects[id].outdated[actor];
        if outdated || since.is_some_and(|since| since.elapsed() < NOTIFIED) {
            seen.maybe_zero_behind_end();
        }
        if actor != SERVER && self.is_gone(id) {
            seen.add(&self.objects[id].server);
        }
        seen
    }

    /// `actor` changed the file, at once or (a write by a mount) later.
    fn changed(&mut self, actor: usize, id: Id, later: bool) {
        self.objects[id].mtime = None;
        self.unnoticed_since(self.made, actor, id, later);
        self.touch(actor, id);
    }

    /// `actor` changed the file at the server (with `may`: perhaps) after `since`. Actors with a
    /// call on it within a tick of that, or later, may not notice. Nor may those whose WRITEs hide it.
    fn unnoticed_since(&mut self, since: Instant, actor: usize, id: Id, may: bool) {
        let tick = self.tick;
        let hides = self.hides();
        let object = &mut self.objects[id];
        for other in (0..self.actors).filter(|other| *other != actor) {
            // Dirty data may be written at any time, and the reply then shows the times.
            let called = is_dirty(&object.dirty[other]) || object.touched[other] + tick > since;
            let unnoticed = !tick.is_zero() && called || hides(&object.dirty[other]);
            object.unnoticed[other] = unnoticed || may && object.unnoticed[other];
            object.outdated[other] = true;
        }
    }

    /// Whether dirty data is written in such a way that its writer may take what others change for its
    /// own (docs/COHERENCE.md, "With which server"): between several WRITEs, or just before one whose reply
    /// does not show the attributes from before it.
    fn hides(&self) -> impl Fn(&Ranges<Option<u8>>) -> bool + use<> {
        let before_writes = self.before_writes;
        move |dirty| is_dirty(dirty) && !(before_writes && is_one_write(dirty))
    }

    /// A process at the server has changed the file while a change by `actor` may have been under
    /// way. nfsrdma-responder takes pre-operation attributes just before it makes a change, and not
    /// under the kernel's lock of the file as Linux's server does. So the change by the process may
    /// lie between, and `actor` does not notice it.
    pub(crate) fn changed_beside(&mut self, actor: usize, id: Id) {
        self.objects[id].unnoticed[actor] = true;
    }

    /// Whether `actor` has data of the file that is not at the server.
    pub(crate) fn has_dirty(&self, actor: usize, id: Id) -> bool {
        is_dirty(&self.objects[id].dirty[actor])
    }

    /// A call of `actor` may have shown it the file's times.
    pub(crate) fn touch(&mut self, actor: usize, id: Id) {
        self.objects[id].touched[actor] = Instant::now();
    }

    /// `actor` wrote `value` to `from..to`.
    pub(crate) fn write(&mut self, actor: usize, id: Id, from: u64, to: u64, value: u8) {
        self.changed(actor, id, actor != SERVER);
        let (hides, before_writes) = (self.hides(), self.before_writes);
        let object = &mut self.objects[id];
        if !is_dirty(&object.dirty[actor]) {
            object.dirty_since[actor] = self.made;
        }
        for other in (1..self.actors).filter(|other| *other != actor) {
            object.views[other].maybe_write(from, to, value);
        }
        if actor == SERVER {
            object.server.write(from, to, value);
            maybe_dirty(&mut object.server, &object.dirty, &object.pages, actor);
        } else {
            object.dirty[actor].change(from, to, |_, _| Some(value));
            let mut others = object.dirty.iter().enumerate().filter(|(n, _)| *n != actor);
            let beside = others.any(|(_, dirty)| is_dirty(dirty));
            let changed = beside || !before_writes && object.outdated[actor];
            object.unnoticed[actor] |= changed && hides(&object.dirty[actor]);
            object.views[actor].write(from, to, value);
            object.views[actor].uncover(from, &object.behind[actor]);
            maybe_dirty(
                &mut object.views[actor],
                &object.dirty,
                &object.pages,
                actor,
            );
            object.server.maybe_write(from, to, value);
        }
        if self.page_caches[actor] {
            self.write_pages(actor, id, from, to);
        }
    }

    /// The same by a mapping: the kernel writes whole pages, including their cached bytes.
    pub(crate) fn write_mapped(&mut self, actor: usize, id: Id, from: u64, to: u64, value: u8) {
        self.write(actor, id, from, to, value);
        if actor != SERVER {
            self.write_pages(actor, id, from, to);
        }
    }

    /// `actor` set the size.
    pub(crate) fn truncate(&mut self, actor: usize, id: Id, size: u64) {
        self.changed(actor, id, false);
        let object = &mut self.objects[id];
        if object.keeps_old[actor] {
            // A truncation to the size that it knows drops nothing.
            let view = object.views[actor].clone();
            match view.may_have_size(size) {
                true => object.behind[actor].add(&view.all_bytes()),
                false => object.behind[actor].change(size, FILE_MAX, |_, _| Default::default()),
            }
        }
        object.server.truncate(size);
        object.dirty[actor].change(size, FILE_MAX, |_, _| None);
        object.pages[actor].change(size, FILE_MAX, |_, _| Default::default());
        maybe_dirty(&mut object.server, &object.dirty, &object.pages, actor);
        for other in 1..self.actors {
            let view = &mut object.views[other];
            let mut cut = view.clone();
            cut.truncate(size);
            if other == actor {
                *view = cut;
                view.uncover(size, &object.behind[actor]);
            } else {
                view.add(&cut);
            }
            view.add(&object.server);
        }
        if actor != SERVER {
            // Data that it has not written yet remains its own.
            keep_own(&mut object.server, &object.views[actor], &Ranges::new(None));
        }
    }

    /// Data that `actor` wrote is at the server: fsync or close returned 0.
    pub(crate) fn flush(&mut self, actor: usize, id: Id) {
        if actor == SERVER {
            return;
        }
        self.touch(actor, id);
        // The server accepts no data any more, and only the writer of lost data gets an error.
        if self.is_gone(id) {
            return;
        }
        if is_dirty(&self.objects[id].dirty[actor]) {
            self.unnoticed_since(self.objects[id].dirty_since[actor], actor, id, false);
        }
        let object = &mut self.objects[id];
        let dirty = std::mem::replace(&mut object.dirty[actor], Ranges::new(None));
        object.pages[actor] = Content::nothing();
        keep_own(&mut object.server, &object.views[actor], &dirty);
    }

    /// `actor` opened the file; `writes` if it may write.
    pub(crate) fn opened(&mut self, actor: usize, id: Id, writes: bool) {
        let object = &mut self.objects[id];
        object.keeps_old[actor] |= writes && self.page_caches[actor];
        object.mtime_shown[actor] = true;
        if actor == SERVER {
            return;
        }
        let mut fresh = object.server.clone();
        keep_own(&mut fresh, &object.views[actor], &object.dirty[actor]);
        if object.unnoticed[actor] || object.keeps_old[actor] {
            fresh.add(&object.views[actor]);
        }
        object.touched[actor] = Instant::now();
        object.outdated[actor] = false;
        object.views[actor] = fresh;
    }

    /// `actor` set the mtime.
    pub(crate) fn set_mtime(&mut self, actor: usize, id: Id, mtime: i64) {
        self.changed(actor, id, false);
        let object = &mut self.objects[id];
        let others_write = object
            .dirty
            .iter()
            .enumerate()
            .any(|(other, dirty)| other != actor && is_dirty(dirty));
        object.mtime_shown.fill(false);
        object.mtime_shown[actor] = true;
        object.mtime = (!others_write).then_some(mtime);
        object.mtime_by = actor;
    }

    /// The mtime that `actor` must see.
    pub(crate) fn mtime(&self, actor: usize, id: Id) -> Option<i64> {
        let object = &self.objects[id];
        let other_side = (actor == SERVER) != (object.mtime_by == SERVER);
        let shifted = self.clock_is_off && other_side;
        object
            .mtime
            .filter(|_| object.mtime_shown[actor] && !shifted)
    }
}

fn is_dirty(dirty: &Ranges<Option<u8>>) -> bool {
    dirty.iter().any(|(.., value)| value.is_some())
}

/// Whether dirty data fits in one WRITE.
fn is_one_write(dirty: &Ranges<Option<u8>>) -> bool {
    let mut pieces = dirty.iter().filter(|(.., value)| value.is_some());
    let Some((from, mut end, _)) = pieces.next() else {
        return true;
    };
    pieces.all(|(start, to, _)| start == std::mem::replace(&mut end, to)) && end - from <= WRITE_MAX
}

/// Dirty data of actors other than `actor` may arrive at any time.
fn maybe_dirty(
    content: &mut Content,
    dirty: &[Ranges<Option<u8>>],
    pages: &[Content],
    actor: usize,
) {
    for (_, pages) in pages.iter().enumerate().filter(|(n, _)| *n != actor) {
        content.maybe_put(pages);
    }
    for (_, dirty) in dirty.iter().enumerate().filter(|(n, _)| *n != actor) {
        for (from, to, value) in dirty.iter() {
            if let Some(value) = value {
                content.maybe_write(from, to, value);
            }
        }
    }
}

/// Makes `content` equal to `view` in the ranges that are `dirty`, and removes ends before them
/// that `view` does not have.
fn keep_own(content: &mut Content, view: &Content, dirty: &Ranges<Option<u8>>) {
    let mut end = 0;
    for (from, to, value) in dirty.iter() {
        if value.is_none() {
            continue;
        }
        end = to;
        for (start, stop, set) in view.iter() {
            content.change(start.max(from), stop.min(to), |_, _| set);
        }
    }
    for (start, stop, set) in view.iter() {
        if !set.has_end() {
            content.change(start, stop.min(end), |_, old| {
                match old.without_end() == Default::default() {
                    true => set,
                    false => old.without_end(),
                }
            });
        }
    }
}

mod pages;
#[cfg(test)]
mod tests;
