//! Whether the server treats uid 0 as another user ("root squashing").
//!
//! The local kernel lets uid 0 search every directory. If the server does not, names in directories
//! that not everybody may search must not stay in the kernel's cache, where uid 0 would find them.
//! No call of NFSv3 returns whether a server squashes uid 0, or to which user. But an ACCESS by uid 0
//! shows whether it may search a directory, and with it all others of the same owner, group and mode
//! in that file system. Until that is known, uid 0 counts as squashed.
//!
//! A second question is whether the supplementary groups of uid 0 matter to the server, so that
//! they have to be read for each request of uid 0 ([`Superuser`]). They do not if uid 0 is the
//! superuser, which shows when uid 0 creates an object: it belongs to uid 0 only if that is not
//! squashed. A file system without owners may show uid 0 for everything, so this is assumed only
//! until the server refuses something, and is not used to decide who may search a directory.

use nfsrdma_xdr::nfs3::Attributes;
use rustc_hash::FxHashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The file system of the server in which uid 0 last created an object that belongs to uid 0. (A
/// server may squash uid 0 in one file system and not in another.)
#[derive(Debug, Default)]
pub(super) struct Superuser {
    seen: AtomicBool,
    fsid: AtomicU64,
}

impl Superuser {
    /// The user `uid` created an object.
    pub(super) fn made(&self, uid: u32, object: &Attributes) {
        if uid == 0 {
            self.fsid.store(object.fsid, Ordering::Relaxed);
            self.seen.store(object.uid == 0, Ordering::Release);
        }
    }

    /// The server refused a call of any user.
    pub(super) fn refused(&self) {
        if self.seen.load(Ordering::Relaxed) {
            self.seen.store(false, Ordering::Relaxed);
        }
    }

    /// Whether uid 0 is the superuser in this file system.
    pub(super) fn is_known_in(&self, fsid: u64) -> bool {
        self.seen.load(Ordering::Acquire) && self.fsid.load(Ordering::Relaxed) == fsid
    }
}

/// Whether owner, group and others all may search the directory.
pub(super) fn everybody_may_search(dir: &Attributes) -> bool {
    dir.mode & 0o111 == 0o111
}

/// File system, owner, group and mode of a directory, by which a server decides. (A server may squash
/// uid 0 in one file system and not in another.)
type Class = (u64, u32, u32, u32);

fn class(dir: &Attributes) -> Class {
    (dir.fsid, dir.uid, dir.gid, dir.mode & 0o777)
}

/// In which directories the server lets uid 0 search.
#[derive(Debug, Default)]
pub(super) struct RootSquashes(FxHashMap<Class, bool>);

impl RootSquashes {
    /// Classes that are told apart, at most: then all is asked anew.
    const MOST: usize = 1024;

    /// Whether the server lets uid 0 search `dir`; `None` if an ACCESS would tell.
    pub(super) fn may_search(&self, dir: &Attributes) -> Option<bool> {
        match everybody_may_search(dir) {
            true => Some(true),
            false => self.0.get(&class(dir)).copied(),
        }
    }

    /// The server answered an ACCESS or LOOKUP by uid 0 in `dir`.
    pub(super) fn answered(&mut self, dir: &Attributes, granted: bool) {
        if everybody_may_search(dir) {
            return;
        }
        if !granted {
            // An export may begin to squash root while it is mounted: what was granted is asked anew.
            self.0.retain(|of, granted| of.0 != dir.fsid || !*granted);
        }
        if self.0.len() >= Self::MOST {
            self.0.clear();
        }
        self.0.insert(class(dir), granted);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nfsrdma_xdr::nfs3::{FileType, SpecData, Time};

    fn dir(uid: u32, gid: u32, mode: u32) -> Attributes {
        Attributes {
            kind: FileType::Directory,
            mode,
            nlink: 2,
            uid,
            gid,
            size: 0,
            used: 0,
            rdev: SpecData::default(),
            fsid: 1,
            fileid: 2,
            atime: Time::default(),
            mtime: Time::default(),
            ctime: Time::default(),
        }
    }

    #[test]
    fn an_answer_counts_for_directories_of_the_same_owner_group_and_mode() {
        let mut root = RootSquashes::default();
        assert_eq!(root.may_search(&dir(1, 1, 0o700)), None);
        root.answered(&dir(1, 1, 0o700), true);
        assert_eq!(root.may_search(&dir(1, 1, 0o1700)), Some(true));
        for other in [dir(2, 1, 0o700), dir(1, 2, 0o700), dir(1, 1, 0o750)] {
            assert_eq!(root.may_search(&other), None);
        }
        assert_eq!(root.may_search(&dir(2, 2, 0o755)), Some(true));
    }

    #[test]
    fn a_refusal_counts_after_grants() {
        let mut root = RootSquashes::default();
        root.answered(&dir(1, 1, 0o700), true);
        root.answered(&dir(2, 2, 0o700), true);
        // For another reason.
        root.answered(&dir(1, 1, 0o755), false);
        assert_eq!(root.may_search(&dir(1, 1, 0o700)), Some(true));
        root.answered(&dir(1, 1, 0o700), false);
        assert_eq!(root.may_search(&dir(1, 1, 0o700)), Some(false));
        assert_eq!(root.may_search(&dir(2, 2, 0o700)), None);
    }

    #[test]
    fn one_file_system_says_nothing_of_another() {
        let of = |fsid| Attributes {
            fsid,
            ..dir(0, 0, 0o700)
        };
        let mut root = RootSquashes::default();
        root.answered(&of(7), true);
        assert_eq!(root.may_search(&of(8)), None);
        root.answered(&of(8), false);
        assert_eq!(root.may_search(&of(8)), Some(false));
        assert_eq!(root.may_search(&of(7)), Some(true));
        for fsid in 0..3000 {
            root.answered(&of(fsid), true);
        }
        assert!(root.0.len() <= RootSquashes::MOST);
    }

    #[test]
    fn who_made_what_belongs_to_root_is_the_superuser_until_somebody_is_refused() {
        let made = |uid, fsid| Attributes {
            fsid,
            ..dir(uid, 0, 0o755)
        };
        let root = Superuser::default();
        assert!(!root.is_known_in(0));
        root.made(0, &made(0, 7));
        assert!(root.is_known_in(7) && !root.is_known_in(8));
        root.refused();
        assert!(!root.is_known_in(7));
        root.made(0, &made(0, 7));
        root.made(0, &made(65534, 7));
        assert!(!root.is_known_in(7), "it is squashed");
        root.made(1000, &made(0, 7));
        assert!(!root.is_known_in(7), "somebody else's object says nothing");
    }
}
