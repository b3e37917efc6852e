//! LOOKUP, CREATE, MKDIR, SYMLINK, MKNOD, REMOVE, RMDIR, RENAME, LINK
//! (RFC 1813 sections 3.3.3 and 3.3.8 to 3.3.15).

use super::{
    Attributes, DirOp, FileHandle, FileType, PATH_MAX, Reply, SetAttributes, SpecData, Verifier,
    WccData,
};
use crate::codec::{Decode, DecodeError, Decoder, Encode, Encoder, Payload, Result, xdr_struct};

xdr_struct! {
    /// LOOKUP3args: arguments of LOOKUP.
    #[derive(Copy)]
    LookupArgs<'a> { what: DirOp<'a>, }
}

xdr_struct! {
    /// LOOKUP3resok: results of LOOKUP.
    #[derive(Copy)]
    LookupOk {
        object: FileHandle,
        attributes: Option<Attributes>,
        dir: Option<Attributes>,
    }
}

/// Results of LOOKUP, for any status.
pub type LookupRes = Reply<LookupOk, Option<Attributes>>;

/// createhow3.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CreateHow {
    Unchecked(SetAttributes),
    Guarded(SetAttributes),
    /// A SETATTR that follows sets the attributes.
    Exclusive(Verifier),
}

impl Encode for CreateHow {
    fn encode(&self, to: &mut Encoder) {
        match self {
            CreateHow::Unchecked(attributes) => {
                to.u32(0);
                attributes.encode(to);
            }
            CreateHow::Guarded(attributes) => {
                to.u32(1);
                attributes.encode(to);
            }
            CreateHow::Exclusive(verifier) => {
                to.u32(2);
                verifier.encode(to);
            }
        }
    }
}

impl Decode<'_> for CreateHow {
    fn decode(from: &mut Decoder<'_>) -> Result<Self> {
        Ok(match from.u32()? {
            0 => CreateHow::Unchecked(Decode::decode(from)?),
            1 => CreateHow::Guarded(Decode::decode(from)?),
            2 => CreateHow::Exclusive(Decode::decode(from)?),
            value => {
                return Err(DecodeError::Undefined {
                    what: "createmode3",
                    value,
                });
            }
        })
    }
}

xdr_struct! {
    /// CREATE3args: arguments of CREATE.
    #[derive(Copy)]
    CreateArgs<'a> { at: DirOp<'a>, how: CreateHow, }
}

xdr_struct! {
    /// Results of CREATE, MKDIR, SYMLINK and MKNOD. If the server leaves out the handle, the client
    /// looks the name up.
    #[derive(Copy)]
    Created {
        object: Option<FileHandle>,
        attributes: Option<Attributes>,
        dir: WccData,
    }
}

/// Results of CREATE, MKDIR, SYMLINK and MKNOD, for any status.
pub type CreateRes = Reply<Created, WccData>;

xdr_struct! {
    /// MKDIR3args: arguments of MKDIR.
    #[derive(Copy)]
    MkdirArgs<'a> { at: DirOp<'a>, attributes: SetAttributes, }
}

/// Arguments of SYMLINK. The path is DDP-eligible (RFC 8267 section 4).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SymlinkArgs<'a> {
    pub at: DirOp<'a>,
    pub attributes: SetAttributes,
    pub path: Payload<'a>,
}

impl Encode for SymlinkArgs<'_> {
    fn encode(&self, to: &mut Encoder) {
        self.at.encode(to);
        self.attributes.encode(to);
        to.payload(self.path);
    }
}

impl<'a> Decode<'a> for SymlinkArgs<'a> {
    fn decode(from: &mut Decoder<'a>) -> Result<Self> {
        Ok(SymlinkArgs {
            at: Decode::decode(from)?,
            attributes: Decode::decode(from)?,
            path: from.payload("symbolic link", PATH_MAX)?,
        })
    }
}

/// mknoddata3: the type of special file, with the data for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MknodWhat {
    Character(SetAttributes, SpecData),
    Block(SetAttributes, SpecData),
    Socket(SetAttributes),
    Fifo(SetAttributes),
    /// A type that MKNOD cannot create: the server answers with BADTYPE.
    Other(FileType),
}

impl Encode for MknodWhat {
    fn encode(&self, to: &mut Encoder) {
        match self {
            MknodWhat::Character(attributes, device) => {
                FileType::Character.encode(to);
                attributes.encode(to);
                device.encode(to);
            }
            MknodWhat::Block(attributes, device) => {
                FileType::Block.encode(to);
                attributes.encode(to);
                device.encode(to);
            }
            MknodWhat::Socket(attributes) => {
                FileType::Socket.encode(to);
                attributes.encode(to);
            }
            MknodWhat::Fifo(attributes) => {
                FileType::Fifo.encode(to);
                attributes.encode(to);
            }
            MknodWhat::Other(kind) => kind.encode(to),
        }
    }
}

impl Decode<'_> for MknodWhat {
    fn decode(from: &mut Decoder<'_>) -> Result<Self> {
        Ok(match FileType::decode(from)? {
            FileType::Character => {
                MknodWhat::Character(Decode::decode(from)?, Decode::decode(from)?)
            }
            FileType::Block => MknodWhat::Block(Decode::decode(from)?, Decode::decode(from)?),
            FileType::Socket => MknodWhat::Socket(Decode::decode(from)?),
            FileType::Fifo => MknodWhat::Fifo(Decode::decode(from)?),
            kind => MknodWhat::Other(kind),
        })
    }
}

xdr_struct! {
    /// MKNOD3args: arguments of MKNOD.
    #[derive(Copy)]
    MknodArgs<'a> { at: DirOp<'a>, what: MknodWhat, }
}

xdr_struct! {
    /// Arguments of REMOVE and RMDIR.
    #[derive(Copy)]
    RemoveArgs<'a> { what: DirOp<'a>, }
}

/// Results of REMOVE and RMDIR, for any status.
pub type RemoveRes = Reply<WccData, WccData>;

xdr_struct! {
    /// RENAME3args: arguments of RENAME.
    #[derive(Copy)]
    RenameArgs<'a> { from: DirOp<'a>, to: DirOp<'a>, }
}

xdr_struct! {
    /// The part of RENAME's results that is present with any status.
    #[derive(Copy, Default)]
    RenameWcc { from_dir: WccData, to_dir: WccData, }
}

/// Results of RENAME, for any status.
pub type RenameRes = Reply<RenameWcc, RenameWcc>;

xdr_struct! {
    /// LINK3args: arguments of LINK.
    #[derive(Copy)]
    LinkArgs<'a> { file: FileHandle, link: DirOp<'a>, }
}

xdr_struct! {
    /// The part of LINK's results that is present with any status; the attributes are the file's.
    #[derive(Copy, Default)]
    LinkWcc { attributes: Option<Attributes>, dir: WccData, }
}

/// Results of LINK, for any status.
pub type LinkRes = Reply<LinkWcc, LinkWcc>;
