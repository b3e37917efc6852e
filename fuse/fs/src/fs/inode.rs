//! An object of the server, and what is known of it.
//!
//! `attribute_cache` decides which attributes are the newest, and whether somebody else changed the
//! contents. This module turns its decisions into epochs, the numbers by which caches name
//! contents; it records which epoch and attributes the kernel was given, so that the kernel can be
//! notified when they are out of date; and it caches what ACCESS and GETACL returned.

pub(super) use super::attribute_cache::{Answered, Kind, Seen, Times};

use super::attribute_cache::{AttributeCache, Span};
use super::clock::Nanos;
use super::file::FileData;
use super::inode_flags::{Flag, Flags};
use crate::sync::Mutex;
use nfsrdma_nfs3::{Acls, Cred};
use nfsrdma_record::{Hidden, Node, Record};
use nfsrdma_xdr::nfs3::{Attributes, FileType, access};
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// The next epoch; shared by all files and directories, so that no two contents have the same.
static EPOCH: AtomicU64 = AtomicU64::new(1);

fn next_epoch() -> u64 {
    EPOCH.fetch_add(1, Ordering::Relaxed)
}

/// The node of the root directory (FUSE_ROOT_ID).
pub const ROOT: u64 = 1;

/// An object of the server. What the kernel knows of it, and another process would have to know, is in its
/// record, to which it dereferences.
#[derive(Debug)]
pub struct Inode {
    record: Record<Node>,
    pub kind: FileType,
    /// How many open files of this mount lead here.
    pub opens: AtomicU32,
    pub flags: Flags,
    /// The number of hidden names that the server has, including one that is being removed.
    pub hidden_links: AtomicU16,
    /// The number of calls under way that remove one of its names, hidden or not, without hiding the
    /// file before. Changed with `state` locked.
    pub losing: AtomicU16,
    /// The directory in which the kernel was last given a name of this object; 0 if none was given.
    pub named_in: AtomicU64,
    pub state: Mutex<State>,
    data: OnceLock<Arc<FileData>>,
}

/// The counter from which calls and replies of all inodes get their place in the order of events.
static EVENT: AtomicU64 = AtomicU64::new(1);

fn next_event() -> u64 {
    EVENT.fetch_add(1, Ordering::Relaxed) + 1
}

/// The moment at which a call is sent: its reply shows a state from between then and its arrival.
#[derive(Debug, Clone, Copy)]
pub struct Stamp(u64);

impl Stamp {
    pub fn now() -> Self {
        Stamp(EVENT.load(Ordering::Relaxed))
    }

    /// A moment that is later than that of every call sent before.
    pub fn mark() -> Self {
        Stamp(next_event())
    }

    /// The time from this moment until now.
    fn span(self) -> Span {
        Span {
            sent: self.0,
            arrived: next_event(),
        }
    }
}

/// The server's answer to ACCESS for one caller.
#[derive(Debug, Clone)]
struct Granted {
    cred: Cred,
    asked: u8,
    granted: u8,
    until: Nanos,
}

/// The ACLs of an object. They are valid while the ctime stays the same, or has been changed only
/// by calls of this mount that change no ACL. The latter is known only from the server's
/// pre-operation attributes, so from the first such change on a time limit applies as well.
#[derive(Debug)]
struct KnownAcls {
    acls: Arc<Acls>,
    /// A call of this mount has changed the ctime since.
    carried: bool,
    /// Until when the ACLs are valid if `carried` is set.
    carried_until: Nanos,
}

/// Who may do what with an object.
#[derive(Debug, Default)]
struct Rights {
    granted: Vec<Granted>,
    /// What GETACL returned, while it is valid for the object.
    acls: Option<KnownAcls>,
}

/// The hidden name of a file that was unlinked while open, and the caller who unlinked it. The record is
/// freed with it, when the name is gone or is nobody's any more.
#[derive(Debug)]
pub struct Silly {
    pub name: Record<Hidden>,
    pub cred: Cred,
    /// See [`Fs::hidden_in`](super::Fs::hidden_in).
    pub dir: Arc<u64>,
}

/// What is remembered of a directory and its listings.
#[derive(Debug, Clone, Default)]
pub struct Listed {
    /// When the kernel last began to take entries with the attributes of the children, the oldest of which are about that old.
    pub with_attributes: Nanos,
    /// How often the server was asked for one child, by LOOKUP or GETATTR, since a program listed names alone. The most if one
    /// looked at the children while it listed them, as `ls -l` does: the kernel shows it by asking for attributes with entries
    /// after the first ones.
    pub asked_for: u32,
    /// Pages of the last listing.
    pub pages: u32,
    /// The kernel may have names that are not known here any more.
    pub forgotten: bool,
    /// When a lock of a file in it was last taken. See `sibling_names`.
    pub locked_beside: Nanos,
    /// The name of the directory itself in the one above, if it is known ([`Inode::is_named`]).
    pub name: Option<Box<[u8]>>,
}

