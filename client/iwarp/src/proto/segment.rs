//! Cuts messages into FPDUs, and FPDUs into pieces for a gathering write. No I/O.
//!
//! Each message is cut into DDP segments of at most the MULPDU (RFC 5041 section 5.2), and each
//! segment becomes one FPDU (RFC 5044 section 4). Headers, padding and CRCs are encoded into one
//! scratch area; payload is kept by reference. [`Segmenter::gather`] lists both in order for one
//! sendmsg(2). The driver reports how many bytes the socket accepted, and [`Segmenter::advance`]
//! returns the messages that are thereby sent. Markers are inserted by `marking`.

mod marker_position;
mod marking;
mod open;

use self::marker_position::MarkerPosition;
use self::open::{Header, Open};
use super::handshake::Rtr;
use super::queue::{Message, Token};
use crate::wire::ddp::{self, Tagged, Untagged};
use crate::wire::mpa::{CRC_FIELD, Crc, LENGTH_FIELD, MARKER, MARKER_INTERVAL, padding};
use crate::wire::rdmap::{Opcode, ReadRequest};
use nfsrdma_rdma::{Buf, Segs};
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::io::IoSlice;

//= RFC 5044, Section 3
//# The range of MULPDU values MUST be between 128 octets and 64768 octets, inclusive.
//# The sending DDP MUST NOT post a ULPDU larger than 64768 octets to MPA.
//= RFC 5044, Section 4.5
//# If this occurs, the MPA on TCP sender MUST NOT shrink the MULPDU below 128 octets and is not
//# required to follow the segmentation rules in Section 5.1 and Appendix A.
/// Smallest and largest MULPDU: the ULPDU that an FPDU must have room for, in bytes.
const LEAST_MULPDU: usize = 128;
const MOST_MULPDU: usize = 64_768;
/// Smallest and largest FPDU limit, in bytes: multiples of four.
pub const MIN_FPDU: usize = (LENGTH_FIELD + LEAST_MULPDU + CRC_FIELD).next_multiple_of(4);
pub const MAX_FPDU: usize = (LENGTH_FIELD + MOST_MULPDU + CRC_FIELD) / 4 * 4;

/// Payload of an FPDU of up to this many bytes is copied next to its header.
const COPIED: usize = 1024;

/// What [`Segmenter::gather`] lists; the slices of a few small messages need no allocation.
pub type Slices<'a> = SmallVec<[IoSlice<'a>; 16]>;

#[derive(Debug)]
enum Piece {
    /// A range of the scratch area.
    Scratch(usize, usize),
    Payload(Buf),
    /// The end of a message: all of it is sent when this piece is reached.
    End(Token),
}

//= RFC 5040, Section 3.1
//# RDMAP MUST be layered on top of the Direct Data Placement Protocol [DDP].
/// Cuts messages, and holds the pieces that are not sent yet.
#[derive(Debug)]
pub struct Segmenter {
    crc: bool,
    /// The position of markers, if the peer requires them.
    marking: Option<MarkerPosition>,
    max_fpdu: usize,
    send_msn: u32,
    read_msn: u32,
    open: Option<Open>,
    scratch: Vec<u8>,
    pieces: VecDeque<Piece>,
    bytes: usize,
}

impl Segmenter {
    /// Cuts FPDUs of at most `max_fpdu` bytes, markers included (clamped to MPA's limits).
    pub fn new(crc: bool, markers: bool, max_fpdu: usize) -> Self {
        // The smallest FPDU contains one marker. The largest is no larger than without markers, so
        // that the 16 bits of FPDUPTR reach back to its beginning.
        let least = MIN_FPDU + if markers { MARKER } else { 0 };
        Segmenter {
            crc,
            //= RFC 5044, Section 7.1.1
            //# When this bit is '1' in an MPA Request Frame, the Initiator declares that Markers
            //# are REQUIRED in FPDUs sent from the Responder.
            //# When set to '1' in an MPA Reply Frame, this bit declares that Markers are REQUIRED
            //# in FPDUs sent from the Initiator.
            //# When in a received MPA Request Frame or MPA Reply Frame and the value is '0',
            //# Markers MUST NOT be added to the data stream by that endpoint.
            marking: markers.then_some(MarkerPosition {
                position: 0,
                fpdu: 0,
            }),
            max_fpdu: max_fpdu.clamp(least, MAX_FPDU) / 4 * 4,
            send_msn: 1,
            read_msn: 1,
            open: None,
            scratch: Vec::new(),
            pieces: VecDeque::new(),
            bytes: 0,
        }
    }

