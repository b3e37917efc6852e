//! Pages of the kernel that may lack data that a program has just written.
//!
//! write(2) copies data into a page that is up to date, unlocks the page, and makes the WRITE. If
//! the kernel drops its pages in between (for example because it was given attributes with another
//! mtime, as after each flush), a READ can bring the page back before the WRITE is handled here.
//! The page then lacks the written data, and the kernel would keep it until the mtime changes.
//!
//! So this module remembers the range that the kernel has read within [`WINDOW`] after it was made
//! to drop pages. If a WRITE of another thread than the reader touches this range within that time,
//! a notification makes the kernel drop the pages
//! ([`KernelCache::drop_pages`](super::KernelCache::drop_pages)). A separate thread sends it,
//! because it may have to wait for READs. The WRITE is answered meanwhile. But the next read(2)
//! begins with a GETATTR, since the WRITE has made the kernel's attributes invalid, and that
//! GETATTR waits for the notification.
//!
//! A WRITE may wait here for longer than that, as for a flush of the file. As long as it does, the
//! time is that of its arrival ([`Dropped::begin_wait`]).
//!
//! A READ that comes after a WRITE and before it is carried out waits for it
//! ([`StalePages::last_write`]). Its page would lack the data, and if a program stored into that page
//! by a mapping before the page is dropped, the kernel would send all of it, and the data of the WRITE
//! would be lost. A WRITE waits for nothing that the kernel does, so this ends.
//!
//! The kernel ignores attributes if a WRITE or a notification has ended since it asked for them, and
//! does not drop its pages then. So READs are not forgotten when the kernel is given attributes with
//! another mtime within [`IGNORED`] of the time before.

use super::clock::{Clock, Nanos, nanos};
use smallvec::SmallVec;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

/// Even on a busy machine, a WRITE arrives here within this time after the kernel has copied its
/// data into a page.
const WINDOW: Duration = Duration::from_secs(1);

/// The kernel may ignore attributes that it is given within this time after others.
const IGNORED: Duration = Duration::from_millis(200);

/// When the kernel was last made to drop the pages of a file.
#[derive(Debug, Default)]
pub(super) struct Dropped {
    /// 0 if it never was.
    at: AtomicU64,
    /// The WRITEs that wait, and when the first of them arrived.
    waiting: AtomicUsize,
    arrived: AtomicU64,
}

impl Dropped {
    pub(super) fn now(&self, now: Nanos) {
        self.at.store(now.max(1), Ordering::Relaxed);
    }

    /// That moment, if it is less than [`WINDOW`] ago, or before the first WRITE arrived that waits.
    pub(super) fn lately(&self, clock: &Clock) -> Option<Nanos> {
        let at = self.at.load(Ordering::Relaxed);
        if at == 0 {
            return None;
        }
        let now = match self.waiting.load(Ordering::Acquire) {
            0 => clock.now(),
            _ => self.arrived.load(Ordering::Relaxed),
        };
        (now.saturating_sub(at) < nanos(WINDOW)).then_some(at)
    }

    /// A WRITE has arrived, and has to wait until [`Dropped::end_wait`].
    pub(super) fn begin_wait(&self, now: Nanos) {
        if self.waiting.load(Ordering::Relaxed) == 0 {
            self.arrived.store(now, Ordering::Relaxed);
        }
        self.waiting.fetch_add(1, Ordering::Release);
    }

    /// Whether WRITEs wait.
    pub(super) fn has_waiting(&self) -> bool {
        self.waiting.load(Ordering::Acquire) > 0
    }

    pub(super) fn end_wait(&self) {
        self.waiting.fetch_sub(1, Ordering::Release);
    }
}

/// The threads that have read the remembered range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Readers {
    One(u32),
    Several,
}

/// What the kernel has read since it was made to drop pages, and what it has to drop again.
#[derive(Debug, Default)]
pub(super) struct StalePages {
    /// When the kernel was made to drop the pages, before these READs.
    since: Nanos,
    read: Option<(Range<u64>, Readers)>,
    /// The range that the kernel has to drop.
    stale: Option<Range<u64>>,
    /// Notifications that are under way.
    dropping: usize,
    /// The WRITEs that have arrived and wait: a number for each, in the order of arrival, and its range.
    arrived: SmallVec<[(u64, Range<u64>); 1]>,
    next: u64,
}

fn span(known: Option<&Range<u64>>, new: &Range<u64>) -> Range<u64> {
    known.map_or(new.clone(), |known| {
        known.start.min(new.start)..known.end.max(new.end)
    })
}

impl StalePages {
    /// Whether pages that the kernel read after it was made to drop pages at `self.since` may still
    /// be there after it was made to drop them at `since`.
    fn may_be_kept(&self, since: Nanos) -> bool {
        since.saturating_sub(self.since) < nanos(IGNORED)
    }

    /// The kernel reads `range` for the thread `pid`, having dropped its pages at `since`. Ranges
    /// whose pages it has dropped are forgotten.
    pub(super) fn read(&mut self, since: Nanos, range: &Range<u64>, pid: u32) {
        if !self.may_be_kept(since) {
            self.read = None;
        }
        self.since = since;
        let known = self.read.as_ref();
        let by = match known {
            // 0 stands for all threads of other PID namespaces.
            None if pid != 0 => Readers::One(pid),
            Some((_, Readers::One(other))) if *other == pid => Readers::One(pid),
            _ => Readers::Several,
        };
        self.read = Some((span(known.map(|(read, _)| read), range), by));
    }

