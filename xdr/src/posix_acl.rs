//! POSIX access control lists in two encodings: the values of the extended attributes
//! `system.posix_acl_access` and `system.posix_acl_default` (version 2 of
//! `linux/posix_acl_xattr.h`), and the entries of NFS_ACL. POSIX 1003.1e draft 17 defines which
//! ACLs are valid, which mode an ACL is equivalent to, and what a new object inherits from its
//! directory's default ACL.

use crate::nfs_acl::{AclEntry, DEFAULT, MAX_ENTRIES, tag};
use thiserror::Error;

/// The extended attribute of an access ACL.
pub const ACCESS_NAME: &str = "system.posix_acl_access";
/// The extended attribute of a directory's default ACL.
pub const DEFAULT_NAME: &str = "system.posix_acl_default";
/// The version at the start of a value of these attributes.
const XATTR_VERSION: u32 = 2;
/// Length of the header before the entries, and of an entry, in bytes.
const HEADER: usize = 4;
const ENTRY: usize = 8;
/// The id of entries that have no id.
const UNDEFINED_ID: u32 = u32::MAX;
const RWX: u32 = 7;

/// Why bytes are not an ACL.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum AclError {
    /// A version other than 2.
    #[error("the version of the access control list is not known")]
    Version,
    /// The bytes are not entries, or an entry has an unknown type.
    #[error("the access control list is malformed")]
    Malformed,
    /// The entries are not an ACL: one is missing, appears twice, or the mask is missing.
    #[error("the access control list is not valid")]
    Invalid,
    #[error("the access control list has too many entries")]
    TooLong,
}

/// An ACL: entries with [`tag`]s without [`DEFAULT`], sorted by tag and then by id.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PosixAcl {
    entries: Vec<AclEntry>,
}

fn has_id(tag: u32) -> bool {
    matches!(tag, tag::USER | tag::GROUP)
}

impl PosixAcl {
    /// An ACL of any entries, which need not be [valid](PosixAcl::is_valid).
    fn new(mut entries: Vec<AclEntry>) -> Self {
        for entry in &mut entries {
            if !has_id(entry.tag) {
                entry.id = UNDEFINED_ID;
            }
        }
        entries.sort_by_key(|entry| (entry.tag, entry.id));
        PosixAcl { entries }
    }

    /// The ACL that is equivalent to a mode.
    pub fn of_mode(mode: u32) -> Self {
        let entry = |tag, shift| AclEntry {
            tag,
            id: UNDEFINED_ID,
            permissions: mode >> shift & RWX,
        };
        PosixAcl {
            entries: vec![
                entry(tag::USER_OBJ, 6),
                entry(tag::GROUP_OBJ, 3),
                entry(tag::OTHER, 0),
            ],
        }
    }

    /// The entries of the ACL.
    pub fn entries(&self) -> &[AclEntry] {
        &self.entries
    }

    /// Whether there is no entry, which means that there is no ACL.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Decodes the value of an extended attribute.
    pub fn from_xattr(value: &[u8]) -> Result<Self, AclError> {
        let word = |bytes: &[u8]| {
            let bytes = bytes.first_chunk().ok_or(AclError::Malformed)?;
            Ok(u32::from_le_bytes(*bytes))
        };
        if word(value)? != XATTR_VERSION {
            return Err(AclError::Version);
        }
        let (entries, rest) = value[HEADER..].as_chunks::<ENTRY>();
        if !rest.is_empty() {
            return Err(AclError::Malformed);
        }
        if entries.len() > MAX_ENTRIES {
            return Err(AclError::TooLong);
        }
        let entries = entries.iter().map(|[t0, t1, p0, p1, id @ ..]| AclEntry {
            tag: u16::from_le_bytes([*t0, *t1]).into(),
            id: u32::from_le_bytes(*id),
            permissions: u16::from_le_bytes([*p0, *p1]).into(),
        });
        Self::checked(entries.collect())
    }

    /// Checks that types are known and that permissions have only existing bits.
    fn checked(entries: Vec<AclEntry>) -> Result<Self, AclError> {
        let known = entries.iter().all(|entry| {
            matches!(
                entry.tag,
                tag::USER_OBJ | tag::USER | tag::GROUP_OBJ | tag::GROUP | tag::CLASS | tag::OTHER
            ) && entry.permissions & !RWX == 0
        });
        match known {
            true => Ok(PosixAcl::new(entries)),
            false => Err(AclError::Malformed),
        }
    }

