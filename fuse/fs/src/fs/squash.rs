//! Whether the server treats uid 0 as another user ("root squashing").
//!
//! The local kernel lets uid 0 search every directory. If the server does not, names in directories
//! that not everybody may search must not stay in the kernel's cache, where uid 0 would find them.
//! No call of NFSv3 returns whether a server squashes uid 0, or to which user. But the answer to an
//! ACCESS by uid 0 shows it, for a directory that not everybody may search:
//!
//! * LOOKUP is refused: uid 0 is squashed.
//! * LOOKUP is granted: uid 0 is not squashed, or it is squashed to the owner of the directory, or
//!   to a member of its group if the group may search it. If no single user explains all grants, as
//!   with private directories of two owners, uid 0 is not squashed.
//!
//! Until this is decided, uid 0 may search where the grants so far imply it, and counts as squashed
//! otherwise.
//!
//! A second question is whether the supplementary groups of uid 0 matter to the server, so that
//! they have to be read for each request of uid 0 ([`Superuser`]). They do not if uid 0 is the
//! superuser, which shows when uid 0 creates an object: it belongs to uid 0 only if that is not
//! squashed. A file system without owners may show uid 0 for everything, so this is assumed only
//! until the server refuses something, and is not used to decide who may search a directory.

use nfsrdma_xdr::nfs3::Attributes;
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

/// The user and the group either of which explains why LOOKUP in a directory was granted, if uid 0
/// is squashed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Grant {
    owner: Option<u32>,
    group: Option<u32>,
}

impl Grant {
    fn of(dir: &Attributes) -> Self {
        // No server squashes uid 0 to uid 0 or gid 0.
        let other = |id: u32, bit: u32| (dir.mode & bit != 0 && id != 0).then_some(id);
        Grant {
            owner: other(dir.uid, 0o100),
            group: other(dir.gid, 0o010),
        }
    }

    fn explained_by(&self, uid: Option<u32>, gid: Option<u32>) -> bool {
        (self.owner.is_some() && self.owner == uid) || (self.group.is_some() && self.group == gid)
    }
}

/// Whether owner, group and others all may search the directory.
pub(super) fn everybody_may_search(dir: &Attributes) -> bool {
    dir.mode & 0o111 == 0o111
}

/// Whether a wider class of users may search a directory that a narrower one may not (mode 0705 for
/// example). Grants for such a directory are not used.
fn is_odd(dir: &Attributes) -> bool {
    let has = |bit| dir.mode & bit != 0;
    has(0o001) && dir.mode & 0o110 != 0o110 || has(0o010) && !has(0o100)
}

/// What is known of how the server treats uid 0 in a file system.
#[derive(Debug, Clone, PartialEq, Eq)]
enum RootSquash {
    /// All grants so far can be explained by one user to whom uid 0 may be squashed.
    Unknown(Vec<Grant>),
    Squashed,
    NotSquashed,
}

/// The same for each file system of the server that was seen, as a server may squash uid 0 in one
/// and not in another.
#[derive(Debug, Default)]
pub(super) struct RootSquashes(Vec<(u64, RootSquash)>);

impl RootSquashes {
    /// File systems that are told apart, at most: then all is asked anew.
    const MOST: usize = 64;

    /// Whether the server lets uid 0 search `dir`; `None` if an ACCESS would tell.
    pub(super) fn may_search(&self, dir: &Attributes) -> Option<bool> {
        if everybody_may_search(dir) {
            return Some(true);
        }
        let known = self.0.iter().find(|(fsid, _)| *fsid == dir.fsid);
        match known {
            Some((_, known)) => known.may_search(dir),
            None => RootSquash::default().may_search(dir),
        }
    }

    /// The server answered an ACCESS or LOOKUP by uid 0 in `dir`. Returns whether that has told
    /// that uid 0 is squashed.
    pub(super) fn answered(&mut self, dir: &Attributes, granted: bool) -> bool {
        let known = self.0.iter().position(|(fsid, _)| *fsid == dir.fsid);
        let at = known.unwrap_or_else(|| {
            if self.0.len() >= Self::MOST {
                self.0.clear();
            }
            self.0.push((dir.fsid, RootSquash::default()));
            self.0.len() - 1
        });
        let (_, known) = &mut self.0[at];
        let before = *known == RootSquash::Squashed;
        known.answered(dir, granted);
        !before && *known == RootSquash::Squashed
    }
}

impl Default for RootSquash {
    fn default() -> Self {
        RootSquash::Unknown(Vec::new())
    }
}

impl RootSquash {
    /// Whether the server lets uid 0 search `dir`; `None` if that is not known and an ACCESS would
    /// show it.
    fn may_search(&self, dir: &Attributes) -> Option<bool> {
        match self {
            _ if everybody_may_search(dir) => Some(true),
            RootSquash::Squashed => Some(false),
            RootSquash::NotSquashed => Some(true),
            RootSquash::Unknown(_) if is_odd(dir) => Some(false),
            RootSquash::Unknown(grants) => {
                let asked = Grant::of(dir);
                // Every user that explains all grants may also search this directory.
                let implied = !grants.is_empty()
                    && candidates(grants).all(|(uid, gid)| asked.explained_by(uid, gid));
                implied.then_some(true)
            }
        }
    }

