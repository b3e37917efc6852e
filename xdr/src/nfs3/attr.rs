//! Attributes and weak cache consistency data (RFC 1813 section 2.6), and GETATTR, SETATTR,
//! ACCESS (sections 3.3.1, 3.3.2, 3.3.4).

use super::{FileHandle, FileType, Reply, SpecData, Time, Void};
use crate::codec::{Decode, DecodeError, Decoder, Encode, Encoder, Result, xdr_struct};

/// fattr3: the attributes of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attributes {
    pub kind: FileType,
    /// Permission bits, set-id bits and sticky bit, without type bits.
    pub mode: u32,
    pub nlink: u32,
    pub uid: u32,
    pub gid: u32,
    /// Length of the file in bytes.
    pub size: u64,
    /// Bytes of disk space that the file uses.
    pub used: u64,
    pub rdev: SpecData,
    pub fsid: u64,
    pub fileid: u64,
    pub atime: Time,
    pub mtime: Time,
    pub ctime: Time,
}

/// The length of fattr3.
const ATTRIBUTES: usize = 84;

/// Attributes are in nearly every reply, so they are coded by fixed places and one check of the length.
impl Encode for Attributes {
    fn encode(&self, to: &mut Encoder) {
        let mut bytes = [0; ATTRIBUTES];
        let words: [u32; ATTRIBUTES / 4] = [
            self.kind as u32,
            self.mode,
            self.nlink,
            self.uid,
            self.gid,
            (self.size >> 32) as u32,
            self.size as u32,
            (self.used >> 32) as u32,
            self.used as u32,
            self.rdev.major,
            self.rdev.minor,
            (self.fsid >> 32) as u32,
            self.fsid as u32,
            (self.fileid >> 32) as u32,
            self.fileid as u32,
            self.atime.seconds,
            self.atime.nanoseconds,
            self.mtime.seconds,
            self.mtime.nanoseconds,
            self.ctime.seconds,
            self.ctime.nanoseconds,
        ];
        for (place, word) in bytes.as_chunks_mut().0.iter_mut().zip(words) {
            *place = word.to_be_bytes();
        }
        to.opaque_fixed(&bytes);
    }
}

impl Decode<'_> for Attributes {
    fn decode(from: &mut Decoder<'_>) -> Result<Self> {
        let words: &[[u8; 4]; ATTRIBUTES / 4] = from.words()?;
        let word = |at: usize| u32::from_be_bytes(words[at]);
        let hyper = |at: usize| u64::from(word(at)) << 32 | u64::from(word(at + 1));
        let time = |at: usize| Time {
            seconds: word(at),
            nanoseconds: word(at + 1),
        };
        Ok(Attributes {
            kind: FileType::try_from(word(0))?,
            mode: word(1),
            nlink: word(2),
            uid: word(3),
            gid: word(4),
            size: hyper(5),
            used: hyper(7),
            rdev: SpecData {
                major: word(9),
                minor: word(10),
            },
            fsid: hyper(11),
            fileid: hyper(13),
            atime: time(15),
            mtime: time(17),
            ctime: time(19),
        })
    }
}

xdr_struct! {
    /// wcc_attr: what a client compares to find out whether another client changed the object.
    #[derive(Copy)]
    WccAttributes { size: u64, mtime: Time, ctime: Time, }
}

xdr_struct! {
    /// wcc_data: attributes before and after an operation that changes the object.
    #[derive(Copy, Default)]
    WccData { before: Option<WccAttributes>, after: Option<Attributes>, }
}

/// set_atime and set_mtime.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SetTime {
    #[default]
    Keep,
    ToServerTime,
    To(Time),
}

impl Encode for SetTime {
    fn encode(&self, to: &mut Encoder) {
        match self {
            SetTime::Keep => to.u32(0),
            SetTime::ToServerTime => to.u32(1),
            SetTime::To(time) => {
                to.u32(2);
                time.encode(to);
            }
        }
    }
}

impl Decode<'_> for SetTime {
    fn decode(from: &mut Decoder<'_>) -> Result<Self> {
        Ok(match from.u32()? {
            0 => SetTime::Keep,
            1 => SetTime::ToServerTime,
            2 => SetTime::To(Time::decode(from)?),
            value => {
                return Err(DecodeError::Undefined {
                    what: "time_how",
                    value,
                });
            }
        })
    }
}

xdr_struct! {
    /// sattr3: the attributes to set; `None` leaves one unchanged.
    #[derive(Copy, Default)]
    SetAttributes {
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: SetTime,
        mtime: SetTime,
    }
}

xdr_struct! {
    /// GETATTR3args: arguments of GETATTR.
    #[derive(Copy)]
    GetattrArgs { object: FileHandle, }
}

xdr_struct! {
    /// GETATTR3resok: results of GETATTR.
    #[derive(Copy)]
    GetattrOk { attributes: Attributes, }
}

/// Results of GETATTR, for any status.
pub type GetattrRes = Reply<GetattrOk, Void>;

xdr_struct! {
    /// SETATTR3args: arguments of SETATTR.
    #[derive(Copy)]
    SetattrArgs {
        object: FileHandle,
        new: SetAttributes,
        /// The server refuses with NOT_SYNC unless the object has this ctime.
        guard: Option<Time>,
    }
}

/// Results of SETATTR: weak cache consistency data for any status.
pub type SetattrRes = Reply<WccData, WccData>;

/// Bits of ACCESS requests and results (RFC 1813 section 3.3.4).
pub mod access {
    pub const READ: u32 = 0x01;
    pub const LOOKUP: u32 = 0x02;
    pub const MODIFY: u32 = 0x04;
    pub const EXTEND: u32 = 0x08;
    pub const DELETE: u32 = 0x10;
    pub const EXECUTE: u32 = 0x20;
}

xdr_struct! {
    /// ACCESS3args: arguments of ACCESS.
    #[derive(Copy)]
    AccessArgs { object: FileHandle, access: u32, }
}

xdr_struct! {
    /// ACCESS3resok: results of ACCESS.
    #[derive(Copy)]
    AccessOk { attributes: Option<Attributes>, access: u32, }
}

/// Results of ACCESS, for any status.
pub type AccessRes = Reply<AccessOk, Option<Attributes>>;
