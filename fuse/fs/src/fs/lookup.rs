//! LOOKUP and FORGET: what a name in a directory leads to.
//!
//! The kernel keeps the names that it was given, and sends a LOOKUP of one if their time has run out, or because it wants the
//! name checked: before it refuses to make a name that exists, before a rename, and where a walk has ended with ESTALE. The request
//! does not say why it is sent. So for a cached name that leads to an object the server is asked (RFC 1813 section 3.3.3), with two
//! exceptions: a name that was just listed, whose object the kernel does not know yet; and in a directory whose names the kernel may
//! not keep, where mostly it walks, a directory, and anything else while the server's last word on the directory is less than a second
//! old, which is good enough to refuse a user as well. For a cached name that does not exist the answer comes from memory while that
//! word is not older than `acregmin`, or else after a GETATTR. Memory answers only if the directory's attributes are valid, its contents
//! have the same epoch as when the name was cached, and the caller may search the directory (`search.rs`). Each answer with an object
//! gives the kernel one reference to its node, which FORGET takes back.

use super::Fs;
use super::attributes::LATELY;
use super::clock::nanos;
use super::config::LookupCache;
use super::entry::Entry;
use super::error::FsResult;
use super::inode::{Inode, ROOT};
use super::inode_flags::Flag;
use super::names::{Child, DEEPEST};
use nfsrdma_nfs3::{Cred, Nfs3};
use nfsrdma_xdr::nfs3::Status;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

impl<N: Nfs3> Fs<N> {
    /// What `name` leads to, if that is cached and the caller may search the directory. `cred` gives the credential of the caller,
    /// user `uid`; it is called only if the uid does not decide that.
    pub fn lookup_cached(
        &self,
        parent: u64,
        name: &[u8],
        uid: u32,
        cred: impl FnOnce() -> Cred,
    ) -> Option<Found> {
        if self.config.lookup_cache == LookupCache::None {
            return None;
        }
        let dir = self.table.get(parent)?;
        let now = self.now();
        let (epoch, age, lately) = {
            let state = dir.state.lock();
            state.fresh(now)?;
            let age = state.age(now);
            (state.epoch, age, age < LATELY && !state.is_changing())
        };
        // The kernel may want it checked, unless this is a walk through a directory whose names it
        // may not keep: that cannot be told from a wish to check.
        let only_walked = |inode: &Inode| {
            let stays = !inode.flags.has(Flag::Stale) && inode.names_going() == 0;
            (inode.is_dir() || lately && stays)
                && (self.names_are_asked(&dir) || !self.kernel_may_keep_names(&dir))
        };
        // A program goes through the names of its listing, of which the kernel got only the names.
        let only_listed = |inode: &Inode| {
            inode.lookups.load(Ordering::Relaxed) == 0 && dir.opens.load(Ordering::Relaxed) > 0
        };
        let child = self.names.get(dir.nodeid, epoch, name)?;
        match child {
            Child::Absent if self.config.lookup_cache != LookupCache::All => None,
            Child::Absent if age >= nanos(self.config.times.acregmin) => None,
            Child::Is(ref inode) if !only_listed(inode) && !only_walked(inode) => None,
            _ if !self.may_search_cached(&dir, now, uid, cred) => None,
            Child::Absent => {
                self.shared.stats.name_negative_hits.add(1);
                Some(Found::Absent(self.absent_ttl(&dir, now)))
            }
            Child::Is(inode) => {
                // The name is valid as long as its directory. Attributes that have expired are
                // given with a validity of zero: the kernel sends GETATTR when it needs them.
                let attributes = inode.last_known()?;
                let inode = self.table.adopt(&inode);
                self.shared.stats.name_hits.add(1);
                let entry = self.entry(&dir, &inode, attributes);
                self.without_old_pages(&inode, entry).map(Found::Is)
            }
        }
    }

