//! Messages into FPDUs, and FPDUs into pieces to gather: headers, padding and CRCs from one
//! scratch area, payload by reference.

use super::handshake::Rtr;
use super::queue::{Message, Token};
use crate::wire::ddp::{self, Tagged, Untagged};
use crate::wire::mpa::{CRC_FIELD, Crc, LENGTH_FIELD, MAX_ULPDU, padding};
use crate::wire::rdmap::{Opcode, ReadRequest};
use nfsrdma_rdma::{Buf, Segs};
use std::collections::VecDeque;
use std::io::IoSlice;

/// Smallest FPDU limit: a header and some payload (RFC 5041 section 5.2 wants 128 octets).
pub const MIN_FPDU: usize = 128;
/// Largest FPDU whose length field fits, and which ends on a multiple of four.
pub const MAX_FPDU: usize = (LENGTH_FIELD + MAX_ULPDU) / 4 * 4 + CRC_FIELD;

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

/// Cuts messages. Holds what was cut and not sent.
#[derive(Debug)]
pub struct Segmenter {
    crc: bool,
    max_fpdu: usize,
    send_msn: u32,
    read_msn: u32,
    open: Option<Open>,
    scratch: Vec<u8>,
    pieces: VecDeque<Piece>,
    bytes: usize,
}

impl Segmenter {
    /// FPDUs of at most `max_fpdu` bytes (clamped to what MPA can carry).
    pub fn new(crc: bool, max_fpdu: usize) -> Self {
        Segmenter {
            crc,
            max_fpdu: max_fpdu.clamp(MIN_FPDU, MAX_FPDU) / 4 * 4,
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
                let from = self.scratch.len();
                self.scratch.extend_from_slice(&[0; 4]);
                self.push_crc(from);
                self.push_scratch(from);
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
        let from = self.scratch.len();
        let ulpdu = ddp::UNTAGGED_HEADER + body.len();
        self.scratch
            .extend_from_slice(&(ulpdu as u16).to_be_bytes());
        self.scratch.extend_from_slice(&header.emit());
        self.scratch.extend_from_slice(body);
        let pad = padding(ulpdu);
        self.scratch.extend_from_slice(&[0; 3][..pad]);
        self.push_crc(from);
        self.push_scratch(from);
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
        let from = self.scratch.len();
        let head_len = match open.header {
            Header::Tagged { .. } => ddp::TAGGED_HEADER,
            Header::Untagged { .. } => ddp::UNTAGGED_HEADER,
        };
        let room = self.max_fpdu - LENGTH_FIELD - head_len - CRC_FIELD;
        let payload = room.min(open.len - open.done);
        let last = open.done + payload == open.len;
        let ulpdu = head_len + payload;
        self.scratch
            .extend_from_slice(&(ulpdu as u16).to_be_bytes());
        match open.header {
            Header::Tagged {
                opcode,
                stag,
                offset,
            } => self.scratch.extend_from_slice(
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
            } => self.scratch.extend_from_slice(
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
        let mut crc = self.crc.then(|| {
            let mut crc = Crc::new();
            crc.update(&self.scratch[from..]);
            crc
        });
        self.push_scratch(from);
        let mut left = payload;
        while left > 0 {
            let buf = &open.data[open.at.0];
            let n = left.min(buf.len() - open.at.1);
            if n > 0 {
                let part = buf.slice(open.at.1..open.at.1 + n);
                if let Some(crc) = &mut crc {
                    crc.update(&part);
                }
                self.pieces.push_back(Piece::Payload(part));
            }
            open.at.1 += n;
            left -= n;
            if open.at.1 == buf.len() {
                open.at = (open.at.0 + 1, 0);
            }
        }
        self.bytes += payload;
        let from = self.scratch.len();
        self.scratch.extend_from_slice(&[0; 3][..padding(ulpdu)]);
        if let Some(crc) = &mut crc {
            crc.update(&self.scratch[from..]);
        }
        let field = crc.map(|crc| crc.field()).unwrap_or_default();
        self.scratch.extend_from_slice(&field);
        self.push_scratch(from);
        open.done += payload;
        if last {
            self.pieces.push_back(Piece::End(open.token));
        } else {
            self.open = Some(open);
        }
    }

    /// The first bytes to send, as at most `max` slices; gives their total.
    pub fn gather<'a>(&'a self, out: &mut Vec<IoSlice<'a>>, max: usize) -> usize {
        let mut total = 0;
        for piece in &self.pieces {
            let bytes: &[u8] = match piece {
                Piece::Scratch(from, to) => &self.scratch[*from..*to],
                Piece::Payload(buf) => buf,
                Piece::End(_) => continue,
            };
            if out.len() == max {
                break;
            }
            total += bytes.len();
            out.push(IoSlice::new(bytes));
        }
        total
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
