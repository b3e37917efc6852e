//! The handles of open files, and of open directories.
//!
//! A handle is the number of a record ([`nfsrdma_record`]), which no later record has. So a handle that was
//! released stands for nothing: the kernel may send a RELEASE that was carried out once more, to the process
//! that goes on after the one that died before it answered.

use crate::sync::RwLock;
use std::collections::BTreeMap;
use std::sync::Arc;

#[derive(Debug)]
pub(super) struct Handles<T>(RwLock<BTreeMap<u64, Arc<T>>>);

impl<T> Default for Handles<T> {
    fn default() -> Self {
        Handles(RwLock::default())
    }
}

impl<T> Handles<T> {
    pub(super) fn insert(&self, handle: u64, open: Arc<T>) {
        self.0.write().insert(handle, open);
    }

    #[inline]
    pub(super) fn get(&self, handle: u64) -> Option<Arc<T>> {
        self.0.read().get(&handle).cloned()
    }

    /// What `look`, which must take no lock, finds of the open file.
    #[inline]
    pub(super) fn look<R>(&self, handle: u64, look: impl FnOnce(&Arc<T>) -> R) -> Option<R> {
        self.0.read().get(&handle).map(look)
    }

    pub(super) fn remove(&self, handle: u64) -> Option<Arc<T>> {
        self.0.write().remove(&handle)
    }

    pub(super) fn len(&self) -> usize {
        self.0.read().len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Those that `which` selects, with their handles, in the order of these. It must take no lock.
    pub(super) fn select(&self, which: impl Fn(&T) -> bool) -> Vec<(u64, Arc<T>)> {
        let all = self.0.read();
        let selected = all.iter().filter(|(_, open)| which(open));
        selected
            .map(|(handle, open)| (*handle, open.clone()))
            .collect()
    }

    /// The first that `which` selects. It must take no lock.
    pub(super) fn find(&self, which: impl Fn(&T) -> bool) -> Option<Arc<T>> {
        self.0.read().values().find(|open| which(open)).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_that_was_released_stands_for_no_later_open() {
        let (first, other, later) = (1, 3, 2 << 32 | 1);
        let handles = Handles::default();
        for handle in [other, first] {
            handles.insert(handle, Arc::new(handle));
        }
        assert_eq!(handles.remove(first).as_deref(), Some(&first));
        handles.insert(later, Arc::new(later));
        assert!(handles.remove(first).is_none() && handles.get(first).is_none());
        assert_eq!(handles.get(later).as_deref(), Some(&later));
        assert_eq!(handles.look(other, |of| **of), Some(other));
        assert!(handles.get(2).is_none() && handles.get(u64::MAX).is_none());
        let all = handles.select(|_| true);
        assert_eq!(
            all.iter().map(|of| of.0).collect::<Vec<_>>(),
            [other, later]
        );
        for handle in [later, other] {
            assert!(handles.remove(handle).is_some());
        }
        assert!(handles.is_empty());
    }
}