    //= RFC 5041, Section 3
    //# LLPs MUST expose MULPDU and MULPDU changes.
    //= RFC 5044, Section 3
    //# MPA MUST provide information to DDP on the current maximum size of the record that is
    //# acceptable to send (MULPDU).
    /// Largest FPDU that it makes, in bytes.
    pub fn max_fpdu(&self) -> usize {
        self.max_fpdu
    }

    /// Whether no piece waits to be sent.
    pub fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Drops all pieces.
    pub fn clear(&mut self) {
        self.open = None;
        self.pieces.clear();
        self.bytes = 0;
    }

    /// Drops the rest of the message being cut, because a Terminate takes its place.
    pub fn abandon_open(&mut self) {
        self.open = None;
    }

    /// Cuts messages from `next` until there are about `budget` bytes or `max_pieces` pieces. Must
    /// be called only when all pieces are sent. Whether `next` may have more.
    pub fn fill(
        &mut self,
        budget: usize,
        max_pieces: usize,
        mut next: impl FnMut() -> Option<Message>,
    ) -> bool {
        if self.pieces.is_empty() {
            self.scratch.clear();
        }
        while self.bytes < budget && self.pieces.len() < max_pieces {
            let open = match self.open.is_some() {
                true => self.open.take(),
                false => match next() {
                    Some(message) => self.begin(message),
                    None => return false,
                },
            };
            if let Some(open) = open {
                self.cut(open);
            }
        }
        true
    }

    //= RFC 5040, Section 4.1
    //# All RDMA Messages handed by the RDMAP layer to the DDP layer MUST define the value of the
    //# Tagged flag in the DDP Header.
    //# Figure 4 defines when the STag, Queue Number, and Tagged Offset fields MUST be provided for
    //# each RDMA Message.
    //# For Send, Send with Solicited Event, RDMA Read Request, and Terminate, the Invalidate STag
    //# field MUST be set to zero on transmit and ignored by the receiver.
    //= RFC 5040, Section 4.2
    //# The following figure defines which RDMA Headers MUST be used on each RDMA Message and which
    //# RDMA Messages are allowed to carry ULP Payload:
    //= RFC 5040, Section 5.1
    //# An RDMA Write Message MUST reference a Tagged Buffer.
    //# That is, the Data Source RDMAP layer MUST request that the DDP layer mark the
    //# Message as Tagged.
    //= RFC 5040, Section 5.2.2
    //# An RDMA Read Response Message MUST reference a Tagged Buffer.
    //# That is, the Data Source RDMAP layer MUST request that the DDP mark the Message as
    //# Tagged.
    //= RFC 5040, Section 5.3
    //# A Send with Invalidate or Send with Solicited Event and Invalidate Message MUST reference an
    //# STag.
    //# That is, the Local Peer's RDMAP layer MUST pass the RDMA control field and the STag that
    //# will be Invalidated to the DDP layer.
    //# A Send Message Type MUST reference an Untagged Buffer.
    //# That is, the Local Peer's RDMAP layer MUST request that the DDP layer mark the
    //# Message as Untagged.
    //# For a Send Message Type, the Local Peer's RDMAP layer MUST request that the DDP
    //# layer set the Queue Number field to zero.
    //= RFC 5040, Section 5.4
    //# A Terminate Message MUST reference an Untagged Buffer.
    //# That is, the Local Peer's RDMAP layer MUST request that the DDP layer mark the
    //# Message as Untagged.
    //# That is, the Local Peer's RDMAP layer MUST request that the DDP layer set the Queue
    //# Number field to two.
    //= RFC 5041, Section 4.2
    //# At the Data Source, DDP MUST set the STag field to the value specified by the ULP.
    //# Each DDP Segment within a specific DDP Message MUST contain the same value for this field
    //# and MUST be the value supplied by the ULP.
    //= RFC 5041, Section 4.3
    //# The initial value for MSN MUST be one.
    //# The Message Sequence Number specifies a sequence number that MUST be increased
    //# by one (modulo 2^32) with each DDP Message targeting the specific Queue Number
    //# on the DDP Stream associated with this DDP Segment.
    //# The MSN value MUST wrap to 0 after a value of 0xFFFFFFFF.
    fn begin(&mut self, message: Message) -> Option<Open> {
        let untagged = |opcode, invalidate, queue, msn| Header::Untagged {
            opcode,
            invalidate,
            queue,
            msn,
        };
        let tagged = |opcode, stag, offset| Header::Tagged {
            opcode,
            stag,
            offset,
        };
        let (header, token, data) = match message {
            Message::Send {
                token,
                data,
                invalidate,
            } => {
                let msn = self.send_msn;
                self.send_msn = msn.wrapping_add(1);
                let opcode = match invalidate {
                    Some(_) => Opcode::SendInvalidate,
                    None => Opcode::Send,
                };
                let header = untagged(opcode, invalidate.unwrap_or(0), ddp::QN_SEND, msn);
                (header, token, data)
            }
            Message::Write {
                token,
                data,
                stag,
                offset,
            } => (tagged(Opcode::Write, stag, offset), token, data),
            Message::Response { stag, offset, data } => {
                let header = tagged(Opcode::ReadResponse, stag, offset);
                (header, Token::Response, data)
            }
            Message::ReadRequest { token, request } => {
                self.read_request(&request, token);
                return None;
            }
            Message::Terminate(terminate) => {
                let header = Untagged {
                    last: true,
                    opcode: Opcode::Terminate,
                    invalidate: 0,
                    queue: ddp::QN_TERMINATE,
                    msn: 1,
                    offset: 0,
                };
                self.small(&header, &terminate.emit());
                self.pieces.push_back(Piece::End(Token::Terminate));
                return None;
            }
            Message::Rtr(Rtr::Fpdu) => {
                self.whole(&[0; 4]);
                return None;
            }
            Message::Rtr(Rtr::Write) => (tagged(Opcode::Write, 0, 0), Token::None, Segs::new()),
            Message::Rtr(Rtr::Read) => {
                let request = ReadRequest {
                    sink_stag: 0,
                    sink_offset: 0,
                    length: 0,
                    source_stag: 0,
                    source_offset: 0,
                };
                self.read_request(&request, Token::None);
                return None;
            }
        };
        Some(Open {
            header,
            token,
            len: data.iter().map(|b| b.len()).sum(),
            data,
            at: (0, 0),
            done: 0,
        })
    }

