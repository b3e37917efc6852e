//! The files that count as open although no OPEN of them has been answered;
//! [`opening`](super::opening) explains why.

use super::clock::Nanos;
use super::inode::Inode;
use crate::sync::Mutex;
use crate::sync::atomic::AtomicUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::{Notify, RwLock as AsyncRwLock, RwLockReadGuard, RwLockWriteGuard};

/// The most files that are held at the same time, and the most threads that are remembered.
const MOST: usize = 1024;
/// The number of locks for directories, several of which may share one.
const LOCKS: usize = 64;

/// One for each file system.
#[derive(Debug)]
pub(super) struct PendingOpens {
    /// OPENs under way.
    under_way: AtomicUsize,
    /// Look-ups of the threads in `again` count as opens until this time.
    hold_until: AtomicU64,
    held: Mutex<Held>,
    /// The locks of directories: operations that remove or replace names take them for reading.
    removing: [AsyncRwLock<()>; LOCKS],
    /// Notified about once a second.
    ticked: Notify,
}

#[derive(Debug, Default)]
struct Held {
    /// Files that were looked up, and until when they count as open.
    files: Vec<(Nanos, Arc<Inode>)>,
    /// Threads whose OPEN failed and which will try again.
    again: Vec<u32>,
}

impl Default for PendingOpens {
    fn default() -> Self {
        PendingOpens {
            under_way: AtomicUsize::default(),
            hold_until: AtomicU64::default(),
            held: Mutex::default(),
            removing: std::array::from_fn(|_| AsyncRwLock::default()),
            ticked: Notify::new(),
        }
    }
}

impl PendingOpens {
    /// An OPEN begins.
    pub(super) fn begin(&self) {
        self.under_way.fetch_add(1, Ordering::Relaxed);
    }

    /// An OPEN has ended.
    pub(super) fn end(&self) {
        self.under_way.fetch_sub(1, Ordering::Release);
    }

    /// An OPEN of a thread failed at `now`: its look-ups count as opens until it has had another OPEN
    /// answered, but not after `until`.
    pub(super) fn failed(&self, thread: u32, now: Nanos, until: Nanos) {
        let mut held = self.held.lock();
        if !self.is_holding(now) {
            held.again.clear();
        }
        if !held.again.contains(&thread) && held.again.len() < MOST {
            held.again.push(thread);
        }
        self.hold_until.store(until, Ordering::Relaxed);
    }

    /// Whether look-ups of any thread count as opens now.
    fn is_holding(&self, now: Nanos) -> bool {
        now < self.hold_until.load(Ordering::Relaxed)
    }

    /// Whether look-ups of this thread count as opens now.
    pub(super) fn is_holding_for(&self, thread: u32, now: Nanos) -> bool {
        self.is_holding(now) && self.held.lock().again.contains(&thread)
    }

    /// Counts `inode` as open until `time`, if there is room.
    pub(super) fn hold(&self, inode: &Arc<Inode>, time: Nanos) {
        let mut held = self.held.lock();
        if held.files.len() < MOST {
            inode.opens.fetch_add(1, Ordering::SeqCst);
            held.files.push((time, inode.clone()));
        }
    }

    /// An OPEN of a thread has ended. Returns the files that are no longer held: `inode`, if it
    /// was; and all others, if no other thread is expected to try again.
    pub(super) fn opened(&self, thread: u32, inode: &Arc<Inode>) -> Vec<Arc<Inode>> {
        let mut held = self.held.lock();
        let found = held
            .files
            .iter()
            .position(|(_, other)| Arc::ptr_eq(other, inode));
        let Some(at) = found else {
            return Vec::new();
        };
        let (_, inode) = held.files.swap_remove(at);
        let waited = held.again.len();
        // 0 stands for all threads of other PID namespaces: their files are held for the whole
        // time.
        held.again.retain(|other| *other != thread || thread == 0);
        if waited == 0 || !held.again.is_empty() {
            return vec![inode];
        }
        self.hold_until.store(0, Ordering::Relaxed);
        let rest = held.files.drain(..).map(|(_, inode)| inode);
        std::iter::once(inode).chain(rest).collect()
    }

    /// Returns the held files that `what` selects, which are no longer held.
    pub(super) fn release_if(&self, what: impl Fn(Nanos, &Inode) -> bool) -> Vec<Arc<Inode>> {
        let mut held = self.held.lock();
        held.files
            .extract_if(.., |(until, inode)| what(*until, inode))
            .map(|(_, inode)| inode)
            .collect()
    }

    /// Whether any file counts as open by these rules.
    pub(super) fn any(&self) -> bool {
        self.under_way.load(Ordering::Acquire) > 0 || !self.held.lock().files.is_empty()
    }

    fn lock_of(&self, dir_node: u64) -> &AsyncRwLock<()> {
        &self.removing[dir_node as usize % LOCKS]
    }

    /// See [`Fs::removing`](super::Fs::removing).
    pub(super) async fn removing(&self, dir_node: u64) -> RwLockReadGuard<'_, ()> {
        self.lock_of(dir_node).read().await
    }

    /// While the result lives, no name in the directory is removed or replaced. `None` if `over`,
    /// which is called at each [`PendingOpens::ticked`], returns true first.
    pub(super) async fn not_removing(
        &self,
        dir_node: u64,
        over: impl Fn() -> bool,
    ) -> Option<RwLockWriteGuard<'_, ()>> {
        let given_up = async {
            loop {
                let mut ticked = std::pin::pin!(self.ticked.notified());
                ticked.as_mut().enable();
                if over() {
                    break;
                }
                ticked.await;
            }
        };
        tokio::select! {
            guard = self.lock_of(dir_node).write() => Some(guard),
            () = given_up => None,
        }
    }

    /// Waits for the next [`PendingOpens::ticked`].
    pub(super) async fn next_tick(&self) {
        self.ticked.notified().await;
    }

    /// To be called about once a second.
    pub(super) fn ticked(&self) {
        self.ticked.notify_waiters();
    }
}
