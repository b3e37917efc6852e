//! RPC-over-RDMA version 1 for a responder (RFC 8166), without I/O. For a received message it
//! determines what has to be read, and for a reply what has to be written.

use nfsrdma_rdma::{Handle, RemoteSegment};
use nfsrdma_xdr::codec::{Encode, Encoder, padding};
use nfsrdma_xdr::rpcrdma::{Body, ChunkLists, Header, ReadSegment, Segment, WriteChunk};
use std::ops::Range;

/// The limits of a call.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Largest argument in a Read chunk, in bytes.
    pub argument: u64,
    /// Longest RPC message in a Position Zero Read chunk, in bytes.
    pub message: u64,
    /// Most segments of all Read chunks of a call.
    pub read_segments: usize,
    /// The credits in each reply.
    pub credits: u32,
}

/// A Read chunk: the item at `position` of the RPC message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReadChunk {
    pub position: usize,
    /// Without empty segments.
    pub segments: Vec<RemoteSegment>,
}

/// A call, as its header announces it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallPlan {
    pub xid: u32,
    /// The Position Zero Read chunk, if it has the whole RPC message.
    pub message: Option<ReadChunk>,
    /// Otherwise, the place of the RPC message in the received one.
    pub inline: Range<usize>,
    /// The chunk of a reduced argument.
    pub argument: Option<ReadChunk>,
    /// Where the reply goes.
    pub targets: Targets,
}

/// The chunks offered for the reply, and the handle that may be invalidated with it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Targets {
    pub writes: Vec<WriteChunk>,
    pub reply: Option<WriteChunk>,
    /// The handle that all chunks of the call share.
    pub handle: Option<Handle>,
}

/// What to do with a received message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Intake {
    /// Ignore it (RFC 8166 sections 4.2.4, 4.5 and 4.6.2).
    Discard,
    /// Answer with this error.
    Answer(Box<Header>),
    Call(Box<CallPlan>),
}

/// Classifies a received message.
pub fn intake(received: &[u8], limits: &Limits) -> Intake {
    let (header, at) = match Header::parse(received) {
        Ok(parsed) => parsed,
        Err(error) => {
            return match error.answer(limits.credits) {
                Some(answer) => Intake::Answer(Box::new(answer)),
                None => Intake::Discard,
            };
        }
    };
    let refuse = Intake::Answer(Box::new(Header::err_chunk(header.xid, limits.credits)));
    let (chunks, long) = match header.body {
        Body::Msg(chunks) => (chunks, false),
        Body::NoMsg(chunks) => (chunks, true),
        // "Responders SHOULD reply with [...] ERR_CHUNK" (section 4.6.1).
        Body::MsgP { .. } => return refuse,
        //= RFC 8166, Section 4.2.4
        //# A Responder MUST silently discard RDMA_ERROR procedures.
        //= RFC 8166, Section 4.6.2
        //# Receivers MUST silently discard RDMA_DONE messages.
        Body::Done | Body::Error(_) => return Intake::Discard,
    };
    let Some((message, argument)) = read_chunks(&chunks.reads, limits) else {
        return refuse;
    };
    // A Long Call has its message in a Position Zero chunk, and a Short Call has no such chunk.
    if message.is_some() != long {
        return refuse;
    }
    let xid_matches = match long {
        // The XID is known only after the chunk was read.
        true => true,
        // The XIDs must be equal (sections 4.2.1 and 4.5.2).
        false => received.get(at..at + 4) == Some(&header.xid.to_be_bytes()[..]),
    };
    if !xid_matches {
        return refuse;
    }
    Intake::Call(Box::new(CallPlan {
        xid: header.xid,
        message,
        inline: at..received.len(),
        argument,
        targets: Targets {
            handle: shared_handle(&chunks),
            writes: chunks.writes.into_vec(),
            reply: chunks.reply,
        },
    }))
}

