//! Small registered buffers, kept for reuse: message heads, transport headers, Receives.

use crate::sync::Mutex;
use nfsrdma_rdma::{Buf, BufMut, Pool};
use std::ops::Range;
use std::sync::Arc;

/// Buffers of one size. Taking a kept one costs a short lock and no allocation.
#[derive(Debug)]
pub(super) struct Blocks {
    pool: Pool,
    size: usize,
    /// Largest number of buffers kept.
    keep: usize,
    free: Mutex<Vec<BufMut>>,
}

impl Blocks {
    pub(super) fn new(pool: Pool, size: usize, keep: usize) -> Arc<Self> {
        Arc::new(Blocks {
            pool,
            size,
            keep,
            free: Mutex::new(Vec::new()),
        })
    }

    /// Bytes of each buffer.
    pub(super) fn size(&self) -> usize {
        self.size
    }

    /// A buffer of the full size; `None` if the pool is empty.
    pub(super) fn take(&self) -> Option<BufMut> {
        self.take_kept().or_else(|| self.pool.alloc(self.size))
    }

    /// A buffer that was kept, without allocating from the pool.
    pub(super) fn take_kept(&self) -> Option<BufMut> {
        self.free.lock().pop()
    }

    /// Keeps a buffer for reuse; one that is too small goes back to the pool.
    pub(super) fn give(&self, mut buf: BufMut) {
        if buf.capacity() < self.size {
            return;
        }
        buf.resize(self.size);
        let mut free = self.free.lock();
        if free.len() < self.keep {
            free.push(buf);
        }
    }

    /// Keeps a buffer for reuse if nobody else holds a part of it.
    pub(super) fn give_shared(&self, buf: Buf) {
        if let Ok(buf) = buf.try_into_mut() {
            self.give(buf);
        }
    }
}

/// Copies bytes into a registered buffer; `None` if the pool is empty.
pub(super) fn registered(blocks: &Blocks, pool: &Pool, bytes: &[u8]) -> Option<Buf> {
    registered_if_kept(blocks, bytes).or_else(|| {
        // At least the size of the others, so that it can be kept for reuse.
        let buf = pool.alloc(bytes.len().max(blocks.size()))?;
        Some(filled_with(buf, bytes))
    })
}

/// Copies bytes into a registered buffer that `blocks` has kept for reuse, if one is free. Calls
/// that may have to wait for a credit must not allocate from the pool: their number is not bounded,
/// and the page cache uses the same pool.
pub(super) fn registered_if_kept(blocks: &Blocks, bytes: &[u8]) -> Option<Buf> {
    let buf = blocks.take_kept()?;
    if buf.capacity() < bytes.len() {
        blocks.give(buf);
        return None;
    }
    Some(filled_with(buf, bytes))
}

fn filled_with(mut buf: BufMut, bytes: &[u8]) -> Buf {
    buf.resize(bytes.len());
    buf.copy_from_slice(bytes);
    buf.freeze()
}

/// The bytes of a reply, in the memory where they arrived.
#[derive(Debug)]
pub(super) enum ReplyBytes {
    /// A Receive; its buffer goes back to `home`.
    Receive {
        buf: Option<BufMut>,
        start: usize,
        end: usize,
        home: Arc<Blocks>,
    },
    /// A Reply chunk.
    Chunk {
        buf: BufMut,
        start: usize,
        end: usize,
    },
    /// A copy, made when there was no buffer to replace the Receive.
    Copy { bytes: Box<[u8]>, start: usize },
}

impl ReplyBytes {
    pub(super) fn as_slice(&self) -> &[u8] {
        match self {
            ReplyBytes::Receive {
                buf, start, end, ..
            } => buf.as_ref().map_or(&[], |buf| &buf[*start..*end]),
            ReplyBytes::Chunk { buf, start, end } => &buf[*start..*end],
            ReplyBytes::Copy { bytes, start } => &bytes[*start..],
        }
    }

    pub(super) fn as_mut_slice(&mut self) -> &mut [u8] {
        match self {
            ReplyBytes::Receive {
                buf, start, end, ..
            } => buf.as_mut().map_or(&mut [], |buf| &mut buf[*start..*end]),
            ReplyBytes::Chunk { buf, start, end } => &mut buf[*start..*end],
            ReplyBytes::Copy { bytes, start } => &mut bytes[*start..],
        }
    }

    /// Leaves only this part of the bytes.
    pub(super) fn cut(&mut self, part: Range<usize>) {
        match self {
            ReplyBytes::Receive { start, end, .. } | ReplyBytes::Chunk { start, end, .. } => {
                (*start, *end) = (*start + part.start, *start + part.end);
            }
            ReplyBytes::Copy { bytes, start } => {
                *bytes = bytes[*start + part.start..*start + part.end].into();
                *start = 0;
            }
        }
    }
}

impl Drop for ReplyBytes {
    fn drop(&mut self) {
        if let ReplyBytes::Receive { buf, home, .. } = self
            && let Some(buf) = buf.take()
        {
            home.give(buf);
        }
    }
}
