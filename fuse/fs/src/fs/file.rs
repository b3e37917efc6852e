//! The cached data of one regular file ([`FileData`]), and the totals of all files ([`Shared`]).
//!
//! One lock protects the file's [`FileState`]: its `WriteBack` with the cached blocks, and what is under way for it
//! ([`UnderWay`]). Operations change the state in [`FileData::with`], which afterwards adds the changes of memory,
//! dirty bytes and WRITEs to the totals, so that no operation can forget to. A READ is void if its range is written
//! or invalidated while it is under way: its data must not be cached. An operation that waits for a READ, WRITE or
//! COMMIT checks its condition again at each notification of `changed`.

use super::err_seq::ErrSeq;
use super::stats::Stats;
use super::ticketless::Ticketless;
use super::under_way::{Doing, UnderWay};
use crate::cache::{Budget, Evict, Pages, WriteBack};
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicUsize, Ordering};
use nfsrdma_nfs3::NfsError;
use std::fmt;
use std::ops::{Deref, Range};
use std::sync::{Arc, Weak};
use tokio::sync::Notify;

/// The limits and totals that all files share.
#[derive(Debug)]
pub struct Shared {
    pub budget: Budget<FileData>,
    /// Bytes of memory held by data that is dirty or in WRITEs, of all files.
    pub dirty: AtomicUsize,
    /// Bytes of memory held by data that is written and not committed, of all files.
    pub uncommitted: AtomicUsize,
    /// WRITEs under way, of all files.
    pub writes: AtomicUsize,
    /// How many calls the server accepts at a time.
    pub calls: AtomicUsize,
    /// READs and WRITEs under way, which will give back their buffers.
    pub busy: AtomicUsize,
    /// Notified when buffers were given back.
    pub freed: Notify,
    /// The writers wait for this in turn because too much data of all files is dirty.
    pub writers: tokio::sync::Mutex<()>,
    /// Notified when there may be room for the writer that has `writers`. Nobody knows for how many
    /// others there is: it lets the next one look.
    pub room: Notify,
    pub(super) ticketless: Ticketless,
    pub(super) stats: Stats,
}

/// A READ or WRITE that `Shared` counts as busy until this is dropped.
#[derive(Debug)]
pub struct Busy(Arc<Shared>);

impl Shared {
    pub fn busy(self: &Arc<Self>) -> Busy {
        self.busy.fetch_add(1, Ordering::Relaxed);
        Busy(self.clone())
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.busy.fetch_sub(1, Ordering::Relaxed);
        self.0.freed.notify_waiters();
        // Even after a READ: the first writer starts WRITEs of the next files.
        self.0.room.notify_one();
    }
}

/// The state of a file, behind the lock of [`FileData`].
#[derive(Debug, Default)]
pub struct FileState {
    write_back: WriteBack,
    under_way: UnderWay,
    /// The epoch of the file's contents to which the cached data belongs.
    epoch: u64,
    /// The number of the file in the budget's list, while it has clean blocks.
    listed: Option<u64>,
    /// How often a WRITE or COMMIT was not made because its user has no valid ticket, and why the last one.
    pub(super) no_tickets: u64,
    pub(super) no_ticket: Option<NfsError>,
}

impl FileState {
    /// The state of written data on its way to the server.
    pub fn write_back(&mut self) -> &mut WriteBack {
        &mut self.write_back
    }

    /// The cached blocks, for reading.
    pub fn pages(&mut self) -> &mut Pages {
        self.write_back.pages()
    }

    pub(super) fn under_way(&mut self) -> &mut UnderWay {
        &mut self.under_way
    }

    /// Whether writes may have to wait for a flush, a SETATTR or O_DIRECT.
    pub(super) fn keeps_writers(&self) -> bool {
        self.write_back.is_flushing() || self.under_way.any(|doing| doing == Doing::Direct)
    }

