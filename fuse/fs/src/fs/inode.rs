//! An object of the server, and what is known of it.
//!
//! Which attributes are the newest, and whether somebody else changed the contents, is decided
//! in `attribute_cache`; here are the numbers by which caches name contents (epochs), which
//! attributes the kernel was given, and what ACCESS granted.

pub(super) use super::attribute_cache::{Seen, Times};
pub(super) use super::changes::Kind;

use super::attribute_cache::{AttributeCache, Span};
use super::clock::Nanos;
use super::digest::{digest, digest_of_contents};
use super::file::FileData;
use crate::sync::Mutex;
use nfsrdma_nfs3::{Acls, Cred};
use nfsrdma_xdr::nfs3::{Attributes, FileHandle, FileType, Verifier, WccData, access};
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// Numbers contents of files and directories: another number, other contents.
static EPOCH: AtomicU64 = AtomicU64::new(1);

/// [`State::told_epoch`] when the size was one that this mount has written, and the server did not
/// show. The file need not get so long: what was written may have been at the server already, and
/// somebody else have cut the file since.
const BEYOND: u64 = u64::MAX - 1;
/// [`State::kernel_epoch`] of contents that somebody else has changed since, leaving size and
/// mtime as the kernel knows them: no attributes make it drop them.
const BEHIND: u64 = u64::MAX;

fn next_epoch() -> u64 {
    EPOCH.fetch_add(1, Ordering::Relaxed)
}

/// The node of the root directory (FUSE_ROOT_ID).
pub const ROOT: u64 = 1;

/// Whether the kernel is to ask for the names in a directory each time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Asked {
    #[default]
    No,
    /// For those it is given from now on.
    New,
    /// For all.
    All,
}

/// An object of the server.
#[derive(Debug)]
pub struct Inode {
    /// The kernel's number for it, which is never used again.
    pub nodeid: u64,
    pub fileid: u64,
    pub kind: FileType,
    pub handle: FileHandle,
    /// The kernel's references: how often it was given the node, less what it has forgotten.
    pub lookups: AtomicU64,
    /// Open files of this mount.
    pub opens: AtomicU32,
    /// The server answered STALE or BADHANDLE since attributes last arrived.
    refused: AtomicBool,
    /// Hidden names that are at the server, or are being removed.
    pub hidden_links: AtomicU16,
    /// This mount removed a name of it.
    pub removed: AtomicBool,
    /// A RENAME or LINK to a hidden name is under way, or not recorded. Changed with `state`
    /// locked.
    pub hiding: AtomicBool,
    /// The directory in which the kernel was last given a name of it; 0 before.
    pub named_in: AtomicU64,
    /// Of a directory: whether the kernel may cache the names in it for a time. See
    /// `sibling_names`.
    pub names_asked: Mutex<Asked>,
    pub state: Mutex<State>,
    data: OnceLock<Arc<FileData>>,
}

/// Numbers what happens to attributes, over all inodes.
static EVENT: AtomicU64 = AtomicU64::new(1);

fn next_event() -> u64 {
    EVENT.fetch_add(1, Ordering::Relaxed) + 1
}

/// A moment, taken when a call starts: replies tell what was true between then and now.
#[derive(Debug, Clone, Copy)]
pub struct Stamp(u64);

impl Stamp {
    pub fn now() -> Self {
        Stamp(EVENT.load(Ordering::Relaxed))
    }

    /// A moment that no call sent before shares.
    pub fn mark() -> Self {
        Stamp(next_event())
    }