    /// Encodes the value of the extended attribute.
    pub fn to_xattr(&self) -> Vec<u8> {
        let mut value = Vec::with_capacity(HEADER + ENTRY * self.entries.len());
        value.extend_from_slice(&XATTR_VERSION.to_le_bytes());
        for entry in &self.entries {
            // Both are known to be small.
            value.extend_from_slice(&(entry.tag as u16).to_le_bytes());
            value.extend_from_slice(&(entry.permissions as u16).to_le_bytes());
            value.extend_from_slice(&entry.id.to_le_bytes());
        }
        value
    }

    /// The ACL of NFS_ACL's entries; an empty ACL if there are none. Four entries whose mask equals
    /// the group's entry are a minimal ACL, which has no mask here.
    pub fn from_wire(entries: &[AclEntry], default: bool) -> Result<Self, AclError> {
        let flag = if default { DEFAULT } else { 0 };
        let entries = entries.iter().map(|entry| AclEntry {
            // Some servers set the flag and others do not.
            tag: entry.tag & !flag,
            id: entry.id,
            // Solaris sets further bits in masks.
            permissions: match entry.tag & !flag {
                tag::CLASS => entry.permissions & RWX,
                _ => entry.permissions,
            },
        });
        let mut acl = Self::checked(entries.collect())?;
        let permissions = |tag| {
            acl.entries
                .iter()
                .find(|e| e.tag == tag)
                .map(|e| e.permissions)
        };
        if acl.entries.len() == 4
            && permissions(tag::CLASS).is_some()
            && permissions(tag::CLASS) == permissions(tag::GROUP_OBJ)
        {
            acl.entries.retain(|entry| entry.tag != tag::CLASS);
        }
        Ok(acl)
    }

    /// The entries for NFS_ACL, with a mask even in a minimal ACL; `owner` and `group` are the
    /// object's.
    pub fn to_wire(&self, default: bool, owner: u32, group: u32) -> Vec<AclEntry> {
        let flag = if default { DEFAULT } else { 0 };
        let mut entries = self.entries.clone();
        if let [_, group, _] = self.entries[..] {
            let mask = AclEntry {
                tag: tag::CLASS,
                ..group
            };
            entries.insert(2, mask);
        }
        for entry in &mut entries {
            entry.id = match entry.tag {
                tag::USER_OBJ => owner,
                tag::GROUP_OBJ => group,
                tag if has_id(tag) => entry.id,
                _ => 0,
            };
            entry.tag |= flag;
        }
        entries
    }

    /// Whether it has exactly one entry each for owner, group and others, all ids exist, and there
    /// is a mask if other users or groups are named.
    pub fn is_valid(&self) -> bool {
        let count = |tag| self.entries.iter().filter(|entry| entry.tag == tag).count();
        let named = count(tag::USER) + count(tag::GROUP) > 0;
        let ids = |entry: &AclEntry| !has_id(entry.tag) || entry.id != UNDEFINED_ID;
        [tag::USER_OBJ, tag::GROUP_OBJ, tag::OTHER]
            .into_iter()
            .all(|tag| count(tag) == 1)
            && (usize::from(named)..=1).contains(&count(tag::CLASS))
            && self.entries.iter().all(ids)
    }

    /// The nine mode bits of a valid ACL, where the mask, if there is one, is used for the group;
    /// and whether the ACL says no more than these bits.
    pub fn mode(&self) -> (u32, bool) {
        let of = |tag| {
            self.entries
                .iter()
                .find(|e| e.tag == tag)
                .map(|e| e.permissions)
        };
        let group = of(tag::CLASS).or(of(tag::GROUP_OBJ)).unwrap_or(0);
        let mode = of(tag::USER_OBJ).unwrap_or(0) << 6 | group << 3 | of(tag::OTHER).unwrap_or(0);
        (mode, self.entries.len() == 3)
    }

