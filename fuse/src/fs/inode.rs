//! What is known of one object, and whether it is still true.
//!
//! Attributes are believed for a time that adapts (nfs(5), `acregmin` and so on). Whether the
//! *contents* changed is told by size, mtime and ctime: weak cache consistency data (RFC 1813
//! section 2.6) of this client's own changes says what they were before and after, so that
//! own changes are not taken for somebody else's.

use super::clock::Nanos;
use super::file::FileData;
use crate::sync::Mutex;
use nfsrdma_client::nfs::Cred;
use nfsrdma_xdr::nfs3::{
    Attributes, FileHandle, FileType, Verifier, WccAttributes, WccData, access,
};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// Numbers contents of files and directories: another number, other contents.
static EPOCH: AtomicU64 = AtomicU64::new(1);

fn next_epoch() -> u64 {
    EPOCH.fetch_add(1, Ordering::Relaxed)
}

/// The node of the root directory (FUSE_ROOT_ID).
pub const ROOT: u64 = 1;

/// An object of the server.
#[derive(Debug)]
pub struct Inode {
    /// The kernel's number for it, which is never used again.
    pub nodeid: u64,
    pub fileid: u64,
    pub kind: FileType,
    pub handle: FileHandle,
    /// How often the kernel was told of it and has not forgotten.
    pub lookups: AtomicU64,
    /// Open files of this mount.
    pub opens: AtomicU32,
    /// Directories: when the kernel last took entries with the attributes of the children.
    pub listed_with_attributes: AtomicU64,
    /// Directories: whether a program looked at the children while it listed them, as `ls -l`
    /// does. The kernel says so by asking for attributes with the entries after the first ones.
    pub lists_attributes: AtomicBool,
    /// The server said STALE or BADHANDLE since attributes last came.
    refused: AtomicBool,
    /// Hidden names that are at the server, or on their way out.
    pub hidden_links: AtomicU32,
    /// This mount removed a name of it.
    pub removed: AtomicBool,
    pub state: Mutex<State>,
    data: OnceLock<Arc<FileData>>,
}

/// How long attributes are believed.
#[derive(Debug, Clone, Copy)]
pub struct Times {
    pub min: Nanos,
    pub max: Nanos,
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
}

/// The server's answer to ACCESS for one caller.
#[derive(Debug, Clone)]
struct Granted {
    cred: Cred,
    asked: u8,
    granted: u8,
    until: Nanos,
}

/// A file that was unlinked while open, under the name it hides behind.
#[derive(Debug, Clone)]
pub struct Silly {
    pub dir: FileHandle,
    pub dir_node: u64,
    pub name: Box<[u8]>,
    pub cred: Cred,
}

#[derive(Debug)]
pub struct State {
    attributes: Option<Attributes>,
    fresh_until: Nanos,
    timeout: Nanos,
    /// When attributes were last taken in.
    updated: u64,
    /// When an own change last began or ended.
    changed: u64,
    /// Own changes under way.
    in_flight: u32,
    /// Of the own changes since none was under way: some ran at the same time,
    overlapped: bool,
    /// somebody else changed the object in between,
    foreign: bool,
    /// the server did not say what it looks like now.
    unknown: bool,
    /// What the cached contents belong to.
    contents: Option<WccAttributes>,
    /// An own call on a name changed the ctime to something not told.
    ctime_open: bool,
    /// After the newest own change. Boxed: most inodes are only looked at, and there are many.
    newest: Option<Box<WccAttributes>>,
    /// Number of the contents.
    pub epoch: u64,
    /// Number of the contents in the kernel's cache.
    pub kernel_epoch: u64,
    /// Number of the contents whose attributes the kernel was last told; 0 before.
    pub told_epoch: u64,
    granted: Vec<Granted>,
    pub silly: Option<Box<Silly>>,
    /// Directories: what the server's cookies belong to, from the last listing. A listing the
    /// kernel began from its own cache goes on with it.
    pub cookies: Verifier,
}

fn wcc(a: &Attributes) -> WccAttributes {
    WccAttributes {
        size: a.size,
        mtime: a.mtime,
        ctime: a.ctime,
    }
}

/// Whether both say the same, but for the access time, which READ changes.
fn alike(a: &Attributes, b: &Attributes) -> bool {
    let atime = a.atime;
    *a == Attributes { atime, ..*b }
}

impl State {
    fn new() -> Self {
        State {
            attributes: None,
            fresh_until: 0,
            timeout: 0,
            updated: 0,
            changed: 0,
            in_flight: 0,
            overlapped: false,
            foreign: false,
            unknown: false,
            contents: None,
            ctime_open: false,
            newest: None,
            epoch: next_epoch(),
            kernel_epoch: 0,
            told_epoch: 0,
            granted: Vec::new(),
            silly: None,
            cookies: Verifier::default(),
        }
    }