    /// `range` was written by the thread `pid`. Its own READs do not count, since it made none
    /// during its write(2). Returns true if the kernel has to drop pages.
    pub(super) fn written(&mut self, since: Nanos, range: &Range<u64>, pid: u32) -> bool {
        let read = self.read.as_ref().filter(|_| self.may_be_kept(since));
        let touched = read.is_some_and(|(read, by)| {
            *by != Readers::One(pid) && read.start < range.end && range.start < read.end
        });
        if touched {
            self.stale = Some(span(self.stale.as_ref(), range));
        }
        touched
    }

    /// The range that the kernel has to drop. Call [`StalePages::dropped`] when it has.
    pub(super) fn begin_drop(&mut self) -> Option<Range<u64>> {
        let stale = self.stale.take();
        self.dropping += usize::from(stale.is_some());
        stale
    }

    pub(super) fn dropped(&mut self) {
        self.dropping -= 1;
    }

    /// A WRITE has arrived and waits. Returns its number, for [`StalePages::write_handled`].
    pub(super) fn write_arrived(&mut self, range: Range<u64>) -> u64 {
        self.next += 1;
        self.arrived.push((self.next, range));
        self.next
    }

    pub(super) fn write_handled(&mut self, number: u64) {
        self.arrived.retain(|(of, _)| *of != number);
    }

    /// The number of the last WRITE that waits and has data for `range`.
    pub(super) fn last_write(&self, range: &Range<u64>) -> Option<u64> {
        self.write_until(range, u64::MAX)
    }

    /// The same, of those up to the number `last`: others came after the READ that waits.
    pub(super) fn write_until(&self, range: &Range<u64>, last: u64) -> Option<u64> {
        let of_range = |(number, of): &&(u64, Range<u64>)| {
            *number <= last && of.start < range.end && range.start < of.end
        };
        self.arrived
            .iter()
            .rev()
            .find(of_range)
            .map(|(number, _)| *number)
    }

    /// Whether the kernel still has to drop pages.
    pub(super) fn is_waiting(&self) -> bool {
        self.stale.is_some() || self.dropping > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_read_since_pages_were_dropped_is_dropped_where_it_is_written() {
        let (reader, writer) = (1, 2);
        let mut pages = StalePages::default();
        assert!(!pages.written(5, &(0..100), writer), "nothing was read");
        pages.read(5, &(4096..8192), reader);
        assert!(!pages.written(5, &(0..4096), writer));
        assert!(!pages.written(5, &(8192..9000), writer));
        assert!(!pages.written(5, &(8000..9000), reader), "its own");
        assert!(!pages.is_waiting());
        assert!(pages.written(5, &(8000..9000), writer));
        assert!(pages.written(5, &(5000..5001), writer));
        assert_eq!(pages.stale, Some(5000..9000));
        assert!(pages.is_waiting());
        pages.read(5, &(0..10), writer);
        assert!(pages.written(5, &(5000..5001), writer), "two have read");
        // The kernel may have ignored what was to make it drop its pages again soon afterwards.
        let (soon, later) = (4 + nanos(IGNORED), 5 + nanos(IGNORED));
        assert!(pages.written(soon, &(5000..5001), writer));
        // It has dropped all pages later: earlier READs do not count, but the range that has to be
        // dropped stays.
        assert!(!pages.written(later, &(5000..5001), writer));
        pages.read(later, &(0..10), reader);
        assert!(!pages.written(later, &(5000..5001), writer));
        assert!(pages.is_waiting());
    }

    #[test]
    fn a_moment_long_ago_does_not_count() {
        let (clock, dropped) = (Clock::manual(), Dropped::default());
        assert_eq!(dropped.lately(&clock), None);
        dropped.now(clock.now());
        clock.advance(WINDOW / 2);
        assert_eq!(dropped.lately(&clock), Some(1));
        clock.advance(WINDOW / 2);
        assert_eq!(dropped.lately(&clock), None);
    }

    #[test]
    fn a_write_that_waits_counts_from_when_it_arrived() {
        let (clock, dropped) = (Clock::manual(), Dropped::default());
        dropped.now(clock.now());
        clock.advance(WINDOW / 2);
        dropped.begin_wait(clock.now());
        dropped.begin_wait(clock.now());
        clock.advance(WINDOW * 10);
        assert_eq!(dropped.lately(&clock), Some(1));
        dropped.end_wait();
        assert_eq!(dropped.lately(&clock), Some(1));
        dropped.end_wait();
        assert_eq!(dropped.lately(&clock), None);
        // It arrived long after the pages were dropped.
        dropped.begin_wait(clock.now());
        assert_eq!(dropped.lately(&clock), None);
        let now = clock.now();
        dropped.now(now);
        clock.advance(WINDOW * 10);
        assert_eq!(dropped.lately(&clock), Some(now));
    }

    #[test]
    fn a_read_waits_for_the_writes_that_came_before_it() {
        let mut pages = StalePages::default();
        assert_eq!(pages.last_write(&(0..100)), None);
        let first = pages.write_arrived(0..10);
        let second = pages.write_arrived(5..15);
        assert_eq!(pages.last_write(&(15..20)), None);
        let last = pages.last_write(&(9..20)).unwrap();
        assert_eq!(last, second);
        let third = pages.write_arrived(0..100);
        pages.write_handled(second);
        assert_eq!(pages.write_until(&(9..20), last), Some(first));
        pages.write_handled(first);
        assert_eq!(pages.write_until(&(9..20), last), None);
        assert_eq!(pages.last_write(&(9..20)), Some(third));
    }
}
