//! What the kernel is given for a name.

use super::Fs;
use super::clock::{Nanos, nanos};
use super::config::LookupCache;
use super::inode::Inode;
use nfsrdma_nfs3::Nfs3;
use nfsrdma_xdr::nfs3::Attributes;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// What the kernel is given for a name or an object.
#[derive(Debug, Clone)]
pub struct Entry {
    pub nodeid: u64,
    pub attributes: Attributes,
    /// How long the attributes are valid.
    pub attr_ttl: Duration,
    /// How long the name is valid.
    pub entry_ttl: Duration,
}

impl<N: Nfs3> Fs<N> {
    /// How long the kernel may use a name in `dir` without a LOOKUP.
    pub(super) fn entry_ttl(&self, dir: &Inode, now: Nanos) -> Duration {
        match self.config.lookup_cache {
            LookupCache::None => Duration::ZERO,
            _ if !self.kernel_may_keep_names(dir) => Duration::ZERO,
            _ if self.names_are_asked(dir) => Duration::ZERO,
            LookupCache::All | LookupCache::Positive => self.attr_ttl(dir, now),
        }
    }

    /// How long the kernel may believe that a name in `dir` does not exist: not longer than what is known of a file.
    /// Programs wait for names that another machine makes.
    pub(super) fn absent_ttl(&self, dir: &Inode, now: Nanos) -> Duration {
        let left = nanos(self.config.times.acregmin).saturating_sub(dir.state.lock().age(now));
        self.entry_ttl(dir, now).min(Duration::from_nanos(left))
    }

    /// The reply to the kernel for a name in `dir` that leads to `inode`.
    pub(super) fn entry(&self, dir: &Inode, inode: &Inode, attributes: Attributes) -> Entry {
        let now = self.now();
        inode.named_in.store(dir.nodeid, Ordering::Relaxed);
        Entry {
            nodeid: inode.nodeid,
            attributes: self.visible_attributes(inode, attributes),
            attr_ttl: self.attr_ttl(inode, now),
            entry_ttl: self.entry_ttl(dir, now),
        }
    }
}
