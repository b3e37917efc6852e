//! Which files count as open although no OPEN of theirs has been answered;
//! [`opening`](super::opening) says why.

use super::clock::Nanos;
use super::inode::Inode;
use crate::sync::Mutex;
use crate::sync::atomic::AtomicUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::{RwLock as AsyncRwLock, RwLockReadGuard, RwLockWriteGuard};

/// Files held at the same time, at most.
const MOST: usize = 1024;

/// Of one file system.
#[derive(Debug, Default)]
pub(super) struct PendingOpens {
    /// OPENs under way.
    under_way: AtomicUsize,
    /// Look-ups count as opens until then.
    hold_until: AtomicU64,
    /// Files that were looked up, and until when they count as open.
    held: Mutex<Vec<(Nanos, Arc<Inode>)>>,
    /// Taken for reading by what removes names.
    removing: AsyncRwLock<()>,
}

impl PendingOpens {
    /// An OPEN is sent.
    pub(super) fn begin(&self) {
        self.under_way.fetch_add(1, Ordering::Relaxed);
    }

    /// It was answered.
    pub(super) fn end(&self) {
        self.under_way.fetch_sub(1, Ordering::Relaxed);
    }

    /// Look-ups count as opens until `time`.
    pub(super) fn hold_until(&self, time: Nanos) {
        self.hold_until.store(time, Ordering::Relaxed);
    }

    /// Whether they do now.
    pub(super) fn is_holding(&self, now: Nanos) -> bool {
        now < self.hold_until.load(Ordering::Relaxed)
    }

    /// Counts `inode` as open until `time`, if there is room.
    pub(super) fn hold(&self, inode: &Arc<Inode>, time: Nanos) {
        let mut held = self.held.lock();
        if held.len() < MOST {
            inode.opens.fetch_add(1, Ordering::SeqCst);
            held.push((time, inode.clone()));
        }
    }

    /// Holds `inode` no longer, once; whether it was held.
    pub(super) fn release(&self, inode: &Arc<Inode>) -> bool {
        let mut held = self.held.lock();
        let found = held.iter().position(|(_, other)| Arc::ptr_eq(other, inode));
        if let Some(at) = found {
            held.swap_remove(at);
        }
        found.is_some()
    }

    /// Holds the files no longer whose time is up; with `all`, none.
    pub(super) fn release_expired(&self, now: Nanos, all: bool) -> Vec<Arc<Inode>> {
        let mut held = self.held.lock();
        held.extract_if(.., |(until, _)| all || *until <= now)
            .map(|(_, inode)| inode)
            .collect()
    }

    /// Whether any file counts as open by this.
    pub(super) fn any(&self) -> bool {
        self.under_way.load(Ordering::Relaxed) > 0 || !self.held.lock().is_empty()
    }

    /// A name is about to be taken from a file.
    pub(super) async fn removing(&self) -> RwLockReadGuard<'_, ()> {
        self.removing.read().await
    }

    /// While this lives, no name is.
    pub(super) async fn not_removing(&self) -> RwLockWriteGuard<'_, ()> {
        self.removing.write().await
    }
}
