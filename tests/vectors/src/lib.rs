//! Frames captured between Linux and Linux, and between Linux and this project. Each is decoded by
//! our codecs and compared, field by field, with tshark's dissection of the same bytes.
//! `tests/system/interop/vectors.py` makes the files in `data/` and explains their lines.

mod describe;
mod nfs;
mod same;
mod vector;

pub use describe::describe;
pub use vector::{Side, Vector, parse};

/// Checks one vector: every field equals tshark's, and every message can be encoded again to the
/// same bytes. The error names the first difference.
pub fn check(vector: &Vector) -> Result<(), String> {
    let mut seen = describe(vector)?;
    // tshark reassembles some messages elsewhere, and skips the transport header of a few: compare
    // the layers that it shows here.
    for layer in ["rpc.", "rpcordma."] {
        if !vector
            .fields
            .iter()
            .any(|(name, _)| name.starts_with(layer))
        {
            seen.retain(|(name, _)| !name.starts_with(layer));
        }
    }
    if seen != vector.fields {
        let at = (0..)
            .find(|&i| seen.get(i) != vector.fields.get(i))
            .unwrap_or_default();
        return Err(format!(
            "field {at}: decoded {:?}, tshark has {:?}",
            seen.get(at),
            vector.fields.get(at)
        ));
    }
    Ok(())
}