    /// Begins an O_DIRECT write of `range`; `None` if it has to wait for a SETATTR, or for an earlier
    /// O_DIRECT write of the same bytes that is under way, as of a program that was killed.
    pub(super) fn begin_direct(&mut self, range: &Range<u64>) -> Option<u64> {
        let excludes = |doing| matches!(doing, Doing::Setattr | Doing::Direct);
        let free = !self.under_way.any_in(range, excludes);
        free.then(|| self.under_way.begin(Doing::Direct, range.clone()))
    }

    /// Whether an O_DIRECT write that touches `range` is under way.
    pub(super) fn is_written_direct(&self, range: &Range<u64>) -> bool {
        self.under_way.any_in(range, |doing| doing == Doing::Direct)
    }

    /// What has this number ends.
    pub(super) fn end_of(&mut self, number: u64) {
        let ended = self.under_way.end(number);
        if let Some(Doing::Setattr | Doing::Flush) = ended {
            self.write_back.end_flush();
        }
    }

    /// Registers a READ of `range` into the cache. Returns its number.
    pub(super) fn begin_read(&mut self, range: Range<u64>) -> u64 {
        self.under_way.begin(Doing::Read { void: false }, range)
    }

    /// Ends the READ with this number. True if its data may be cached.
    pub(super) fn end_read(&mut self, number: u64) -> bool {
        self.under_way.end(number) == Some(Doing::Read { void: false })
    }

    /// Whether READs into the cache are under way, of any part of `range`.
    pub(super) fn is_reading(&self, range: &Range<u64>) -> bool {
        let reads = |doing| matches!(doing, Doing::Read { .. });
        self.under_way.any_in(range, reads)
    }

    /// Marks the READs under way that touch `range` as void: their data must not be cached.
    pub fn void_reads(&mut self, range: Range<u64>) {
        self.under_way.void_reads(&range);
    }

    /// Whether there is data that the server does not have yet.
    pub fn is_dirty(&self) -> bool {
        self.write_back.is_dirty()
    }

    /// Whether the server has all data on stable storage, and no call is under way that writes.
    pub(super) fn is_at_rest(&self) -> bool {
        self.is_safe() && !self.write_back.is_under_way()
    }

    /// Whether the server has all data on stable storage.
    pub fn is_safe(&self) -> bool {
        self.write_back.is_safe()
    }

    /// The end of the data written here that the size in the attributes may not include yet.
    pub fn end(&self) -> u64 {
        self.write_back.end()
    }

    /// The file ends at `size` now: drops all data after it, dirty data as well.
    pub fn truncate(&mut self, size: u64) {
        self.void_reads(size..u64::MAX);
        self.write_back.truncate(size);
    }

    /// Drops cached data, except data that the server does not have on stable storage.
    pub fn invalidate(&mut self) {
        self.pages().invalidate();
        self.void_reads(0..u64::MAX);
    }

    /// Drops cached data as [`FileState::invalidate`] does, if it does not belong to this epoch of the
    /// file's contents.
    pub fn has_epoch(&mut self, epoch: u64) {
        if self.epoch != epoch {
            self.epoch = epoch;
            self.invalidate();
        }
    }

    /// As [`FileState::invalidate`], for a part of the file.
    pub fn invalidate_range(&mut self, range: Range<u64>) {
        self.pages().invalidate_range(range.clone());
        self.void_reads(range);
    }

    fn taken(&mut self) -> Taken {
        let writes = self.write_back.writes();
        let pages = self.write_back.pages();
        Taken {
            resident: pages.resident(),
            dirty: pages.dirty_held() as usize,
            uncommitted: pages.uncommitted_held() as usize,
            writes,
        }
    }
}

/// How much one file takes of the shared limits.
#[derive(Debug, Clone, Copy)]
struct Taken {
    resident: usize,
    dirty: usize,
    uncommitted: usize,
    writes: usize,
}