    /// The kernel is told the attributes.
    pub fn tell(&mut self) {
        self.told_epoch = self.epoch;
    }

    /// The attributes last heard of.
    pub fn attributes(&self) -> Option<&Attributes> {
        self.attributes.as_ref()
    }

    /// The attributes, if they are to be believed now.
    pub fn fresh(&self, now: Nanos) -> Option<&Attributes> {
        self.attributes.as_ref().filter(|_| now < self.fresh_until)
    }

    /// How much longer the attributes are believed.
    pub fn fresh_for(&self, now: Nanos) -> Nanos {
        match self.attributes {
            Some(_) => self.fresh_until.saturating_sub(now),
            None => 0,
        }
    }

    /// Ask the server before believing the attributes again.
    pub fn expire(&mut self) {
        self.fresh_until = 0;
    }

    /// Own changes that may be at the server and are not accounted for yet.
    pub fn changes_in_flight(&self) -> u32 {
        self.in_flight
    }

    /// Whether no own change was under way since the call started.
    pub fn undisturbed(&self, stamp: Stamp) -> bool {
        self.in_flight == 0 && self.changed <= stamp.0
    }

    /// Whether no attributes came since the call started.
    pub fn unheard_since(&self, stamp: Stamp) -> bool {
        self.updated <= stamp.0
    }

    fn accept(&mut self, new: &Attributes, now: Nanos, times: Times, uncertain: bool) {
        let same = self
            .attributes
            .as_ref()
            .is_some_and(|old| wcc(old) == wcc(new));
        if !same {
            self.timeout = times.min;
        } else if now >= self.fresh_until {
            self.timeout = (self.timeout * 2).clamp(times.min, times.max);
        }
        let rights = |a: &Attributes| (a.ctime, a.mode, a.uid, a.gid);
        if self
            .attributes
            .as_ref()
            .is_none_or(|old| rights(old) != rights(new))
        {
            self.granted.clear();
        }
        self.attributes = Some(*new);
        self.updated = next_event();
        self.fresh_until = if uncertain { 0 } else { now + self.timeout };
    }

    /// Attributes came with the reply to a call that changed nothing. True if they show that
    /// somebody else changed the contents: what is cached of them is void.
    #[must_use]
    pub fn apply(&mut self, stamp: Stamp, new: &Attributes, now: Nanos, times: Times) -> bool {
        let mut uncertain = false;
        if self.updated > stamp.0
            && let Some(known) = &self.attributes
        {
            // Another reply came since the call was sent: this one may be the older.
            if new.ctime < known.ctime {
                return false;
            }
            uncertain = new.ctime == known.ctime && wcc(new) != wcc(known);
            if uncertain && new.size < known.size {
                self.fresh_until = 0;
                return false;
            }
            if new.ctime == known.ctime && !uncertain && !alike(new, known) {
                // Changed twice within one tick of the server's clock: mode, owner or links
                // of the two replies differ, and nothing says which is newer.
                self.fresh_until = 0;
                return false;
            }
        }
        self.accept(new, now, times, uncertain);
        if !self.undisturbed(stamp) {
            return false;
        }
        let seen = wcc(new);
        let foreign = self.is_other(&seen);
        self.contents = Some(seen);
        if foreign {
            self.epoch = next_epoch();
        }
        foreign
    }

    /// RENAME or REMOVE of one of its names changed the ctime, and the reply does not say to
    /// what: the next one heard of is believed, if size and mtime are the same.
    pub fn named_otherwise(&mut self) {
        self.ctime_open = true;
        self.fresh_until = 0;
    }

    fn is_other(&mut self, seen: &WccAttributes) -> bool {
        let open = std::mem::take(&mut self.ctime_open);
        self.contents.is_some_and(|known| {
            let same = (known.size, known.mtime) == (seen.size, seen.mtime);
            !(same && (open || known.ctime == seen.ctime))
        })
    }

    /// A call that changes the object starts.
    pub fn begin_change(&mut self) {
        self.in_flight += 1;
        self.changed = next_event();
        self.overlapped |= self.in_flight > 1;
    }

