//! An established context: MICs and private messages.

use crate::bounds::not_empty;
use crate::error::{Error, Kind};
use crate::raw::{self, Output};
use crate::token::Keys;
use std::borrow::Cow;
use std::fmt;
use std::ops::{Deref, Range};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

/// An established context, which several threads may use at once.
///
/// With the encryption types that this crate allows (RFC 3962, RFC 8009) MICs have one length, and
/// wrapping adds the same number of bytes to messages of every length.
pub struct Context {
    /// For what is not done here.
    raw: Mutex<raw::Context>,
    keys: Option<Box<Keys>>,
    mic_len: usize,
    wrap_overhead: usize,
    expires: SystemTime,
}

/// A message in one piece, as the library needs it.
fn joined<'a>(pieces: &[&'a [u8]]) -> Cow<'a, [u8]> {
    match pieces {
        [only] => Cow::Borrowed(only),
        pieces => Cow::Owned(pieces.concat()),
    }
}

/// Copies what the library made to where it was asked for.
fn put(made: &[u8], to: &mut [u8]) -> Result<(), Error> {
    if made.len() != to.len() {
        let text = format!("the library makes {} B instead of {}", made.len(), to.len());
        return Err(Error::new(Kind::Other, text));
    }
    to.copy_from_slice(made);
    Ok(())
}

fn defective(what: &'static str) -> Error {
    Error::new(Kind::Defective, what)
}

impl Context {
    /// Of a complete context.
    pub(crate) fn new(raw: raw::Context) -> Result<Context, Error> {
        /// Any will do.
        const SAMPLE: [u8; 21] = *b"not a multiple of 16.";
        let remaining = match raw.remaining() {
            Err(error) if error.kind() == Kind::Expired => Duration::ZERO,
            remaining => remaining?,
        };
        let now = SystemTime::now();
        /// What "for ever" means.
        const LONG: Duration = Duration::from_secs(10 * 365 * 86_400);
        let (mic, wrapped) = (raw.mic(&SAMPLE)?, raw.wrap(&SAMPLE)?);
        let keys = raw.with_key(|enctype, key| Keys::new(enctype, key, &SAMPLE, &mic, &wrapped));
        Ok(Context {
            keys: keys.map(Box::new),
            mic_len: mic.len(),
            wrap_overhead: wrapped.len().saturating_sub(SAMPLE.len()),
            expires: now + remaining.min(LONG),
            raw: Mutex::new(raw),
        })
    }

    fn raw(&self) -> MutexGuard<'_, raw::Context> {
        self.raw.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the MIC of a message in pieces. `mic` has [`Context::mic_len`] bytes.
    ///
    /// # Errors
    /// The library may lack memory.
    pub fn mic(&self, message: &[&[u8]], mic: &mut [u8]) -> Result<(), Error> {
        match &self.keys {
            Some(keys) if mic.len() == self.mic_len => keys.mic(message, mic),
            _ => put(&self.raw().mic(&joined(message))?, mic)?,
        }
        Ok(())
    }

    /// Checks that `mic` is the peer's MIC of `message`.
    ///
    /// # Errors
    /// [`Kind::Defective`] if it is not.
    pub fn verify_mic(&self, message: &[u8], mic: &[u8]) -> Result<(), Error> {
        not_empty(mic)?;
        match &self.keys {
            Some(keys) if keys.is_mic(message, mic) => Ok(()),
            Some(_) => Err(defective("another MIC")),
            None => self.raw().verify_mic(message, mic),
        }
    }

    /// Encrypts a message in pieces, with a MIC of its own. `wrapped` is [`Context::wrap_overhead`] bytes longer.
    ///
    /// # Errors
    /// The library may lack memory, or the system random bytes.
    pub fn wrap(&self, message: &[&[u8]], wrapped: &mut [u8]) -> Result<(), Error> {
        let Some(keys) = &self.keys else {
            return put(&self.raw().wrap(&joined(message))?, wrapped);
        };
        let made = keys.wrap(message, wrapped);
        made.ok_or_else(|| Error::new(Kind::Other, "no random bytes, or no room"))
    }

    /// Decrypts a message of the peer in place. Returns where it is.
    ///
    /// # Errors
    /// [`Kind::Defective`] if it is not the peer's, or has integrity only.
    pub fn unwrap(&self, wrapped: &mut [u8]) -> Result<Range<usize>, Error> {
        not_empty(wrapped)?;
        if let Some(keys) = self.keys.as_ref().filter(|keys| keys.opens(wrapped)) {
            let message = keys.unwrap(wrapped);
            return message.ok_or_else(|| defective("not a message of the peer"));
        }
        let message = self.raw().unwrap(wrapped)?;
        let place = wrapped.get_mut(..message.len());
        let place = place.ok_or_else(|| defective("longer than it was"))?;
        place.copy_from_slice(&message);
        Ok(0..message.len())
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
        let raw = self
            .raw
            .into_inner()
            .unwrap_or_else(PoisonError::into_inner);
        Ok(Exported(raw.export()?))
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