impl Listed {
    /// The server was asked for one child.
    pub fn count_asked(&mut self) {
        self.asked_for = self.asked_for.saturating_add(1);
    }
}

/// What a reply means for the caches of data and names, and for the kernel.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[must_use]
pub(super) struct Outcome {
    /// Somebody else changed the contents.
    pub foreign: bool,
    /// The kernel caches attributes that are out of date, other than size and times.
    pub misled: bool,
    /// See [`Seen::ambiguous`].
    pub ambiguous: bool,
}

#[derive(Debug, Default)]
pub struct State {
    cache: AttributeCache,
    /// The epoch of the contents.
    pub epoch: u64,
    /// The epoch of what the kernel has of the contents, and of their attributes; 0 if it has nothing.
    /// See `kernel_pages`.
    pub kernel_epoch: u64,
    /// The kernel was given the attributes, and has not been notified since.
    told: bool,
    /// The size that the kernel has, unless it has cut it since.
    pub(super) kernel_size: u64,
    /// Boxed, because there are many inodes, and of most nobody asks for rights.
    rights: Option<Box<Rights>>,
    pub silly: Option<Box<Silly>>,
    /// Present once the directory was listed.
    listed: Option<Box<Listed>>,
}

impl State {
    fn new() -> Self {
        State {
            epoch: next_epoch(),
            ..State::default()
        }
    }

    /// The kernel is given the attributes.
    pub(super) fn note_told(&mut self) {
        self.told = true;
    }

    /// Call before a request of the kernel whose reply brings it new attributes: it needs no
    /// notification of them.
    pub fn forget_told(&mut self) {
        self.told = false;
    }

    /// What is remembered of listings, if the directory was listed.
    pub fn listed(&self) -> Option<&Listed> {
        self.listed.as_deref()
    }

    pub fn listed_mut(&mut self) -> &mut Listed {
        self.listed.get_or_insert_default()
    }

    /// Whether somebody else has changed the contents since the kernel got what it has of them.
    pub fn kernel_is_behind(&self) -> bool {
        self.kernel_epoch != 0 && self.kernel_epoch != self.epoch
    }

    /// The kernel did not get a reply that showed it a change. What it has belongs to no epoch of the contents.
    pub fn unheard(&mut self) {
        (self.kernel_epoch, self.kernel_size) = (next_epoch(), 0);
    }

    /// Whether no change by this mount has been under way since the call was sent.
    pub fn undisturbed(&self, stamp: Stamp) -> bool {
        self.cache.undisturbed(stamp.0)
    }

    /// Whether no attributes have arrived since the call was sent.
    pub fn unheard_since(&self, stamp: Stamp) -> bool {
        self.cache.unheard_since(stamp.0)
    }

    /// Whether a call sent since then has confirmed the cached contents.
    pub fn verified_since(&self, stamp: Stamp) -> bool {
        self.cache.verified_since(stamp.0)
    }

    /// What the kernel does not ask for again by itself, as it does for size and times after each of its
    /// WRITEs.
    fn kept_by_kernel(&self) -> Option<[u32; 4]> {
        let known = self.attributes()?;
        Some([known.mode, known.uid, known.gid, known.nlink])
    }

    /// Updates epoch, rights and ACLs by what a reply showed.
    fn learned(&mut self, before: Option<[u32; 4]>, seen: Seen) -> Outcome {
        if seen.changed {
            let known = self.rights.take().and_then(|rights| rights.acls);
            if let Some(mut known) = known.filter(|_| seen.own_ctime) {
                known.carried = true;
                self.rights().acls = Some(known);
            }
        }
        if seen.foreign {
            if let Some(rights) = &mut self.rights {
                rights.acls = None;
            }
            self.epoch = next_epoch();
        }
        let misled = self.told && before.is_some() && self.kept_by_kernel() != before;
        self.told &= !misled;
        Outcome {
            foreign: seen.foreign,
            misled,
            ambiguous: seen.ambiguous,
        }
    }

