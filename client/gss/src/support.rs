//! Both sides of a context whose key is given, for fuzzers: without a library and a realm.

use crate::token::{Keys, both};
use std::fmt;
use std::ops::Range;

/// One side of a context.
pub struct Peer(Keys);

/// Initiator and acceptor of a context with this encryption type.
pub fn pair(enctype: u8, key: &[u8; 32]) -> Option<[Peer; 2]> {
    Some(both(enctype, key)?.map(Peer))
}

impl Peer {
    /// The length of a MIC in bytes.
    pub fn mic_len(&self) -> usize {
        self.0.added()[0]
    }

    /// How many bytes wrapping adds.
    pub fn wrap_overhead(&self) -> usize {
        self.0.added()[1]
    }

    /// [`crate::Context::mic`].
    pub fn mic(&self, message: &[&[u8]], mic: &mut [u8]) {
        self.0.mic(message, mic);
    }

    /// [`crate::Context::verify_mic`].
    pub fn is_mic(&self, message: &[u8], mic: &[u8]) -> bool {
        self.0.is_mic(message, mic)
    }

    /// [`crate::Context::wrap`].
    pub fn wrap(&self, message: &[&[u8]], wrapped: &mut [u8]) -> Option<()> {
        self.0.wrap(message, wrapped)
    }

    /// [`crate::Context::unwrap`].
    pub fn unwrap(&self, wrapped: &mut [u8]) -> Option<Range<usize>> {
        self.0.opens(wrapped).then(|| self.0.unwrap(wrapped))?
    }

    /// Encrypts what a token has after its header, whatever that is, and puts the checksum at its end: what a malicious
    /// peer could do. `None` if it is too short.
    pub fn seal(&self, token: &mut [u8]) -> Option<()> {
        self.0.seal(token)
    }
}

impl fmt::Debug for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Peer")
    }
}