    /// It ended. True as for [`State::apply`].
    #[must_use]
    pub fn end_change(&mut self, data: &WccData, now: Nanos, times: Times) -> bool {
        if let Some(before) = &data.before {
            // Replies to changes that ran at the same time show each other's traces; they
            // can only tell a change made before all of them.
            self.foreign |= if self.overlapped {
                self.contents
                    .is_some_and(|contents| before.ctime < contents.ctime)
            } else {
                self.is_other(before)
            };
        }
        match &data.after {
            Some(after) => {
                let known = self.attributes.as_ref();
                let older = known.is_some_and(|a| after.ctime < a.ctime);
                // As in `apply`. Of two WRITEs within one tick, the one that tells the smaller
                // size most likely was the first.
                let unclear = self.overlapped
                    && known.is_some_and(|a| match wcc(a) == wcc(after) {
                        true => !alike(a, after),
                        false => a.ctime == after.ctime && after.size < a.size,
                    });
                if unclear {
                    self.fresh_until = 0;
                } else if !older {
                    self.accept(after, now, times, false);
                }
                let seen = wcc(after);
                let key = |w: &WccAttributes| (w.ctime, w.mtime, w.size);
                if self.newest.as_ref().is_none_or(|n| key(n) <= key(&seen)) {
                    self.newest = Some(Box::new(seen));
                }
            }
            None => self.unknown = true,
        }
        self.settle()
    }

    /// It failed.
    #[must_use]
    pub fn fail_change(&mut self) -> bool {
        self.settle()
    }

    fn settle(&mut self) -> bool {
        self.in_flight -= 1;
        self.changed = next_event();
        if self.in_flight > 0 {
            return false;
        }
        self.overlapped = false;
        if let Some(newest) = self.newest.take() {
            self.contents = Some(*newest);
        }
        if std::mem::take(&mut self.unknown) {
            self.contents = None;
            self.fresh_until = 0;
        }
        let foreign = std::mem::take(&mut self.foreign);
        if foreign {
            self.epoch = next_epoch();
        }
        foreign
    }

    /// The file is at least this long: the server took data up to there.
    pub fn grow(&mut self, size: u64) {
        if let Some(attributes) = &mut self.attributes
            && attributes.size < size
        {
            attributes.size = size;
            self.fresh_until = 0;
        }
    }

    /// The contents are void whatever the attributes say.
    pub fn renew_epoch(&mut self) {
        self.epoch = next_epoch();
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
        self.granted.retain(|g| !same_cred(&g.cred, cred));
        if self.granted.len() >= MOST {
            self.granted.remove(0);
        }
        self.granted.push(Granted {
            cred: cred.clone(),
            asked: asked as u8,
            granted: granted as u8,
            until,
        });
    }
}

