//! The memory limit of the page cache, over the cached blocks of all files.
//!
//! Files report the bytes their blocks take, and which blocks are clean. When more memory is
//! needed, clean blocks are evicted, least recently used first; a block that was used since it was
//! last considered only loses its mark and goes to the back of the list (second chance), so that a
//! hit need not take the lock of this list. Dirty and unstable blocks are not in the list: they
//! cannot be dropped, and eviction must not have to search among them.

use crate::sync::Mutex;
use crate::sync::atomic::{AtomicUsize, Ordering};
use lru::LruCache;
use std::fmt;
use std::sync::Weak;

/// Something whose blocks can be dropped.
pub trait Evict: Send + Sync {
    /// Drops the block at `offset`, unless it was used since the last call or is not safe at the
    /// server. Returns the bytes freed, 0 if it stays because it was used. `None`: there is no such
    /// block, or it is not safe; it is then [added](Budget::add) again when it is. The
    /// implementation [accounts](Budget::account) for the freed bytes itself.
    fn evict(&self, offset: u64) -> Option<usize>;
}

/// The clean blocks of all files in order of use, and the bytes that all blocks take.
pub struct Budget<T> {
    limit: usize,
    used: AtomicUsize,
    blocks: Mutex<LruCache<(u64, u64), Weak<T>>>,
}

impl<T: Evict> Budget<T> {
    /// A budget of `limit` bytes.
    pub fn new(limit: usize) -> Self {
        Budget {
            limit,
            used: AtomicUsize::new(0),
            blocks: Mutex::new(LruCache::unbounded()),
        }
    }

    pub fn limit(&self) -> usize {
        self.limit
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

    /// The blocks of file `id` at `offsets` are clean and can be dropped from now on.
    pub fn add(&self, id: u64, owner: &Weak<T>, offsets: Vec<u64>) {
        if offsets.is_empty() {
            return;
        }
        let mut blocks = self.blocks.lock();
        for offset in offsets {
            blocks.put((id, offset), owner.clone());
        }
    }

    /// File `id` has dropped its blocks at `offsets`, or they are no longer clean.
    pub fn forget(&self, id: u64, offsets: impl Iterator<Item = u64>) {
        let mut offsets = offsets.peekable();
        if offsets.peek().is_some() {
            let mut blocks = self.blocks.lock();
            for offset in offsets {
                blocks.pop(&(id, offset));
            }
        }
    }

    /// The number of blocks that can be evicted.
    pub fn blocks(&self) -> usize {
        self.blocks.lock().len()
    }

    /// Drops blocks, least recently used first, until `bytes` more fit. False if they do not fit
    /// even then, because the other blocks are in use or not clean. Must not be called with a file
    /// locked.
    pub fn make_room(&self, bytes: usize) -> bool {
        if self.used() + bytes <= self.limit {
            return true;
        }
        self.evict(|budget| budget.used() + bytes <= budget.limit)
    }

    /// Drops clean blocks of at least `bytes` in total, whatever the limit.
    pub fn reclaim(&self, bytes: usize) -> bool {
        let target = self.used().saturating_sub(bytes);
        self.evict(|budget| budget.used() <= target)
    }

    fn evict(&self, enough: impl Fn(&Self) -> bool) -> bool {
        // Each block is tried twice, because the first time a used block only loses its mark.
        let mut tries = self.blocks.lock().len() * 2;
        while !enough(self) {
            if tries == 0 {
                return false;
            }
            tries -= 1;
            let Some((key, owner)) = self.blocks.lock().pop_lru() else {
                return false;
            };
            let stays = owner.upgrade().and_then(|owner| owner.evict(key.1)) == Some(0);
            if stays {
                self.blocks.lock().put(key, owner);
            }
        }
        true
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
