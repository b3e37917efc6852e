//! What is checked of the peer's bytes before the library has them.

use crate::error::{Error, Kind};

/// Longest token or exported context that is given to the library, in bytes. The ticket of an Active
/// Directory user in many groups has some ten thousand.
pub const MAX_TOKEN_LEN: usize = 64 << 10;

/// Refuses nothing at all, which the library takes for a mistake of its caller.
pub(crate) fn not_empty(token: &[u8]) -> Result<(), Error> {
    match token {
        [] => Err(Error::new(Kind::Defective, "an empty token")),
        _ => Ok(()),
    }
}

/// Refuses what is longer than any token is.
pub(crate) fn bounded(token: &[u8]) -> Result<(), Error> {
    match token.len() {
        0..=MAX_TOKEN_LEN => Ok(()),
        len => Err(Error::new(
            Kind::Defective,
            format!("a token of {len} B, more than {MAX_TOKEN_LEN}"),
        )),
    }
}
