//! A message that is partly cut.

use crate::proto::queue::Token;
use crate::wire::rdmap::Opcode;
use nfsrdma_rdma::{Buf, Segs};
use std::ops::Range;

#[derive(Debug)]
pub(super) enum Header {
    Tagged {
        opcode: Opcode,
        stag: u32,
        offset: u64,
    },
    Untagged {
        opcode: Opcode,
        invalidate: u32,
        queue: u32,
        msn: u32,
    },
}

/// A message that is partly cut.
#[derive(Debug)]
pub(super) struct Open {
    pub(super) header: Header,
    pub(super) token: Token,
    pub(super) data: Segs<Buf>,
    /// The next buffer of `data`, and the offset in it.
    pub(super) at: (usize, usize),
    pub(super) done: usize,
    pub(super) len: usize,
}

impl Open {
    /// The next payload: at most `most` bytes, and not beyond the current buffer. Returns the buffer
    /// and the range in it.
    fn advance(&mut self, most: usize) -> (&Buf, Range<usize>) {
        let (index, from) = self.at;
        let buf = &self.data[index];
        let to = buf.len().min(from + most);
        self.at = match to == buf.len() {
            true => (index + 1, 0),
            false => (index, to),
        };
        (buf, from..to)
    }

    /// Takes the next payload by reference to its buffer.
    pub(super) fn take(&mut self, most: usize) -> Buf {
        let (buf, range) = self.advance(most);
        buf.slice(range)
    }

    /// Takes the next payload to be copied.
    pub(super) fn next(&mut self, most: usize) -> &[u8] {
        let (buf, range) = self.advance(most);
        &buf[range]
    }
}