    //= RFC 5040, Section 5.2.1
    //# An RDMA Read Request Message MUST reference an Untagged Buffer.
    //# That is, the Local Peer's RDMAP layer MUST request that the DDP mark the Message as
    //# Untagged.
    //# An RDMA Read Request Message MUST reference the RDMA Read Request Queue.
    //# That is, the Local Peer's RDMAP layer MUST request that the DDP layer set the Queue Number
    //# field to one.
    fn read_request(&mut self, request: &ReadRequest, token: Token) {
        let header = Untagged {
            last: true,
            opcode: Opcode::ReadRequest,
            invalidate: 0,
            queue: ddp::QN_READ_REQUEST,
            msn: self.read_msn,
            offset: 0,
        };
        self.read_msn = self.read_msn.wrapping_add(1);
        self.small(&header, &request.emit());
        self.pieces.push_back(Piece::End(token));
    }

    /// Adds an FPDU that is completely in the scratch area.
    fn small(&mut self, header: &Untagged, body: &[u8]) {
        let ulpdu = ddp::UNTAGGED_HEADER + body.len();
        let mut bytes: SmallVec<[u8; 128]> = SmallVec::new();
        bytes.extend_from_slice(&(ulpdu as u16).to_be_bytes());
        bytes.extend_from_slice(&header.emit());
        bytes.extend_from_slice(body);
        bytes.extend_from_slice(&[0; 3][..padding(ulpdu)]);
        self.whole(&bytes);
    }

    /// Adds an FPDU of these bytes: length field, ULPDU and padding.
    fn whole(&mut self, bytes: &[u8]) {
        if self.marking.is_some() {
            let mut crc = self.begin_marked();
            self.marked_scratch(bytes, &mut crc);
            self.end_marked(crc);
            return;
        }
        let from = self.scratch.len();
        self.scratch.extend_from_slice(bytes);
        self.push_crc(from);
        self.push_scratch(from);
    }

    //= RFC 5044, Section 4.4
    //# When sending an FPDU, the sender MUST include a CRC field.
    /// Adds the CRC field over the scratch area from `from`; zeros if CRCs are off.
    fn push_crc(&mut self, from: usize) {
        let field = if self.crc {
            Crc::of(&self.scratch[from..])
        } else {
            [0; CRC_FIELD]
        };
        self.scratch.extend_from_slice(&field);
    }

