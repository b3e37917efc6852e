//! Messages into FPDUs, and FPDUs into pieces to gather: headers, padding and CRCs from one
//! scratch area, payload by reference.

use super::handshake::Rtr;
use super::queue::{Message, Token};
use crate::wire::ddp::{self, Tagged, Untagged};
use crate::wire::mpa::{CRC_FIELD, Crc, LENGTH_FIELD, MARKER, MARKER_INTERVAL, marker, padding};
use crate::wire::rdmap::{Opcode, ReadRequest};
use nfsrdma_rdma::{Buf, Segs};
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::io::IoSlice;

/// Smallest and largest ULPDU that an FPDU has to have room for, in bytes (MULPDU).
const LEAST_MULPDU: usize = 128;
const MOST_MULPDU: usize = 64_768;
/// Smallest and largest FPDU limit, in bytes: multiples of four.
pub const MIN_FPDU: usize = (LENGTH_FIELD + LEAST_MULPDU + CRC_FIELD).next_multiple_of(4);
pub const MAX_FPDU: usize = (LENGTH_FIELD + MOST_MULPDU + CRC_FIELD) / 4 * 4;

#[derive(Debug)]
enum Piece {
    /// A range of the scratch area.
    Scratch(usize, usize),
    Payload(Buf),
    /// All before it is sent: tell whose it was.
    End(Token),
}

#[derive(Debug)]
enum Header {
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

/// A message partly cut.
#[derive(Debug)]
struct Open {
    header: Header,
    token: Token,
    data: Segs<Buf>,
    /// Next buffer of `data`, and where in it.
    at: (usize, usize),
    done: usize,
    len: usize,
}

impl Open {
    /// The next payload, `most` bytes or less: up to the end of the buffer at hand.
    fn take(&mut self, most: usize) -> Buf {
        let buf = &self.data[self.at.0];
        let n = most.min(buf.len() - self.at.1);
        let part = buf.slice(self.at.1..self.at.1 + n);
        self.at.1 += n;
        if self.at.1 == buf.len() {
            self.at = (self.at.0 + 1, 0);
        }
        part
    }
}

/// Puts markers into FPDUs, at every 512th byte of the stream (RFC 5044 section 4.3).
#[derive(Debug)]
struct Marking {
    /// Bytes of the stream so far, markers included.
    position: u64,
    /// Where the length field of the FPDU being cut is.
    fpdu: u64,
}

impl Marking {
    /// Whether the next byte of the stream belongs to a marker.
    fn is_due(&self) -> bool {
        self.position.is_multiple_of(MARKER_INTERVAL as u64)
    }

