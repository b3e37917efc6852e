//! What the kernel has of an object: its pages, and the attributes that it was given (`kernel_pages.rs`).

use super::inode::{Inode, State};
use super::inode_flags::Flag;
use nfsrdma_xdr::nfs3::FileType;

impl Inode {
    /// Whether the kernel may have pages of the file that somebody else has changed since.
    pub(super) fn has_old_pages(&self) -> bool {
        self.flags.has(Flag::KernelPages) && self.state.lock().kernel_is_behind()
    }

    /// The kernel is given the attributes with this size. False if it has old pages: a notification comes
    /// first, and the kernel ignores the attributes.
    pub(super) fn record_told(&self, state: &mut State, size: u64) -> bool {
        state.note_told();
        if self.kind != FileType::Regular {
            return true;
        }
        let current = !(self.flags.has(Flag::KernelPages) && state.kernel_is_behind());
        if current {
            (state.kernel_epoch, state.kernel_size) = (state.epoch, size);
        }
        current
    }

    /// The kernel gets pages of the file: data that is current, or is being written.
    pub(super) fn gets_pages(&self) {
        // Each READ and WRITE comes here.
        if !self.flags.has(Flag::KernelPages) {
            let mut state = self.state.lock();
            state.kernel_epoch = state.epoch;
            self.flags.set(Flag::KernelPages);
        }
    }
}
