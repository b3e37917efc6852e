//! The state of one connection.
//!
//! | call is    | enters by                | leaves by                                        |
//! | ---------- | ------------------------ | ------------------------------------------------ |
//! | reserved   | [`Requester::reserve`]   | `launch`, or `cancel` if it cannot be sent       |
//! | in flight  | [`Requester::launch`]    | `received` (reply, RDMA_ERROR), `withdraw`,      |
//! |            |                          | `lost`                                           |
//!
//! A reservation is a credit and a posted Receive. The driver of the machine posts Receives first
//! ([`Requester::receive_posted`]), sends after `launch`, and passes every received message to
//! [`Requester::received`]. The machine never asks for a retransmission: that needs a new
//! connection, and so a new machine.
//!
//! A reply whose header has an error is discarded silently (RFC 8166 section 4.5). So a reply whose
//! chunks are not those that were offered leaves its call in flight, with its credit, as if the
//! reply had been lost: the call's time-out ends the connection, and it is sent again on the next
//! one. Its Receive is replaced like that of any message, so discarding it uses up no resources.
//! The driver is told which call it was, and ends it if its next transmission is answered in the
//! same wrong way: such a reply is not lost, and sending the call again would never help.

use nfsrdma_xdr::codec::DecodeError;
use nfsrdma_xdr::rpcrdma::{
    Body, ChunkLists, ErrorBody, Header, HeaderError, MIN_HEADER_LEN, SEGMENT_LEN, Segment,
    VERSION, WriteChunk,
};
use rustc_hash::FxHashMap;
use std::collections::hash_map::Entry;

/// The driver's record of a call.
pub trait Record {
    /// The chunks that the peer was offered in its current transmission.
    fn offer(&self) -> &ChunkLists;
}

/// The requester's side of one connection.
#[derive(Debug)]
pub struct Requester<C> {
    /// The largest number of calls in flight that we want; requested with every call.
    maximum: u32,
    /// The responder's grant, clamped to `1..=maximum`; 1 until the first reply.
    granted: u32,
    /// Calls reserved or in flight.
    used: u32,
    /// Receives posted and not consumed.
    receives: u32,
    /// Whether a valid reply has arrived.
    proven: bool,
    /// Calls in flight, by XID. A fast hash is safe, because the peer does not choose the XIDs.
    in_flight: FxHashMap<u32, C>,
}

/// Where the RPC reply message is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplyBody {
    /// In the received message, from this offset to its end.
    Inline { start: usize },
    /// The first `len` bytes of the Reply chunk.
    ReplyChunk { len: usize },
}

/// Why a call ended without an RPC reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// RDMA_ERROR, ERR_VERS: the responder speaks only these versions.
    #[error("the server speaks RPC-over-RDMA versions {low} to {high} only")]
    Version { low: u32, high: u32 },
    /// RDMA_ERROR, ERR_CHUNK.
    #[error("the server could not use the call's header or chunks (ERR_CHUNK)")]
    Chunk,
    /// RDMA_ERROR with a code that RFC 8166 does not define.
    #[error("the server reports an RDMA_ERROR of unknown meaning (code {0})")]
    Other(u32),
}

/// How a well-formed reply contradicts what was offered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    #[error("it returns a chunk that was not offered")]
    ChunkNotOffered,
    #[error("it claims more bytes in a chunk than were offered")]
    TooLong,
    #[error("its chunk is filled with a gap")]
    Gap,
    #[error("it is said to be in a Reply chunk that is empty")]
    NoReply,
}

/// Why a message was discarded silently (RFC 8166 section 4.5).
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Discard {
    #[error("it is shorter than any header")]
    TooShort,
    #[error("its header has version {0} of RPC-over-RDMA")]
    Version(u32),
    #[error("its header is malformed: {0}")]
    Malformed(DecodeError),
    #[error("it is an RDMA_MSGP, which nobody may send")]
    Padded,
    #[error("it is an RDMA_DONE, which nobody may send")]
    Done,
    /// "Responders MUST leave the Read list empty" (section 4.3.1).
    #[error("it has a Read list")]
    ReadList,
    /// The payload is not an RPC reply, or has another XID than the header.
    #[error("what it carries is not the RPC reply to its call")]
    NotAReply,
    #[error("no call in flight has its XID")]
    UnknownXid,
    #[error(transparent)]
    Chunks(Violation),
    /// RPCSEC_GSS: the verifier is not the MIC of the call's sequence number (RFC 2203 section
    /// 5.3.3.2).
    #[error("its verifier is not the server's")]
    Verifier,
    /// RPCSEC_GSS: the results are not what the server has protected (RFC 2203 section 5.3.3.2).
    #[error("its results are not as the server made them")]
    Results,
}

