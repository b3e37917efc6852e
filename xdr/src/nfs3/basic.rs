//! Sizes, statuses, handles, names and times of NFSv3 (RFC 1813 sections 2.4 to 2.6).
//!
//! RFC 1813 does not bound the length of names and paths; here they are bounded as in Linux, before
//! memory is allocated for them. A status that the RFC does not define is a decoding error.

use crate::codec::{Decode, Decoder, Encode, Encoder, Result, xdr_enum, xdr_struct};
use std::fmt;
use std::hash::{Hash, Hasher};

/// Longest file handle in bytes (NFS3_FHSIZE).
pub const FHSIZE: usize = 64;
/// Longest file name that this project accepts or sends, in bytes (Linux NAME_MAX; RFC 1813 does
/// not bound filename3).
pub const NAME_MAX: usize = 255;
/// Longest path in a symbolic link, in bytes (Linux PATH_MAX; unbounded in RFC 1813).
pub const PATH_MAX: usize = 4096;
/// Largest READ or WRITE payload of this project, in bytes.
pub const IO_MAX: usize = 4 << 20;

xdr_enum! {
    /// nfsstat3 (RFC 1813 section 2.6).
    Status {
        Ok = 0,
        Perm = 1,
        NoEnt = 2,
        Io = 5,
        NxIo = 6,
        Access = 13,
        Exist = 17,
        XDev = 18,
        NoDev = 19,
        NotDir = 20,
        IsDir = 21,
        Inval = 22,
        FBig = 27,
        NoSpc = 28,
        RoFs = 30,
        MLink = 31,
        NameTooLong = 63,
        NotEmpty = 66,
        DQuot = 69,
        Stale = 70,
        Remote = 71,
        BadHandle = 10001,
        NotSync = 10002,
        BadCookie = 10003,
        NotSupp = 10004,
        TooSmall = 10005,
        ServerFault = 10006,
        BadType = 10007,
        JukeBox = 10008,
    }
}

xdr_enum! {
    /// ftype3: the type of a file system object. On the wire, any value that RFC 1813 does not
    /// define is [`FileType::Unknown`]: some servers have objects of further types, as doors.
    FileType or Unknown {
        Unknown = 0,
        Regular = 1,
        Directory = 2,
        Block = 3,
        Character = 4,
        Symlink = 5,
        Socket = 6,
        Fifo = 7,
    }
}

/// nfs_fh3: the server's name for an object, at most 64 bytes that the client does not interpret.
/// Records have it as it is in memory, for other processes, so its layout is fixed.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct FileHandle {
    len: u8,
    bytes: [u8; FHSIZE],
}

impl FileHandle {
    const EMPTY: Self = FileHandle {
        len: 0,
        bytes: [0; FHSIZE],
    };

    /// A handle with these bytes, or `None` if there are more than [`FHSIZE`].
    pub fn new(from: &[u8]) -> Option<Self> {
        let mut bytes = [0; FHSIZE];
        bytes.get_mut(..from.len())?.copy_from_slice(from);
        Some(FileHandle {
            len: from.len() as u8,
            bytes,
        })
    }

    /// Its bytes, at most [`FHSIZE`].
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

impl Hash for FileHandle {
    fn hash<H: Hasher>(&self, state: &mut H) {
        // Not the bytes that it does not use, which are most. A hasher counts the length of what is
        // written at once.
        state.write(self.as_bytes());
    }
}

impl fmt::Debug for FileHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FileHandle(")?;
        for byte in self.as_bytes() {
            write!(f, "{byte:02x}")?;
        }
        f.write_str(")")
    }
}

impl Encode for FileHandle {
    fn encode(&self, to: &mut Encoder) {
        to.opaque(self.as_bytes());
    }
}

impl Decode<'_> for FileHandle {
    /// A handle longer than [`FHSIZE`] (RFC 1813 section 2.3.3) becomes an empty one, which no object
    /// has either: one of them spoils no listing.
    fn decode(from: &mut Decoder<'_>) -> Result<Self> {
        let bytes = from.opaque("file handle", IO_MAX)?;
        Ok(FileHandle::new(bytes).unwrap_or(FileHandle::EMPTY))
    }
}