    /// Applies the attributes in the reply to a call that changed nothing.
    pub(super) fn apply(
        &mut self,
        stamp: Stamp,
        new: &Attributes,
        now: Nanos,
        times: Times,
    ) -> Outcome {
        let before = self.kept_by_kernel();
        let seen = self.cache.apply(stamp.span(), new, now, times);
        self.learned(before, seen)
    }

    /// See [`AttributeCache::named_otherwise`].
    pub fn named_otherwise(&mut self) {
        self.cache.named_otherwise(next_event());
    }

    /// A call that changes the object is sent.
    pub fn begin_change(&mut self) -> Stamp {
        let event = next_event();
        self.cache.begin_change(event);
        Stamp(event)
    }

    /// The change was answered.
    pub(super) fn end_change(
        &mut self,
        stamp: Stamp,
        change: &Answered<'_>,
        now: Nanos,
        times: Times,
    ) -> Outcome {
        let before = self.kept_by_kernel();
        let seen = self.cache.end_change(stamp.span(), change, now, times);
        self.learned(before, seen)
    }

    /// The change failed. `answered`: by a reply of the server; otherwise it may have been made.
    pub(super) fn fail_change(&mut self, stamp: Stamp, answered: bool) -> Outcome {
        let before = self.kept_by_kernel();
        let seen = self.cache.fail_change(stamp.span(), answered);
        self.learned(before, seen)
    }

    /// Invalidates the cached contents, whatever the attributes say.
    pub fn renew_epoch(&mut self) {
        self.epoch = next_epoch();
    }

    /// The cached ACLs, if they are valid. The caller checks that the attributes are.
    pub fn acls(&self, now: Nanos) -> Option<Arc<Acls>> {
        let known = self.rights.as_ref()?.acls.as_ref()?;
        (!known.carried || now < known.carried_until).then(|| known.acls.clone())
    }

    /// The cached ACLs, valid or not.
    pub fn last_acls(&self) -> Option<Arc<Acls>> {
        let known = self.rights.as_ref()?.acls.as_ref()?;
        Some(known.acls.clone())
    }

    /// Caches the answer to a GETACL; it must belong to the attributes that are known now.
    pub(super) fn keep_acls(&mut self, acls: Arc<Acls>, now: Nanos, times: Times) {
        self.rights().acls = Some(KnownAcls {
            acls,
            carried: false,
            carried_until: now + times.min,
        });
    }

    /// Forgets the answers to ACCESS and GETACL: permissions may have changed.
    pub fn forget_rights(&mut self) {
        self.rights = None;
    }

    fn rights(&mut self) -> &mut Rights {
        self.rights.get_or_insert_default()
    }

    /// Which of the rights `wanted` a cached answer to ACCESS grants; `None` if there is none.
    pub fn granted(&self, cred: &Cred, wanted: u32, now: Nanos) -> Option<u32> {
        let mut known = self.rights.as_ref()?.granted.iter();
        let known = known.find(|g| same_cred(&g.cred, cred))?;
        let wanted_bits = wanted as u8;
        (now < known.until && known.asked & wanted_bits == wanted_bits)
            .then_some(u32::from(known.granted) & wanted)
    }

    /// Caches an answer to ACCESS for one caller.
    pub fn grant(&mut self, cred: &Cred, asked: u32, granted: u32, until: Nanos) {
        /// Callers that are remembered for one object.
        const MOST: usize = 32;
        let all = &mut self.rights().granted;
        all.retain(|g| !same_cred(&g.cred, cred));
        if all.len() >= MOST {
            all.remove(0);
        }
        // Mostly there is only one.
        if all.is_empty() {
            all.reserve_exact(1);
        }
        all.push(Granted {
            cred: cred.clone(),
            asked: asked as u8,
            granted: granted as u8,
            until,
        });
    }

    /// The server has let `cred` look a name up in this directory.
    pub fn grant_search(&mut self, cred: &Cred, now: Nanos, until: Nanos) {
        let mut known = self.rights().granted.iter_mut();
        let known = known.find(|g| same_cred(&g.cred, cred));
        match known.filter(|known| now < known.until) {
            Some(known) => {
                known.asked |= access::LOOKUP as u8;
                known.granted |= access::LOOKUP as u8;
            }
            None => self.grant(cred, access::LOOKUP, access::LOOKUP, until),
        }
    }
}

/// What is known of the attributes is asked of their cache.
impl Deref for State {
    type Target = AttributeCache;

    fn deref(&self) -> &AttributeCache {
        &self.cache
    }
}

impl DerefMut for State {
    fn deref_mut(&mut self) -> &mut AttributeCache {
        &mut self.cache
    }
}

fn same_cred(a: &Cred, b: &Cred) -> bool {
    Arc::ptr_eq(a, b) || a == b
}