/// What a received message means.
#[derive(Debug)]
pub enum Event<C> {
    /// The RPC reply to `call`.
    Reply {
        call: C,
        body: ReplyBody,
        /// Bytes of the DDP-eligible result in the Write chunk; `None` if none was offered.
        placed: Option<u32>,
    },
    /// `call` failed; the connection remains usable.
    Failed { call: C, failure: Failure },
    Discarded {
        why: Discard,
        /// The call in flight that it answers, by its header. `None` if there is none, or if no
        /// reply can be told from the message.
        xid: Option<u32>,
    },
}

/// The XID is in flight already.
#[derive(Debug)]
pub struct InUse<C>(pub C);

impl<C: Record> Requester<C> {
    /// A new connection. `maximum` is the largest number of calls in flight, at least 1.
    pub fn new(maximum: u32) -> Self {
        Requester {
            maximum: maximum.max(1),
            //= RFC 8166, Section 3.3.3
            //# A Responder MAY exceed this basic level of configuration, but a Requester MUST NOT
            //# assume more than one credit is available and MUST receive a valid reply from the
            //# Responder carrying the actual number of available credits, prior to sending its next
            //# request.
            granted: 1,
            used: 0,
            receives: 0,
            proven: false,
            in_flight: FxHashMap::default(),
        }
    }

    /// A Receive was posted.
    pub fn receive_posted(&mut self) {
        self.receives += 1;
    }

    //= RFC 8166, Section 3.3.1
    //# A Requester MUST maintain enough receive resources to accommodate expected replies.
    /// Takes a credit and a Receive for one call, if both are there. ("The number of allowed
    /// new requests [...] is then the lower of the current requested and granted credit
    /// values, minus the number of requests in flight", section 3.3.1.)
    pub fn reserve(&mut self) -> bool {
        let free = self.has_credit();
        self.used += u32::from(free);
        free
    }

    //= RFC 8166, Section 3.3.1
    //# A Requester MUST NOT send unacknowledged requests in excess of the Responder's granted
    //# credit limit.
    /// Whether [`Requester::reserve`] would succeed.
    pub fn has_credit(&self) -> bool {
        self.used < self.granted.min(self.receives)
    }

    /// Returns a reservation.
    pub fn cancel(&mut self) {
        self.used = self.used.saturating_sub(1);
    }

    /// Turns a reservation into a call in flight; its Send must be posted next.
    pub fn launch(&mut self, xid: u32, call: C) -> Result<(), InUse<C>> {
        match self.in_flight.entry(xid) {
            Entry::Occupied(_) => Err(InUse(call)),
            Entry::Vacant(entry) => {
                entry.insert(call);
                Ok(())
            }
        }
    }

    /// The call in flight with this XID.
    pub fn call(&mut self, xid: u32) -> Option<&mut C> {
        self.in_flight.get_mut(&xid)
    }

    /// Removes a call whose Send could not be posted, or that ends without a valid reply.
    pub fn withdraw(&mut self, xid: u32) -> Option<C> {
        let call = self.in_flight.remove(&xid)?;
        self.cancel();
        Some(call)
    }

    /// The connection ended: returns everything in flight, in no particular order.
    pub fn lost(&mut self) -> Vec<C> {
        self.used = 0;
        self.granted = 1;
        self.receives = 0;
        self.in_flight.drain().map(|(_, call)| call).collect()
    }