    /// From then until now.
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

/// The ACLs of an object. They are the object's for as long as its ctime stays the same, or only
/// own changes that leave ACLs alone have changed it. Of such a change the server's
/// pre-operation attributes are the only witness, so then there is also a limit in time.
#[derive(Debug)]
struct KnownAcls {
    acls: Arc<Acls>,
    /// Own changes have changed the ctime since.
    carried: bool,
    /// The limit.
    carried_until: Nanos,
}

/// A file that was unlinked while open, under the name it hides behind.
#[derive(Debug, Clone)]
pub struct Silly {
    pub dir: FileHandle,
    pub dir_node: u64,
    pub name: Box<[u8]>,
    pub cred: Cred,
}

/// What listings of a directory leave behind.
#[derive(Debug, Clone, Default)]
pub struct Listed {
    /// What the server's cookies belong to, from the last listing. A listing the kernel began
    /// from its own cache goes on with it.
    pub cookies: Verifier,
    /// When the kernel last took entries with the attributes of the children.
    pub with_attributes: Nanos,
    /// Whether a program looked at the children while it listed them, as `ls -l` does. The
    /// kernel says so by asking for attributes with the entries after the first ones.
    pub lists_attributes: bool,
}

/// What a reply means for caches above this one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[must_use]
pub(super) struct Outcome {
    /// Somebody else changed the contents.
    pub foreign: bool,
    /// The kernel caches attributes that are out of date.
    pub misled: bool,
    /// See [`Seen::not_atomic`].
    pub not_atomic: bool,
    /// See [`Seen::ambiguous`].
    pub ambiguous: bool,
}

#[derive(Debug)]
pub struct State {
    cache: AttributeCache,
    /// Number of the contents.
    pub epoch: u64,
    /// Number of the contents in the kernel's cache; 0 before it had any.
    pub kernel_epoch: u64,
    /// Number of the contents whose attributes the kernel was last given; 0 before, and
    /// [`BEYOND`].
    pub told_epoch: u64,
    /// Digest of the attributes the kernel was last given; 0 if it asks anyhow.
    told: u32,
    /// Digest of size and mtime among these.
    told_contents: u32,
    /// Exactly as long as it need be: it changes seldom, and there are many inodes.
    granted: Box<[Granted]>,
    /// What GETACL returned of the object as it is now.
    acls: Option<Box<KnownAcls>>,
    pub silly: Option<Box<Silly>>,
    /// Of a directory that was listed.
    listed: Option<Box<Listed>>,
}

impl State {
    fn new() -> Self {
        State {
            cache: AttributeCache::default(),
            epoch: next_epoch(),
            kernel_epoch: 0,
            told_epoch: 0,
            told: 0,
            told_contents: 0,
            granted: Box::default(),
            acls: None,
            silly: None,
            listed: None,
        }
    }

    /// The kernel is given the attributes, with this size, to cache while they are valid. True if
    /// size or mtime are others than before, so that it drops its pages.
    #[must_use]
    pub fn record_told(&mut self, size: u64) -> bool {
        let known = self.cache.attributes();
        let beyond = known.is_some_and(|known| known.size < size);
        self.told_epoch = if beyond { BEYOND } else { self.epoch };
        self.told = known.map_or(0, digest);
        let contents = known.map_or(0, |known| digest_of_contents(size, known.mtime));
        std::mem::replace(&mut self.told_contents, contents) != contents
    }

    /// The kernel is about to get other attributes in the reply to its own call.
    pub fn forget_told(&mut self) {
        self.told = 0;
    }

    /// What listings left behind, if there was one.
    pub fn listed(&self) -> Option<&Listed> {
        self.listed.as_deref()
    }

    /// The same, to be changed.
    pub fn listed_mut(&mut self) -> &mut Listed {
        self.listed.get_or_insert_default()
    }

    /// Whether the kernel has data of before somebody else's change, and has not been given
    /// attributes since that make it drop them.
    pub fn kernel_is_behind(&self) -> bool {
        self.kernel_epoch == BEHIND
            || (self.kernel_epoch != 0
                && self.kernel_epoch != self.epoch
                && self.told_epoch != self.epoch)
    }

    /// What was written is lost, and the kernel's cache has it: the next open drops it there.
    /// Returns whether the kernel has any data.
    pub fn contents_lost(&mut self) -> bool {
        self.epoch = next_epoch();
        let known = self.kernel_epoch != 0;
        if known {
            self.kernel_epoch = BEHIND;
        }
        known
    }

    /// The newest attributes known, valid or not.
    pub fn attributes(&self) -> Option<&Attributes> {
        self.cache.attributes()
    }

    /// The attributes, if they are valid now.
    pub fn fresh(&self, now: Nanos) -> Option<&Attributes> {
        self.cache.fresh(now)
    }

    /// How much longer the attributes are valid.
    pub fn fresh_for(&self, now: Nanos) -> Nanos {
        self.cache.fresh_for(now)
    }

    /// Ends the validity of the attributes: the next use asks the server.
    pub fn expire(&mut self) {
        self.cache.expire();
    }

    /// Whether no change by this mount was under way since the call was sent.
    pub fn undisturbed(&self, stamp: Stamp) -> bool {
        self.cache.undisturbed(stamp.0)
    }

    /// Whether no attributes arrived since the call was sent.
    pub fn unheard_since(&self, stamp: Stamp) -> bool {
        self.cache.unheard_since(stamp.0)
    }

