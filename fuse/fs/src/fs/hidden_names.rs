//! How many hidden names there are, or are about to be, by directory: RMDIR waits for them for a while.

use crate::sync::Mutex;
use rustc_hash::FxHashMap;
use std::sync::Arc;
use tokio::sync::Notify;

#[derive(Debug, Default)]
pub(super) struct HiddenNames {
    counts: Mutex<FxHashMap<u64, usize>>,
    /// Notified when one is gone.
    pub(super) gone: Notify,
}

/// One of them, until this is dropped.
#[derive(Debug)]
pub struct HiddenIn {
    all: Arc<HiddenNames>,
    dir_node: u64,
}

impl HiddenNames {
    pub(super) fn add(self: &Arc<Self>, dir_node: u64) -> HiddenIn {
        *self.counts.lock().entry(dir_node).or_default() += 1;
        HiddenIn {
            all: self.clone(),
            dir_node,
        }
    }

    /// Whether there are any in this directory, or at all.
    pub(super) fn are_in(&self, dir: Option<u64>) -> bool {
        let counts = self.counts.lock();
        dir.map_or(!counts.is_empty(), |dir| counts.contains_key(&dir))
    }
}

impl Drop for HiddenIn {
    fn drop(&mut self) {
        let mut counts = self.all.counts.lock();
        if let Some(count) = counts.get_mut(&self.dir_node) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.dir_node);
            }
        }
        self.all.gone.notify_waiters();
    }
}
