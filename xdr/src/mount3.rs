//! MOUNT version 3 (RFC 1813 section 5), which returns the file handle of an export's path.

use crate::codec::{self, Decode, Decoder, Encode, Encoder, Text, xdr_enum, xdr_struct};
use crate::nfs3::{FileHandle, Void};
use crate::procedure::idempotent_procedures;
use smallvec::SmallVec;

/// RPC program number of MOUNT.
pub const PROGRAM: u32 = 100005;
/// The version whose file handles are those of NFSv3.
pub const VERSION: u32 = 3;
/// Longest path in bytes (MNTPATHLEN).
pub const PATH_MAX: usize = 1024;
/// Longest host or group name in bytes (MNTNAMLEN).
pub const NAME_MAX: usize = 255;
/// Largest number of authentication flavors accepted from a server (RFC 1813 sets no bound).
pub const MAX_FLAVORS: usize = 64;
/// Size of the Reply chunk offered for the results of DUMP and EXPORT, in bytes. RFC 1813 sets no
/// bound; over TCP the bound of a record applies.
pub const MAX_LIST_LEN: usize = 64 * 1024;

xdr_enum! {
    /// mountstat3.
    MountStatus {
        Ok = 0,
        Perm = 1,
        NoEnt = 2,
        Io = 5,
        Access = 13,
        NotDir = 20,
        Inval = 22,
        NameTooLong = 63,
        NotSupp = 10004,
        ServerFault = 10006,
    }
}

xdr_struct! {
    /// Arguments of MNT and UMNT: the path of an export, or of a directory below it.
    #[derive(Copy)]
    MountArgs<'a> { path: Text<'a, PATH_MAX>, }
}

/// mountres3_ok.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mounted {
    pub root: FileHandle,
    /// RPC authentication flavors that the server accepts for this export, in its order of
    /// preference.
    pub flavors: SmallVec<[u32; 8]>,
}

/// mountres3.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MountRes {
    Ok(Mounted),
    /// The status is never [`MountStatus::Ok`].
    Fail(MountStatus),
}

impl Encode for MountRes {
    // 0 handle n flavor ... flavor  |  status
    fn encode(&self, to: &mut Encoder) {
        match self {
            MountRes::Ok(mounted) => {
                MountStatus::Ok.encode(to);
                mounted.root.encode(to);
                to.u32(mounted.flavors.len() as u32);
                for flavor in &mounted.flavors {
                    to.u32(*flavor);
                }
            }
            MountRes::Fail(status) => status.encode(to),
        }
    }
}

impl Decode<'_> for MountRes {
    fn decode(from: &mut Decoder<'_>) -> codec::Result<Self> {
        match MountStatus::decode(from)? {
            MountStatus::Ok => {}
            status => return Ok(MountRes::Fail(status)),
        }
        let root = FileHandle::decode(from)?;
        let flavors = from.integers("authentication flavors", MAX_FLAVORS)?;
        Ok(MountRes::Ok(Mounted { root, flavors }))
    }
}

xdr_struct! {
    /// mountbody: a mount that the server remembers.
    #[derive(Copy)]
    MountEntry<'a> { host: Text<'a, NAME_MAX>, path: Text<'a, PATH_MAX>, }
}

/// mountlist.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MountList<'a>(pub Vec<MountEntry<'a>>);

impl Encode for MountList<'_> {
    fn encode(&self, to: &mut Encoder) {
        to.list(&self.0);
    }
}

impl<'a> Decode<'a> for MountList<'a> {
    fn decode(from: &mut Decoder<'a>) -> codec::Result<Self> {
        Ok(MountList(from.list()?))
    }
}

/// exportnode: an export and the groups of hosts that may mount it; no group means everybody.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Export<'a> {
    pub path: Text<'a, PATH_MAX>,
    pub groups: Vec<Text<'a, NAME_MAX>>,
}

impl Encode for Export<'_> {
    fn encode(&self, to: &mut Encoder) {
        self.path.encode(to);
        to.list(&self.groups);
    }
}

impl<'a> Decode<'a> for Export<'a> {
    fn decode(from: &mut Decoder<'a>) -> codec::Result<Self> {
        Ok(Export {
            path: Decode::decode(from)?,
            groups: from.list()?,
        })
    }
}