    /// What `name` leads to, by a LOOKUP.
    pub async fn lookup(
        self: &Arc<Self>,
        cred: &Cred,
        parent: u64,
        name: &[u8],
    ) -> FsResult<Found> {
        self.shared.stats.name_misses.add(1);
        let dir = self.inode(parent)?;
        let (epoch, age) = {
            let state = dir.state.lock();
            (state.epoch, state.age(self.now()))
        };
        let old = age >= nanos(self.config.times.acregmin);
        let missed = || matches!(self.names.get(dir.nodeid, epoch, name), Some(Child::Absent));
        if old && self.config.lookup_cache == LookupCache::All && missed() {
            // The directory's attributes tell whether that still holds of all its missing names.
            let known = || self.lookup_cached(parent, name, cred.uid, || cred.clone());
            if let Some(found) = self.fetch(cred, &dir).await.ok().and_then(|_| known()) {
                return Ok(found);
            }
        }
        let found = self.find(cred, &dir, name).await;
        // If somebody else's change was noticed meanwhile, the reply may be older than that change, and
        // the kernel gets it after a notification of the change.
        let overtaken = dir.state.lock().epoch != epoch;
        self.probe_root_squash(cred, &dir, &found).await;
        match found {
            Ok((inode, attributes)) => {
                dir.state.lock().listed_mut().count_asked();
                let inode = self.table.adopt(&inode);
                let mut entry = self.entry(&dir, &inode, attributes);
                if overtaken {
                    entry.entry_ttl = Duration::ZERO;
                }
                Ok(Found::Is(entry))
            }
            Err(error) if error.status() == Some(Status::NoEnt) => {
                let ttl = match self.config.lookup_cache {
                    _ if overtaken => Duration::ZERO,
                    LookupCache::All => self.absent_ttl(&dir, self.now()),
                    LookupCache::Positive | LookupCache::None => Duration::ZERO,
                };
                Ok(Found::Absent(ttl))
            }
            Err(error)
                if error.status() == Some(Status::Stale)
                    && parent != ROOT
                    && Box::pin(self.is_absent_by_path(cred, &dir, name)).await =>
            {
                Ok(Found::Absent(Duration::ZERO))
            }
            Err(error) => Err(error),
        }
    }

    /// Whether another directory is by now at the path of `dir`, which is gone at the server, and does not have `name`.
    /// The kernel walks again after ESTALE, but not if it has this from the LOOKUP of a name that is to be made; it
    /// does after the call that makes the name.
    async fn is_absent_by_path(&self, cred: &Cred, dir: &Arc<Inode>, name: &[u8]) -> bool {
        let (mut at, mut below) = (dir.clone(), vec![Box::from(name)]);
        while at.nodeid != ROOT && below.len() < DEEPEST {
            let own = at.state.lock().listed().and_then(|of| of.name.clone());
            let (Some(above), Some(own)) = (self.dir_of(&at), own) else {
                return false;
            };
            below.push(own);
            at = above;
        }
        while let Some(name) = below.pop() {
            match self.find(cred, &at, &name).await {
                Ok((found, _)) => at = found,
                Err(error) => return below.is_empty() && error.status() == Some(Status::NoEnt),
            }
        }
        false
    }

    /// Frees the memory of names that are no longer valid: those of directories that have changed
    /// since, of what the kernel has forgotten, and those that it got by listings only, of directories that nobody has
    /// open any more. To be called while the mount is idle.
    pub fn forget_stale_names(&self) {
        self.names.retain(|dir, epoch, child| {
            let valid = |dir: Arc<Inode>| dir.state.lock().epoch == epoch;
            self.table.get(dir).is_some_and(valid) && !self.is_closed_name(dir, child)
        });
        self.table.tidy();
    }

    /// Whether a name leads to an object that the kernel does not know, in a directory that nobody has
    /// open. The kernel may have the name alone, from a listing: it is to list the directory again.
    fn is_closed_name(&self, dir: u64, child: &Child) -> bool {
        if !matches!(child, Child::Is(inode) if Arc::strong_count(inode) == 1) {
            return false;
        }
        let Some(dir) = self.table.get(dir) else {
            return true;
        };
        let closed = dir.opens.load(Ordering::Relaxed) == 0;
        if closed {
            dir.state.lock().listed_mut().forgotten = true;
        }
        closed
    }

    /// FORGET: the kernel gives up `count` references to an inode.
    pub fn forget(&self, nodeid: u64, count: u64) {
        self.table.forget(nodeid, count);
    }

    /// `entry`, which has just been made for the kernel, unless that has to be notified first.
    pub(super) fn without_old_pages(&self, inode: &Inode, entry: Entry) -> Option<Entry> {
        if inode.has_old_pages() {
            self.forget(inode.nodeid, 1);
            return None;
        }
        Some(entry)
    }
}

/// The answer to a look-up.
#[derive(Debug, Clone)]
pub enum Found {
    Is(Entry),
    /// There is no such name; the kernel may cache that for this long.
    Absent(Duration),
}
