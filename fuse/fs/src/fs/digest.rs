//! Digests of the attributes that the kernel was given. Comparing them with those of the attributes
//! known now shows whether what the kernel caches is out of date.

use nfsrdma_xdr::nfs3::Attributes;

/// A digest of mode, owner, group and links. The kernel does not ask for these again by itself, as
/// it does for size and times after each of its WRITEs, so a change needs a notification.
pub(super) fn digest(attributes: &Attributes) -> u32 {
    let fields = [
        attributes.mode,
        attributes.uid,
        attributes.gid,
        attributes.nlink,
    ];
    hash(&fields)
}

/// FNV-1a, folded to 32 bits; never 0, which stands for no digest.
fn hash(fields: &[u32; 4]) -> u32 {
    let mixed = fields.iter().fold(0xcbf2_9ce4_8422_2325, |hash, field| {
        (hash ^ u64::from(*field)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    u32::max((mixed >> 32) as u32 ^ mixed as u32, 1)
}