impl Deref for Inode {
    type Target = Node;

    fn deref(&self) -> &Node {
        &self.record
    }
}

impl Inode {
    /// That of a record that an earlier process has made. The kernel may have anything of the object.
    pub(super) fn restored(record: Record<Node>) -> Self {
        let inode = Self::new(record);
        // A directory's are dropped when it is opened, and a symbolic link never changes.
        if inode.kind == FileType::Regular {
            inode.flags.set(Flag::KernelPages);
        }
        inode.state.lock().unheard();
        inode
    }

    /// The number of links that programs see, without hidden names.
    pub(super) fn visible_links(&self, state: &State, attributes: &Attributes) -> u32 {
        let hidden = self.hidden_links.load(Ordering::Relaxed);
        let links = attributes.nlink.saturating_sub(u32::from(hidden));
        // Nobody has it open while its hidden name is being removed, so it has another name. The
        // server may have removed the hidden one already.
        match hidden > 0 && state.silly.is_none() {
            true => links.max(attributes.nlink.min(1)),
            false => links,
        }
    }

    pub(super) fn new(record: Record<Node>) -> Self {
        Inode {
            kind: FileType::try_from(u32::from(record.kind)).unwrap_or(FileType::Unknown),
            record,
            opens: AtomicU32::new(0),
            flags: Flags::default(),
            hidden_links: AtomicU16::new(0),
            losing: AtomicU16::new(0),
            named_in: AtomicU64::new(0),
            state: Mutex::new(State::new()),
            data: OnceLock::new(),
        }
    }

    pub fn is_dir(&self) -> bool {
        self.kind == FileType::Directory
    }

    /// The newest attributes known, valid or not; `None` if the server no longer knows the handle,
    /// or the object has no links, so that the name is looked up again.
    pub fn last_known(&self) -> Option<Attributes> {
        if self.flags.has(Flag::Stale) {
            return None;
        }
        let known = self.state.lock().attributes().copied();
        known.filter(|of| of.nlink > 0)
    }

    /// The server answered that it does not know the handle.
    pub fn mark_stale(&self) {
        self.flags.set(Flag::Stale);
        self.state.lock().expire();
    }

    pub fn mark_valid(&self) {
        self.flags.clear(Flag::Stale);
    }

    /// If it is a directory, remembers the name in `dir` by which the kernel has it, or is about to.
    pub(super) fn is_named(&self, dir: u64, name: &[u8]) {
        if self.is_dir() {
            self.named_in.store(dir, Ordering::Relaxed);
            let mut state = self.state.lock();
            let known = &mut state.listed_mut().name;
            if known.as_deref() != Some(name) {
                *known = Some(name.into());
            }
        }
    }

    /// The cached data; `None` if nothing was ever cached.
    pub fn data(&self) -> Option<&Arc<FileData>> {
        self.data.get()
    }

    /// To be called at the last close: an error of which open files were told is not told again by the next process.
    pub fn errors_were_told(&self) {
        if self.data().is_some_and(|data| data.errors.are_seen()) {
            self.errno.store(0, Ordering::Relaxed);
        }
    }

    /// As [`Inode::data()`], created by `make` if there is none.
    pub fn data_or(&self, make: impl FnOnce() -> Arc<FileData>) -> &Arc<FileData> {
        self.data.get_or_init(make)
    }

    /// Whether programs wrote data that the server does not have yet.
    pub(super) fn is_dirty(&self) -> bool {
        self.data()
            .is_some_and(|data| data.with(|inner| inner.is_dirty()))
    }

    /// The end of the data that was written here and that the size in the attributes may not include yet. Must be
    /// read before the attributes: it is forgotten once their size includes it.
    pub(super) fn unwritten_end(&self) -> u64 {
        self.data().map_or(0, |data| data.with(|inner| inner.end()))
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use nfsrdma_xdr::nfs3::FileHandle;

    /// A file with a handle of its own.
    pub(in crate::fs) fn file(records: &nfsrdma_record::Table, fileid: u64) -> Arc<Inode> {
        let handle = FileHandle::new(&fileid.to_ne_bytes()).unwrap();
        let record = Node::new(handle, FileType::Regular as u8, fileid);
        Arc::new(Inode::new(records.nodes().alloc(record)))
    }

    /// The memory of an inode and its record, without its entries in the table.
    #[test]
    fn an_inode_takes_little_memory() {
        let size = size_of::<Inode>() + size_of::<Node>();
        assert!(size <= 376, "{size} bytes");
    }
}
