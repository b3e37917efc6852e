//! NFSv3 messages with fields of the same type, and with enumerations, word by word in the layout of RFC 1813's XDR. All
//! numbers in a value differ, so that an exchange of two fields is detected. (tests/vectors decodes and encodes every message
//! as Linux sends it, which does not show an exchange in both.)

use nfsrdma_xdr::codec::{Decode, Encode, Payload};
use nfsrdma_xdr::nfs3::*;
use std::fmt::Debug;

/// Makes bytes from words, strings (padded to words) and opaque lengths.
macro_rules! wire {
    ($($item:expr),* $(,)?) => {{
        let mut bytes: Vec<u8> = Vec::new();
        $(Wire::put(&$item, &mut bytes);)*
        bytes
    }};
}

trait Wire {
    fn put(&self, to: &mut Vec<u8>);
}

impl Wire for u32 {
    fn put(&self, to: &mut Vec<u8>) {
        to.extend(self.to_be_bytes());
    }
}

impl<const N: usize> Wire for [u32; N] {
    fn put(&self, to: &mut Vec<u8>) {
        self.iter().for_each(|word| word.put(to));
    }
}

/// Bytes that are used as they are, with their padding.
impl<const N: usize> Wire for &[u8; N] {
    fn put(&self, to: &mut Vec<u8>) {
        assert_eq!(N % 4, 0, "write the padding out");
        to.extend_from_slice(*self);
    }
}

macro_rules! check {
    ($type:ty, $value:expr, $bytes:expr) => {{
        let (value, bytes): ($type, Vec<u8>) = ($value, $bytes);
        assert_eq!(value.to_xdr(), bytes);
        assert_eq!(<$type>::from_xdr(&bytes), Ok(value));
    }};
}

const ATTRIBUTES: Attributes = Attributes {
    kind: FileType::Directory,
    mode: 0o755,
    nlink: 3,
    uid: 1000,
    gid: 100,
    size: 0x1_0000_0005,
    used: 0x2_0000_0006,
    rdev: SpecData { major: 7, minor: 8 },
    fsid: 0x3_0000_0009,
    fileid: 0x4_0000_000a,
    atime: time(11, 12),
    mtime: time(13, 14),
    ctime: time(15, 16),
};

/// fattr3: type, mode, nlink, uid, gid, size, used, rdev, fsid, fileid, atime, mtime, ctime.
const FATTR3: [u32; 21] = [
    2, 0o755, 3, 1000, 100, 1, 5, 2, 6, 7, 8, 3, 9, 4, 10, 11, 12, 13, 14, 15, 16,
];

const fn time(seconds: u32, nanoseconds: u32) -> Time {
    Time {
        seconds,
        nanoseconds,
    }
}

const WCC: WccData = WccData {
    before: Some(WccAttributes {
        size: 0x11_0000_0012,
        mtime: time(0x13, 0x14),
        ctime: time(0x15, 0x16),
    }),
    after: None,
};

/// wcc_data: `before` with size, mtime and ctime; no `after`.
const WCC_DATA: [u32; 8] = [1, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0];

fn handle() -> FileHandle {
    FileHandle::new(b"abcde").expect("short")
}

/// nfs_fh3 with five bytes.
const FH: &[u8; 12] = b"\0\0\0\x05abcde\0\0\0";

fn at() -> DirOp<'static> {
    DirOp {
        dir: handle(),
        name: Name(b"name.c"),
    }
}

/// filename3.
const NAME: &[u8; 12] = b"\0\0\0\x06name.c\0\0";

#[test]
fn getattr() {
    let ok = Reply::Ok(GetattrOk {
        attributes: ATTRIBUTES,
    });
    check!(GetattrRes, ok, wire![0, FATTR3]);
}

