//! An established context: MICs and private messages.

use crate::bounds::not_empty;
use crate::error::{Error, Kind};
use crate::raw::{self, Output};
use std::fmt;
use std::ops::Deref;
use std::time::{Duration, SystemTime};

/// An established context. It may go from thread to thread, but only one may use it at a time.
///
/// With the encryption types that this crate allows (RFC 3962, RFC 8009) MICs have one length, and
/// wrapping adds the same number of bytes to messages of every length.
pub struct Context {
    raw: raw::Context,
    mic_len: usize,
    wrap_overhead: usize,
    expires: SystemTime,
}

impl Context {
    /// Of a complete context.
    pub(crate) fn new(raw: raw::Context) -> Result<Context, Error> {
        /// Any length will do.
        const SAMPLE: [u8; 4] = [0; 4];
        let remaining = match raw.remaining() {
            Err(error) if error.kind() == Kind::Expired => Duration::ZERO,
            remaining => remaining?,
        };
        let now = SystemTime::now();
        /// What "for ever" means.
        const LONG: Duration = Duration::from_secs(10 * 365 * 86_400);
        Ok(Context {
            mic_len: raw.mic(&SAMPLE)?.len(),
            wrap_overhead: raw.wrap(&SAMPLE)?.len().saturating_sub(SAMPLE.len()),
            expires: now + remaining.min(LONG),
            raw,
        })
    }

    /// The MIC of a message, which has [`Context::mic_len`] bytes.
    ///
    /// # Errors
    /// The library may lack memory.
    pub fn mic(&self, message: &[u8]) -> Result<Output, Error> {
        self.raw.mic(message)
    }

    /// Checks that `mic` is the peer's MIC of `message`.
    ///
    /// # Errors
    /// [`Kind::Defective`] if it is not.
    pub fn verify_mic(&self, message: &[u8], mic: &[u8]) -> Result<(), Error> {
        not_empty(mic)?;
        self.raw.verify_mic(message, mic)
    }

    /// Encrypts a message with a MIC of its own; adds [`Context::wrap_overhead`] bytes.
    ///
    /// # Errors
    /// The library may lack memory.
    pub fn wrap(&self, message: &[u8]) -> Result<Output, Error> {
        self.raw.wrap(message)
    }

    /// Decrypts a message of the peer.
    ///
    /// # Errors
    /// [`Kind::Defective`] if it is not the peer's, or has integrity only.
    pub fn unwrap(&self, wrapped: &[u8]) -> Result<Output, Error> {
        not_empty(wrapped)?;
        self.raw.unwrap(wrapped)
    }

    /// The length of a MIC in bytes.
    pub fn mic_len(&self) -> usize {
        self.mic_len
    }

    /// How many bytes wrapping adds.
    pub fn wrap_overhead(&self) -> usize {
        self.wrap_overhead
    }

    /// When the ticket that the context was made with expires. The server refuses it from then on; the
    /// library does not mind.
    pub fn expires(&self) -> SystemTime {
        self.expires
    }

    /// The context as bytes, for [`crate::Library::import`]. They have its keys.
    ///
    /// # Errors
    /// The library may lack memory; the context is lost then.
    pub fn export(self) -> Result<Exported, Error> {
        Ok(Exported(self.raw.export()?))
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context")
            .field("mic_len", &self.mic_len)
            .field("wrap_overhead", &self.wrap_overhead)
            .finish_non_exhaustive()
    }
}

/// An exported context. It has keys, so it is overwritten when it is dropped.
#[derive(Debug)]
pub struct Exported(Output);

impl Deref for Exported {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for Exported {
    fn drop(&mut self) {
        self.0.wipe();
    }
}