/// The Position Zero chunk, and the only other one that NFSv3 can use. `None` if there are more, or
/// if they are too large.
fn read_chunks(
    reads: &[ReadSegment],
    limits: &Limits,
) -> Option<(Option<ReadChunk>, Option<ReadChunk>)> {
    if reads.len() > limits.read_segments {
        return None;
    }
    let mut message: Option<ReadChunk> = None;
    let mut argument: Option<ReadChunk> = None;
    for segment in reads {
        let position = segment.position as usize;
        let slot = match position {
            0 => &mut message,
            _ => &mut argument,
        };
        let chunk = slot.get_or_insert(ReadChunk {
            position,
            segments: Vec::new(),
        });
        if chunk.position != position {
            return None;
        }
        if segment.target.length > 0 {
            chunk.segments.push(remote(&segment.target));
        }
    }
    let within = |chunk: &Option<ReadChunk>, bound| {
        chunk.as_ref().is_none_or(|chunk| {
            let sum: u64 = chunk.segments.iter().map(|s| u64::from(s.length)).sum();
            sum <= bound
        })
    };
    (within(&message, limits.message) && within(&argument, limits.argument))
        .then_some((message, argument))
}

fn remote(segment: &Segment) -> RemoteSegment {
    RemoteSegment {
        handle: Handle(segment.handle),
        length: segment.length,
        offset: segment.offset,
    }
}

/// The handle of all segments, if they share one.
fn shared_handle(chunks: &ChunkLists) -> Option<Handle> {
    let reads = chunks.reads.iter().map(|s| s.target.handle);
    let writes = chunks.writes.iter().chain(&chunks.reply);
    let mut handles = reads.chain(writes.flat_map(|c| c.segments.iter().map(|s| s.handle)));
    let first = handles.next()?;
    handles.all(|h| h == first).then_some(Handle(first))
}

/// An RDMA Write of a part of the reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Push {
    /// The range of the payload, or of the whole reply message, that it writes.
    pub range: Range<usize>,
    pub target: RemoteSegment,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplyPlan {
    /// RDMA Writes of the payload.
    pub payload: Vec<Push>,
    /// RDMA Writes of the RPC message (what is left of it, padding included).
    pub message: Vec<Push>,
    /// The transport header.
    pub header: Vec<u8>,
    /// Whether the RPC message follows the header in the Send.
    pub inline: bool,
    /// Whether the payload (and its padding) is in the RPC message.
    pub payload_inline: bool,
}

/// The reply does not fit into what the requester offered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DoesNotFit;

/// Plans a reply that has `head` bytes of RPC message, followed by a payload if the procedure has a
/// DDP-eligible result. `inline` is the reply inline threshold.
pub fn reply(
    xid: u32,
    credits: u32,
    targets: &Targets,
    head: usize,
    payload: Option<usize>,
    inline: usize,
) -> Result<ReplyPlan, DoesNotFit> {
    let mut writes = Vec::with_capacity(targets.writes.len());
    let mut pushes = Vec::new();
    let mut left = payload;
    // The result that belongs to the next chunk: each chunk in the list's order is for one
    // DDP-eligible result (section 4.3.2.1), and no result of NFSv3 has more than one.
    let mut next = payload;
    for chunk in &targets.writes {
        match next.take() {
            //= RFC 8166, Section 4.3.2.3
            //# The Responder MUST return the corresponding result data item inline and MUST return
            //# an empty Write chunk in that Write list position in the RPC Reply message.
            Some(_) if chunk.segments.is_empty() => writes.push(chunk.clone()),
            //= RFC 8166, Section 4.3.2
            //# When a Requester provides a Write list, the Responder MUST push data corresponding
            //# to DDP-eligible result data items to Requester memory referenced in the Write list.
            //= RFC 8166, Section 3.4.6.2
            //# A Responder MUST NOT write XDR roundup padding into a Write chunk, even if the
            //# Requester made space available for it.
            //# Therefore, when returning a single variable-length result data item, a returned
            //# Write chunk's total length MUST be the same as the encoded length of the result data
            //# item.
            Some(len) => {
                let (filled, push) = fill(chunk, len)?;
                writes.push(filled);
                pushes = push;
                left = None;
            }
            //= RFC 8166, Section 4.3.2.2
            //# If this is the last or only Write chunk available and it remains unconsumed, the
            //# Responder MUST return this Write chunk as an unused Write chunk (see Section 3.4.6).
            None => writes.push(fill(chunk, 0)?.0),
        }
    }
    let message = head + left.map_or(0, |len| len + padding(len));
    //= RFC 8166, Section 4.3.1
    //# Responders MUST leave the Read list empty in all replies.
    let mut lists = ChunkLists {
        writes: writes.into(),
        reply: None,
        ..Default::default()
    };
    //= RFC 8166, Section 4.3.3
    //# When a Requester provides a Reply chunk in an RPC Call message, the Responder MUST copy that
    //# chunk into the Transport header of the RPC Reply message.
    lists.reply = match &targets.reply {
        Some(chunk) => Some(fill(chunk, 0)?.0),
        None => None,
    };
    let mut header = Header::new(xid, credits, Body::Msg(lists));
    let short = header.encoded_len() + message <= inline;
    let mut long = Vec::new();
    if !short {
        //= RFC 8166, Section 3.5.3
        //# If a Reply chunk was provided and the reduced Payload stream is larger than the reply
        //# inline threshold, the Responder MUST use the Requester-provided Reply chunk for the
        //# reply.
        let chunk = targets.reply.as_ref().ok_or(DoesNotFit)?;
        let (filled, push) = fill(chunk, message)?;
        let Body::Msg(mut lists) = header.body else {
            return Err(DoesNotFit);
        };
        lists.reply = Some(filled);
        header.body = Body::NoMsg(lists);
        long = push;
        if header.encoded_len() > inline {
            return Err(DoesNotFit);
        }
    }
    let mut out = Encoder::new(Vec::with_capacity(header.encoded_len()));
    header.encode(&mut out);
    Ok(ReplyPlan {
        payload: pushes,
        message: long,
        header: out.into_vec(),
        inline: short,
        payload_inline: left.is_some(),
    })
}