    /// Whether own changes are under way.
    pub fn is_changing(&self) -> bool {
        self.cache.is_changing()
    }

    /// Whether a call sent since then has confirmed the cached contents.
    pub fn verified_since(&self, stamp: Stamp) -> bool {
        self.cache.verified_since(stamp.0)
    }

    /// Whether changes by this mount, all answered, have left the cached contents unverified.
    pub fn is_unverified(&self) -> bool {
        self.cache.is_unverified()
    }

    /// Draws the consequences of what a reply showed.
    fn learned(&mut self, seen: Seen) -> Outcome {
        if seen.changed {
            let carried = self.acls.take_if(|_| seen.own_ctime && !seen.foreign);
            self.forget_rights();
            self.acls = carried;
            if let Some(known) = &mut self.acls {
                known.carried = true;
            }
        }
        if seen.foreign {
            self.acls = None;
            self.epoch = next_epoch();
            let known = self.attributes();
            let contents = known.map(|known| digest_of_contents(known.size, known.mtime));
            if self.kernel_epoch != 0 && contents == Some(self.told_contents) {
                self.kernel_epoch = BEHIND;
            }
        }
        let told = self.told;
        let misled = told != 0 && self.attributes().is_some_and(|known| digest(known) != told);
        if misled {
            self.told = 0;
        }
        Outcome {
            foreign: seen.foreign,
            misled,
            not_atomic: seen.not_atomic,
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
        let seen = self.cache.apply(stamp.span(), new, now, times);
        self.learned(seen)
    }

    /// RENAME or REMOVE of one of its names changed the ctime, and the reply does not show the new
    /// one.
    pub fn named_otherwise(&mut self) {
        self.cache.named_otherwise(next_event());
    }

    /// A call that changes the object is sent. `cached`: contents are cached.
    pub fn begin_change(&mut self, cached: bool) -> Stamp {
        let event = next_event();
        self.cache.begin_change(event, cached);
        Stamp(event)
    }

    /// It was answered; `floor`: the file is at least so long now.
    pub(super) fn end_change(
        &mut self,
        stamp: Stamp,
        kind: Kind,
        data: &WccData,
        floor: u64,
        now: Nanos,
        times: Times,
    ) -> Outcome {
        let seen = self
            .cache
            .end_change(stamp.span(), kind, data, floor, now, times);
        self.learned(seen)
    }

    /// It failed. `answered`: by the server's word.
    pub(super) fn fail_change(
        &mut self,
        stamp: Stamp,
        answered: bool,
        now: Nanos,
        times: Times,
    ) -> Outcome {
        let seen = self.cache.fail_change(stamp.span(), answered, now, times);
        self.learned(seen)
    }

    /// Whether a GETATTR is to be sent ahead of a WRITE: whatever is cached was last seen
    /// before it, and no change is under way that tells.
    pub fn begin_check(&mut self) -> Option<Stamp> {
        self.cache.wants_check().then(|| {
            let event = next_event();
            self.cache.begin_check(event);
            Stamp(event)
        })
    }

    /// It was answered, or not.
    pub(super) fn end_check(
        &mut self,
        stamp: Stamp,
        seen: Option<&Attributes>,
        now: Nanos,
        times: Times,
    ) -> Outcome {
        let seen = self.cache.end_check(stamp.span(), seen, now, times);
        self.learned(seen)
    }

    /// This mount has just made the file.
    pub fn made(&mut self) {
        self.cache.made();
    }

    /// A WRITE under way begins behind the start of the file.
    pub(super) fn leave_hole(&mut self) {
        self.cache.leave_hole();
    }

    /// The file is at least this long: the server took data up to there.
    pub fn grow(&mut self, size: u64) {
        self.cache.grow(size);
    }

    /// The contents are void whatever the attributes say.
    pub fn renew_epoch(&mut self) {
        self.epoch = next_epoch();
        self.cache.forget_contents();
    }

    /// The ACLs that go with the attributes, if they were asked for.
    pub fn acls(&self, now: Nanos) -> Option<Arc<Acls>> {
        let known = self.acls.as_ref()?;
        (!known.carried || now < known.carried_until).then(|| known.acls.clone())
    }

    /// GETACL answered, of the object as it is known.
    pub(super) fn keep_acls(&mut self, acls: Arc<Acls>, now: Nanos, times: Times) {
        self.acls = Some(Box::new(KnownAcls {
            acls,
            carried: false,
            carried_until: now + times.min,
        }));
    }

    /// Who may do what may be otherwise now.
    pub fn forget_rights(&mut self) {
        self.granted = Box::default();
        self.acls = None;
    }

    /// What ACCESS said before: the granted ones of `wanted`, if known.
    pub fn granted(&self, cred: &Cred, wanted: u32, now: Nanos) -> Option<u32> {
        let known = self.granted.iter().find(|g| same_cred(&g.cred, cred))?;
        let wanted_bits = wanted as u8;
        (now < known.until && known.asked & wanted_bits == wanted_bits)
            .then_some(u32::from(known.granted) & wanted)
    }

    /// ACCESS answered.
    pub fn grant(&mut self, cred: &Cred, asked: u32, granted: u32, until: Nanos) {
        /// Callers remembered for one object.
        const MOST: usize = 32;
        let mut all = std::mem::take(&mut self.granted).into_vec();
        all.retain(|g| !same_cred(&g.cred, cred));
        if all.len() >= MOST {
            all.remove(0);
        }
        all.push(Granted {
            cred: cred.clone(),
            asked: asked as u8,
            granted: granted as u8,
            until,
        });
        self.granted = all.into_boxed_slice();
    }

    /// The server has let `cred` look a name up in this directory.
    pub fn grant_search(&mut self, cred: &Cred, now: Nanos, until: Nanos) {
        let known = self.granted.iter_mut().find(|g| same_cred(&g.cred, cred));
        match known.filter(|known| now < known.until) {
            Some(known) => {
                known.asked |= access::LOOKUP as u8;
                known.granted |= access::LOOKUP as u8;
            }
            None => self.grant(cred, access::LOOKUP, access::LOOKUP, until),
        }
    }
}

fn same_cred(a: &Cred, b: &Cred) -> bool {
    Arc::ptr_eq(a, b) || a == b
}

impl Inode {
    /// The links a program is shown: a hidden name is none. Called with the state locked.
    pub(super) fn visible_links(&self, attributes: &Attributes) -> u32 {
        let hidden = self.hidden_links.load(Ordering::Relaxed);
        attributes.nlink.saturating_sub(u32::from(hidden))
    }