#[test]
fn setattr() {
    let args = SetattrArgs {
        object: handle(),
        new: SetAttributes {
            mode: Some(0o644),
            uid: None,
            gid: Some(5),
            size: Some(0x7_0000_0001),
            atime: SetTime::ToServerTime,
            mtime: SetTime::To(time(8, 9)),
        },
        guard: Some(time(10, 11)),
    };
    // Mode, uid, gid, size, atime, mtime, guard.
    let words = [1, 0o644, 0, 1, 5, 1, 7, 1, 1, 2, 8, 9, 1, 10, 11];
    check!(SetattrArgs, args, wire![FH, words]);
    check!(SetattrRes, Reply::Ok(WCC), wire![0, WCC_DATA]);
}

#[test]
fn lookup() {
    check!(LookupArgs<'_>, LookupArgs { what: at() }, wire![FH, NAME]);
    let ok = Reply::Ok(LookupOk {
        object: handle(),
        attributes: None,
        dir: Some(ATTRIBUTES),
    });
    check!(LookupRes, ok, wire![0, FH, 0, 1, FATTR3]);
}

#[test]
fn write() {
    let args = WriteArgs {
        file: handle(),
        offset: 0x5_0000_0006,
        count: 2,
        stable: Stable::DataSync,
        data: Payload::Inline(b"hi"),
    };
    let bytes = wire![FH, [5, 6], 2, 1, b"\0\0\0\x02hi\0\0"];
    check!(WriteArgs<'_>, args, bytes);
    let ok = Reply::Ok(WriteOk {
        wcc: WCC,
        count: 2,
        committed: Stable::FileSync,
        verifier: Verifier(*b"verifier"),
    });
    check!(WriteRes, ok, wire![0, WCC_DATA, 2, 2, b"verifier"]);
}

#[test]
fn create_and_mknod() {
    let set = SetAttributes {
        mode: Some(0o600),
        ..SetAttributes::default()
    };
    // sattr3: only the mode is set; uid, gid, size, atime and mtime are not.
    let sattr3: [u32; 7] = [1, 0o600, 0, 0, 0, 0, 0];
    let how = [
        (CreateHow::Unchecked(set), wire![0, sattr3]),
        (CreateHow::Guarded(set), wire![1, sattr3]),
        (
            CreateHow::Exclusive(Verifier(*b"verifier")),
            wire![2, b"verifier"],
        ),
    ];
    for (how, bytes) in how {
        let whole = [wire![FH, NAME], bytes].concat();
        check!(CreateArgs<'_>, CreateArgs { at: at(), how }, whole);
    }
    let device = SpecData { major: 8, minor: 1 };
    let what = [
        (MknodWhat::Character(set, device), wire![4, sattr3, [8, 1]]),
        (MknodWhat::Block(set, device), wire![3, sattr3, [8, 1]]),
        (MknodWhat::Socket(set), wire![6, sattr3]),
        (MknodWhat::Fifo(set), wire![7, sattr3]),
        (MknodWhat::Other(FileType::Directory), wire![2]),
    ];
    for (what, bytes) in what {
        let whole = [wire![FH, NAME], bytes].concat();
        check!(MknodArgs<'_>, MknodArgs { at: at(), what }, whole);
    }
}

#[test]
fn rename() {
    let to = DirOp {
        dir: FileHandle::new(b"").expect("short"),
        name: Name(b"to"),
    };
    let rename = RenameArgs { from: at(), to };
    let bytes = wire![FH, NAME, 0, b"\0\0\0\x02to\0\0"];
    check!(RenameArgs<'_>, rename, bytes);
    let wcc = RenameWcc {
        from_dir: WCC,
        to_dir: WccData::default(),
    };
    check!(RenameRes, Reply::Ok(wcc), wire![0, WCC_DATA, [0, 0]]);
}

#[test]
fn readdir_and_readdirplus() {
    let args = ReaddirArgs {
        dir: handle(),
        cookie: 0x1_0000_0002,
        verifier: Verifier(*b"verifier"),
        count: 3,
    };
    check!(ReaddirArgs, args, wire![FH, [1, 2], b"verifier", 3]);
    let entry = |fileid, cookie| Entry {
        fileid,
        name: Name(b"e"),
        cookie,
    };
    let list = DirList {
        dir: None,
        verifier: Verifier(*b"verifier"),
        entries: vec![entry(4, 5), entry(6, 7)],
        eof: true,
    };
    let name = b"\0\0\0\x01e\0\0\0";
    let entries = wire![[1, 0, 4], name, [0, 5], [1, 0, 6], name, [0, 7]];
    let bytes = [wire![[0, 0], b"verifier"], entries, wire![[0, 1]]].concat();
    check!(ReaddirRes<'_>, Reply::Ok(list), bytes);

    let args = ReaddirplusArgs {
        dir: handle(),
        cookie: 0x1_0000_0002,
        verifier: Verifier(*b"verifier"),
        dircount: 3,
        maxcount: 4,
    };
    check!(ReaddirplusArgs, args, wire![FH, [1, 2], b"verifier", 3, 4]);
    let list = DirList {
        dir: Some(ATTRIBUTES),
        verifier: Verifier(*b"verifier"),
        entries: vec![EntryPlus {
            fileid: 4,
            name: Name(b"e"),
            cookie: 5,
            attributes: Some(ATTRIBUTES),
            handle: Some(handle()),
        }],
        eof: false,
    };
    let entry = wire![[1, 0, 4], name, [0, 5], 1, FATTR3, 1, FH];
    let bytes = [wire![[0, 1], FATTR3, b"verifier"], entry, wire![[0, 0]]].concat();
    check!(ReaddirplusRes<'_>, Reply::Ok(list), bytes);
}

#[test]
fn fsstat_fsinfo_pathconf() {
    let ok = Reply::Ok(FsstatOk {
        attributes: None,
        total_bytes: 0x1_0000_0002,
        free_bytes: 0x3_0000_0004,
        available_bytes: 0x5_0000_0006,
        total_files: 0x7_0000_0008,
        free_files: 0x9_0000_000a,
        available_files: 0xb_0000_000c,
        invarsec: 13,
    });
    let bytes = wire![[0, 0], [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12], 13];
    check!(FsstatRes, ok, bytes);
    let ok = Reply::Ok(FsinfoOk {
        attributes: None,
        rtmax: 1,
        rtpref: 2,
        rtmult: 3,
        wtmax: 4,
        wtpref: 5,
        wtmult: 6,
        dtpref: 7,
        max_file_size: 0x8_0000_0009,
        time_delta: time(10, 11),
        properties: fsf::LINK | fsf::SYMLINK | fsf::HOMOGENEOUS | fsf::CANSETTIME,
    });
    let bytes = wire![[0, 0], [1, 2, 3, 4, 5, 6, 7], [8, 9], [10, 11], 0x1b];
    check!(FsinfoRes, ok, bytes);
    let ok = Reply::Ok(PathconfOk {
        attributes: None,
        link_max: 1000,
        name_max: 255,
        no_trunc: true,
        chown_restricted: false,
        case_insensitive: false,
        case_preserving: true,
    });
    check!(PathconfRes, ok, wire![[0, 0], [1000, 255], [1, 0, 0, 1]]);
}

#[test]
fn what_the_protocol_does_not_define_is_refused() {
    fn refused<'a, T: Decode<'a> + Debug>(bytes: &'a [u8]) {
        T::from_xdr(bytes).expect_err("undefined");
    }
    refused::<GetattrRes>(&wire![3]);
    refused::<SetTime>(&wire![3]);
    refused::<CreateHow>(&wire![3]);
    // It promises nothing.
    assert_eq!(Stable::from_xdr(&wire![3]), Ok(Stable::Unstable));
    // A handle of 65 bytes is one that can't be used.
    let long = FileHandle::from_xdr(&wire![65, &[0; 68]]);
    assert_eq!(long, FileHandle::from_xdr(&wire![0]));
}
