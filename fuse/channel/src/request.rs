//! Requests of the kernel: `struct fuse_in_header`, and the arguments of the operation.
//!
//! An opcode that this crate does not know is not an error: the file system answers it with ENOSYS.

use super::abi::opcode;
use super::fields::{Fields, Malformed};
use super::header::Header;
use super::operation::{Operation, WriteIn, write_in};

/// A request, which borrows from the buffer into which it was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request<'a> {
    pub header: Header,
    pub operation: Operation<'a>,
}

impl<'a> Request<'a> {
    /// Decodes the bytes of one read(2).
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let (header, body) = Header::parse(bytes)?;
        let operation = Operation::parse(header.opcode, body)?;
        Ok(Request { header, operation })
    }
}

/// The bytes before the data of a WRITE: `struct fuse_in_header` and `struct fuse_write_in`.
pub(crate) const WRITE_HEAD: usize = 80;

/// Decodes a WRITE from the bytes before its data; `len` is the length of the whole request. `None`
/// if it is another request, or if something follows its data.
pub(crate) fn parse_write(head: &[u8; WRITE_HEAD], len: usize) -> Option<(Header, WriteIn)> {
    let (header, extensions, body) = Header::parse_first(head, len).ok()?;
    if header.opcode != opcode::WRITE || extensions > 0 {
        return None;
    }
    let (to, size) = write_in(&mut Fields::new(body)).ok()?;
    (len - WRITE_HEAD == size).then_some((header, to))
}

#[cfg(test)]
#[path = "request_tests.rs"]
mod tests;