    /// The server answered an ACCESS or LOOKUP by uid 0 in `dir`.
    fn answered(&mut self, dir: &Attributes, granted: bool) {
        if everybody_may_search(dir) {
            return;
        }
        if !granted {
            // An export may begin to squash root while it is mounted. The verdict stays for the life
            // of the mount.
            *self = RootSquash::Squashed;
            return;
        }
        let RootSquash::Unknown(grants) = self else {
            return;
        };
        if is_odd(dir) {
            return;
        }
        let new = Grant::of(dir);
        if !grants.contains(&new) {
            grants.push(new);
        }
        if candidates(grants).next().is_none() {
            *self = RootSquash::NotSquashed;
        }
    }
}

/// The users (uid and gid) to one of whom uid 0 is squashed, if it is squashed at all. `None`
/// stands for any number that is in no grant.
fn candidates(grants: &[Grant]) -> impl Iterator<Item = (Option<u32>, Option<u32>)> {
    let with_none = |mut ids: Vec<Option<u32>>| {
        ids.push(None);
        ids.sort_unstable();
        ids.dedup();
        ids
    };
    let uids = with_none(grants.iter().map(|grant| grant.owner).collect());
    let gids = with_none(grants.iter().map(|grant| grant.group).collect());
    uids.into_iter()
        .flat_map(move |uid| gids.clone().into_iter().map(move |gid| (uid, gid)))
        .filter(|&(uid, gid)| grants.iter().all(|grant| grant.explained_by(uid, gid)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use nfsrdma_xdr::nfs3::{FileType, SpecData, Time};
    use proptest::prelude::*;

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
    fn a_refusal_tells() {
        let mut root = RootSquash::default();
        assert_eq!(root.may_search(&dir(1, 1, 0o700)), None);
        root.answered(&dir(1, 1, 0o700), false);
        assert_eq!(root.may_search(&dir(2, 2, 0o750)), Some(false));
        assert_eq!(root.may_search(&dir(2, 2, 0o755)), Some(true));
    }

    #[test]
    fn a_refusal_counts_after_grants() {
        let mut root = RootSquash::NotSquashed;
        root.answered(&dir(1, 1, 0o755), false);
        assert_eq!(
            root,
            RootSquash::NotSquashed,
            "it is refused for another reason"
        );
        root.answered(&dir(1, 1, 0o700), false);
        assert_eq!(root, RootSquash::Squashed);
    }

    #[test]
    fn one_file_system_says_nothing_of_another() {
        let of = |fsid| Attributes {
            fsid,
            ..dir(0, 0, 0o700)
        };
        let mut root = RootSquashes::default();
        assert!(!root.answered(&of(7), true));
        assert_eq!(root.may_search(&of(7)), Some(true));
        assert_eq!(root.may_search(&of(8)), None);
        assert!(root.answered(&of(8), false) && !root.answered(&of(8), false));
        assert_eq!(root.may_search(&of(8)), Some(false));
        assert_eq!(root.may_search(&of(7)), Some(true));
        for fsid in 0..1000 {
            root.answered(&of(fsid), true);
        }
        assert!(root.0.len() <= RootSquashes::MOST);
    }

    #[test]
    fn a_grant_in_a_directory_of_root_tells() {
        let mut root = RootSquash::default();
        root.answered(&dir(0, 0, 0o770), true);
        assert_eq!(root, RootSquash::NotSquashed);
    }

    #[test]
    fn one_owner_may_be_whom_root_is_squashed_to() {
        let mut root = RootSquash::default();
        root.answered(&dir(1, 1, 0o700), true);
        assert_eq!(root.may_search(&dir(1, 7, 0o700)), Some(true));
        assert_eq!(root.may_search(&dir(2, 1, 0o700)), None);
        root.answered(&dir(2, 1, 0o700), true);
        assert_eq!(root, RootSquash::NotSquashed);
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

    proptest! {
        /// With servers that squash uid 0 to one user or not at all, no answer is wrong, and few
        /// ACCESS calls are needed.
        #[test]
        fn no_answer_is_wrong(
            squashed in proptest::option::of((1u32..4, 1u32..4)),
            dirs in proptest::collection::vec((0u32..4, 0u32..4, 0u32..0o1000), 1..60),
        ) {
            let truth = |dir: &Attributes| match squashed {
                None => true,
                Some((uid, _)) if uid == dir.uid => dir.mode & 0o100 != 0,
                Some((_, gid)) if gid == dir.gid => dir.mode & 0o010 != 0,
                Some(_) => dir.mode & 0o001 != 0,
            };
            let mut root = RootSquash::default();
            let mut asked = 0;
            for (uid, gid, mode) in dirs {
                let dir = dir(uid, gid, mode);
                match root.may_search(&dir) {
                    Some(true) => prop_assert!(truth(&dir), "{dir:?} {root:?}"),
                    // This may be too strict where uid 0 is squashed to the owner.
                    Some(false) => prop_assert!(squashed.is_some() || is_odd(&dir)),
                    None => {
                        asked += 1;
                        root.answered(&dir, truth(&dir));
                    }
                }
            }
            prop_assert!(asked <= 6, "{asked} questions");
        }
    }
}
