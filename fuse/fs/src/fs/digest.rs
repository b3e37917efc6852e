//! Digests of the attributes that the kernel was told, by which it is found out whether what
//! it believes is out of date.

use nfsrdma_xdr::nfs3::{Attributes, Time};

/// A digest of what the kernel is told and has no reason of its own to ask for again. Size and
/// times it takes for out of date after each of its own WRITEs; mode, owner and links not.
pub(super) fn digest(attributes: &Attributes) -> u32 {
    let fields = [
        attributes.mode,
        attributes.uid,
        attributes.gid,
        attributes.nlink,
    ];
    hash(&fields)
}

/// The same of what makes the kernel drop its pages when it is told others.
pub(super) fn digest_of_contents(size: u64, mtime: Time) -> u32 {
    let fields = [
        size as u32,
        (size >> 32) as u32,
        mtime.seconds,
        mtime.nanoseconds,
    ];
    hash(&fields)
}

/// FNV-1a; 0 means that nothing was told.
fn hash(fields: &[u32; 4]) -> u32 {
    let mixed = fields.iter().fold(0xcbf2_9ce4_8422_2325, |hash, field| {
        (hash ^ u64::from(*field)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    u32::max((mixed >> 32) as u32 ^ mixed as u32, 1)
}
