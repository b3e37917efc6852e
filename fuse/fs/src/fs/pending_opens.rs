//! The files that count as open although no OPEN of them has been answered;
//! [`opening`](super::opening) explains why.

use super::inode::Inode;
use crate::sync::Mutex;
use crate::sync::atomic::AtomicUsize;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tokio::sync::Notify;

/// The most threads that are remembered.
const MOST: usize = 1024;

/// One for each file system.
#[derive(Debug, Default)]
pub(super) struct PendingOpens {
    /// OPENs under way.
    under_way: AtomicUsize,
    /// The threads whose OPEN failed, and which the kernel has look up the name again; each with the
    /// file that it has found.
    again: Mutex<HashMap<u32, Option<Arc<Inode>>>>,
    /// How many threads there are.
    threads: AtomicUsize,
    /// Notified about once a second.
    ticked: Notify,
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

    fn with<T>(&self, change: impl FnOnce(&mut HashMap<u32, Option<Arc<Inode>>>) -> T) -> T {
        let mut again = self.again.lock();
        let result = change(&mut again);
        self.threads.store(again.len(), Ordering::Release);
        result
    }

    /// An OPEN of a thread failed. 0 stands for all threads of other PID namespaces, of which nothing
    /// can be told.
    pub(super) fn failed(&self, thread: u32) {
        self.with(|again| {
            if thread != 0 && again.len() < MOST {
                again.entry(thread).or_default();
            }
        });
    }

    /// Whether look-ups of this thread count as opens.
    pub(super) fn is_expected(&self, thread: u32) -> bool {
        self.threads.load(Ordering::Acquire) > 0 && self.again.lock().contains_key(&thread)
    }

    /// Counts `inode` as open for a thread that is [expected](PendingOpens::is_expected). Returns
    /// the file that it has found before.
    pub(super) fn hold(&self, thread: u32, inode: &Arc<Inode>) -> Option<Arc<Inode>> {
        self.with(|again| {
            let held = again.get_mut(&thread)?;
            inode.opens.fetch_add(1, Ordering::SeqCst);
            held.replace(inode.clone())
        })
    }

    /// The kernel does not have this thread try again. Returns the file that it has found.
    pub(super) fn over(&self, thread: u32) -> Option<Arc<Inode>> {
        match self.threads.load(Ordering::Acquire) {
            0 => None,
            _ => self.with(|again| again.remove(&thread).flatten()),
        }
    }

    /// The threads of which this knows.
    pub(super) fn threads(&self) -> Vec<u32> {
        self.again.lock().keys().copied().collect()
    }

    /// As [`PendingOpens::over`], for the threads whose file `which` selects.
    pub(super) fn over_if(&self, which: impl Fn(&Arc<Inode>) -> bool) -> Vec<Arc<Inode>> {
        self.with(|again| {
            let over = again.extract_if(|_, held| held.as_ref().is_some_and(&which));
            over.filter_map(|(_, held)| held).collect()
        })
    }

    /// Whether any file counts as open by these rules.
    pub(super) fn any(&self) -> bool {
        let held = || self.again.lock().values().any(|held| held.is_some());
        self.under_way.load(Ordering::Acquire) > 0
            || self.threads.load(Ordering::Acquire) > 0 && held()
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