impl State {
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
    pub fn new(nodeid: u64, handle: FileHandle, kind: FileType, fileid: u64) -> Self {
        Inode {
            nodeid,
            fileid,
            kind,
            handle,
            lookups: AtomicU64::new(0),
            opens: AtomicU32::new(0),
            listed_with_attributes: AtomicU64::new(0),
            lists_attributes: AtomicBool::new(false),
            refused: AtomicBool::new(false),
            hidden_links: AtomicU32::new(0),
            removed: AtomicBool::new(false),
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
    pub fn refuse(&self) {
        self.refused.store(true, Ordering::Relaxed);
        self.state.lock().expire();
    }

    /// The server knows it.
    pub fn vouch(&self) {
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
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use nfsrdma_xdr::nfs3::{SpecData, Time};

    const TIMES: Times = Times { min: 10, max: 80 };

    pub(in crate::fs) fn attributes(size: u64, tick: u32) -> Attributes {
        let time = Time {
            seconds: tick,
            nanoseconds: 0,
        };
        Attributes {
            kind: FileType::Regular,
            mode: 0o644,
            nlink: 1,
            uid: 0,
            gid: 0,
            size,
            used: size,
            rdev: SpecData::default(),
            fsid: 1,
            fileid: 2,
            atime: time,
            mtime: time,
            ctime: time,
        }
    }

    /// A known inode takes this, and the table's entry.
    #[test]
    fn an_inode_takes_little_memory() {
        assert!(size_of::<Inode>() <= 448, "{} bytes", size_of::<Inode>());
    }

    fn change(before: &Attributes, after: &Attributes) -> WccData {
        WccData {
            before: Some(wcc(before)),
            after: Some(*after),
        }
    }

    #[test]
    fn times_adapt_and_changes_reset_them() {
        let mut s = State::new();
        let a = attributes(1, 1);
        assert!(!s.apply(Stamp::now(), &a, 0, TIMES));
        assert_eq!(
            (s.fresh_for(0), s.fresh(9).is_some(), s.fresh(10).is_some()),
            (10, true, false)
        );
        for expected in [20, 40, 80, 80] {
            let now = s.fresh_until;
            assert!(!s.apply(Stamp::now(), &a, now, TIMES));
            assert_eq!(s.fresh_for(now), expected);
        }
        let now = s.fresh_until;
        assert!(s.apply(Stamp::now(), &attributes(1, 2), now, TIMES));
        assert_eq!(s.fresh_for(now), 10);
    }

    #[test]
    fn own_changes_are_told_from_others() {
        let mut s = State::new();
        let (a, b, c) = (attributes(1, 1), attributes(2, 2), attributes(3, 3));
        assert!(!s.apply(Stamp::now(), &a, 0, TIMES));
        let epoch = s.epoch;
        s.begin_change();
        assert!(!s.end_change(&change(&a, &b), 0, TIMES));
        assert!(!s.apply(Stamp::now(), &b, 0, TIMES));
        assert_eq!(s.epoch, epoch);
        // Somebody else changed it from b to c before this change.
        s.begin_change();
        assert!(s.end_change(&change(&c, &attributes(4, 4)), 0, TIMES));
        assert_ne!(s.epoch, epoch);
    }

    #[test]
    fn an_own_rename_is_no_foreign_change() {
        let mut s = State::new();
        let a = attributes(1, 1);
        assert!(!s.apply(Stamp::now(), &a, 0, TIMES));
        s.named_otherwise();
        let ctime = attributes(1, 2).ctime;
        assert!(!s.apply(Stamp::now(), &Attributes { ctime, ..a }, 0, TIMES));
        // Once.
        let ctime = attributes(1, 3).ctime;
        assert!(s.apply(Stamp::now(), &Attributes { ctime, ..a }, 0, TIMES));
        s.named_otherwise();
        assert!(s.apply(Stamp::now(), &attributes(1, 4), 0, TIMES));
    }

    #[test]
    fn own_changes_at_the_same_time_are_own_in_any_order() {
        let states: Vec<_> = (1..=4).map(|n| attributes(n, n as u32)).collect();
        for order in [[0, 1, 2], [2, 1, 0], [1, 2, 0]] {
            let mut s = State::new();
            assert!(!s.apply(Stamp::now(), &states[0], 0, TIMES));
            (0..3).for_each(|_| s.begin_change());
            for i in order {
                assert!(!s.end_change(&change(&states[i], &states[i + 1]), 0, TIMES));
            }
            assert_eq!(s.attributes().unwrap().size, 4);
            assert!(!s.apply(Stamp::now(), &states[3], 0, TIMES));
        }
    }

    #[test]
    fn of_own_writes_within_one_tick_the_longer_file_counts() {
        let mut s = State::new();
        let (a, mut b) = (attributes(1, 1), attributes(200, 2));
        assert!(!s.apply(Stamp::now(), &a, 0, TIMES));
        (0..2).for_each(|_| s.begin_change());
        assert!(!s.end_change(&change(&a, &b), 0, TIMES));
        // The other ran before it, and its reply comes after.
        b.size = 100;
        assert!(!s.end_change(&change(&a, &b), 0, TIMES));
        assert_eq!(s.attributes().unwrap().size, 200);
        assert!(s.fresh(0).is_none());
    }

    #[test]
    fn a_reply_overtaken_by_a_newer_one_is_ignored() {
        let mut s = State::new();
        let stamp = Stamp::now();
        assert!(!s.apply(Stamp::now(), &attributes(2, 2), 0, TIMES));
        assert!(!s.apply(stamp, &attributes(1, 1), 0, TIMES));
        assert_eq!(s.attributes().unwrap().size, 2);
        // Not overtaken: the server's word counts, whatever its clock says.
        assert!(s.apply(Stamp::now(), &attributes(1, 1), 0, TIMES));
        assert_eq!(s.attributes().unwrap().size, 1);
    }

    #[test]
    fn a_getattr_beside_an_own_change_judges_nothing() {
        let mut s = State::new();
        let (a, b) = (attributes(1, 1), attributes(2, 2));
        assert!(!s.apply(Stamp::now(), &a, 0, TIMES));
        s.begin_change();
        assert!(!s.apply(Stamp::now(), &b, 0, TIMES));
        assert!(!s.end_change(&change(&a, &b), 0, TIMES));
        assert!(!s.apply(Stamp::now(), &b, 0, TIMES));
    }

    #[test]
    fn of_two_replies_within_one_tick_neither_is_believed() {
        let mut state = State::new();
        let old = attributes(5, 1);
        let mut new = old;
        new.mode ^= 0o111;
        let asked = Stamp::now();
        // The reply to a SETATTR overtakes that of a READ sent before it.
        state.begin_change();
        let data = WccData {
            before: None,
            after: Some(new),
        };
        assert!(!state.end_change(&data, 0, TIMES));
        assert!(state.fresh(0).is_some());
        assert!(!state.apply(asked, &old, 0, TIMES));
        assert!(state.fresh(0).is_none());
        assert_eq!(state.attributes().unwrap().mode, new.mode);
        // The same between two changes.
        assert!(!state.apply(Stamp::now(), &new, 0, TIMES));
        assert!(state.fresh(0).is_some());
        state.begin_change();
        state.begin_change();
        assert!(!state.end_change(&data, 0, TIMES));
        let data = WccData {
            before: None,
            after: Some(old),
        };
        assert!(!state.end_change(&data, 0, TIMES));
        assert!(state.fresh(0).is_none());
    }
}