    /// Handles one received message.
    pub fn received(&mut self, message: &[u8]) -> Event<C> {
        self.receives = self.receives.saturating_sub(1);
        if let Some((xid, credits, segment, start)) = usual(message) {
            let mut chunks = ChunkLists::default();
            if let Some(segment) = segment {
                let mut chunk = WriteChunk::default();
                chunk.segments.push(segment);
                chunks.writes.push(chunk);
            }
            return self.answered(xid, credits, &chunks, true, message, start);
        }
        //= RFC 8166, Section 4.5
        //# If errors are detected in the RPC-over-RDMA header of an RPC Reply message, a Requester
        //# MUST silently discard the message.
        //# A receiver MUST silently discard an RDMA_ERROR procedure that it cannot decode.
        let (header, start) = match Header::parse(message) {
            Ok(parsed) => parsed,
            // Its XID cannot be trusted.
            Err(HeaderError::TooShort(_)) => return Self::stray(Discard::TooShort),
            Err(HeaderError::UnsupportedVersion(fixed)) => {
                return self.discard(fixed.xid, Discard::Version(fixed.version));
            }
            Err(HeaderError::Malformed(fixed, error)) => {
                return self.discard(fixed.xid, Discard::Malformed(error));
            }
        };
        //= RFC 8166, Section 4.5
        //# The rdma_vers field MUST contain the same version that was in the rdma_vers field in the
        //# failing request;
        // All requests have version 1.
        if header.version != VERSION {
            return self.discard(header.xid, Discard::Version(header.version));
        }
        let (chunks, inline) = match &header.body {
            Body::Msg(chunks) => (chunks, true),
            Body::NoMsg(chunks) => (chunks, false),
            //= RFC 8166, Section 4.6.1
            //# Requesters MUST silently discard the message.
            Body::MsgP { .. } => return self.discard(header.xid, Discard::Padded),
            //= RFC 8166, Section 4.6.2
            //# Receivers MUST silently discard RDMA_DONE messages.
            // It is no reply, so it says nothing about the call.
            Body::Done => return Self::stray(Discard::Done),
            Body::Error(error) => {
                let failure = match *error {
                    ErrorBody::ErrVers { low, high } => Failure::Version { low, high },
                    ErrorBody::ErrChunk => Failure::Chunk,
                    ErrorBody::Other(code) => Failure::Other(code),
                };
                return match self.finish(header.xid, header.credits) {
                    Some(call) => Event::Failed { call, failure },
                    None => Self::stray(Discard::UnknownXid),
                };
            }
        };
        if !chunks.reads.is_empty() {
            return self.discard(header.xid, Discard::ReadList);
        }
        self.answered(header.xid, header.credits, chunks, inline, message, start)
    }

    /// Handles a reply with these fields in its header, which ends at `start`.
    fn answered(
        &mut self,
        xid: u32,
        credits: u32,
        chunks: &ChunkLists,
        inline: bool,
        message: &[u8],
        start: usize,
    ) -> Event<C> {
        if inline && !is_reply(&message[start..], xid) {
            return self.discard(xid, Discard::NotAReply);
        }
        let Entry::Occupied(entry) = self.in_flight.entry(xid) else {
            return Self::stray(Discard::UnknownXid);
        };
        let (placed, reply) = match check(entry.get().offer(), chunks, inline) {
            Ok(lengths) => lengths,
            Err(violation) => return self.discard(xid, Discard::Chunks(violation)),
        };
        let call = entry.remove();
        self.ended(credits);
        Event::Reply {
            call,
            body: match inline {
                true => ReplyBody::Inline { start },
                false => ReplyBody::ReplyChunk { len: reply },
            },
            placed,
        }
    }

    /// Discards a reply with this XID in its header.
    fn discard(&self, xid: u32, why: Discard) -> Event<C> {
        match self.in_flight.contains_key(&xid) {
            true => Event::Discarded {
                why,
                xid: Some(xid),
            },
            false => Self::stray(why),
        }
    }

    /// Discards a message that answers no call.
    fn stray(why: Discard) -> Event<C> {
        Event::Discarded { why, xid: None }
    }

    /// Ends the call that a valid header answers, and adopts the header's grant.
    fn finish(&mut self, xid: u32, credits: u32) -> Option<C> {
        let call = self.in_flight.remove(&xid)?;
        self.ended(credits);
        Some(call)
    }

    /// A valid header with this grant has ended a call.
    fn ended(&mut self, credits: u32) {
        self.cancel();
        self.proven = true;
        // A grant of zero, which RFC 8166 section 3.3.1 forbids, counts as one.
        self.granted = credits.clamp(1, self.maximum);
    }

    /// Credits to request with every call.
    pub fn requested(&self) -> u32 {
        self.maximum
    }

    /// Credits granted, clamped to `1..=maximum`.
    pub fn granted(&self) -> u32 {
        self.granted
    }

    /// Calls reserved or in flight.
    pub fn used(&self) -> u32 {
        self.used
    }

    /// Calls reserved and not yet launched or cancelled.
    pub fn sending(&self) -> u32 {
        self.used.saturating_sub(self.in_flight.len() as u32)
    }

    /// Whether a valid reply has arrived on this connection.
    pub fn is_proven(&self) -> bool {
        self.proven
    }

    /// The calls in flight.
    pub fn calls(&mut self) -> impl Iterator<Item = &mut C> {
        self.in_flight.values_mut()
    }
}

