//! The RPC-over-RDMA version 1 transport header (RFC 8166 section 4).
//!
//! [`Header::parse`] distinguishes the cases that section 4.5 treats differently: a message that is
//! too short to be trusted (discard it), an unsupported version (ERR_VERS), and anything else that
//! is malformed (ERR_CHUNK).

use crate::codec::{self, Decode, DecodeError, Decoder, Encode, Encoder, xdr_struct};
use smallvec::SmallVec;
use thiserror::Error;

/// The version that this crate supports.
pub const VERSION: u32 = 1;
/// Shortest header with chunk lists, in bytes. A receiver must not trust the XID of a shorter
/// message (RFC 8166 section 4.5).
pub const MIN_HEADER_LEN: usize = 28;
/// Largest number of segments and Write chunks together that a received message may have. The
/// largest payload of this project has as many pages.
pub const MAX_SEGMENTS: usize = 1024;
/// Encoded length of one HLOO.
pub const SEGMENT_LEN: usize = 16;
/// Encoded length of one read list entry, "1 PHLOO".
pub const READ_ENTRY_LEN: usize = 24;

/// rdma_proc (RFC 8166 section 4.2.4).
pub mod procedure {
    pub const MSG: u32 = 0;
    pub const NOMSG: u32 = 1;
    pub const MSGP: u32 = 2;
    pub const DONE: u32 = 3;
    pub const ERROR: u32 = 4;
}

const ERR_VERS: u32 = 1;
const ERR_CHUNK: u32 = 2;

xdr_struct! {
    /// A plain segment, HLOO: `length` bytes at `offset` in the address space of `handle`
    /// (RFC 8166 section 3.4.3).
    #[derive(Copy, Hash)]
    Segment { handle: u32, length: u32, offset: u64, }
}

xdr_struct! {
    /// A read segment, PHLOO (RFC 8166 section 3.4.5).
    #[derive(Copy, Hash)]
    ReadSegment {
        /// Offset in the unreduced Payload stream, a multiple of four; all segments of a Read chunk
        /// have the same one. Zero means that the chunk is the whole RPC message.
        position: u32,
        target: Segment,
    }
}

/// A Write chunk or the Reply chunk: a counted array of plain segments (RFC 8166 section 3.4.6). Up
/// to two need no allocation.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct WriteChunk {
    pub segments: SmallVec<[Segment; 2]>,
}

impl WriteChunk {
    /// Total length of the segments: the capacity in a call, the bytes written in a reply.
    pub fn len(&self) -> u64 {
        self.segments.iter().map(|s| u64::from(s.length)).sum()
    }

    /// Whether the chunk is empty or unused: no segment has any bytes (RFC 8166 section 3.4.6).
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Encoded length, "n HLOO ... HLOO".
    pub fn encoded_len(&self) -> usize {
        4 + SEGMENT_LEN * self.segments.len()
    }
}

impl FromIterator<Segment> for WriteChunk {
    fn from_iter<I: IntoIterator<Item = Segment>>(segments: I) -> Self {
        WriteChunk {
            segments: segments.into_iter().collect(),
        }
    }
}

/// The Read list: segments in order, grouped into chunks by their positions.
pub type ReadList = SmallVec<[ReadSegment; 2]>;
/// The Write list: one chunk for each DDP-eligible result.
pub type WriteList = SmallVec<[WriteChunk; 1]>;

/// The three chunk lists (RFC 8166 section 4.3).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ChunkLists {
    pub reads: ReadList,
    pub writes: WriteList,
    pub reply: Option<WriteChunk>,
}

impl ChunkLists {
    /// Whether all three are absent.
    pub fn is_empty(&self) -> bool {
        self.reads.is_empty() && self.writes.is_empty() && self.reply.is_none()
    }

    /// Encoded length.
    pub fn encoded_len(&self) -> usize {
        let reads = READ_ENTRY_LEN * self.reads.len() + 4;
        let writes: usize = self.writes.iter().map(|c| 4 + c.encoded_len()).sum();
        let reply = self.reply.as_ref().map_or(0, WriteChunk::encoded_len);
        reads + writes + 4 + 4 + reply
    }
}

