//! The 22 procedures of NFSv3 as types, and as numbers with names.
//!
//! Each type associates a procedure's number with its arguments and results, says which item is
//! DDP-eligible (RFC 8267 section 4) and whether it is idempotent, and computes the largest size of
//! the results from the arguments. The client uses that for the Reply chunk (RFC 8166 section
//! 4.3.3): if it is too small, a legal reply fails. So the tests compare each maximum with an
//! encoded value.

use super::{
    AccessArgs, AccessRes, CommitArgs, CommitRes, CreateArgs, CreateRes, FHSIZE, FsinfoRes,
    FsstatRes, GetattrArgs, GetattrRes, LinkArgs, LinkRes, LookupArgs, LookupRes, MkdirArgs,
    MknodArgs, PATH_MAX, PROGRAM, PathconfRes, ReadArgs, ReadRes, ReaddirArgs, ReaddirRes,
    ReaddirplusArgs, ReaddirplusRes, ReadlinkArgs, ReadlinkRes, RemoveArgs, RemoveRes, RenameArgs,
    RenameRes, RootArgs, SetattrArgs, SetattrRes, SymlinkArgs, VERSION, Verifier, Void, WriteArgs,
    WriteRes,
};
pub use crate::procedure::{Ddp, Procedure};

/// The largest encodings of the parts of results, in bytes.
mod size {
    use super::{FHSIZE, Verifier};

    pub(super) const STATUS: usize = 4;
    /// fattr3: five words, size and used, rdev, fsid and fileid, and three times.
    pub(super) const ATTRIBUTES: usize = 5 * 4 + 2 * 8 + 8 + 2 * 8 + 3 * 8;
    pub(super) const OPTIONAL_ATTRIBUTES: usize = 4 + ATTRIBUTES;
    /// wcc_data: optional size, mtime and ctime; optional attributes.
    pub(super) const WCC: usize = 4 + 3 * 8 + OPTIONAL_ATTRIBUTES;
    pub(super) const HANDLE: usize = 4 + FHSIZE;
    pub(super) const VERIFIER: usize = size_of::<Verifier>();
    /// Results of CREATE, MKDIR, SYMLINK, MKNOD.
    pub(super) const CREATED: usize = STATUS + 4 + HANDLE + OPTIONAL_ATTRIBUTES + WCC;
    /// READDIR and READDIRPLUS without entries: attributes, verifier, end of list, eof.
    pub(super) const NO_ENTRIES: usize = OPTIONAL_ATTRIBUTES + VERIFIER + 4 + 4;
}

/// Largest results of READDIR or READDIRPLUS, in bytes. `count` bounds READDIR3resok, which is
/// everything except the status (RFC 1813 section 3.3.16). There is room for the rest if a server
/// applies the bound to the entries alone.
fn directory_results(count: u32) -> usize {
    size::STATUS + size::NO_ENTRIES + crate::codec::roundup(count as usize)
}

