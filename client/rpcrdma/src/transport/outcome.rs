//! What is done with a call after its registrations have been invalidated.

use super::call::{Call, Payload};
use super::memory::ReplyBytes;
use crate::error::Error;
use nfsrdma_rdma::{BufMut, Memory};

// Identifies one registration of a call, in the low bits of a work request's number.
pub(super) const SOURCE: u64 = 0;
pub(super) const SINK: u64 = 1;
pub(super) const REPLY_CHUNK: u64 = 2;

/// A call whose registrations are being invalidated, and its outcome after that.
pub(super) struct Ending {
    pub(super) call: Box<Call>,
    pub(super) outcome: Outcome,
    pub(super) reply_chunk: Option<BufMut>,
    pub(super) outstanding: u32,
}

pub(super) enum Outcome {
    Reply {
        bytes: ReplyBytes,
        placed: Option<u32>,
    },
    /// Like `Reply`; the reply is the first `len` bytes of the Reply chunk.
    InReplyChunk {
        len: usize,
        placed: Option<u32>,
    },
    Fail(Error),
    /// Send the call again on the next connection.
    SendAgain,
    /// Send the call alone on the next connection.
    SendAlone,
    /// Send the call on this connection when there is memory; it was not sent yet.
    Wait,
}

impl Ending {
    /// The memory of one registration has been returned.
    pub(super) fn take(&mut self, which: u64, memory: Option<Memory>) {
        let Some(Memory::Sink(mut bufs)) = memory else {
            return;
        };
        if which == REPLY_CHUNK {
            self.reply_chunk = bufs.pop();
        } else if which == SINK && !self.call.bounced {
            self.call.payload = Payload::Sink(bufs);
        } else if let Payload::Sink(sinks) = &mut self.call.payload
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
