//! Which chunks a call offers, decided by the encoded sizes of the call and of its largest possible
//! reply.
//! | call                                        | form                                     |
//! | ------------------------------------------- | ---------------------------------------- |
//! | header and message fit the call threshold   | RDMA_MSG                                 |
//! | data of WRITE or SYMLINK do not, `reduced`  | RDMA_MSG, Read chunk at their position   |
//! | anything else that does not                 | RDMA_NOMSG, Position Zero Read chunk     |
//!
//! | reply at its largest                        | offer                                    |
//! | ------------------------------------------- | ---------------------------------------- |
//! | fits the reply threshold, data included     | nothing                                  |
//! | fits without the data of READ               | Write chunk                              |
//! | does not                                    | Reply chunk (and Write chunk for data)   |

use crate::options::WriteChunk;
use nfsrdma_xdr::codec::roundup;
use nfsrdma_xdr::private_data::PrivateData;
use nfsrdma_xdr::rpc::MAX_REPLY_LEN;
use nfsrdma_xdr::rpcrdma::{MIN_HEADER_LEN, READ_ENTRY_LEN, SEGMENT_LEN};

/// Largest sizes of messages without chunks, transport header included, in bytes (RFC 8166 section
/// 3.3.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Thresholds {
    /// From requester to responder.
    pub call: usize,
    /// From responder to requester.
    pub reply: usize,
    /// Size of a Receive: the largest message that the responder has announced, even if that
    /// exceeds what we announced.
    pub receive: usize,
    /// Whether both sides announced Send With Invalidate (RFC 8797 section 4.1).
    pub remote_invalidation: bool,
}

impl Thresholds {
    /// Computes the thresholds from the private data of both sides. For a peer that announces
    /// nothing, `receive` is still larger than the assumed thresholds.
    pub fn negotiate(own: &PrivateData, peer: Option<&PrivateData>) -> Self {
        const UNANNOUNCED: u32 = 4096;
        let sent = peer.map_or(UNANNOUNCED, |p| p.send_size);
        //= RFC 8166, Section 3.3.3
        //# In the absence of such a mechanism, senders and receives MUST assume the inline
        //# thresholds are 1024 bytes.
        //= RFC 8797, Section 5.1
        //# In other words, the peer MUST behave as if a Private Data message was received in which
        //# (1) bit 15 of the Flags field is zero and (2) both Size fields contain the value zero.
        let peer = peer.copied().unwrap_or_default();
        Thresholds {
            call: own.threshold_towards(&peer) as usize,
            reply: peer.threshold_towards(own) as usize,
            receive: sent.max(own.receive_size) as usize,
            remote_invalidation: own.remote_invalidation && peer.remote_invalidation,
        }
    }
}

/// The properties of a call that decide its form. Lengths are in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Shape {
    /// RPC message without the contents of the DDP-eligible argument.
    pub head: usize,
    /// Contents of the DDP-eligible argument, without padding.
    pub argument: usize,
    /// Whether the argument may be reduced (it follows `head`, RFC 8267 section 4).
    pub reducible: bool,
    /// Largest encoded length of the results without the DDP-eligible one.
    pub max_results: usize,
    /// Largest length of the DDP-eligible result.
    pub max_ddp_result: usize,
}

/// How many segments each piece of memory takes when it is registered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Segments {
    /// The whole message: head, argument, padding.
    pub message: usize,
    /// The argument alone.
    pub argument: usize,
    /// The sink of the DDP-eligible result.
    pub result: usize,
}

/// Where the RPC call message is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallForm {
    Inline,
    Reduced,
    PositionZero,
}

/// The form of a call, and the chunks it offers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plan {
    pub call: CallForm,
    /// Whether to offer a Write chunk for the DDP-eligible result.
    pub write_chunk: bool,
    /// Length of the one-segment Reply chunk to offer, in bytes; 0 for none.
    pub reply_chunk: usize,
}

/// Why there is no plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// The transport header alone exceeds the call threshold; fewer segments are needed.
    #[error("the chunk lists exceed the inline threshold")]
    TooManySegments,
}

/// Encoded length of a transport header with these numbers of segments.
const fn header_len(reads: usize, writes: usize, reply: usize) -> usize {
    MIN_HEADER_LEN
        + READ_ENTRY_LEN * reads
        + if writes > 0 {
            8 + SEGMENT_LEN * writes
        } else {
            0
        }
        + if reply > 0 {
            4 + SEGMENT_LEN * reply
        } else {
            0
        }
}

/// Encoded length of the call's transport header under a plan.
pub fn call_header_len(plan: &Plan, segments: &Segments) -> usize {
    let reads = match plan.call {
        CallForm::Inline => 0,
        CallForm::Reduced => segments.argument,
        CallForm::PositionZero => segments.message,
    };
    let writes = if plan.write_chunk { segments.result } else { 0 };
    header_len(reads, writes, usize::from(plan.reply_chunk > 0))
}

/// Chooses the form of a call and its chunks.
pub fn plan(
    shape: &Shape,
    segments: &Segments,
    thresholds: &Thresholds,
    style: WriteChunk,
) -> Result<Plan, PlanError> {
    // The reply's header repeats the chunks of the call.
    let message = MAX_REPLY_LEN + shape.max_results;
    let whole = header_len(0, 0, 0) + message + roundup(shape.max_ddp_result);
    let write_chunk = whole > thresholds.reply && shape.max_ddp_result > 0;
    let writes = if write_chunk { segments.result } else { 0 };
    //= RFC 8166, Section 4.3.3
    //# A Requester MUST provide a Reply chunk whenever the maximum possible size of the RPC Reply
    //# message's Transport and Payload streams is larger than the inline threshold for messages
    //# from Responder to Requester.
    let needs_reply_chunk = if write_chunk {
        header_len(0, writes, 0) + message > thresholds.reply
    } else {
        whole > thresholds.reply
    };
    let reply_chunk = if needs_reply_chunk { message } else { 0 };
    let mut plan = Plan {
        call: CallForm::Inline,
        write_chunk,
        reply_chunk,
    };
    let inline = call_header_len(&plan, segments) + shape.head + roundup(shape.argument);
    if inline <= thresholds.call {
        return Ok(plan);
    }
    //= RFC 8166, Section 3.4.2
    //# All other XDR data items MUST NOT be reduced.
    //= RFC 8166, Section 6.1
    //# Senders MUST NOT reduce data items that are not DDP-eligible.
    if style == WriteChunk::Reduced && shape.reducible && shape.argument > 0 {
        plan.call = CallForm::Reduced;
        if call_header_len(&plan, segments) + shape.head <= thresholds.call {
            return Ok(plan);
        }
    }
    //= RFC 8166, Section 3.5.3
    //# If there are no DDP-eligible data items in the Payload stream, or the Payload stream is
    //# still too large after it has been reduced, the RDMA transport MUST use RDMA Read or Write
    //# operations to convey the Payload stream itself.
    plan.call = CallForm::PositionZero;
    if call_header_len(&plan, segments) <= thresholds.call {
        return Ok(plan);
    }
    Err(PlanError::TooManySegments)
}