/// The part after the fixed words, which depends on rdma_proc.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Body {
    /// RDMA_MSG: the (possibly reduced) RPC message follows the header.
    Msg(ChunkLists),
    /// RDMA_NOMSG: a Position Zero Read chunk or the Reply chunk holds the RPC message.
    NoMsg(ChunkLists),
    /// RDMA_MSGP: never sent. A responder answers it with ERR_CHUNK, a requester discards it (RFC
    /// 8166 section 4.6.1).
    MsgP {
        align: u32,
        threshold: u32,
        chunks: ChunkLists,
    },
    /// RDMA_DONE: never sent, and discarded (RFC 8166 section 4.6.2).
    Done,
    /// RDMA_ERROR: ends the RPC of this XID. Responders discard it.
    Error(ErrorBody),
}

/// rpc_rdma_error (RFC 8166 section 4.5).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorBody {
    /// The responder speaks only the versions from `low` to `high`.
    ErrVers { low: u32, high: u32 },
    /// The header could not be parsed, or its chunks could not be used.
    ErrChunk,
    /// A code that the RFC does not define. What follows it is not known.
    Other(u32),
}

/// The words that have the same place in every version (RFC 8166 section 4.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fixed {
    pub xid: u32,
    pub version: u32,
    /// Credits requested (call) or granted (reply).
    pub credits: u32,
    /// rdma_proc, not yet checked.
    pub procedure: u32,
}

impl Fixed {
    /// Encoded length.
    pub const LEN: usize = 16;
}

impl Encode for Fixed {
    // XVCP
    fn encode(&self, to: &mut Encoder) {
        to.u32(self.xid);
        to.u32(self.version);
        to.u32(self.credits);
        to.u32(self.procedure);
    }
}

impl Decode<'_> for Fixed {
    fn decode(from: &mut Decoder<'_>) -> codec::Result<Self> {
        Ok(Fixed {
            xid: from.u32()?,
            version: from.u32()?,
            credits: from.u32()?,
            procedure: from.u32()?,
        })
    }
}

/// A transport header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    /// The XID of the RPC message.
    pub xid: u32,
    pub version: u32,
    /// Credits requested (call) or granted (reply).
    pub credits: u32,
    pub body: Body,
}

/// Why a message has no valid header (RFC 8166 section 4.5).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum HeaderError {
    /// Both sides discard the message silently.
    #[error("a message of {0} B is shorter than any header")]
    TooShort(usize),
    /// A responder answers with ERR_VERS, a requester discards the message.
    #[error("version {} of RPC-over-RDMA is not spoken here", .0.version)]
    UnsupportedVersion(Fixed),
    /// A responder answers with ERR_CHUNK, a requester discards the message.
    #[error("malformed header: {1}")]
    Malformed(Fixed, DecodeError),
}

impl HeaderError {
    //= RFC 8166, Section 4.5
    //# If other errors are detected in the RPC-over-RDMA header of an RPC Call message, a Responder
    //# MUST send an RDMA_ERROR message back to the Requester.
    //= RFC 8166, Section 4.5.1
    //# When a Responder detects an RPC-over-RDMA header version that it does not support (currently
    //# this document defines only version 1), it MUST reply with an RDMA_ERROR procedure and set
    //# the rdma_err value to ERR_VERS, also providing the low and high inclusive version numbers it
    //# does, in fact, support.
    //= RFC 8166, Section 4.5.2
    //# If the rdma_vers field contains a recognized value, but an XDR parsing error occurs, the
    //# Responder MUST reply with an RDMA_ERROR procedure and set the rdma_err value to ERR_CHUNK.
    /// The answer of a responder, granting `credits`; `None` if it must stay silent.
    pub fn answer(&self, credits: u32) -> Option<Header> {
        let (fixed, error) = match self {
            HeaderError::TooShort(_) => return None,
            HeaderError::UnsupportedVersion(fixed) => (
                fixed,
                ErrorBody::ErrVers {
                    low: VERSION,
                    high: VERSION,
                },
            ),
            HeaderError::Malformed(fixed, _) => (fixed, ErrorBody::ErrChunk),
        };
        //= RFC 8166, Section 4.2.4
        //# A Responder MUST silently discard RDMA_ERROR procedures.
        //= RFC 8166, Section 4.5
        //# The rdma_xid field MUST contain the same XID that was in the rdma_xid field in the
        //# failing request;
        //# The rdma_vers field MUST contain the same version that was in the rdma_vers field in the
        //# failing request;
        //# The rdma_proc field MUST contain the value RDMA_ERROR; and
        (fixed.procedure != procedure::ERROR).then(|| Header {
            xid: fixed.xid,
            version: fixed.version,
            credits,
            body: Body::Error(error),
        })
    }
}

