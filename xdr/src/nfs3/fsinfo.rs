//! FSSTAT, FSINFO, PATHCONF (RFC 1813 sections 3.3.18 to 3.3.20).

use super::{Attributes, FileHandle, Reply, Time};
use crate::codec::xdr_struct;

xdr_struct! {
    /// Arguments of FSSTAT, FSINFO and PATHCONF.
    #[derive(Copy)]
    RootArgs { object: FileHandle, }
}

xdr_struct! {
    /// FSSTAT3resok: results of FSSTAT.
    #[derive(Copy)]
    FsstatOk {
        attributes: Option<Attributes>,
        total_bytes: u64,
        free_bytes: u64,
        available_bytes: u64,
        total_files: u64,
        free_files: u64,
        available_files: u64,
        /// Seconds during which the values are not expected to change.
        invarsec: u32,
    }
}

/// Results of FSSTAT, for any status.
pub type FsstatRes = Reply<FsstatOk, Option<Attributes>>;

/// Bits of [`FsinfoOk::properties`].
pub mod fsf {
    pub const LINK: u32 = 0x01;
    pub const SYMLINK: u32 = 0x02;
    pub const HOMOGENEOUS: u32 = 0x08;
    pub const CANSETTIME: u32 = 0x10;
}

xdr_struct! {
    /// FSINFO3resok: results of FSINFO.
    #[derive(Copy)]
    FsinfoOk {
        attributes: Option<Attributes>,
        /// Largest and preferred count of READ, and the multiple it should be of, in bytes.
        rtmax: u32,
        rtpref: u32,
        rtmult: u32,
        /// Largest and preferred count of WRITE, and the multiple it should be of, in bytes.
        wtmax: u32,
        wtpref: u32,
        wtmult: u32,
        /// Preferred count of READDIR, in bytes.
        dtpref: u32,
        max_file_size: u64,
        time_delta: Time,
        properties: u32,
    }
}

/// Results of FSINFO, for any status.
pub type FsinfoRes = Reply<FsinfoOk, Option<Attributes>>;

xdr_struct! {
    /// PATHCONF3resok: results of PATHCONF.
    #[derive(Copy)]
    PathconfOk {
        attributes: Option<Attributes>,
        link_max: u32,
        name_max: u32,
        no_trunc: bool,
        chown_restricted: bool,
        case_insensitive: bool,
        case_preserving: bool,
    }
}

/// Results of PATHCONF, for any status.
pub type PathconfRes = Reply<PathconfOk, Option<Attributes>>;