    /// The access ACL and the mode of an object that is created with `mode` in a directory with
    /// this default ACL. The umask must not have been applied to `mode`.
    pub fn inherited(&self, mode: u32) -> (PosixAcl, u32) {
        let class = match self.mode() {
            (_, true) => tag::GROUP_OBJ,
            (_, false) => tag::CLASS,
        };
        let mut entries = self.entries.clone();
        for entry in &mut entries {
            let shift = match entry.tag {
                tag::USER_OBJ => 6,
                tag::OTHER => 0,
                tag if tag == class => 3,
                _ => continue,
            };
            entry.permissions &= mode >> shift & RWX;
        }
        let acl = PosixAcl { entries };
        let mode = mode & !0o777 | acl.mode().0;
        (acl, mode)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn entry(tag: u32, id: u32, permissions: u32) -> AclEntry {
        AclEntry {
            tag,
            id,
            permissions,
        }
    }

    fn example() -> PosixAcl {
        PosixAcl::new(vec![
            entry(tag::OTHER, 9, 0),
            entry(tag::USER, 1000, 7),
            entry(tag::USER_OBJ, 0, 6),
            entry(tag::CLASS, 0, 5),
            entry(tag::GROUP_OBJ, 0, 4),
        ])
    }

    #[test]
    fn xattr_literal() {
        let value = [
            &[2, 0, 0, 0][..],
            &[1, 0, 6, 0, 0xff, 0xff, 0xff, 0xff],
            &[2, 0, 7, 0, 0xe8, 3, 0, 0],
            &[4, 0, 4, 0, 0xff, 0xff, 0xff, 0xff],
            &[0x10, 0, 5, 0, 0xff, 0xff, 0xff, 0xff],
            &[0x20, 0, 0, 0, 0xff, 0xff, 0xff, 0xff],
        ]
        .concat();
        assert_eq!(example().to_xattr(), value);
        assert_eq!(example().entries().len(), 5);
        assert_eq!(PosixAcl::from_xattr(&value), Ok(example()));
        assert_eq!(PosixAcl::from_xattr(&value[..11]), Err(AclError::Malformed));
        assert_eq!(PosixAcl::from_xattr(&[]), Err(AclError::Malformed));
        assert_eq!(PosixAcl::from_xattr(&[1, 0, 0, 0]), Err(AclError::Version));
        assert_eq!(PosixAcl::from_xattr(&value[..4]), Ok(PosixAcl::default()));
        let wrong_tag = [2, 0, 0, 0, 3, 0, 6, 0, 0, 0, 0, 0];
        assert_eq!(PosixAcl::from_xattr(&wrong_tag), Err(AclError::Malformed));
        let many = [&[2, 0, 0, 0][..], &[1, 0, 6, 0, 0, 0, 0, 0].repeat(1025)].concat();
        assert_eq!(PosixAcl::from_xattr(&many), Err(AclError::TooLong));
        let most = PosixAcl::from_xattr(&many[..4 + 8 * 1024]).unwrap();
        assert_eq!(most.entries().len(), 1024);
    }

    #[test]
    fn a_minimal_acl_travels_with_a_mask() {
        let acl = PosixAcl::of_mode(0o100_754);
        assert!(acl.is_valid());
        let wire = acl.to_wire(false, 3, 4);
        let expected = [
            entry(1, 3, 7),
            entry(4, 4, 5),
            entry(0x10, 0, 5),
            entry(0x20, 0, 4),
        ];
        assert_eq!(wire, expected);
        assert_eq!(PosixAcl::from_wire(&wire, false), Ok(acl.clone()));
        let default = acl.to_wire(true, 3, 4);
        assert!(default.iter().all(|entry| entry.tag & DEFAULT != 0));
        assert_eq!(PosixAcl::from_wire(&default, true), Ok(acl));
        assert_eq!(
            PosixAcl::from_wire(&default, false),
            Err(AclError::Malformed)
        );
        // A mask that differs from the group's entry is kept.
        let masked = [expected[0], expected[1], entry(0x10, 0, 1), expected[3]];
        assert_eq!(
            PosixAcl::from_wire(&masked, false).unwrap().entries.len(),
            4
        );
    }

    #[test]
    fn further_bits_are_taken_in_a_mask_only() {
        let [user, group, mask, other] = [1, 4, 0x10, 0x20].map(|tag| entry(tag, 0, 5));
        let more = |of: AclEntry| AclEntry {
            permissions: of.permissions | 0o70,
            ..of
        };
        let masked = PosixAcl::from_wire(&[user, group, more(mask), other], false);
        assert_eq!(masked, Ok(PosixAcl::new(vec![user, group, other])));
        let wrong = PosixAcl::from_wire(&[user, more(group), mask, other], false);
        assert_eq!(wrong, Err(AclError::Malformed));
    }

    #[test]
    fn what_is_valid() {
        assert!(example().is_valid() && !example().is_empty());
        assert!(!PosixAcl::default().is_valid() && PosixAcl::default().is_empty());
        let without = |tag| {
            let all = example().entries.into_iter();
            PosixAcl::new(all.filter(|entry| entry.tag != tag).collect())
        };
        for tag in [tag::USER_OBJ, tag::GROUP_OBJ, tag::OTHER, tag::CLASS] {
            assert!(!without(tag).is_valid(), "{tag}");
        }
        assert!(without(tag::USER).is_valid());
        let mut twice = example().entries;
        twice.push(entry(tag::CLASS, 0, 7));
        assert!(!PosixAcl::new(twice).is_valid());
        let mut nobody = example().entries;
        nobody.push(entry(tag::GROUP, UNDEFINED_ID, 7));
        assert!(!PosixAcl::new(nobody).is_valid());
    }

    #[test]
    fn modes_and_inheritance() {
        assert_eq!(example().mode(), (0o650, false));
        assert_eq!(PosixAcl::of_mode(0o641).mode(), (0o641, true));
        // The mask is used for the group bits; the group's own entry is kept.
        let (acl, mode) = example().inherited(0o100_640);
        assert_eq!(mode, 0o100_640);
        assert_eq!(acl.mode(), (0o640, false));
        let group = acl.entries.iter().find(|e| e.tag == tag::GROUP_OBJ);
        assert_eq!(group.unwrap().permissions, 4);
        let user = acl.entries.iter().find(|e| e.tag == tag::USER);
        assert_eq!(user.unwrap().permissions, 7, "the mask limits it");
        let (acl, mode) = PosixAcl::of_mode(0o750).inherited(0o666);
        assert_eq!((mode, acl), (0o640, PosixAcl::of_mode(0o640)));
    }

    fn entries() -> impl Strategy<Value = Vec<AclEntry>> {
        let tags = prop::sample::select(vec![1u32, 2, 4, 8, 0x10, 0x20]);
        let entry = (tags, any::<u32>(), 0u32..8).prop_map(|(t, i, p)| entry(t, i, p));
        prop::collection::vec(entry, 0..12)
    }

    fn valid() -> impl Strategy<Value = PosixAcl> {
        let named = prop::collection::vec((any::<bool>(), 0u32..u32::MAX, 0u32..8), 0..6);
        let masked = prop::option::of(0u32..8);
        (0u32..0o1000, masked, named).prop_map(|(mode, mask, named)| {
            let mut entries = PosixAcl::of_mode(mode).entries;
            if mask.is_some() || !named.is_empty() {
                entries.push(entry(tag::CLASS, 0, mask.unwrap_or(5)));
            }
            entries.extend(named.into_iter().map(|(user, id, permissions)| {
                entry(if user { tag::USER } else { tag::GROUP }, id, permissions)
            }));
            PosixAcl::new(entries)
        })
    }

    proptest! {
        #[test]
        fn xattrs_round_trip(entries in entries()) {
            let acl = PosixAcl::new(entries);
            prop_assert_eq!(PosixAcl::from_xattr(&acl.to_xattr()), Ok(acl));
        }

        #[test]
        fn valid_acls_round_trip_over_the_wire(acl in valid(), default: bool) {
            prop_assert!(acl.is_valid());
            let read = PosixAcl::from_wire(&acl.to_wire(default, 1, 2), default).unwrap();
            prop_assert_eq!(read.mode().0, acl.mode().0);
            let minimal = acl.entries.len() == 4 && read.entries.len() == 3;
            prop_assert!(read == acl || minimal);
        }

        #[test]
        fn no_bytes_are_too_much(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            if let Ok(acl) = PosixAcl::from_xattr(&bytes) {
                let _ = (acl.is_valid(), acl.mode(), acl.inherited(0o777), acl.to_wire(true, 0, 0));
            }
        }

        #[test]
        fn what_is_inherited_grants_no_more_than_was_asked_for(mode in 0u32..0o1000, acl in valid()) {
            let (inherited, new) = acl.inherited(mode);
            prop_assert_eq!(new & !mode, 0);
            prop_assert!(inherited.is_valid());
            prop_assert_eq!(inherited.mode().0, new);
        }
    }
}
