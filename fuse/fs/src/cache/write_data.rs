//! The data of one write(2), borrowed or in a buffer of its own.

use nfsrdma_rdma::Buf;
use std::ops::Range;

/// Bytes that a program writes. If they are alone in a buffer of the pool, that is here as well, so
/// that it can become a block of the cache, or be sent, without a copy.
#[derive(Debug, Clone, Copy)]
pub struct WriteData<'a> {
    bytes: &'a [u8],
    buf: Option<&'a Buf>,
}

impl<'a> From<&'a [u8]> for WriteData<'a> {
    fn from(bytes: &'a [u8]) -> Self {
        WriteData { bytes, buf: None }
    }
}

impl<'a, const N: usize> From<&'a [u8; N]> for WriteData<'a> {
    fn from(bytes: &'a [u8; N]) -> Self {
        WriteData::from(&bytes[..])
    }
}

impl<'a> From<&'a Vec<u8>> for WriteData<'a> {
    fn from(bytes: &'a Vec<u8>) -> Self {
        WriteData::from(&bytes[..])
    }
}

impl<'a> From<&'a Buf> for WriteData<'a> {
    fn from(buf: &'a Buf) -> Self {
        WriteData {
            bytes: buf,
            buf: Some(buf),
        }
    }
}

impl<'a> WriteData<'a> {
    pub fn bytes(self) -> &'a [u8] {
        self.bytes
    }

    pub fn len(self) -> usize {
        self.bytes.len()
    }

    pub fn is_empty(self) -> bool {
        self.bytes.is_empty()
    }

    /// The buffer that has exactly these bytes, if there is one.
    pub fn buf(self) -> Option<&'a Buf> {
        self.buf
    }

    /// The first `len` bytes, or all.
    pub fn first(self, len: usize) -> Self {
        match len < self.len() {
            true => WriteData::from(&self.bytes[..len]),
            false => self,
        }
    }

    /// What follows the first `len` bytes.
    pub fn after(self, len: usize) -> Self {
        match len {
            0 => self,
            _ => WriteData::from(&self.bytes[len..]),
        }
    }

    /// The part of the buffer with the bytes of `range`, if there is a buffer.
    pub fn part(self, range: Range<usize>) -> Option<Buf> {
        self.buf.map(|buf| buf.slice(range))
    }

    /// The data without a borrow. Borrowed bytes are copied; those in a buffer only with `copy`.
    pub fn keep(self, copy: bool) -> KeptData {
        match self.buf {
            Some(buf) if !copy => KeptData::Buf(buf.clone()),
            _ => KeptData::Bytes(self.bytes.to_vec()),
        }
    }
}

/// Data that outlives the request that brought it.
#[derive(Debug)]
pub enum KeptData {
    Bytes(Vec<u8>),
    Buf(Buf),
}

impl<'a> From<&'a KeptData> for WriteData<'a> {
    fn from(kept: &'a KeptData) -> Self {
        match kept {
            KeptData::Bytes(bytes) => WriteData::from(bytes),
            KeptData::Buf(buf) => WriteData::from(buf),
        }
    }
}
