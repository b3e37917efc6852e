//! Reads the data of a large WRITE directly into memory of its handler.
//!
//! A request is one message: header, arguments, data. If it is read into one buffer, the data has
//! to be copied to its place. So if a WRITE of a certain length is expected, the message is read by
//! readv(2) into three pieces: the 80 bytes before the data of a WRITE, memory of exactly the
//! expected length from [`Handler::buffer`](super::Handler::buffer), and the rest of the reader's
//! buffer. If a WRITE of that length arrives, its data is in place
//! ([`Handler::write`](super::Handler::write)). Any other request is joined in the reader's buffer,
//! which costs little: most have less than 80 bytes and a name.
//!
//! The expected length is that of the last WRITE, if it was a power of two and its offset a
//! multiple of it: the WRITEs of a file mostly follow one another with the size that the program or
//! the kernel chose.

use super::operation::WriteIn;
use super::request::WRITE_HEAD;
use std::io::IoSliceMut;
use std::ops::DerefMut;

/// Shorter data is copied. A WRITE to the server has a segment for each buffer, and more than four
/// of them cost as much as the copy (docs/PERFORMANCE.md).
const LEAST: usize = 256 << 10;

/// The memory into which a reader reads the data of the next WRITE; one for each reader.
#[derive(Debug)]
pub struct Landing<B> {
    buffer: Option<B>,
    /// The length of the expected data; 0 if none is expected.
    expected: usize,
    least: usize,
}

impl<B> Default for Landing<B> {
    fn default() -> Self {
        Landing {
            buffer: None,
            expected: 0,
            least: LEAST,
        }
    }
}

impl<B: DerefMut<Target = [u8]>> Landing<B> {
    /// The pieces into which the next request has to be read, if the data of a WRITE is expected.
    pub(crate) fn parts<'a>(
        &'a mut self,
        buffer: &'a mut [u8],
        memory: impl FnOnce(usize) -> Option<B>,
    ) -> Option<[IoSliceMut<'a>; 3]> {
        let fits = self.least..=buffer.len().saturating_sub(WRITE_HEAD);
        if !fits.contains(&self.expected) {
            self.buffer = None;
            return None;
        }
        if self.buffer.as_ref().map(|own| own.len()) != Some(self.expected) {
            self.buffer = memory(self.expected);
        }
        let own = self.buffer.as_deref_mut()?;
        let (head, rest) = buffer.split_at_mut(WRITE_HEAD);
        let rest = rest.get_mut(own.len()..)?;
        Some([head, own, rest].map(IoSliceMut::new))
    }

    /// The memory with the data of the WRITE that was read, if its length is `data`.
    pub(crate) fn take(&mut self, data: usize) -> Option<B> {
        self.buffer.take_if(|own| own.len() == data)
    }

    /// Joins a request of `len` bytes that was read in pieces in `buffer`.
    pub(crate) fn join(&self, buffer: &mut [u8], len: usize) {
        let Some(own) = &self.buffer else { return };
        let inside = len.saturating_sub(WRITE_HEAD).min(own.len());
        buffer[WRITE_HEAD..WRITE_HEAD + inside].copy_from_slice(&own[..inside]);
    }

    /// A WRITE of `len` bytes has arrived: determines which length is expected next.
    pub(crate) fn expect(&mut self, to: &WriteIn, len: usize) {
        let whole = len.is_power_of_two() && to.offset.is_multiple_of(len as u64);
        self.expected = if whole { len } else { 0 };
    }
}

#[cfg(test)]
#[path = "landing_tests.rs"]
mod tests;
