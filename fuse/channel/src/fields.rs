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

    pub(crate) fn take<T: Argument<'a>>(&mut self) -> Result<T, Malformed> {
        T::read(self)
    }

    /// The bytes that were not read yet.
    pub(crate) fn rest(self) -> &'a [u8] {
        self.0
    }
}

/// What can be read from the fields of a request.
pub(crate) trait Argument<'a>: Sized {
    fn read(fields: &mut Fields<'a>) -> Result<Self, Malformed>;
}

macro_rules! numbers {
    ($($type:ident)*) => {$(
        impl Argument<'_> for $type {
            fn read(fields: &mut Fields<'_>) -> Result<Self, Malformed> {
                let (head, tail) = fields.0.split_first_chunk().ok_or(Malformed::Truncated)?;
                fields.0 = tail;
                Ok($type::from_ne_bytes(*head))
            }
        }
    )*};
}

numbers!(u16 u32 i32 u64);

/// The lowest bit of a word of flags.
impl Argument<'_> for bool {
    fn read(fields: &mut Fields<'_>) -> Result<Self, Malformed> {
        u32::read(fields).map(|flags| flags & 1 != 0)
    }
}

/// A string that ends with a zero byte, without that.
impl<'a> Argument<'a> for &'a OsStr {
    fn read(fields: &mut Fields<'a>) -> Result<Self, Malformed> {
        let end = fields.0.iter().position(|&byte| byte == 0);
        let name = fields.bytes(end.ok_or(Malformed::Unterminated)?)?;
        fields.bytes(1)?;
        Ok(OsStr::from_bytes(name))
    }
}