/// Something that is under way until this is dropped, with its number.
#[derive(Debug)]
pub struct Begun<D: Deref<Target = FileData>> {
    pub(super) data: D,
    pub(super) number: u64,
}

impl<D: Deref<Target = FileData>> Drop for Begun<D> {
    fn drop(&mut self) {
        self.data.with(|inner| inner.end_of(self.number));
        self.data.changed.notify_waiters();
    }
}

pub struct FileData {
    inner: Mutex<FileState>,
    /// Notified when a READ, WRITE or COMMIT of the file ended.
    pub changed: Notify,
    /// The errors of writing it.
    pub(super) errors: ErrSeq,
    /// One flush at a time does the work: with very many callers, each WRITE that ends would otherwise
    /// have all of them look what is to be done next. Those that wait find all done, because programs'
    /// writes wait as long as there is any flush. By whether the flush commits.
    pub(super) flush_turn: [tokio::sync::Mutex<()>; 2],
    shared: Arc<Shared>,
    this: Weak<FileData>,
}

impl fmt::Debug for FileData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileData").finish_non_exhaustive()
    }
}

impl FileData {
    /// `epoch` is that of the contents to which data belongs that is cached from now on.
    pub fn new(epoch: u64, write_back: WriteBack, shared: &Arc<Shared>) -> Arc<Self> {
        Arc::new_cyclic(|this| FileData {
            inner: Mutex::new(FileState {
                epoch,
                write_back,
                ..FileState::default()
            }),
            changed: Notify::new(),
            errors: ErrSeq::default(),
            flush_turn: Default::default(),
            shared: shared.clone(),
            this: this.clone(),
        })
    }

    /// Runs `f` on the file's state, and updates the shared totals by what it changed.
    pub fn with<R>(&self, f: impl FnOnce(&mut FileState) -> R) -> R {
        let mut inner = self.inner.lock();
        let before = inner.taken();
        let result = f(&mut inner);
        let after = inner.taken();
        let dropped = inner.pages().take_dropped();
        let shared = &self.shared;
        // One file's change may be negative: wrapping addition then subtracts.
        for (sum, was, is) in [
            (&shared.dirty, before.dirty, after.dirty),
            (&shared.uncommitted, before.uncommitted, after.uncommitted),
            (&shared.writes, before.writes, after.writes),
        ] {
            if was != is {
                sum.fetch_add(is.wrapping_sub(was), Ordering::Relaxed);
            }
        }
        // Before anybody can drop the new blocks: the sum must not go below zero meanwhile.
        shared.budget.account(before.resident, after.resident);
        match (inner.pages().has_clean(), inner.listed) {
            (true, None) => inner.listed = Some(shared.budget.add(&self.this)),
            (false, Some(number)) => {
                inner.listed = None;
                shared.budget.forget(number);
            }
            _ => {}
        }
        drop(inner);
        drop(dropped);
        result
    }

    /// A flush or SETATTR begins: programs' writes wait until what this returns is dropped.
    pub(super) fn keep_writers(&self, doing: Doing) -> Begun<&Self> {
        let number = self.with(|inner| {
            inner.write_back.begin_flush();
            inner.under_way.begin(doing, 0..u64::MAX)
        });
        Begun { data: self, number }
    }

    /// Waits until `check`, which is called again after each change, returns something.
    pub async fn until<R>(&self, mut check: impl FnMut(&mut FileState) -> Option<R>) -> R {
        loop {
            // It is told of each `notify_waiters` from now on, before it is polled, too.
            let changed = self.changed.notified();
            if let Some(result) = self.with(&mut check) {
                return result;
            }
            changed.await;
        }
    }
}

impl Evict for FileData {
    fn evict(&self) {
        self.with(|inner| inner.pages().invalidate_range(0..u64::MAX));
    }
}

impl Drop for FileData {
    fn drop(&mut self) {
        self.with(|inner| inner.write_back = WriteBack::default());
    }
}
