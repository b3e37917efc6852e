//! READLINK, READ, WRITE, COMMIT (RFC 1813 sections 3.3.5 to 3.3.7 and 3.3.21).

use super::{Attributes, FileHandle, IO_MAX, PATH_MAX, Reply, Verifier, WccData};
use crate::codec::{Decode, Decoder, Encode, Encoder, Payload, Result, xdr_enum, xdr_struct};

xdr_struct! {
    /// READLINK3args: arguments of READLINK.
    #[derive(Copy)]
    ReadlinkArgs { symlink: FileHandle, }
}

/// Results of READLINK. The path is DDP-eligible (RFC 8267 section 4).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadlinkOk<'a> {
    pub attributes: Option<Attributes>,
    pub path: Payload<'a>,
}

impl Encode for ReadlinkOk<'_> {
    fn encode(&self, to: &mut Encoder) {
        self.attributes.encode(to);
        to.payload(self.path);
    }
}

impl<'a> Decode<'a> for ReadlinkOk<'a> {
    fn decode(from: &mut Decoder<'a>) -> Result<Self> {
        Ok(ReadlinkOk {
            attributes: Decode::decode(from)?,
            path: from.payload("symbolic link", PATH_MAX)?,
        })
    }
}

/// Results of READLINK, for any status.
pub type ReadlinkRes<'a> = Reply<ReadlinkOk<'a>, Option<Attributes>>;

xdr_struct! {
    /// READ3args: arguments of READ.
    #[derive(Copy)]
    ReadArgs { file: FileHandle, offset: u64, count: u32, }
}

/// Results of READ. The data are DDP-eligible (RFC 8267 section 4).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadOk<'a> {
    pub attributes: Option<Attributes>,
    pub count: u32,
    pub eof: bool,
    pub data: Payload<'a>,
}

impl Encode for ReadOk<'_> {
    fn encode(&self, to: &mut Encoder) {
        self.attributes.encode(to);
        to.u32(self.count);
        to.bool(self.eof);
        to.payload(self.data);
    }
}

impl<'a> Decode<'a> for ReadOk<'a> {
    fn decode(from: &mut Decoder<'a>) -> Result<Self> {
        Ok(ReadOk {
            attributes: Decode::decode(from)?,
            count: from.u32()?,
            eof: from.bool()?,
            data: from.payload("READ data", IO_MAX)?,
        })
    }
}

/// Results of READ, for any status.
pub type ReadRes<'a> = Reply<ReadOk<'a>, Option<Attributes>>;

xdr_enum! {
    /// stable_how: whether written data must be on stable storage when the reply is sent. On the
    /// wire, a value that RFC 1813 does not define promises nothing.
    Stable or Unstable {
        Unstable = 0,
        DataSync = 1,
        FileSync = 2,
    }
}

/// Arguments of WRITE. The data are DDP-eligible (RFC 8267 section 4).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WriteArgs<'a> {
    pub file: FileHandle,
    pub offset: u64,
    pub count: u32,
    pub stable: Stable,
    pub data: Payload<'a>,
}

impl Encode for WriteArgs<'_> {
    fn encode(&self, to: &mut Encoder) {
        self.file.encode(to);
        to.u64(self.offset);
        to.u32(self.count);
        self.stable.encode(to);
        to.payload(self.data);
    }
}

impl<'a> Decode<'a> for WriteArgs<'a> {
    fn decode(from: &mut Decoder<'a>) -> Result<Self> {
        Ok(WriteArgs {
            file: Decode::decode(from)?,
            offset: from.u64()?,
            count: from.u32()?,
            stable: Decode::decode(from)?,
            data: from.payload("WRITE data", IO_MAX)?,
        })
    }
}

xdr_struct! {
    /// WRITE3resok: results of WRITE.
    #[derive(Copy)]
    WriteOk {
        wcc: WccData,
        count: u32,
        committed: Stable,
        verifier: Verifier,
    }
}

/// Results of WRITE, for any status.
pub type WriteRes = Reply<WriteOk, WccData>;

xdr_struct! {
    /// COMMIT3args: arguments of COMMIT.
    #[derive(Copy)]
    CommitArgs { file: FileHandle, offset: u64, count: u32, }
}

xdr_struct! {
    /// COMMIT3resok: results of COMMIT.
    #[derive(Copy)]
    CommitOk { wcc: WccData, verifier: Verifier, }
}

/// Results of COMMIT, for any status.
pub type CommitRes = Reply<CommitOk, WccData>;