/// exports.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Exports<'a>(pub Vec<Export<'a>>);

impl Encode for Exports<'_> {
    fn encode(&self, to: &mut Encoder) {
        to.list(&self.0);
    }
}

impl<'a> Decode<'a> for Exports<'a> {
    fn decode(from: &mut Decoder<'a>) -> codec::Result<Self> {
        Ok(Exports(from.list()?))
    }
}

/// Largest mountres3_ok that this crate accepts: status, handle, flavors.
const MAX_MOUNTED: usize = 4 + 4 + crate::nfs3::FHSIZE + 4 + 4 * MAX_FLAVORS;

// MNT may be repeated: the list that DUMP returns is only advisory (RFC 1813 section 5.2.2).
idempotent_procedures! {
    Null = 0, "NULL", Void => Void, 0;
    Mnt = 1, "MNT", MountArgs<'a> => MountRes, MAX_MOUNTED;
    Dump = 2, "DUMP", Void => MountList<'a>, MAX_LIST_LEN;
    Umnt = 3, "UMNT", MountArgs<'a> => Void, 0;
    Umntall = 4, "UMNTALL", Void => Void, 0;
    /// Named EXPORT in the RFC.
    ListExports = 5, "EXPORT", Void => Exports<'a>, MAX_LIST_LEN;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::procedure::Procedure;
    use smallvec::smallvec;

    #[test]
    fn mnt_literal() {
        // dirpath "/exp": length 4, no padding.
        let args = MountArgs {
            path: Text(b"/exp"),
        };
        assert_eq!(args.to_xdr(), b"\0\0\0\x04/exp");
        // status 0, a handle of five bytes and three of padding, flavors AUTH_SYS and 390003.
        let ok = MountRes::Ok(Mounted {
            root: FileHandle::new(b"abcde").unwrap(),
            flavors: smallvec![1, 390_003],
        });
        let bytes = b"\0\0\0\0\0\0\0\x05abcde\0\0\0\0\0\0\x02\0\0\0\x01\0\x05\xf3\x73";
        assert_eq!(ok.to_xdr(), bytes);
        assert_eq!(MountRes::from_xdr(bytes), Ok(ok));
        let refused = MountRes::Fail(MountStatus::Access);
        assert_eq!(refused.to_xdr(), [0, 0, 0, 13]);
        assert_eq!(MountRes::from_xdr(&[0, 0, 0, 13]), Ok(refused));
    }

    #[test]
    fn lists_literal() {
        let exports = Exports(vec![Export {
            path: Text(b"/a"),
            groups: vec![Text(b"g")],
        }]);
        let bytes = b"\0\0\0\x01\0\0\0\x02/a\0\0\0\0\0\x01\0\0\0\x01g\0\0\0\0\0\0\0\0\0\0\0";
        assert_eq!(exports.to_xdr(), bytes);
        assert_eq!(Exports::from_xdr(bytes), Ok(exports));
        let list = MountList(vec![MountEntry {
            host: Text(b"host"),
            path: Text(b"/a"),
        }]);
        let bytes = b"\0\0\0\x01\0\0\0\x04host\0\0\0\x02/a\0\0\0\0\0\0";
        assert_eq!(list.to_xdr(), bytes);
        assert_eq!(MountList::from_xdr(bytes), Ok(list));
    }

    #[test]
    fn the_largest_mnt_reply_is_as_stated() {
        let args = MountArgs { path: Text(b"/") };
        let largest = MountRes::Ok(Mounted {
            root: FileHandle::new(&[0; 64]).unwrap(),
            flavors: smallvec![1; MAX_FLAVORS],
        });
        assert_eq!(largest.to_xdr().len(), Mnt::max_results(&args));
        let more = MountRes::Ok(Mounted {
            root: FileHandle::new(&[]).unwrap(),
            flavors: smallvec![1; MAX_FLAVORS + 1],
        });
        assert!(MountRes::from_xdr(&more.to_xdr()).is_err());
    }

    #[test]
    fn long_paths_are_refused() {
        let path = [b'p'; PATH_MAX + 1];
        let args = MountArgs { path: Text(&path) };
        assert!(MountArgs::from_xdr(&args.to_xdr()).is_err());
    }
}
