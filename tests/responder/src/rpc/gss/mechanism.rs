//! What this server needs of a GSS-API mechanism.

use std::fmt;
use std::ops::Range;
use std::time::Duration;

/// Accepts contexts by the server's keys.
pub trait Mechanism: Send + Sync {
    /// Accepts a client's token, which must complete the context, as Kerberos does.
    fn accept(&self, token: &[u8]) -> Result<Accepted, Refused>;
}

/// A context that is complete.
pub struct Accepted {
    pub context: Box<dyn Protection>,
    /// The token that the client needs.
    pub token: Vec<u8>,
    /// The client's principal, with its realm.
    pub principal: String,
    /// How long the context is valid; `None` for ever.
    pub lifetime: Option<Duration>,
}

impl fmt::Debug for Accepted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Accepted")
    }
}

/// Why a token was refused: the status codes of the GSS-API, and a sentence for the log.
#[derive(Debug, Clone)]
pub struct Refused {
    pub major: u32,
    pub minor: u32,
    pub why: String,
}

/// The operations of a context, which several threads use at once; `None` for what is not the peer's, and for errors.
pub trait Protection: Send + Sync {
    /// The MIC of a message in pieces.
    fn mic(&self, message: &[&[u8]]) -> Option<Vec<u8>>;
    fn verify(&self, message: &[u8], mic: &[u8]) -> Option<()>;
    /// How many bytes the token of an encrypted message is longer.
    fn wrap_overhead(&self) -> usize;
    /// Encrypts a message in pieces. `token` has the length of the token.
    fn wrap(&self, message: &[&[u8]], token: &mut [u8]) -> Option<()>;
    /// Decrypts a token in place. Returns where its message is.
    fn unwrap(&self, token: &mut [u8]) -> Option<Range<usize>>;
}