macro_rules! procedures {
    ($(
        $(#[$meta:meta])*
        $type:ident = $number:literal, $name:literal, $ddp:ident, idempotent: $idempotent:literal,
        $args:ty => $res:ty,
        |$call:pat_param| $max:expr $(, ddp |$ddp_call:pat_param| $max_ddp:expr)?;
    )*) => {
        $(
            #[doc = concat!($name, ", procedure ", $number, ".")]
            #[doc = ""]
            $(#[$meta])*
            #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
            pub struct $type;

            impl Procedure for $type {
                const PROGRAM: u32 = PROGRAM;
                const VERSION: u32 = VERSION;
                const NUMBER: u32 = $number;
                const NAME: &'static str = $name;
                const DDP: Ddp = Ddp::$ddp;
                const IDEMPOTENT: bool = $idempotent;
                type Args<'a> = $args;
                type Res<'a> = $res;

                fn max_results($call: &Self::Args<'_>) -> usize {
                    $max
                }

                $(fn max_ddp_result($ddp_call: &Self::Args<'_>) -> usize {
                    $max_ddp
                })?
            }
        )*

        crate::codec::xdr_enum! {
            /// The procedure numbers, for dispatch and statistics.
            ProcedureNumber { $($type = $number,)* }
        }

        impl ProcedureNumber {
            /// How many procedures there are.
            pub const COUNT: usize = Self::ALL.len();

            /// The name as RFC 1813 spells it, in capitals.
            pub const fn label(self) -> &'static str {
                match self { $(ProcedureNumber::$type => $name,)* }
            }

            /// The item that is DDP-eligible.
            pub const fn ddp(self) -> Ddp {
                match self { $(ProcedureNumber::$type => <$type as Procedure>::DDP,)* }
            }

            /// Whether running it twice has the same effect and the same reply as running it once.
            pub const fn is_idempotent(self) -> bool {
                match self { $(ProcedureNumber::$type => <$type as Procedure>::IDEMPOTENT,)* }
            }
        }
    };
}

procedures! {
    Null = 0, "NULL", None, idempotent: true,
        Void => Void, |_| 0;
    Getattr = 1, "GETATTR", None, idempotent: true,
        GetattrArgs => GetattrRes, |_| size::STATUS + size::ATTRIBUTES;
    Setattr = 2, "SETATTR", None, idempotent: false,
        SetattrArgs => SetattrRes, |_| size::STATUS + size::WCC;
    Lookup = 3, "LOOKUP", None, idempotent: true,
        LookupArgs<'a> => LookupRes,
        |_| size::STATUS + size::HANDLE + 2 * size::OPTIONAL_ATTRIBUTES;
    Access = 4, "ACCESS", None, idempotent: true,
        AccessArgs => AccessRes, |_| size::STATUS + size::OPTIONAL_ATTRIBUTES + 4;
    Readlink = 5, "READLINK", Result, idempotent: true,
        ReadlinkArgs => ReadlinkRes<'a>,
        |_| size::STATUS + size::OPTIONAL_ATTRIBUTES + 4, ddp |_| PATH_MAX;
    Read = 6, "READ", Result, idempotent: true,
        ReadArgs => ReadRes<'a>,
        |_| size::STATUS + size::OPTIONAL_ATTRIBUTES + 3 * 4, ddp |call| call.count as usize;
    /// A repeated WRITE returns other weak cache consistency data, and a delayed repetition undoes
    /// a later WRITE.
    Write = 7, "WRITE", Argument, idempotent: false,
        WriteArgs<'a> => WriteRes, |_| size::STATUS + size::WCC + 2 * 4 + size::VERIFIER;
    Create = 8, "CREATE", None, idempotent: false,
        CreateArgs<'a> => CreateRes, |_| size::CREATED;
    Mkdir = 9, "MKDIR", None, idempotent: false,
        MkdirArgs<'a> => CreateRes, |_| size::CREATED;
    Symlink = 10, "SYMLINK", Argument, idempotent: false,
        SymlinkArgs<'a> => CreateRes, |_| size::CREATED;
    Mknod = 11, "MKNOD", None, idempotent: false,
        MknodArgs<'a> => CreateRes, |_| size::CREATED;
    Remove = 12, "REMOVE", None, idempotent: false,
        RemoveArgs<'a> => RemoveRes, |_| size::STATUS + size::WCC;
    Rmdir = 13, "RMDIR", None, idempotent: false,
        RemoveArgs<'a> => RemoveRes, |_| size::STATUS + size::WCC;
    Rename = 14, "RENAME", None, idempotent: false,
        RenameArgs<'a> => RenameRes, |_| size::STATUS + 2 * size::WCC;
    Link = 15, "LINK", None, idempotent: false,
        LinkArgs<'a> => LinkRes,
        |_| size::STATUS + size::OPTIONAL_ATTRIBUTES + size::WCC;
    Readdir = 16, "READDIR", None, idempotent: true,
        ReaddirArgs => ReaddirRes<'a>, |call| directory_results(call.count);
    Readdirplus = 17, "READDIRPLUS", None, idempotent: true,
        ReaddirplusArgs => ReaddirplusRes<'a>, |call| directory_results(call.maxcount);
    Fsstat = 18, "FSSTAT", None, idempotent: true,
        RootArgs => FsstatRes, |_| size::STATUS + size::OPTIONAL_ATTRIBUTES + 6 * 8 + 4;
    Fsinfo = 19, "FSINFO", None, idempotent: true,
        RootArgs => FsinfoRes,
        |_| size::STATUS + size::OPTIONAL_ATTRIBUTES + 7 * 4 + 8 + 8 + 4;
    Pathconf = 20, "PATHCONF", None, idempotent: true,
        RootArgs => PathconfRes, |_| size::STATUS + size::OPTIONAL_ATTRIBUTES + 6 * 4;
    Commit = 21, "COMMIT", None, idempotent: true,
        CommitArgs => CommitRes, |_| size::STATUS + size::WCC + size::VERIFIER;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::Encode;
    use crate::nfs3::*;

    /// The lengths without the data that chunks carry. xdr/tests/round_trip.rs has the other procedures.
    #[test]
    fn data_are_not_in_the_longest_results() {
        let object = FileHandle::new(b"").unwrap();
        assert_eq!(Null::max_results(&Void {}), 0);
        assert_eq!(Readlink::max_results(&ReadlinkArgs { symlink: object }), 96);
        let read = ReadArgs {
            file: object,
            offset: 0,
            count: 4097,
        };
        assert_eq!(Read::max_results(&read), 104);
        assert_eq!(Read::max_ddp_result(&read), 4097);
    }

    #[test]
    fn directories_have_room_for_count_bytes_of_entries() {
        let args = ReaddirArgs {
            dir: FileHandle::new(b"").unwrap(),
            cookie: 0,
            verifier: Verifier::default(),
            count: 1000,
        };
        let size = |entries| {
            let results: ReaddirRes<'_> = Reply::Ok(DirList {
                dir: None,
                verifier: Verifier::default(),
                entries,
                eof: true,
            });
            results.to_xdr().len()
        };
        // Each entry takes 4 + 8 + 4 + 4 + 8 bytes, so 35 entries fit into 1000.
        let entry = Entry {
            fileid: 1,
            name: Name(b"name"),
            cookie: 1,
        };
        let empty = size(Vec::new());
        let full = size(vec![entry; 1000 / 28]);
        assert_eq!(full - empty, 980);
        // And the attributes of the directory.
        assert_eq!(Readdir::max_results(&args), empty + 84 + 1000);
        let plus = ReaddirplusArgs {
            dir: FileHandle::new(b"").unwrap(),
            cookie: 0,
            verifier: Verifier::default(),
            dircount: 10,
            maxcount: 999,
        };
        assert_eq!(Readdirplus::max_results(&plus), empty + 84 + 1000);
    }

    #[test]
    fn numbers_run_from_0_to_21() {
        assert_eq!(ProcedureNumber::COUNT, 22);
        for (index, number) in ProcedureNumber::ALL.iter().enumerate() {
            assert_eq!(*number as usize, index);
            assert_eq!(number.label().to_lowercase(), number.name().to_lowercase());
        }
        assert!(ProcedureNumber::try_from(22).is_err());
        assert_eq!(ProcedureNumber::Readdirplus.label(), Readdirplus::NAME);
    }

    #[test]
    fn four_procedures_have_a_ddp_eligible_item() {
        use ProcedureNumber::{Read, Readlink, Symlink, Write};
        let with = |ddp| {
            ProcedureNumber::ALL
                .iter()
                .copied()
                .filter(move |p| p.ddp() == ddp)
                .collect::<Vec<_>>()
        };
        assert_eq!(with(Ddp::Result), [Readlink, Read]);
        assert_eq!(with(Ddp::Argument), [Write, Symlink]);
    }
}
