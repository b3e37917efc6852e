//! NFS_ACL version 3: POSIX access control lists for NFS version 3.
//!
//! No RFC describes it: the layout is that of Solaris's `nfs_acl.x`, and the behaviour is that
//! observed of Linux. The program is served at the port of NFS, also over RDMA.
//!
//! An access ACL has at least the entries USER_OBJ, GROUP_OBJ and OTHER. The group bits of the mode
//! in GETATTR are those of its CLASS entry (the mask); if the ACL has none, servers send one equal
//! to GROUP_OBJ. The types of a default ACL's entries have [`DEFAULT`] added.

use crate::codec::{self, Decode, DecodeError, Decoder, Encode, Encoder, xdr_struct};
use crate::nfs3::{Attributes, FileHandle, Reply, Void};
use crate::procedure::{Ddp, Procedure, idempotent_procedures};

/// RPC program number of NFS_ACL.
pub const PROGRAM: u32 = 100227;
/// The version for NFS version 3.
pub const VERSION: u32 = 3;
/// Largest number of entries in a list (NFS_ACL_MAX_ENTRIES).
pub const MAX_ENTRIES: usize = 1024;

/// Bits of the masks, which say what is requested or present.
pub mod mask {
    /// The access ACL's entries.
    pub const ACL: u32 = 1;
    /// The number of the access ACL's entries.
    pub const ACL_COUNT: u32 = 2;
    /// The default ACL's entries.
    pub const DEFAULT_ACL: u32 = 4;
    /// The number of the default ACL's entries.
    pub const DEFAULT_ACL_COUNT: u32 = 8;
    /// Everything.
    pub const ALL: u32 = 15;
}

/// Types of entries.
pub mod tag {
    /// The file's owner; the id is ignored.
    pub const USER_OBJ: u32 = 0x1;
    /// A user, by id.
    pub const USER: u32 = 0x2;
    /// The file's group; the id is ignored.
    pub const GROUP_OBJ: u32 = 0x4;
    /// A group, by id.
    pub const GROUP: u32 = 0x8;
    /// The most that USER, GROUP_OBJ and GROUP entries may grant (POSIX: mask).
    pub const CLASS: u32 = 0x10;
    /// Everybody else.
    pub const OTHER: u32 = 0x20;
}

/// Added to the types of a default ACL's entries.
pub const DEFAULT: u32 = 0x1000;

xdr_struct! {
    /// aclent.
    #[derive(Copy, Default)]
    AclEntry {
        /// One of [`tag`], with [`DEFAULT`] added in a default ACL. Not checked here.
        tag: u32,
        id: u32,
        /// Read 4, write 2, execute 1.
        permissions: u32,
    }
}

/// secattr: both lists. The counts are separate, because the count of a list may be present without
/// the list.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AclLists {
    /// Bits of [`mask`].
    pub mask: u32,
    pub acl_count: u32,
    pub acl: Vec<AclEntry>,
    pub default_count: u32,
    pub default_acl: Vec<AclEntry>,
}

fn encode_entries(count: u32, entries: &[AclEntry], to: &mut Encoder) {
    to.u32(count);
    to.u32(entries.len() as u32);
    entries.iter().for_each(|entry| entry.encode(to));
}

fn decode_entries(from: &mut Decoder<'_>) -> codec::Result<(u32, Vec<AclEntry>)> {
    let count = from.u32()?;
    let length = from.u32()? as usize;
    // Each entry takes twelve bytes, so no more entries than that can follow.
    let bound = MAX_ENTRIES.min(from.remaining() / 12);
    if length > bound {
        return Err(DecodeError::TooLong {
            what: "access control list",
            length,
            bound,
        });
    }
    let entries = (0..length)
        .map(|_| AclEntry::decode(from))
        .collect::<codec::Result<_>>()?;
    Ok((count, entries))
}

impl Encode for AclLists {
    // mask count n entry ... count n entry ...
    fn encode(&self, to: &mut Encoder) {
        to.u32(self.mask);
        encode_entries(self.acl_count, &self.acl, to);
        encode_entries(self.default_count, &self.default_acl, to);
    }
}

impl Decode<'_> for AclLists {
    fn decode(from: &mut Decoder<'_>) -> codec::Result<Self> {
        let mask = from.u32()?;
        let (acl_count, acl) = decode_entries(from)?;
        let (default_count, default_acl) = decode_entries(from)?;
        Ok(AclLists {
            mask,
            acl_count,
            acl,
            default_count,
            default_acl,
        })
    }
}

xdr_struct! {
    /// GETACL3args.
    #[derive(Copy)]
    GetaclArgs { object: FileHandle, mask: u32, }
}

xdr_struct! {
    /// GETACL3resok.
    GetaclOk { attributes: Option<Attributes>, lists: AclLists, }
}

/// GETACL3res.
pub type GetaclRes = Reply<GetaclOk, Option<Attributes>>;

xdr_struct! {
    /// SETACL3args.
    SetaclArgs { object: FileHandle, lists: AclLists, }
}

/// SETACL3res.
pub type SetaclRes = Reply<Option<Attributes>, Option<Attributes>>;

/// post_op_attr: a boolean, and fattr3 (RFC 1813 section 2.5).
const POST_OP_ATTR: usize = 4 + 84;
/// Count and length of a list, and the longest encoding of its entries.
const LIST_HEAD: usize = 4 + 4;
const MAX_LIST: usize = 12 * MAX_ENTRIES;

idempotent_procedures! {
    Null = 0, "NULL", Void => Void, 0;
    Setacl = 2, "SETACL", SetaclArgs => SetaclRes, 4 + POST_OP_ATTR;
}

