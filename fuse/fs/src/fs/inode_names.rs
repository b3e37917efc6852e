//! What an object has lost, or is about to lose, of its names: the hidden name, and the calls under way
//! that remove names (`losing.rs`).

use super::inode::{Inode, Silly};
use std::sync::atomic::Ordering;

impl Inode {
    /// The number of names that calls under way may remove. An open that counts already need not
    /// fear those that are not among them, because they hide the file.
    pub(super) fn names_going(&self) -> u32 {
        let _state = self.state.lock();
        u32::from(self.losing.load(Ordering::Relaxed))
    }

    /// A call that was to remove a name has ended. Opens that wait have to be notified.
    pub(super) fn kept_or_gone(&self) {
        let _state = self.state.lock();
        self.losing.fetch_sub(1, Ordering::Relaxed);
    }

    /// Takes the hidden name, if the file is not open, in order to remove it. Hand it to
    /// [`Fs::remove_hidden`](super::Fs::remove_hidden). `at_end`: the mount is at its end, and open files do not count.
    pub(super) fn take_hidden(&self, at_end: bool) -> Option<Silly> {
        let mut state = self.state.lock();
        if !at_end && self.opens.load(Ordering::SeqCst) > 0 {
            // Whoever closes it last removes the name.
            return None;
        }
        let silly = state.silly.take()?;
        self.losing.fetch_add(1, Ordering::Relaxed);
        Some(*silly)
    }
}