/// Decodes the most frequent headers: RDMA_MSG of version 1, without chunks or with a Write chunk of
/// one segment. Returns XID, credits, that segment, and the header's length; `None` for any other
/// header.
#[inline]
pub(super) fn usual(message: &[u8]) -> Option<(u32, u32, Option<Segment>, usize)> {
    const MSG_AND_NO_READS: [u8; 8] = [0; 8];
    const NO_CHUNKS: [u8; 8] = [0; 8];
    // A Write list begins with a chunk of one segment.
    const ONE: [u8; 8] = [0, 0, 0, 1, 0, 0, 0, 1];
    let word = |at: usize| message[at..at + 4].try_into().map_or(0, u32::from_be_bytes);
    if message.len() < MIN_HEADER_LEN || word(4) != VERSION || message[12..20] != MSG_AND_NO_READS {
        return None;
    }
    let mut segment = None;
    let mut start = MIN_HEADER_LEN;
    if message[20..28] != NO_CHUNKS {
        start += SEGMENT_LEN + 8;
        if message[20..28] != ONE || message.get(start - 8..start)? != NO_CHUNKS {
            return None;
        }
        segment = Some(Segment {
            handle: word(28),
            length: word(32),
            offset: u64::from(word(36)) << 32 | u64::from(word(40)),
        });
    }
    Some((word(0), word(8), segment, start))
}

//= RFC 8166, Section 4.2.1
//# This XID MUST be the same as the XID in the RPC message.
/// Whether a Payload stream starts like the reply to `xid`; another XID is an error in the header
/// (RFC 8166 section 4.5.2). A Reply chunk must be invalidated before it is checked with this, so
/// that the peer cannot write to it any more.
pub fn is_reply(payload: &[u8], xid: u32) -> bool {
    const REPLY: [u8; 4] = 1u32.to_be_bytes();
    payload.get(..4) == Some(&xid.to_be_bytes()[..]) && payload.get(4..8) == Some(&REPLY[..])
}

/// Compares the returned chunks with the offered ones. Returns the bytes in the Write chunk (`None`
/// if none was offered) and in the Reply chunk. A chunk that was not offered claims nothing as long
/// as it is empty.
fn check(
    offer: &ChunkLists,
    returned: &ChunkLists,
    inline: bool,
) -> Result<(Option<u32>, usize), Violation> {
    let mut surplus = returned.writes.iter().skip(offer.writes.len());
    if surplus.any(|chunk| !chunk.is_empty()) {
        return Err(Violation::ChunkNotOffered);
    }
    let placed = match (offer.writes.first(), returned.writes.first()) {
        (None, _) => None,
        // A missing Write list counts as an unused chunk.
        (Some(_), None) => Some(0),
        (Some(offered), Some(returned)) => Some(filled(offered, returned)?),
    };
    let reply = match (&offer.reply, &returned.reply) {
        (_, None) => 0,
        (None, Some(returned)) if returned.is_empty() => 0,
        (None, Some(_)) => return Err(Violation::ChunkNotOffered),
        (Some(offered), Some(returned)) => filled(offered, returned)?,
    };
    if !inline && reply == 0 {
        return Err(Violation::NoReply);
    }
    Ok((placed, reply as usize))
}

/// Bytes in a returned chunk: the sum of its segments, as Linux takes it, in whatever number of
/// segments the responder returns it. It "MUST copy the segment count and all segments" (RFC 8166
/// section 3.4.6), but the data are the same if it leaves out unused segments, adds empty ones, or
/// splits or joins them, because it fills the offered memory "contiguously and in segment array
/// order": the first bytes of the offered segments are the data. Only what contradicts that is
/// refused: more bytes than were offered, and a segment that begins where an offered one does
/// before the bytes ahead of it are filled. Such a gap would expose bytes that nobody wrote.
fn filled(offered: &WriteChunk, returned: &WriteChunk) -> Result<u32, Violation> {
    let mut total = 0;
    for segment in returned.segments.iter().filter(|s| s.length > 0) {
        let mut ahead = 0;
        for place in &offered.segments {
            if (place.handle, place.offset) == (segment.handle, segment.offset) {
                if total < ahead {
                    return Err(Violation::Gap);
                }
                break;
            }
            ahead += u64::from(place.length);
        }
        total += u64::from(segment.length);
    }
    if total > offered.len() {
        return Err(Violation::TooLong);
    }
    u32::try_from(total).map_err(|_| Violation::TooLong)
}