    fn push_scratch(&mut self, from: usize) {
        let to = self.scratch.len();
        self.bytes += to - from;
        match self.pieces.back_mut() {
            Some(Piece::Scratch(_, end)) if *end == from => *end = to,
            _ => self.pieces.push_back(Piece::Scratch(from, to)),
        }
    }

    //= RFC 5041, Section 4.1
    //# It MUST be set to one on the last DDP Segment of every DDP Message.
    //# It MUST NOT be set to one on any other DDP Segment.
    //# The DDP Segment with the L bit set to 1 MUST be posted to the LLP after all other DDP
    //# Segments of the associated DDP Message have been posted to the LLP.
    //# For an Untagged DDP Message, the DDP Segment with the L bit set to 1 MUST carry the highest
    //# MO.
    //= RFC 5041, Section 4.2
    //# Each DDP Segment within a specific DDP Message MUST contain the same value for this field.
    //# The Data Source MUST ensure that each DDP Segment within a specific DDP Message contains the
    //# same value for this field.
    //# Each DDP Segment within a specific DDP Message MUST contain the same value for this field
    //# and MUST be the value supplied by the ULP.
    //= RFC 5041, Section 4.3
    //# Each DDP Segment within a specific DDP Message MUST contain the same value for the RsvdULP
    //# field.
    //# Each DDP segment within a specific DDP message MUST contain the same value for this field
    //# and MUST be the value supplied by the ULP at the Data Source.
    //# The Data Source MUST ensure that each DDP Segment within a specific DDP Message contains the
    //# same value for this field.
    //# Each DDP segment within a specific DDP message MUST contain the same value for this field.
    //# The MO referencing the first octet of the DDP Message MUST be set to zero by the DDP layer.
    //= RFC 5041, Section 4.4
    //# Each DDP Segment MUST contain a DDP Header.
    //= RFC 5041, Section 5.2
    //# At the Data Source, the DDP layer MUST segment the data contained in a ULP message into a
    //# series of DDP Segments, where each DDP Segment contains a DDP Header and ULP Payload, and
    //# MUST be no larger than the MULPDU value Advertised by the LLP.
    //# At the Data Source, the DDP layer MUST send all the data contained in the ULP message.
    //# For each DDP Segment of a Untagged DDP Message, the MO MUST be set to the octet offset from
    //# the first octet in the associated ULP Message (which is defined to be zero) to the first
    //# octet in the ULP Payload contained in the DDP Segment.
    //# For each DDP Segment of a Tagged DDP Message, the TO MUST be set to the octet offset from
    //# the first octet in the associated ULP Message to the first octet in the ULP Payload
    //# contained in the DDP Segment, plus the TO assigned to the first octet in the associated ULP
    //# Message.
    /// Cuts the next FPDU of the open message.
    fn cut(&mut self, mut open: Open) {
        let head_len = match open.header {
            Header::Tagged { .. } => ddp::TAGGED_HEADER,
            Header::Untagged { .. } => ddp::UNTAGGED_HEADER,
        };
        // Room is left for length and CRC fields, and for the most markers that an FPDU of this
        // length can contain. The length is a multiple of four, so padding never exceeds the room.
        let markers = match self.marking {
            Some(_) => MARKER * self.max_fpdu.div_ceil(MARKER_INTERVAL),
            None => 0,
        };
        //= RFC 5044, Section 3
        //# MPA MUST encapsulate the ULPDU such that there is exactly one ULPDU contained in one
        //# FPDU.
        //= RFC 5044, Section 4.5
        //# The maximum ULPDU Length for a single ULPDU when Markers are present MUST be computed
        //# as:
        //# The maximum ULPDU Length for a single ULPDU when Markers are NOT present MUST be
        //# computed as:
        let room = self.max_fpdu - LENGTH_FIELD - head_len - CRC_FIELD - markers;
        let payload = room.min(open.len - open.done);
        //= RFC 5041, Section 5.2
        //# A zero-length DDP Message is allowed and MUST consume exactly one DDP Segment.
        let last = open.done + payload == open.len;
        let ulpdu = head_len + payload;
        let mut head = [0; LENGTH_FIELD + ddp::UNTAGGED_HEADER];
        let head = &mut head[..LENGTH_FIELD + head_len];
        head[..LENGTH_FIELD].copy_from_slice(&(ulpdu as u16).to_be_bytes());
        let rest = &mut head[LENGTH_FIELD..];
        match open.header {
            Header::Tagged {
                opcode,
                stag,
                offset,
            } => rest.copy_from_slice(
                &Tagged {
                    last,
                    opcode,
                    stag,
                    offset: offset.wrapping_add(open.done as u64),
                }
                .emit(),
            ),
            Header::Untagged {
                opcode,
                invalidate,
                queue,
                msn,
            } => rest.copy_from_slice(
                &Untagged {
                    last,
                    opcode,
                    invalidate,
                    queue,
                    msn,
                    offset: open.done as u32,
                }
                .emit(),
            ),
        }
        if self.marking.is_some() {
            self.cut_marked(&mut open, head, payload, padding(ulpdu));
        } else if payload <= COPIED {
            self.cut_copied(&mut open, head, payload, padding(ulpdu));
        } else {
            self.cut_plain(&mut open, head, payload, padding(ulpdu));
        }
        open.done += payload;
        if last {
            self.pieces.push_back(Piece::End(open.token));
        } else {
            self.open = Some(open);
        }
    }

