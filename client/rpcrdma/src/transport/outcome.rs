//! What becomes of a call when its registrations have ended.

use super::call::Payload;
use super::marshal::PostedCall;
use super::memory::ReplyBytes;
use crate::error::Error;
use nfsrdma_rdma::{BufMut, Memory};

// Which registration of a call, as the low bits of a work request's number.
pub(super) const SOURCE: u64 = 0;
pub(super) const SINK: u64 = 1;
pub(super) const REPLY_CHUNK: u64 = 2;

/// A call whose registrations are being ended, and what then.
pub(super) struct Ending {
    pub(super) posted: PostedCall,
    pub(super) outcome: Outcome,
    pub(super) reply_chunk: Option<BufMut>,
    pub(super) outstanding: u32,
}

pub(super) enum Outcome {
    Reply {
        bytes: ReplyBytes,
        placed: Option<u32>,
    },
    /// As `Reply`, in the first `len` bytes of the Reply chunk.
    InReplyChunk {
        len: usize,
        placed: Option<u32>,
    },
    Fail(Error),
    /// On the next connection.
    SendAgain,
    /// On the next connection, alone.
    SendAlone,
    /// On this one, when there is memory: it was not sent.
    Wait,
}

impl Ending {
    /// Memory of one registration is ours again.
    pub(super) fn take(&mut self, which: u64, memory: Option<Memory>) {
        let Some(Memory::Sink(mut bufs)) = memory else {
            return;
        };
        if which == REPLY_CHUNK {
            self.reply_chunk = bufs.pop();
        } else if which == SINK && !self.posted.bounced {
            self.posted.call.payload = Payload::Sink(bufs);
        } else if let Payload::Sink(sinks) = &mut self.posted.call.payload
            && let Some(all) = bufs.first()
        {
            let mut at = 0;
            for sink in sinks {
                let len = sink.len().min(all.len() - at);
                sink[..len].copy_from_slice(&all[at..at + len]);
                at += len;
            }
        }
    }
}