/// GETACL, procedure 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Getacl;

impl Procedure for Getacl {
    const PROGRAM: u32 = PROGRAM;
    const VERSION: u32 = VERSION;
    const NUMBER: u32 = 1;
    const NAME: &'static str = "GETACL";
    const DDP: Ddp = Ddp::None;
    const IDEMPOTENT: bool = true;
    type Args<'a> = GetaclArgs;
    type Res<'a> = GetaclRes;

    /// A list that is not requested has no entries.
    fn max_results(args: &GetaclArgs) -> usize {
        let asked = [mask::ACL, mask::DEFAULT_ACL].map(|bit| usize::from(args.mask & bit != 0));
        let lists = asked[0] + asked[1];
        4 + POST_OP_ATTR + 4 + 2 * LIST_HEAD + lists * MAX_LIST
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nfs3::Status;

    fn entry(tag: u32, id: u32, permissions: u32) -> AclEntry {
        AclEntry {
            tag,
            id,
            permissions,
        }
    }

    fn words(words: &[u32]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_be_bytes()).collect()
    }

    #[test]
    fn getacl_literal() {
        let args = GetaclArgs {
            object: FileHandle::new(b"abcd").unwrap(),
            mask: mask::ALL,
        };
        assert_eq!(args.to_xdr(), b"\0\0\0\x04abcd\0\0\0\x0f");
        let res: GetaclRes = Reply::Ok(GetaclOk {
            attributes: None,
            lists: AclLists {
                mask: 15,
                acl_count: 2,
                acl: vec![entry(tag::USER_OBJ, 0, 7), entry(tag::USER, 1000, 5)],
                default_count: 1,
                default_acl: vec![entry(DEFAULT | tag::OTHER, 0, 4)],
            },
        });
        let bytes = words(&[0, 0, 15, 2, 2, 1, 0, 7, 2, 1000, 5, 1, 1, 0x1020, 0, 4]);
        assert_eq!(res.to_xdr(), bytes);
        assert_eq!(GetaclRes::from_xdr(&bytes), Ok(res));
        let refused: GetaclRes = Reply::Fail(Status::Inval, None);
        assert_eq!(refused.to_xdr(), words(&[22, 0]));
    }

    #[test]
    fn setacl_literal() {
        let args = SetaclArgs {
            object: FileHandle::new(b"abcd").unwrap(),
            lists: AclLists {
                mask: mask::ACL | mask::ACL_COUNT,
                acl_count: 1,
                acl: vec![entry(tag::CLASS, 0, 6)],
                ..AclLists::default()
            },
        };
        let bytes = [
            b"\0\0\0\x04abcd".to_vec(),
            words(&[3, 1, 1, 16, 0, 6, 0, 0]),
        ]
        .concat();
        assert_eq!(args.to_xdr(), bytes);
        assert_eq!(SetaclArgs::from_xdr(&bytes), Ok(args));
        let done: SetaclRes = Reply::Ok(None);
        assert_eq!(done.to_xdr(), words(&[0, 0]));
    }

    #[test]
    fn the_largest_results_are_as_stated() {
        let time = crate::nfs3::Time::default();
        let attributes = Attributes {
            kind: crate::nfs3::FileType::Regular,
            mode: 0,
            nlink: 0,
            uid: 0,
            gid: 0,
            size: 0,
            used: 0,
            rdev: crate::nfs3::SpecData::default(),
            fsid: 0,
            fileid: 0,
            atime: time,
            mtime: time,
            ctime: time,
        };
        let object = FileHandle::new(b"").unwrap();
        for mask in 0..=mask::ALL {
            let longest = |bit| match mask & bit {
                0 => Vec::new(),
                _ => vec![AclEntry::default(); MAX_ENTRIES],
            };
            let res: GetaclRes = Reply::Ok(GetaclOk {
                attributes: Some(attributes),
                lists: AclLists {
                    acl: longest(mask::ACL),
                    default_acl: longest(mask::DEFAULT_ACL),
                    ..AclLists::default()
                },
            });
            let args = GetaclArgs { object, mask };
            assert_eq!(res.to_xdr().len(), Getacl::max_results(&args), "{mask}");
        }
        let res: SetaclRes = Reply::Ok(Some(attributes));
        let args = SetaclArgs {
            object,
            lists: AclLists::default(),
        };
        assert_eq!(res.to_xdr().len(), Setacl::max_results(&args));
    }

    #[test]
    fn lists_are_bounded() {
        let lists = AclLists {
            mask: 15,
            acl_count: 0,
            acl: vec![AclEntry::default(); MAX_ENTRIES],
            default_count: 0,
            default_acl: vec![AclEntry::default(); MAX_ENTRIES],
        };
        let bytes = lists.to_xdr();
        assert_eq!(bytes.len(), 4 + 2 * (LIST_HEAD + MAX_LIST));
        assert_eq!(AclLists::from_xdr(&bytes), Ok(lists.clone()));
        let more = AclLists {
            acl: vec![AclEntry::default(); MAX_ENTRIES + 1],
            ..lists
        };
        assert!(AclLists::from_xdr(&more.to_xdr()).is_err());
        // Entries that are announced but missing.
        let missing = AclLists::from_xdr(&words(&[15, 1000, 1000, 0, 0]));
        let (length, bound) = (1000, 0);
        let what = "access control list";
        let long = DecodeError::TooLong {
            what,
            length,
            bound,
        };
        assert_eq!(missing, Err(long));
    }
}