impl Header {
    //= RFC 8166, Section 4.2.2
    //# For RPC-over-RDMA version 1, this field MUST contain the value one (1).
    /// A header of version 1.
    pub fn new(xid: u32, credits: u32, body: Body) -> Self {
        Header {
            xid,
            version: VERSION,
            credits,
            body,
        }
    }

    /// The ERR_CHUNK answer to the call with this XID.
    pub fn err_chunk(xid: u32, credits: u32) -> Self {
        Header::new(xid, credits, Body::Error(ErrorBody::ErrChunk))
    }

    /// The chunk lists, if the procedure has them.
    pub fn chunks(&self) -> Option<&ChunkLists> {
        match &self.body {
            Body::Msg(chunks) | Body::NoMsg(chunks) | Body::MsgP { chunks, .. } => Some(chunks),
            Body::Done | Body::Error(_) => None,
        }
    }

    /// Encoded length.
    pub fn encoded_len(&self) -> usize {
        Fixed::LEN
            + match &self.body {
                Body::Msg(chunks) | Body::NoMsg(chunks) => chunks.encoded_len(),
                Body::MsgP { chunks, .. } => 8 + chunks.encoded_len(),
                Body::Done => 0,
                Body::Error(ErrorBody::ErrVers { .. }) => 12,
                Body::Error(ErrorBody::ErrChunk | ErrorBody::Other(_)) => 4,
            }
    }

    fn procedure(&self) -> u32 {
        match self.body {
            Body::Msg(_) => procedure::MSG,
            Body::NoMsg(_) => procedure::NOMSG,
            Body::MsgP { .. } => procedure::MSGP,
            Body::Done => procedure::DONE,
            Body::Error(_) => procedure::ERROR,
        }
    }

    /// Decodes the header at the front of a received message. Also returns its length, where the
    /// Payload stream begins.
    pub fn parse(message: &[u8]) -> Result<(Header, usize), HeaderError> {
        let too_short = HeaderError::TooShort(message.len());
        let mut from = Decoder::new(message);
        let fixed = Fixed::decode(&mut from).map_err(|_| too_short)?;
        // A message shorter than 28 bytes must be discarded (section 4.5). That is the length of
        // empty chunk lists, and of ERR_VERS. But according to the RFC's own XDR (section 4.1)
        // ERR_CHUNK has 20 bytes. Linux sends it so (svc_rdma_send_error_msg) and accepts it so
        // (rpcrdma_reply_handler asks for 16). And since it "indicates a permanent error",
        // discarding it would have the call sent again for ever. So an RDMA_ERROR with its code is
        // the only shorter message that is accepted.
        let is_error = fixed.procedure == procedure::ERROR;
        if message.len() < MIN_HEADER_LEN && !(is_error && message.len() >= Fixed::LEN + 4) {
            return Err(too_short);
        }
        let body = Body::decode(&mut from, fixed.procedure);
        // ERR_VERS has the same form in every version (section 4.1.2).
        let version_error = matches!(body, Ok(Body::Error(ErrorBody::ErrVers { .. })));
        if fixed.version != VERSION && !version_error {
            return Err(HeaderError::UnsupportedVersion(fixed));
        }
        let body = body.map_err(|error| HeaderError::Malformed(fixed, error))?;
        let header = Header {
            xid: fixed.xid,
            version: fixed.version,
            credits: fixed.credits,
            body,
        };
        Ok((header, from.position()))
    }
}

//= RFC 8166, Section 4
//# All RPC-over-RDMA header content is contained in the Transport stream; thus, it MUST be XDR
//# encoded.
impl Encode for Header {
    // XVCP, then
    // RDMA_MSG, RDMA_NOMSG:  read list, write list, reply chunk
    // RDMA_MSGP:             align, threshold, read list, write list, reply chunk
    // RDMA_DONE:             nothing
    // RDMA_ERROR:            1 low high  |  2  |  code
    fn encode(&self, to: &mut Encoder) {
        Fixed {
            xid: self.xid,
            version: self.version,
            credits: self.credits,
            procedure: self.procedure(),
        }
        .encode(to);
        match &self.body {
            Body::Msg(chunks) | Body::NoMsg(chunks) => chunks.encode(to),
            Body::MsgP {
                align,
                threshold,
                chunks,
            } => {
                to.u32(*align);
                to.u32(*threshold);
                chunks.encode(to);
            }
            Body::Done => {}
            Body::Error(ErrorBody::ErrVers { low, high }) => {
                to.u32(ERR_VERS);
                to.u32(*low);
                to.u32(*high);
            }
            Body::Error(ErrorBody::ErrChunk) => to.u32(ERR_CHUNK),
            Body::Error(ErrorBody::Other(code)) => to.u32(*code),
        }
    }
}

