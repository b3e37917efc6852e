//! The memory limit of the page cache, over the cached blocks of all files.
//!
//! Clean blocks leave by themselves when the kernel has taken them. Those that it never asks for are dropped when
//! memory is needed: all of the file that has had such blocks for the longest time, then those of the next. Dirty and
//! unstable blocks cannot be dropped, and a file that has no others is not in the list.

use crate::sync::Mutex;
use crate::sync::atomic::{AtomicUsize, Ordering};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Weak;

/// Something whose clean blocks can be dropped.
pub trait Evict: Send + Sync {
    /// Drops all clean blocks, [accounts](Budget::account) for them and leaves the list of the budget.
    fn evict(&self);
}

/// The files with clean blocks, the oldest first, and the bytes that the blocks of all files take.
pub struct Budget<T> {
    limit: usize,
    used: AtomicUsize,
    files: Mutex<Files<T>>,
}

struct Files<T> {
    next: u64,
    by_age: BTreeMap<u64, Weak<T>>,
}

impl<T: Evict> Budget<T> {
    /// A budget of `limit` bytes.
    pub fn new(limit: usize) -> Self {
        Budget {
            limit,
            used: AtomicUsize::new(0),
            files: Mutex::new(Files {
                next: 0,
                by_age: BTreeMap::new(),
            }),
        }
    }

    pub fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    /// The blocks of a file took `before` bytes and take `after` now.
    pub fn account(&self, before: usize, after: usize) {
        if after >= before {
            self.used.fetch_add(after - before, Ordering::Relaxed);
        } else {
            self.used.fetch_sub(before - after, Ordering::Relaxed);
        }
    }

    /// A file has clean blocks from now on. Returns its number, for [`Budget::forget`].
    pub fn add(&self, owner: &Weak<T>) -> u64 {
        let mut files = self.files.lock();
        let number = files.next;
        files.next += 1;
        files.by_age.insert(number, owner.clone());
        number
    }

    /// The file with this number has no clean blocks any longer.
    pub fn forget(&self, number: u64) {
        self.files.lock().by_age.remove(&number);
    }

    /// Drops clean blocks until `bytes` more fit, or none are left. Neither this nor `reclaim` may be called
    /// with a file locked.
    pub fn make_room(&self, bytes: usize) {
        self.evict(|| self.used() + bytes <= self.limit);
    }

    /// Drops clean blocks of at least `bytes` in total, whatever the limit.
    pub fn reclaim(&self, bytes: usize) {
        let target = self.used().saturating_sub(bytes);
        self.evict(|| self.used() <= target);
    }

    fn evict(&self, enough: impl Fn() -> bool) {
        // Files that are added meanwhile are left alone.
        let mut end = None;
        while !enough() {
            let first = {
                let files = self.files.lock();
                let end = *end.get_or_insert(files.next);
                let first = files.by_age.range(..end).next();
                first.map(|(number, owner)| (*number, owner.clone()))
            };
            let Some((number, owner)) = first else { return };
            match owner.upgrade() {
                Some(owner) => owner.evict(),
                None => self.forget(number),
            }
        }
    }
}

impl<T> fmt::Debug for Budget<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Budget")
            .field("limit", &self.limit)
            .field("used", &self.used)
            .finish_non_exhaustive()
    }
}
