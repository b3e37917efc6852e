//! NFSv3 arguments and results: decoded to the last byte, and encoded again.

use crate::same::same;
use nfsrdma_xdr::codec::{Decode, Decoder, Encode};
use nfsrdma_xdr::nfs3::{self, Procedure};

fn whole<'a, T: Encode + Decode<'a>>(
    what: &str,
    bytes: &'a [u8],
    placed: Option<u32>,
) -> Result<(), String> {
    let mut from = match placed {
        Some(length) => Decoder::with_placed(bytes, length),
        None => Decoder::new(bytes),
    };
    let item = T::decode(&mut from).map_err(|e| format!("{what}: {e}"))?;
    let end = from.position();
    from.finish().map_err(|e| format!("{what}: {e}"))?;
    same(what, &item.to_xdr(), &bytes[..end])
}

macro_rules! by_number {
    ($number:expr, $part:ident, $bytes:expr, $placed:expr, [$($procedure:ident),* $(,)?]) => {
        match $number {
            $(<nfs3::$procedure as Procedure>::NUMBER => {
                let what = concat!(stringify!($procedure), " ", stringify!($part));
                whole::<<nfs3::$procedure as Procedure>::$part<'_>>(what, $bytes, $placed)
            })*
            number => Err(format!("no procedure {number}")),
        }
    };
    ($number:expr, $part:ident, $bytes:expr, $placed:expr) => {
        by_number!($number, $part, $bytes, $placed, [
            Null, Getattr, Setattr, Lookup, Access, Readlink, Read, Write, Create, Mkdir, Symlink, Mknod, Remove,
            Rmdir, Rename, Link, Readdir, Readdirplus, Fsstat, Fsinfo, Pathconf, Commit,
        ])
    };
}

/// Checks a call's arguments; a chunk carries `placed` bytes of their DDP-eligible item.
pub(crate) fn arguments(number: u32, bytes: &[u8], placed: Option<u32>) -> Result<(), String> {
    by_number!(number, Args, bytes, placed)
}

/// Checks a reply's results; a chunk carries `placed` bytes of their DDP-eligible item.
pub(crate) fn results(number: u32, bytes: &[u8], placed: Option<u32>) -> Result<(), String> {
    by_number!(number, Res, bytes, placed)
}