    pub fn new(nodeid: u64, handle: FileHandle, kind: FileType, fileid: u64) -> Self {
        Inode {
            nodeid,
            fileid,
            kind,
            handle,
            lookups: AtomicU64::new(0),
            opens: AtomicU32::new(0),
            refused: AtomicBool::new(false),
            hidden_links: AtomicU16::new(0),
            removed: AtomicBool::new(false),
            hiding: AtomicBool::new(false),
            named_in: AtomicU64::new(0),
            names_asked: Mutex::default(),
            state: Mutex::new(State::new()),
            data: OnceLock::new(),
        }
    }

    pub fn is_dir(&self) -> bool {
        self.kind == FileType::Directory
    }

    /// The attributes last heard of, fresh or not; `None` if the server knows the handle no
    /// more, so that the name is looked up again.
    pub fn last_known(&self) -> Option<Attributes> {
        if self.refused.load(Ordering::Relaxed) {
            return None;
        }
        let known = self.state.lock().attributes().copied();
        known.filter(|of| of.nlink > 0)
    }

    /// The server does not know the handle (any more).
    pub fn mark_stale(&self) {
        self.refused.store(true, Ordering::Relaxed);
        self.state.lock().expire();
    }

    /// The server knows it.
    pub fn mark_valid(&self) {
        self.refused.store(false, Ordering::Relaxed);
    }

    /// What is cached of the contents, if anything ever was.
    pub fn data(&self) -> Option<&Arc<FileData>> {
        self.data.get()
    }

    /// The same, made now if need be.
    pub fn data_or(&self, make: impl FnOnce() -> Arc<FileData>) -> &Arc<FileData> {
        self.data.get_or_init(make)
    }

    /// Whether something was written to it that is not at the server.
    pub(super) fn is_dirty(&self) -> bool {
        self.data()
            .is_some_and(|data| data.with(|inner| inner.is_dirty()))
    }

    /// End of what was written to it and is not yet known to be in the attributes' size. To be
    /// asked for before the attributes: it is forgotten once they know.
    pub(super) fn unwritten_end(&self) -> u64 {
        self.data().map_or(0, |data| data.with(|inner| inner.end()))
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A known inode takes this, and the table's entry.
    #[test]
    fn an_inode_takes_little_memory() {
        assert!(size_of::<Inode>() <= 432, "{} bytes", size_of::<Inode>());
    }
}