//= RFC 8166, Section 3.4.6
//# The Responder MUST copy the segment count and all segments from the Requester-provided Write
//# chunk into the RPC Reply message's Transport header.
/// Distributes `len` bytes over a chunk. Returns the used lengths, and the RDMA Writes.
fn fill(chunk: &WriteChunk, len: usize) -> Result<(WriteChunk, Vec<Push>), DoesNotFit> {
    let mut filled = chunk.clone();
    let mut pushes = Vec::new();
    let mut at = 0;
    for segment in &mut filled.segments {
        let part = (segment.length as usize).min(len - at);
        segment.length = part as u32;
        if part > 0 {
            pushes.push(Push {
                range: at..at + part,
                target: remote(segment),
            });
        }
        at += part;
    }
    match at == len {
        true => Ok((filled, pushes)),
        false => Err(DoesNotFit),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nfsrdma_xdr::rpcrdma::ErrorBody;
    use proptest::collection::vec;
    use proptest::prelude::*;

    const LIMITS: Limits = Limits {
        argument: 1 << 20,
        message: (1 << 20) + 8192,
        read_segments: 16,
        credits: 7,
    };

    fn segment(length: u32) -> Segment {
        Segment {
            handle: 5,
            length,
            offset: 1 << 40,
        }
    }

    fn chunk(lengths: &[u32]) -> WriteChunk {
        lengths.iter().map(|&len| segment(len)).collect()
    }

    fn received(body: Body, payload: &[u8]) -> Vec<u8> {
        let mut bytes = Header::new(9, 1, body).to_xdr();
        bytes.extend_from_slice(payload);
        bytes
    }

    #[test]
    fn a_message_with_two_arguments_or_none_where_one_must_be_is_refused() {
        let read = |position, length| ReadSegment {
            position,
            target: segment(length),
        };
        let body = |long: bool, reads: &[ReadSegment]| {
            let lists = ChunkLists {
                reads: reads.iter().copied().collect(),
                reply: Some(chunk(&[10])),
                ..Default::default()
            };
            match long {
                true => Body::NoMsg(lists),
                false => Body::Msg(lists),
            }
        };
        let payload = [0, 0, 0, 9, 0, 0, 0, 0];
        let refused = Intake::Answer(Box::new(Header::err_chunk(9, 7)));
        let too_many = vec![read(100, 1); 17];
        for (long, reads) in [
            (false, &[read(100, 4), read(200, 4)][..]),
            (false, &[read(0, 4)]),
            (true, &[read(100, 4)]),
            (true, &[]),
            (false, &[read(100, (1 << 20) + 1)]),
            (false, &[read(100, u32::MAX), read(100, u32::MAX)]),
            (true, &[read(0, u32::MAX), read(0, 1)]),
            (false, &too_many),
        ] {
            let message = received(body(long, reads), &payload);
            assert_eq!(intake(&message, &LIMITS), refused, "{reads:?}");
        }
        let message = received(body(true, &[read(0, 8), read(100, 4), read(0, 0)]), b"");
        let Intake::Call(plan) = intake(&message, &LIMITS) else {
            panic!("a Long Call with a reduced argument");
        };
        assert_eq!(plan.message.unwrap().segments.len(), 1);
        assert_eq!(plan.argument.unwrap().position, 100);
        assert_eq!(plan.targets.handle, Some(Handle(5)));
    }

    proptest! {
        /// Words that resemble headers get further into the code.
        #[test]
        fn any_words_are_sorted(words in vec(0u32..6, 4..40)) {
            let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_be_bytes()).collect();
            if let Intake::Answer(answer) = intake(&bytes, &LIMITS) {
                let is_error = matches!(
                    answer.body,
                    Body::Error(ErrorBody::ErrChunk | ErrorBody::ErrVers { .. })
                );
                prop_assert!(is_error);
                prop_assert_eq!(answer.xid, words[0]);
            }
        }

        //= RFC 8166, Section 3.4.6
        //= type=test
        //# The Responder MUST copy the segment count and all [...]
        //= RFC 8166, Section 4.3.1
        //= type=test
        //# Responders MUST leave the Read list empty in all replies.
        //= RFC 8166, Section 4.3.3
        //= type=test
        //# When a Requester provides a Reply chunk in an [...]
        /// Every byte of a reply goes to one place, in order, within the offered memory.
        #[test]
        fn replies_are_placed_completely(
            writes in vec(vec(0u32..5000, 0..5), 0..3),
            offered in proptest::option::of(vec(0u32..5000, 1..5)),
            head in 24usize..3000,
            payload in proptest::option::of(0usize..9000),
            inline in 1024usize..5000,
        ) {
            let targets = Targets {
                writes: writes.iter().map(|lengths| chunk(lengths)).collect(),
                reply: offered.as_ref().map(|lengths| chunk(lengths)),
                handle: None,
            };
            let Ok(plan) = reply(3, 7, &targets, head, payload, inline) else {
                return Ok(());
            };
            let (header, len) = Header::parse(&plan.header).unwrap();
            prop_assert_eq!(len, plan.header.len());
            let in_message = match (payload, plan.payload_inline) {
                (Some(len), true) => head + len.next_multiple_of(4),
                _ => head,
            };
            let sent = plan.header.len() + if plan.inline { in_message } else { 0 };
            prop_assert!(sent <= inline);
            let contiguous = |pushes: &[Push]| {
                pushes.iter().try_fold(0, |at, push| {
                    let fits = push.range.len() == push.target.length as usize;
                    (push.range.start == at && fits).then_some(push.range.end)
                })
            };
            let pushed = contiguous(&plan.payload);
            let placed = payload.filter(|_| !plan.payload_inline).unwrap_or(0);
            prop_assert_eq!(pushed, Some(placed));
            let long = contiguous(&plan.message);
            prop_assert_eq!(long, Some(if plan.inline { 0 } else { in_message }));
            // The returned chunk has every segment of the offered one, and none is longer.
            let lists = header.chunks().unwrap();
            prop_assert!(lists.reads.is_empty());
            prop_assert_eq!(lists.writes.len(), targets.writes.len());
            let pairs = lists.writes.iter().zip(&targets.writes);
            for (returned, offered) in pairs.chain(lists.reply.iter().zip(&targets.reply)) {
                prop_assert_eq!(returned.segments.len(), offered.segments.len());
                for (r, o) in returned.segments.iter().zip(&offered.segments) {
                    prop_assert!(r.length <= o.length && r.handle == o.handle);
                }
            }
            prop_assert_eq!(lists.reply.is_some(), targets.reply.is_some());
            let returned: u64 = lists.writes.iter().map(WriteChunk::len).sum();
            prop_assert_eq!(returned, placed as u64);
        }
    }
}
