//! Memory that the data of a large WRITE is read into, and that whoever handles it keeps.
//!
//! A request is one message: header, arguments, data. Read into one buffer, the data has to be copied
//! to where it belongs. So where a WRITE of some length is expected, the message is read by readv(2)
//! into three pieces: what stands in front of the data of a WRITE (80 bytes), memory of exactly that
//! length from [`Handler::buffer`](super::Handler::buffer), and the rest of the reader's buffer. If a
//! WRITE of that length comes, its data is where it will stay
//! ([`Handler::write`](super::Handler::write)). Any other request is put together in the reader's
//! buffer: most are shorter than 80 bytes, or a name longer.
//!
//! What is expected is what the last WRITE was, if that was a power of two at a multiple of itself:
//! writes of files come one after the other in the size that the program or the kernel chose.

use super::operation::WriteIn;
use super::request::WRITE_HEAD;
use std::io::IoSliceMut;
use std::ops::DerefMut;

/// Data shorter than this is copied. A WRITE to the server has a segment for each buffer, and more than
/// four of them cost as much as the copy (docs/PERFORMANCE.md).
const LEAST: usize = 256 << 10;

/// Where a reader reads data to: one for each reader.
#[derive(Debug)]
pub struct Landing<B> {
    buffer: Option<B>,
    /// Length of the data that is expected; 0 if none is.
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
    /// The pieces that the next request is to be read into, if the data of a WRITE is expected.
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

    /// The data of the WRITE that was read, if its length is `data`, that of the memory.
    pub(crate) fn take(&mut self, data: usize) -> Option<B> {
        self.buffer.take_if(|own| own.len() == data)
    }

    /// Puts a request of `len` bytes that was read in pieces together in `buffer`.
    pub(crate) fn join(&self, buffer: &mut [u8], len: usize) {
        let Some(own) = &self.buffer else { return };
        let inside = len.saturating_sub(WRITE_HEAD).min(own.len());
        buffer[WRITE_HEAD..WRITE_HEAD + inside].copy_from_slice(&own[..inside]);
    }

    /// A WRITE of `len` bytes came.
    pub(crate) fn expect(&mut self, to: &WriteIn, len: usize) {
        let whole = len.is_power_of_two() && to.offset.is_multiple_of(len as u64);
        self.expected = if whole { len } else { 0 };
    }
}

#[cfg(test)]
#[path = "landing_tests.rs"]
mod tests;
