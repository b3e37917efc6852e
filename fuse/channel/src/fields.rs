//! Reads the fields of a request one after the other. Numbers have the machine's byte order.

use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt;

/// Why a request could not be decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Malformed {
    /// It ends within a field.
    Truncated,
    /// A name has no zero byte at its end.
    Unterminated,
    /// The length in the header is not the number of bytes read.
    Length,
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Malformed::Truncated => "the request is too short",
            Malformed::Unterminated => "a name in the request has no end",
            Malformed::Length => "the request's header tells another length",
        })
    }
}

impl std::error::Error for Malformed {}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Fields(bytes)
    }

    pub(crate) fn bytes(&mut self, len: usize) -> Result<&'a [u8], Malformed> {
        let (head, tail) = self.0.split_at_checked(len).ok_or(Malformed::Truncated)?;
        self.0 = tail;
        Ok(head)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (head, tail) = self.0.split_first_chunk().ok_or(Malformed::Truncated)?;
        self.0 = tail;
        Ok(*head)
    }

    pub(crate) fn u16(&mut self) -> Result<u16, Malformed> {
        self.array().map(u16::from_ne_bytes)
    }

    pub(crate) fn u32(&mut self) -> Result<u32, Malformed> {
        self.array().map(u32::from_ne_bytes)
    }

    pub(crate) fn i32(&mut self) -> Result<i32, Malformed> {
        self.array().map(i32::from_ne_bytes)
    }

    pub(crate) fn u64(&mut self) -> Result<u64, Malformed> {
        self.array().map(u64::from_ne_bytes)
    }

    pub(crate) fn skip(&mut self, len: usize) -> Result<(), Malformed> {
        self.bytes(len).map(|_| ())
    }

    /// A string that ends with a zero byte, without that.
    pub(crate) fn name(&mut self) -> Result<&'a OsStr, Malformed> {
        let end = self.0.iter().position(|&byte| byte == 0);
        let name = self.bytes(end.ok_or(Malformed::Unterminated)?)?;
        self.skip(1)?;
        Ok(OsStr::from_bytes(name))
    }

    /// The bytes that were not read yet.
    pub(crate) fn rest(self) -> &'a [u8] {
        self.0
    }
}
