//! What the pages of a kernel add to what programs have written, or take from it.

use super::{Id, Oracle, is_dirty};
use crate::content::{Content, Set};
use std::time::Instant;

/// The size of a page.
const PAGE: u64 = 4096;

impl Oracle {
    /// Cached bytes of `actor` in the pages around `from..to` may be written together with these.
    pub(super) fn write_pages(&mut self, actor: usize, id: Id, from: u64, to: u64) {
        let object = &mut self.objects[id];
        let (first, last) = (from / PAGE * PAGE, to.next_multiple_of(PAGE));
        let mut pages = Content::nothing();
        for (start, stop, set) in object.views[actor].iter() {
            for (low, high) in [(first, from), (to, last)] {
                pages.change(start.max(low), stop.min(high), |_, _| set.bytes());
            }
        }
        object.pages[actor].add(&pages);
        object.server.maybe_put(&pages);
        for other in (1..self.actors).filter(|other| *other != actor) {
            object.views[other].maybe_put(&pages);
        }
    }

    /// `actor` wrote `from..to`, and while the kernel filled its pages it may have learned that
    /// others had cut the file to `end`. What it had not sent of the page with the end is zeros
    /// then (docs/COHERENCE.md, "What remains").
    pub(crate) fn cut_during_write(&mut self, actor: usize, id: Id, from: u64, to: u64, end: u64) {
        let (from, to) = (from.max(end), to.min(end.next_multiple_of(PAGE)));
        let object = &mut self.objects[id];
        let unsent = object.dirty[actor].iter();
        for (start, stop, _) in unsent.filter(|(.., value)| value.is_some()) {
            let zero = |_, set: Set| set.union(Set::byte(0));
            object.pages[actor].change(start.max(from), stop.min(to), zero);
        }
        for content in object.views.iter_mut().chain([&mut object.server]) {
            content.maybe_zero(from, to);
        }
    }

    /// The pages of `actor` may hold zeros behind an end to which others have cut the file, until
    /// its kernel is notified.
    pub(crate) fn zeros_behind_end(&mut self, actor: usize, id: Id) {
        self.objects[id].zeros_since[actor] = Some(Instant::now());
    }

    /// `actor` opened the file with O_CREAT and O_TRUNC.
    ///
    /// Linux's client (6.12) sends a CREATE, UNCHECKED with a size of zero, if it has not looked
    /// the name up. It neither writes dirty data before that, nor drops it. So the old contents
    /// come back with the next WRITE, in whole pages.
    pub(crate) fn created_empty(&mut self, actor: usize, id: Id) {
        let object = &self.objects[id];
        if !self.page_caches[actor] || !is_dirty(&object.dirty[actor]) {
            return self.truncate(actor, id, 0);
        }
        let (dirty, pages) = (object.dirty[actor].clone(), object.pages[actor].clone());
        let view = object.views[actor].clone();
        self.truncate(actor, id, 0);
        let object = &mut self.objects[id];
        object.views[actor].add(&view);
        let others = (1..self.actors).filter(|other| *other != actor);
        for other in others.map(Some).chain([None]) {
            let content = match other {
                Some(other) => &mut object.views[other],
                None => &mut object.server,
            };
            content.maybe_put(&pages);
            for (from, to, value) in dirty.iter() {
                if let Some(value) = value {
                    content.maybe_write(from, to, value);
                }
            }
        }
        (object.dirty[actor], object.pages[actor]) = (dirty, pages);
    }
}
