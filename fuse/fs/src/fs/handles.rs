//! The handles of open files, and of open directories.
//!
//! A handle has a slot in its lower half, and in its upper half how often the slot was used before. So
//! a handle that was released stands for nothing, also when the slot has a later open: the kernel may
//! send a RELEASE that was carried out once more.

use crate::sync::RwLock;
use std::sync::Arc;

#[derive(Debug)]
pub(super) struct Handles<T>(RwLock<Slots<T>>);

#[derive(Debug)]
struct Slots<T> {
    slots: Vec<Slot<T>>,
    vacant: Vec<u32>,
}

#[derive(Debug)]
struct Slot<T> {
    handle: u64,
    open: Option<Arc<T>>,
}

impl<T> Default for Handles<T> {
    fn default() -> Self {
        Handles(RwLock::new(Slots {
            slots: Vec::new(),
            vacant: Vec::new(),
        }))
    }
}

/// The next handle of the same slot.
fn next(handle: u64) -> u64 {
    handle.wrapping_add(1 << 32)
}

/// The number of the slot. Handles in this order are in that of [`Handles::select`].
pub(super) fn slot(handle: u64) -> u32 {
    handle as u32
}

impl<T> Slots<T> {
    fn get(&self, handle: u64) -> Option<&Arc<T>> {
        let slot = self.slots.get(slot(handle) as usize)?;
        slot.open.as_ref().filter(|_| slot.handle == handle)
    }

    fn len(&self) -> usize {
        self.slots.len() - self.vacant.len()
    }
}

impl<T> Handles<T> {
    /// Gives `open` a handle.
    pub(super) fn insert(&self, open: Arc<T>) -> u64 {
        let mut all = self.0.write();
        let Slots { slots, vacant } = &mut *all;
        match vacant.pop() {
            Some(free) => {
                let slot = &mut slots[free as usize];
                slot.handle = next(slot.handle);
                slot.open = Some(open);
                slot.handle
            }
            None => {
                let handle = slots.len() as u64;
                slots.push(Slot {
                    handle,
                    open: Some(open),
                });
                handle
            }
        }
    }

    #[inline]
    pub(super) fn get(&self, handle: u64) -> Option<Arc<T>> {
        self.0.read().get(handle).cloned()
    }

    /// What `look` finds of the open file, with all locked; it takes no other lock of this kind.
    #[inline]
    pub(super) fn look<R>(&self, handle: u64, look: impl FnOnce(&Arc<T>) -> R) -> Option<R> {
        self.0.read().get(handle).map(look)
    }

    pub(super) fn remove(&self, handle: u64) -> Option<Arc<T>> {
        let mut all = self.0.write();
        all.get(handle)?;
        all.vacant.push(slot(handle));
        all.slots[slot(handle) as usize].open.take()
    }

    pub(super) fn len(&self) -> usize {
        self.0.read().len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Those that `which` selects, with their handles. It takes no lock.
    pub(super) fn select(&self, which: impl Fn(&T) -> bool) -> Vec<(u64, Arc<T>)> {
        let all = self.0.read();
        let open = |slot: &Slot<T>| Some((slot.handle, slot.open.clone()?));
        let wanted = |slot: &&Slot<T>| slot.open.as_ref().is_some_and(|open| which(open));
        all.slots.iter().filter(wanted).filter_map(open).collect()
    }

    /// The first that `which` selects. It takes no lock.
    pub(super) fn find(&self, which: impl Fn(&T) -> bool) -> Option<Arc<T>> {
        let all = self.0.read();
        let mut open = all.slots.iter().filter_map(|slot| slot.open.as_ref());
        open.find(|open| which(open)).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_that_was_released_stands_for_no_later_open() {
        let handles = Handles::default();
        let [first, other] = ["first", "other"].map(|of| handles.insert(Arc::new(of)));
        assert_eq!(handles.remove(first).as_deref(), Some(&"first"));
        let later = handles.insert(Arc::new("later"));
        assert_eq!(slot(later), slot(first), "slots are used again");
        assert!(handles.remove(first).is_none() && handles.get(first).is_none());
        assert_eq!(handles.get(later).as_deref(), Some(&"later"));
        assert_eq!(handles.look(other, |of| of.len()), Some(5));
        assert!(handles.get(77).is_none() && handles.get(u64::MAX).is_none());
        let mut all = handles.select(|_| true);
        all.sort_by_key(|(handle, _)| slot(*handle));
        assert_eq!(
            all.iter().map(|of| of.0).collect::<Vec<_>>(),
            [later, other]
        );
        for handle in [later, other] {
            assert!(handles.remove(handle).is_some());
        }
        assert!(handles.is_empty());
    }
}
