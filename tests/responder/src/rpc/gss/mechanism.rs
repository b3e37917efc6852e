//! What this server needs of a GSS-API mechanism.

use std::fmt;
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

/// The operations of a context; `None` for what is not the peer's, and for errors.
pub trait Protection: Send {
    fn mic(&mut self, message: &[u8]) -> Option<Vec<u8>>;
    fn verify(&mut self, message: &[u8], mic: &[u8]) -> Option<()>;
    fn wrap(&mut self, message: &[u8]) -> Option<Vec<u8>>;
    /// The message of a token that was encrypted.
    fn unwrap(&mut self, token: &[u8]) -> Option<Vec<u8>>;
}
