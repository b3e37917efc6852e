//! What is noted of an inode with one bit each. There are many inodes, so each byte counts.

use std::sync::atomic::{AtomicU8, Ordering};

#[derive(Debug, Clone, Copy)]
#[repr(u8)]
pub(super) enum Flag {
    /// The server answered STALE or BADHANDLE since attributes last arrived.
    Stale = 1,
    /// This mount removed one of its names.
    Removed = 2,
    /// A RENAME or LINK to a hidden name is under way, or its result is not recorded yet. Set with
    /// `state` locked.
    Hiding = 4,
    /// The kernel may have pages of the file.
    KernelPages = 8,
    /// The kernel must ask for the names in a directory at each use. See `sibling_names`. Changed with `state` locked.
    NamesAsked = 16,
    /// The names are expired that the kernel had until then.
    NamesExpired = 32,
}

#[derive(Debug, Default)]
pub struct Flags(AtomicU8);

impl Flags {
    pub(super) fn has(&self, flag: Flag) -> bool {
        self.0.load(Ordering::Acquire) & flag as u8 != 0
    }

    pub(super) fn set(&self, flag: Flag) {
        self.0.fetch_or(flag as u8, Ordering::AcqRel);
    }

    pub(super) fn clear(&self, flag: Flag) {
        // Mostly it is not set, and that is cheaper to see.
        if self.has(flag) {
            self.0.fetch_and(!(flag as u8), Ordering::AcqRel);
        }
    }
}