impl Encode for ChunkLists {
    // Read list:    1 PHLOO 1 PHLOO ... 0
    // Write list:   1 n HLOO ... HLOO 1 n HLOO ... HLOO ... 0
    // Reply chunk:  1 n HLOO ... HLOO  |  0
    fn encode(&self, to: &mut Encoder) {
        for segment in &self.reads {
            to.bool(true);
            segment.encode(to);
        }
        to.bool(false);
        for chunk in &self.writes {
            to.bool(true);
            chunk.encode(to);
        }
        to.bool(false);
        to.option(self.reply.as_ref());
    }
}

impl Encode for WriteChunk {
    // n HLOO HLOO ... HLOO
    fn encode(&self, to: &mut Encoder) {
        to.u32(self.segments.len() as u32);
        for segment in &self.segments {
            segment.encode(to);
        }
    }
}

impl Body {
    fn decode(from: &mut Decoder<'_>, procedure: u32) -> codec::Result<Self> {
        Ok(match procedure {
            procedure::MSG => Body::Msg(ChunkLists::decode(from)?),
            //= RFC 8166, Section 4.2.4
            //# Though any of these MAY be marked as not present, one MUST be present and MUST hold
            //# the Payload stream for this RPC-over-RDMA message.
            procedure::NOMSG => {
                let chunks = ChunkLists::decode(from)?;
                // Section 4.5.2 calls this an XDR error.
                if chunks.is_empty() {
                    return Err(DecodeError::Inconsistent(
                        "RDMA_NOMSG without any chunk holds no RPC message",
                    ));
                }
                Body::NoMsg(chunks)
            }
            procedure::MSGP => Body::MsgP {
                align: from.u32()?,
                threshold: from.u32()?,
                chunks: ChunkLists::decode(from)?,
            },
            procedure::DONE => Body::Done,
            procedure::ERROR => Body::Error(match from.u32()? {
                ERR_VERS => ErrorBody::ErrVers {
                    low: from.u32()?,
                    high: from.u32()?,
                },
                ERR_CHUNK => ErrorBody::ErrChunk,
                // Whatever it means, "an RDMA_ERROR procedure indicates a permanent error" (section
                // 4.5), and Linux takes it so.
                code => ErrorBody::Other(code),
            }),
            value => {
                return Err(DecodeError::Undefined {
                    what: "rdma_proc",
                    value,
                });
            }
        })
    }
}

/// Counts segments and Write chunks against the bound of a message.
struct Budget(usize);

impl Budget {
    fn spend(&mut self, count: usize) -> codec::Result<()> {
        self.0 = self.0.checked_sub(count).ok_or(DecodeError::TooLong {
            what: "chunk lists",
            length: MAX_SEGMENTS - self.0 + count,
            bound: MAX_SEGMENTS,
        })?;
        Ok(())
    }

    fn chunk(&mut self, from: &mut Decoder<'_>) -> codec::Result<WriteChunk> {
        self.spend(1)?;
        let count = from.u32()? as usize;
        self.spend(count)?;
        if from.remaining() < count * SEGMENT_LEN {
            return Err(DecodeError::Truncated {
                at: from.position(),
                wanted: count * SEGMENT_LEN - from.remaining(),
            });
        }
        let mut segments = SmallVec::with_capacity(count);
        for _ in 0..count {
            segments.push(Segment::decode(from)?);
        }
        Ok(WriteChunk { segments })
    }
}

impl Decode<'_> for ChunkLists {
    fn decode(from: &mut Decoder<'_>) -> codec::Result<Self> {
        let mut budget = Budget(MAX_SEGMENTS);
        let mut lists = ChunkLists::default();
        while from.bool()? {
            budget.spend(1)?;
            let segment = ReadSegment::decode(from)?;
            //= RFC 8166, Section 3.4.5
            //# The value in this field MUST be a multiple of four.
            if segment.position % 4 != 0 {
                return Err(DecodeError::Inconsistent(
                    "a Read chunk's position is not a multiple of four",
                ));
            }
            lists.reads.push(segment);
        }
        while from.bool()? {
            lists.writes.push(budget.chunk(from)?);
        }
        if from.bool()? {
            lists.reply = Some(budget.chunk(from)?);
        }
        Ok(lists)
    }
}

#[cfg(test)]
mod tests;