    /// Bytes until the next marker.
    fn gap(&self) -> usize {
        MARKER_INTERVAL - (self.position % MARKER_INTERVAL as u64) as usize
    }
}

/// Cuts messages. Holds what was cut and not sent.
#[derive(Debug)]
pub struct Segmenter {
    crc: bool,
    /// If the peer wants markers.
    marking: Option<Marking>,
    max_fpdu: usize,
    send_msn: u32,
    read_msn: u32,
    open: Option<Open>,
    scratch: Vec<u8>,
    pieces: VecDeque<Piece>,
    bytes: usize,
}

impl Segmenter {
    /// FPDUs of at most `max_fpdu` bytes, markers included (clamped to what MPA can carry).
    pub fn new(crc: bool, markers: bool, max_fpdu: usize) -> Self {
        // The smallest FPDU has one marker in it. The largest is as large as without markers, so
        // that FPDUPTR, 16 bits, reaches back over all of it.
        let least = MIN_FPDU + if markers { MARKER } else { 0 };
        Segmenter {
            crc,
            marking: markers.then_some(Marking {
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

    /// Largest FPDU it makes.
    pub fn max_fpdu(&self) -> usize {
        self.max_fpdu
    }

    /// Whether nothing waits to be sent.
    pub fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.open = None;
        self.pieces.clear();
        self.bytes = 0;
    }

    /// No more of the message being cut: the Terminate takes its place.
    pub fn abandon_open(&mut self) {
        self.open = None;
    }

    /// Cuts messages of `next` until about `budget` bytes or `max_pieces` pieces are there.
    /// Call it only when all is sent.
    pub fn fill(
        &mut self,
        budget: usize,
        max_pieces: usize,
        mut next: impl FnMut() -> Option<Message>,
    ) {
        if self.pieces.is_empty() {
            self.scratch.clear();
        }
        while self.bytes < budget && self.pieces.len() < max_pieces {
            if self.open.is_none() {
                match next() {
                    Some(message) => self.begin(message),
                    None => return,
                }
            }
            self.cut();
        }
    }

    fn begin(&mut self, message: Message) {
        let untagged = |opcode, invalidate, queue, msn| Header::Untagged {
            opcode,
            invalidate,
            queue,
            msn,
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
            } => {
                let opcode = Opcode::Write;
                (
                    Header::Tagged {
                        opcode,
                        stag,
                        offset,
                    },
                    token,
                    data,
                )
            }
            Message::Response { stag, offset, data } => {
                let opcode = Opcode::ReadResponse;
                (
                    Header::Tagged {
                        opcode,
                        stag,
                        offset,
                    },
                    Token::Response,
                    data,
                )
            }
            Message::ReadRequest { token, request } => {
                self.read_request(&request, token);
                return;
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
                return;
            }
            Message::Rtr(Rtr::Fpdu) => {
                self.whole(&[0; 4]);
                return;
            }
            Message::Rtr(Rtr::Write) => (
                Header::Tagged {
                    opcode: Opcode::Write,
                    stag: 0,
                    offset: 0,
                },
                Token::None,
                Segs::new(),
            ),
            Message::Rtr(Rtr::Read) => {
                let request = ReadRequest {
                    sink_stag: 0,
                    sink_offset: 0,
                    length: 0,
                    source_stag: 0,
                    source_offset: 0,
                };
                self.read_request(&request, Token::None);
                return;
            }
        };
        self.open = Some(Open {
            header,
            token,
            len: data.iter().map(|b| b.len()).sum(),
            data,
            at: (0, 0),
            done: 0,
        });
    }

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

    /// An FPDU that lives in the scratch area as a whole.
    fn small(&mut self, header: &Untagged, body: &[u8]) {
        let ulpdu = ddp::UNTAGGED_HEADER + body.len();
        let mut bytes: SmallVec<[u8; 128]> = SmallVec::new();
        bytes.extend_from_slice(&(ulpdu as u16).to_be_bytes());
        bytes.extend_from_slice(&header.emit());
        bytes.extend_from_slice(body);
        bytes.extend_from_slice(&[0; 3][..padding(ulpdu)]);
        self.whole(&bytes);
    }

    /// An FPDU of these bytes: length field, ULPDU and padding.
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

    /// Begins an FPDU with markers. A marker that falls between two FPDUs is part of the
    /// second one, its CRC included, and points to nothing (RFC 5044 section 4.3).
    fn begin_marked(&mut self) -> Option<Crc> {
        let mut crc = self.crc.then(Crc::new);
        if let Some(marking) = &mut self.marking {
            marking.fpdu = marking.position;
            if marking.is_due() {
                marking.fpdu += MARKER as u64;
                self.push_marker(0, &mut crc);
            }
        }
        crc
    }

    /// A marker if one is due; then how many bytes may follow until the next.
    fn mark(&mut self, crc: &mut Option<Crc>) -> usize {
        let Some(marking) = &self.marking else {
            return usize::MAX;
        };
        if marking.is_due() {
            let back = marking.position - marking.fpdu;
            self.push_marker(back as u16, crc);
        }
        self.marking.as_ref().map_or(usize::MAX, Marking::gap)
    }

    fn push_marker(&mut self, pointer: u16, crc: &mut Option<Crc>) {
        self.push_marked(&marker(pointer), crc);
    }

    /// Bytes of an FPDU without a marker in them.
    fn push_marked(&mut self, bytes: &[u8], crc: &mut Option<Crc>) {
        let from = self.scratch.len();
        self.scratch.extend_from_slice(bytes);
        if let Some(crc) = crc {
            crc.update(bytes);
        }
        self.push_scratch(from);
        self.advance_marking(bytes.len());
    }

    fn advance_marking(&mut self, bytes: usize) {
        if let Some(marking) = &mut self.marking {
            marking.position += bytes as u64;
        }
    }

    fn marked_scratch(&mut self, mut bytes: &[u8], crc: &mut Option<Crc>) {
        while !bytes.is_empty() {
            let (now, later) = bytes.split_at(self.mark(crc).min(bytes.len()));
            self.push_marked(now, crc);
            bytes = later;
        }
    }

    fn marked_payload(&mut self, mut part: Buf, crc: &mut Option<Crc>) {
        while !part.is_empty() {
            let n = self.mark(crc).min(part.len());
            let now = part.slice(..n);
            if let Some(crc) = crc {
                crc.update(&now);
            }
            self.bytes += n;
            self.pieces.push_back(Piece::Payload(now));
            self.advance_marking(n);
            part = part.slice(n..);
        }
    }

    /// The CRC field. FPDUs and markers are multiples of four, so no marker falls into it;
    /// one that falls in front of it is in the FPDU, and in its CRC.
    fn end_marked(&mut self, mut crc: Option<Crc>) {
        self.mark(&mut crc);
        let field = crc.map(|crc| crc.field()).unwrap_or_default();
        self.push_marked(&field, &mut None);
    }

    /// The CRC field over the scratch area from `from`; zeros if CRCs are off.
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

    /// Cuts the next FPDU of the open message.
    fn cut(&mut self) {
        let Some(mut open) = self.open.take() else {
            return;
        };
        let head_len = match open.header {
            Header::Tagged { .. } => ddp::TAGGED_HEADER,
            Header::Untagged { .. } => ddp::UNTAGGED_HEADER,
        };
        // RFC 5044 section 5.2: "MULPDU = EMSS - (6 + 4 * Ceiling(EMSS / 512) + EMSS mod 4)".
        let markers = match self.marking {
            Some(_) => MARKER * self.max_fpdu.div_ceil(MARKER_INTERVAL),
            None => 0,
        };
        let room = self.max_fpdu - LENGTH_FIELD - head_len - CRC_FIELD - markers;
        let payload = room.min(open.len - open.done);
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

    /// An FPDU with markers: the payload still goes by reference, in pieces of at most 508
    /// bytes.
    fn cut_marked(&mut self, open: &mut Open, head: &[u8], payload: usize, pad: usize) {
        let mut crc = self.begin_marked();
        self.marked_scratch(head, &mut crc);
        let mut left = payload;
        while left > 0 {
            let part = open.take(left);
            left -= part.len();
            self.marked_payload(part, &mut crc);
        }
        self.marked_scratch(&[0; 3][..pad], &mut crc);
        self.end_marked(crc);
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
        self.scratch.extend_from_slice(&[0; 3][..pad]);
        if let Some(crc) = &mut crc {
            crc.update(&self.scratch[from..]);
        }
        let field = crc.map(|crc| crc.field()).unwrap_or_default();
        self.scratch.extend_from_slice(&field);
        self.push_scratch(from);
    }

    /// The first bytes to send, as at most `max` slices; gives their total, and how many
    /// RDMA Read Responses end in them.
    pub fn gather<'a>(&'a self, out: &mut Vec<IoSlice<'a>>, max: usize) -> (usize, usize) {
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

    /// The first `n` bytes of [`Segmenter::gather`] are sent. Gives what is done.
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
