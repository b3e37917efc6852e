//! Frames captured between Linux and Linux, and between Linux and this project: each decoded
//! by our codecs and compared, field by field, with what tshark dissected in the same bytes.
//! `tests/system/interop/vectors.py` makes the files in `data/` and explains their lines.

mod describe;
mod nfs;
mod same;
mod vector;

pub use describe::describe;
pub use vector::{Side, Vector, parse};

/// Checks one vector: every field as tshark has it, and every message encoded again to the
/// bytes it came from. The error names the first difference.
pub fn check(vector: &Vector) -> Result<(), String> {
    let mut seen = describe(vector)?;
    // tshark puts messages in pieces together elsewhere, and passes over the transport header of
    // a few: compare the layers it shows here.
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
