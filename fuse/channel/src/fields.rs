//! Fields of a request, taken one after the other. Numbers have the machine's byte order.

use super::request::Malformed;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

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

    /// A string up to its zero byte.
    pub(crate) fn name(&mut self) -> Result<&'a OsStr, Malformed> {
        let end = self.0.iter().position(|&byte| byte == 0);
        let name = self.bytes(end.ok_or(Malformed::Unterminated)?)?;
        self.skip(1)?;
        Ok(OsStr::from_bytes(name))
    }

    /// What is left.
    pub(crate) fn rest(self) -> &'a [u8] {
        self.0
    }
}