/// filename3: one component of a path, as the bytes on the wire. Decoding borrows it, whatever it
/// is, so that one name that nobody can use spoils no listing; [`Name::is_component`] must be
/// called where names are accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Name<'a>(pub &'a [u8]);

impl Name<'_> {
    /// Whether a directory may contain an entry with this name: not empty, no slash, no NUL, at
    /// most [`NAME_MAX`] bytes. (`.` and `..` are components.)
    pub fn is_component(&self) -> bool {
        // To the end, without a branch for each byte.
        let odd = |odd, &byte: &u8| odd | (byte == b'/') | (byte == 0);
        !self.0.is_empty() && self.0.len() <= NAME_MAX && !self.0.iter().fold(false, odd)
    }
}

impl Encode for Name<'_> {
    fn encode(&self, to: &mut Encoder) {
        to.opaque(self.0);
    }
}

impl<'a> Decode<'a> for Name<'a> {
    fn decode(from: &mut Decoder<'a>) -> Result<Self> {
        Ok(Name(from.opaque("file name", IO_MAX)?))
    }
}

/// nfspath3 where it is not DDP-eligible: the bytes of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Path<'a>(pub &'a [u8]);

impl Encode for Path<'_> {
    fn encode(&self, to: &mut Encoder) {
        to.opaque(self.0);
    }
}

impl<'a> Decode<'a> for Path<'a> {
    fn decode(from: &mut Decoder<'a>) -> Result<Self> {
        Ok(Path(from.opaque("path", PATH_MAX)?))
    }
}

/// An eight-byte opaque value that the client only compares and returns: cookieverf3, createverf3,
/// writeverf3.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Verifier(pub [u8; 8]);

impl Encode for Verifier {
    fn encode(&self, to: &mut Encoder) {
        to.opaque_fixed(&self.0);
    }
}

impl Decode<'_> for Verifier {
    fn decode(from: &mut Decoder<'_>) -> Result<Self> {
        let mut verifier = [0; 8];
        verifier.copy_from_slice(from.opaque_fixed(8)?);
        Ok(Verifier(verifier))
    }
}

xdr_struct! {
    /// nfstime3: seconds and nanoseconds since 1970, unsigned.
    #[derive(Copy, Default, PartialOrd, Ord, Hash)]
    Time { seconds: u32, nanoseconds: u32, }
}

xdr_struct! {
    /// specdata3: major and minor device numbers.
    #[derive(Copy, Default, Hash)]
    SpecData { major: u32, minor: u32, }
}

xdr_struct! {
    /// diropargs3: an entry of a directory.
    #[derive(Copy)]
    DirOp<'a> { dir: FileHandle, name: Name<'a>, }
}

/// The results of a procedure: `T` with NFS3_OK, `F` with any other status.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply<T, F> {
    Ok(T),
    Fail(Status, F),
}

impl<T, F> Reply<T, F> {
    /// [`Status::Ok`], or the status of the failure.
    pub fn status(&self) -> Status {
        match self {
            Reply::Ok(_) => Status::Ok,
            Reply::Fail(status, _) => *status,
        }
    }
}

impl<T: Encode, F: Encode> Encode for Reply<T, F> {
    fn encode(&self, to: &mut Encoder) {
        self.status().encode(to);
        match self {
            Reply::Ok(ok) => ok.encode(to),
            Reply::Fail(_, fail) => fail.encode(to),
        }
    }
}

impl<'a, T: Decode<'a>, F: Decode<'a>> Decode<'a> for Reply<T, F> {
    fn decode(from: &mut Decoder<'a>) -> Result<Self> {
        Ok(match Status::decode(from)? {
            Status::Ok => Reply::Ok(T::decode(from)?),
            status => Reply::Fail(status, F::decode(from)?),
        })
    }
}

xdr_struct! {
    /// Results without a body.
    #[derive(Copy, Default)]
    Void { }
}
