//! Compares what a codec encodes again with the bytes that it decoded.

pub(crate) fn same(what: &str, ours: &[u8], theirs: &[u8]) -> Result<(), String> {
    if ours == theirs {
        return Ok(());
    }
    let at = ours.iter().zip(theirs).take_while(|(a, b)| a == b).count();
    Err(format!(
        "{what}: encoded again it differs at byte {at} of {} (ours) and {} (theirs)",
        ours.len(),
        theirs.len()
    ))
}
