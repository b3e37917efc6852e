//! READDIR and READDIRPLUS (RFC 1813 sections 3.3.16 and 3.3.17).

use super::{Attributes, FileHandle, Name, Reply, Verifier};
use crate::codec::{Decode, Decoder, Encode, Encoder, Result, xdr_struct};

xdr_struct! {
    /// READDIR3args: arguments of READDIR.
    #[derive(Copy)]
    ReaddirArgs {
        dir: FileHandle,
        cookie: u64,
        verifier: Verifier,
        /// Largest size of the results in bytes, including XDR overhead.
        count: u32,
    }
}

xdr_struct! {
    /// entry3.
    #[derive(Copy)]
    Entry<'a> { fileid: u64, name: Name<'a>, cookie: u64, }
}

xdr_struct! {
    /// READDIRPLUS3args: arguments of READDIRPLUS.
    #[derive(Copy)]
    ReaddirplusArgs {
        dir: FileHandle,
        cookie: u64,
        verifier: Verifier,
        /// Largest total size of fileids, names and cookies, in bytes.
        dircount: u32,
        /// Largest size of the results in bytes, including XDR overhead.
        maxcount: u32,
    }
}

xdr_struct! {
    /// entryplus3.
    #[derive(Copy)]
    EntryPlus<'a> {
        fileid: u64,
        name: Name<'a>,
        cookie: u64,
        attributes: Option<Attributes>,
        handle: Option<FileHandle>,
    }
}

/// Results of READDIR (`E` is [`Entry`]) and READDIRPLUS (`E` is [`EntryPlus`]).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirList<E> {
    pub dir: Option<Attributes>,
    pub verifier: Verifier,
    pub entries: Vec<E>,
    pub eof: bool,
}

impl<E: Encode> Encode for DirList<E> {
    fn encode(&self, to: &mut Encoder) {
        self.dir.encode(to);
        self.verifier.encode(to);
        to.list(&self.entries);
        to.bool(self.eof);
    }
}

impl<'a, E: Decode<'a>> Decode<'a> for DirList<E> {
    fn decode(from: &mut Decoder<'a>) -> Result<Self> {
        Ok(DirList {
            dir: Decode::decode(from)?,
            verifier: Decode::decode(from)?,
            entries: from.list()?,
            eof: from.bool()?,
        })
    }
}

/// Results of READDIR, for any status.
pub type ReaddirRes<'a> = Reply<DirList<Entry<'a>>, Option<Attributes>>;
/// Results of READDIRPLUS, for any status.
pub type ReaddirplusRes<'a> = Reply<DirList<EntryPlus<'a>>, Option<Attributes>>;