    /// Cuts a small FPDU: to copy its payload costs less than to send it from where it is.
    fn cut_copied(&mut self, open: &mut Open, head: &[u8], payload: usize, pad: usize) {
        let from = self.scratch.len();
        self.scratch.extend_from_slice(head);
        let mut left = payload;
        while left > 0 {
            let part = open.next(left);
            self.scratch.extend_from_slice(part);
            left -= part.len();
        }
        self.scratch.extend_from_slice(&[0; 3][..pad]);
        self.push_crc(from);
        self.push_scratch(from);
    }

    fn cut_plain(&mut self, open: &mut Open, head: &[u8], payload: usize, pad: usize) {
        let from = self.scratch.len();
        self.scratch.extend_from_slice(head);
        let mut crc = self.crc.then(|| {
            let mut crc = Crc::new();
            crc.update(head);
            crc
        });
        self.push_scratch(from);
        let mut left = payload;
        while left > 0 {
            let part = open.take(left);
            left -= part.len();
            if !part.is_empty() {
                if let Some(crc) = &mut crc {
                    crc.update(&part);
                }
                self.pieces.push_back(Piece::Payload(part));
            }
        }
        self.bytes += payload;
        let from = self.scratch.len();
        //= RFC 5044, Section 4.1
        //# The pad data MUST be set to zero by the sender and ignored by the receiver (except for
        //# CRC checking).
        self.scratch.extend_from_slice(&[0; 3][..pad]);
        if let Some(crc) = &mut crc {
            crc.update(&self.scratch[from..]);
        }
        let field = crc.map(|crc| crc.field()).unwrap_or_default();
        self.scratch.extend_from_slice(&field);
        self.push_scratch(from);
    }

    /// The first bytes to send, as at most `max` slices. Returns their total length, and how many
    /// RDMA Read Responses end in them.
    pub fn gather<'a>(&'a self, out: &mut Slices<'a>, max: usize) -> (usize, usize) {
        let (mut total, mut responses) = (0, 0);
        for piece in &self.pieces {
            let bytes: &[u8] = match piece {
                Piece::Scratch(from, to) => &self.scratch[*from..*to],
                Piece::Payload(buf) => buf,
                Piece::End(token) => {
                    responses += usize::from(*token == Token::Response);
                    continue;
                }
            };
            if out.len() == max {
                break;
            }
            total += bytes.len();
            out.push(IoSlice::new(bytes));
        }
        (total, responses)
    }

    /// The first `n` bytes of [`Segmenter::gather`] are sent. Appends the completed messages.
    pub fn advance(&mut self, mut n: usize, done: &mut Vec<Token>) {
        self.bytes -= n;
        loop {
            match self.pieces.front_mut() {
                Some(Piece::End(token)) => done.push(*token),
                Some(Piece::Scratch(from, to)) => {
                    let part = n.min(*to - *from);
                    n -= part;
                    *from += part;
                    if from < to {
                        return;
                    }
                }
                Some(Piece::Payload(buf)) => {
                    let part = n.min(buf.len());
                    n -= part;
                    if part < buf.len() {
                        *buf = buf.slice(part..);
                        return;
                    }
                }
                None => return,
            }
            self.pieces.pop_front();
        }
    }
}

#[cfg(test)]
mod tests;
