//! The receiving side of a stream: reassembly of FPDUs, all checks of RFC 5041 and RFC 5040 section
//! 7.2, and the place of each payload byte.
//!
//! [`Receiver::step`] gets the bytes that have arrived, and says what to do: get more bytes, place
//! the next bytes of the stream (which may be read directly into place), or handle an event.

mod control;
mod place;

use super::host::Host;
use super::stag::{Access, Denied};
use super::terminate::Fault;
use crate::wire::ddp::{self, Control, Tagged, Untagged};
use crate::wire::mpa::{CRC_FIELD, Crc, LENGTH_FIELD, fpdu_len, padding};
use crate::wire::rdmap::{
    MAX_TERMINATE, Opcode, ReadRequest, Terminate, TerminateCode, TerminatedHeader,
};
use nfsrdma_rdma::{BufMut, WorkId};

/// What a complete FPDU means.
#[derive(Debug)]
pub enum Event<R> {
    /// A segment was placed.
    Placed,
    /// The FPDU without ULPDU that opens a peer-to-peer stream.
    Rtr,
    /// A Send is complete.
    Received {
        /// The number of the Receive.
        id: WorkId,
        /// The Receive's buffer.
        buf: BufMut,
        /// Length of the message in bytes.
        len: usize,
        /// The STag that the message invalidated.
        invalidated: Option<u32>,
    },
    /// The oldest pending RDMA Read is complete.
    ReadDone,
    /// A request to be answered, with its source, which was checked; `None` for zero length.
    ReadRequest(ReadRequest, Option<(R, usize)>),
    /// The peer terminated the stream.
    Terminated(Terminate),
}

/// What to do next.
#[derive(Debug)]
pub enum Step<R> {
    /// Get at least this many bytes.
    Need(usize),
    /// The next `len` bytes belong at `at` of `region`. They may be placed in pieces; each is
    /// reported to [`Receiver::placed`].
    Place {
        /// Tagged memory.
        region: R,
        /// Offset in it.
        at: usize,
        /// Length in bytes.
        len: usize,
    },
    /// The next `len` bytes belong in [`Receiver::send_space`].
    PlaceSend {
        /// Length in bytes.
        len: usize,
    },
    /// An FPDU is complete.
    Event(Event<R>),
}

enum State<R> {
    Header,
    Tagged { region: R, at: usize, left: usize },
    Send { left: usize },
    Trailer,
}

/// The FPDU being received.
#[derive(Debug, Clone, Copy)]
struct Current {
    ulpdu: usize,
    header: TerminatedHeader,
    opcode: Opcode,
    last: bool,
    /// Whether placement needs no CRC check afterwards: CRCs are off, or it was checked before.
    crc_checked: bool,
}

struct Message {
    id: WorkId,
    buf: BufMut,
    filled: usize,
}

/// The receiving side of a stream. `R` stands for tagged memory.
pub struct Receiver<R> {
    crc: Option<Crc>,
    reads_in: usize,
    state: State<R>,
    current: Option<Current>,
    message: Option<Message>,
    send_msn: u32,
    read_msn: u32,
    read_placed: u64,
    fpdus: u64,
}

impl<R> std::fmt::Debug for Receiver<R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Receiver")
            .field("fpdus", &self.fpdus)
            .field("send_msn", &self.send_msn)
            .field("read_msn", &self.read_msn)
            .finish_non_exhaustive()
    }
}

type Checked<T> = Result<T, TerminateCode>;

/// Longest ULPDU of an RDMA Read Request or Terminate that is read.
const MAX_CONTROL: usize = ddp::UNTAGGED_HEADER + MAX_TERMINATE + 12;

impl<R: Clone> Receiver<R> {
    /// A receiver at the start of full operation. `reads_in` is the IRD.
    pub fn new(crc: bool, reads_in: usize) -> Self {
        Receiver {
            crc: crc.then(Crc::new),
            reads_in,
            state: State::Header,
            current: None,
            message: None,
            send_msn: 1,
            read_msn: 1,
            read_placed: 0,
            fpdus: 0,
        }
    }

    /// Number of FPDUs received so far.
    pub fn fpdus(&self) -> u64 {
        self.fpdus
    }

    /// Whether the next byte is the first one of an FPDU.
    pub fn is_between_fpdus(&self) -> bool {
        matches!(self.state, State::Header)
    }

    /// Takes the Receive that a Send has begun to fill, in order to flush it.
    pub fn take_partial(&mut self) -> Option<(WorkId, BufMut)> {
        self.state = State::Header;
        self.message.take().map(|m| (m.id, m.buf))
    }

    /// While payload is being placed: bytes of the FPDU after the payload, and whether the
    /// segment is the last of its message.
    pub fn after_payload(&self) -> (usize, bool) {
        self.current
            .map_or((0, true), |c| (padding(c.ulpdu) + CRC_FIELD, c.last))
    }

    /// The fault for memory that became invalid while its segment was arriving.
    pub fn region_gone(&self) -> Fault {
        self.fault(TerminateCode::DDP_INVALID_STAG)
    }

    //= RFC 5041, Section 6.2
    //# DDP MUST NOT independently initiate Stream Teardown.
    fn fault(&self, code: TerminateCode) -> Fault {
        Fault {
            code,
            segment: self.current.map(|c| (c.ulpdu as u16, c.header)),
            read_request: None,
        }
    }

    /// Processes `bytes`, the next bytes of the stream. Returns how many were used, and what to do.
    pub fn step<H: Host<Region = R>>(
        &mut self,
        host: &H,
        bytes: &[u8],
    ) -> Result<(usize, Step<R>), Fault> {
        match &self.state {
            State::Tagged { region, at, left } => Ok((
                0,
                Step::Place {
                    region: region.clone(),
                    at: *at,
                    len: *left,
                },
            )),
            State::Send { left } => Ok((0, Step::PlaceSend { len: *left })),
            State::Trailer => self.trailer(host, bytes),
            State::Header => self.header(host, bytes),
        }
    }

    //= RFC 5041, Section 3
    //# The LLP MUST preserve DDP Segment and Message boundaries at the Data Sink.
    //# On receive, the LLP MUST provide the length of the DDP Segment received.
    //= RFC 5044, Section A.4
    //# However, MPA receivers MUST NOT depend on FPDU Alignment on TCP segment boundaries.
    //= RFC 5044, Section 4.3
    //# MPA Receivers MUST preserve ULPDU boundaries when passing data to DDP.
    //# MPA Receivers MUST pass the ULPDU data and the ULPDU Length to DDP and not the Markers,
    //# headers, and CRC.
    //= RFC 5044, Section 5.1
    //# MPA receivers are REQUIRED to be able to operate correctly even if alignment is lost (see
    //# Section 6).
    //= RFC 5044, Section 5.2
    //# The receivers MUST identify FPDU boundaries by using the ULPDU_LENGTH field, as described in
    //# Section 6.
    //= RFC 5044, Section 6
    //# To detect the start of the FPDU unambiguously one of the following MUST be used:
    //= RFC 5041, Section 4.1
    //# If set to one, the ULP Payload carried in this DDP Segment MUST be Placed into a Tagged
    //# Buffer.
    //# If set to zero, the ULP Payload carried in this DDP Segment MUST be Placed into an Untagged
    //# Buffer.
    //= RFC 5041, Section 5.2
    //# At the Data Sink, the DDP layer MUST Place the ULP Payload contained in all valid incoming
    //# DDP Segments associated with a DDP Message into the ULP Buffer.
    fn header<H: Host<Region = R>>(
        &mut self,
        host: &H,
        bytes: &[u8],
    ) -> Result<(usize, Step<R>), Fault> {
        let Some((length, rest)) = bytes.split_first_chunk() else {
            return Ok((0, Step::Need(LENGTH_FIELD)));
        };
        let ulpdu = usize::from(u16::from_be_bytes(*length));
        if ulpdu == 0 && self.fpdus == 0 {
            return self.rtr(bytes);
        }
        if ulpdu < ddp::TAGGED_HEADER {
            return Err(Fault::new(TerminateCode::DDP_LOCAL_CATASTROPHIC));
        }
        let Some(header) = rest.first_chunk::<{ ddp::TAGGED_HEADER }>() else {
            return Ok((0, Step::Need(LENGTH_FIELD + ddp::TAGGED_HEADER)));
        };
        let control = Control::parse([header[0], header[1]]);
        let mut header = TerminatedHeader::Tagged(*header);
        let mut head_len = ddp::TAGGED_HEADER;
        if !control.tagged {
            if ulpdu < ddp::UNTAGGED_HEADER {
                return Err(Fault::new(TerminateCode::DDP_LOCAL_CATASTROPHIC));
            }
            let Some(untagged) = rest.first_chunk() else {
                return Ok((0, Step::Need(LENGTH_FIELD + ddp::UNTAGGED_HEADER)));
            };
            header = TerminatedHeader::Untagged(*untagged);
            head_len = ddp::UNTAGGED_HEADER;
        }
        let whole = fpdu_len(ulpdu);
        // If the whole FPDU is here, check its CRC before anything is placed by a corrupt header.
        let crc_checked = self.crc.is_none() || bytes.len() >= whole;
        if self.crc.is_some() && bytes.len() >= whole && !crc_matches(&bytes[..whole]) {
            return Err(Fault::new(TerminateCode::MPA_CRC));
        }
        let opcode = check_control(&control);
        let current = Current {
            ulpdu,
            header,
            opcode: opcode.unwrap_or(Opcode::Write),
            last: control.last,
            crc_checked,
        };
        self.current = Some(current);
        opcode.map_err(|code| self.fault(code))?;

        let payload = ulpdu - head_len;
        let state = match header {
            TerminatedHeader::Tagged(h) => {
                let (stag, offset) = Tagged::parse_target(&h);
                self.tagged(host, &current, stag, offset, payload)
            }
            TerminatedHeader::Untagged(h) => {
                let (_, queue, msn, offset) = Untagged::parse_target(&h);
                if matches!(current.opcode, Opcode::ReadRequest | Opcode::Terminate) {
                    return self.control_message(host, &current, queue, msn, offset, bytes);
                }
                self.untagged(host, queue, msn, offset, payload)
            }
        };
        self.state = state.map_err(|code| self.fault(code))?;
        if let (Some(crc), false) = (&mut self.crc, crc_checked) {
            crc.reset();
            crc.update(&bytes[..LENGTH_FIELD + head_len]);
        }
        let used = LENGTH_FIELD + head_len;
        let (more, step) = match &self.state {
            State::Trailer => self.trailer(host, &bytes[used..])?,
            _ => self.step(host, &bytes[used..])?,
        };
        Ok((used + more, step))
    }

    /// An FPDU without ULPDU: the RTR message of RFC 6581 section 9.2.
    fn rtr(&mut self, bytes: &[u8]) -> Result<(usize, Step<R>), Fault> {
        let whole = fpdu_len(0);
        let Some(fpdu) = bytes.get(..whole) else {
            return Ok((0, Step::Need(whole)));
        };
        if self.crc.is_some() && !crc_matches(fpdu) {
            return Err(Fault::new(TerminateCode::MPA_CRC));
        }
        self.fpdus += 1;
        Ok((whole, Step::Event(Event::Rtr)))
    }

    fn tagged<H: Host<Region = R>>(
        &mut self,
        host: &H,
        current: &Current,
        stag: u32,
        offset: u64,
        payload: usize,
    ) -> Checked<State<R>> {
        let len = payload as u64;
        let access = match current.opcode {
            Opcode::ReadResponse => {
                self.read_response(host, current, stag, offset, len)?;
                Access::ReadSink
            }
            _ => Access::Write,
        };
        //= RFC 5041, Section 5.2
        //# Only the DDP Control and RsvdULP Fields MUST be valid for a zero-length Tagged DDP
        //# Segment.
        //# The STag and TO fields MUST NOT be checked for a zero-length Tagged DDP Message.
        if payload == 0 {
            return Ok(State::Trailer);
        }
        //= RFC 5040, Section 7.2
        //# The DDP layer MUST validate all DDP Segment fields.
        //= RFC 5041, Section 4.2
        //# The STag MUST be valid for this DDP Stream.
        //= RFC 5041, Section 7.1
        //# For non-zero-length Tagged DDP Segments, the segment MUST be validated before Placement
        //# by verifying:
        let (region, at) = host
            .tagged(stag, access, offset, len)
            .map_err(Denied::tagged)?;
        Ok(State::Tagged {
            region,
            at,
            left: payload,
        })
    }

    /// Checks a segment of a response. Responses arrive in the order of the requests. The sink "MAY
    /// validate" STag, offset and length (RFC 5040 section 5.2.2); our completions depend on it.
    fn read_response<H: Host<Region = R>>(
        &mut self,
        host: &H,
        current: &Current,
        stag: u32,
        offset: u64,
        len: u64,
    ) -> Checked<()> {
        //= RFC 5041, Section 4.2
        //# At the Data Sink, the DDP MUST provide the STag field when the ULP Message is delivered.
        let read = host
            .pending_read()
            .ok_or(TerminateCode::RDMAP_UNEXPECTED_OPCODE)?;
        if stag != read.stag && (len > 0 || read.len > 0) {
            return Err(TerminateCode::DDP_INVALID_STAG);
        }
        let end = self.read_placed + len;
        if end > read.len || (len > 0 && offset != read.offset.wrapping_add(self.read_placed)) {
            return Err(TerminateCode::DDP_BASE_OR_BOUNDS);
        }
        if current.last != (end == read.len) {
            // There is no code for a response that is too short or too long.
            return Err(TerminateCode::RDMAP_CATASTROPHIC_STREAM);
        }
        self.read_placed = if current.last { 0 } else { end };
        Ok(())
    }

    //= RFC 5040, Section 7.2
    //# The DDP layer MUST validate all Untagged DDP Segment fields.
    //= RFC 5041, Section 7.1
    //# For non-zero-length Untagged DDP Segments, the DDP Segment MUST be validated before
    //# Placement by verifying:
    fn untagged<H: Host<Region = R>>(
        &mut self,
        host: &H,
        queue: u32,
        msn: u32,
        offset: u32,
        payload: usize,
    ) -> Checked<State<R>> {
        match queue {
            ddp::QN_SEND => {}
            ddp::QN_READ_REQUEST | ddp::QN_TERMINATE => {
                return Err(TerminateCode::RDMAP_UNEXPECTED_OPCODE);
            }
            _ => return Err(TerminateCode::DDP_INVALID_QN),
        }
        // TCP keeps segments in order, so only the next MSN can be right.
        //= RFC 5041, Section 3
        //# The LLP MUST NOT pass a duplicate DDP Segment to the DDP layer after it has passed all
        //# the previous DDP Segments to the DDP layer and the associated ordering information for
        //# the previous DDP Segments and the current DDP Segment.
        if msn != self.send_msn {
            return Err(TerminateCode::DDP_MSN_RANGE);
        }
        if self.message.is_none() {
            if offset != 0 {
                return Err(TerminateCode::DDP_INVALID_MO);
            }
            //= RFC 5040, Section 5.3
            //# One Send Message Type MUST consume one Untagged Buffer.
            //# A zero-length Send Message Type MUST consume an Untagged Buffer at the Data Sink.
            let (id, buf) = host.take_receive().ok_or(TerminateCode::DDP_NO_BUFFER)?;
            self.message = Some(Message { id, buf, filled: 0 });
        }
        let message = self.message.as_ref().ok_or(TerminateCode::DDP_NO_BUFFER)?;
        if offset as usize != message.filled {
            return Err(TerminateCode::DDP_INVALID_MO);
        }
        if payload > message.buf.len() - message.filled {
            return Err(TerminateCode::DDP_TOO_LONG);
        }
        Ok(if payload == 0 {
            State::Trailer
        } else {
            State::Send { left: payload }
        })
    }

    fn trailer<H: Host<Region = R>>(
        &mut self,
        host: &H,
        bytes: &[u8],
    ) -> Result<(usize, Step<R>), Fault> {
        let Some(current) = self.current else {
            return Err(Fault::new(TerminateCode::DDP_LOCAL_CATASTROPHIC));
        };
        let pad = padding(current.ulpdu);
        let Some(trailer) = bytes.get(..pad + CRC_FIELD) else {
            return Ok((0, Step::Need(pad + CRC_FIELD)));
        };
        //= RFC 5044, Section 4.1
        //# When CRCs are not enabled, this field is still present, may contain any value, and MUST
        //# NOT be checked.
        //= RFC 5044, Section 4.4
        //# When an FPDU is received, and CRC checking is enabled, the receiver MUST first perform
        //# the following:
        //# If not, the receiver MUST treat the FPDU as an invalid FPDU.
        //= RFC 5044, Section 7.1.1
        //# When CRCs are not in use, the CRC field MUST be considered valid for FPDU checking
        //# regardless of its contents.
        if let (Some(crc), false) = (&mut self.crc, current.crc_checked) {
            crc.update(&trailer[..pad]);
            if crc.field() != trailer[pad..] {
                return Err(Fault::new(TerminateCode::MPA_CRC));
            }
        }
        let event = self
            .deliver(host, &current)
            .map_err(|code| self.fault(code))?;
        self.state = State::Header;
        self.current = None;
        self.fpdus += 1;
        Ok((pad + CRC_FIELD, Step::Event(event)))
    }

    //= RFC 5040, Section 5.5
    //# At the Data Sink, an incoming Send Message MUST be Delivered to the ULP only after the DDP
    //# Message has been Delivered to the RDMAP layer by the DDP layer.
    //= RFC 5041, Section 4.1
    //# If the Last flag is set to one, the DDP Message payload MUST be Delivered to the ULP after:
    //= RFC 5041, Section 5.4
    //# At the Data Sink, DDP MUST Deliver a DDP Message if and only if all of the following are
    //# true:
    fn deliver<H: Host<Region = R>>(&mut self, host: &H, current: &Current) -> Checked<Event<R>> {
        if !current.last {
            return Ok(Event::Placed);
        }
        match current.opcode {
            //= RFC 5040, Section 5.1
            //# A valid RDMA Write Message MUST NOT be delivered to the Data Sink's ULP (i.e., it is
            //# placed by the DDP layer).
            Opcode::Write => Ok(Event::Placed),
            //= RFC 5040, Section 5.2.2
            //# The RDMAP layer MUST Deliver the RDMA Read Response Message to the ULP.
            //= RFC 5040, Section 5.5
            //# This simplifies Local Peer Completion processing for RDMA Reads in that a Delivered
            //# RDMA Read Response MUST be sufficient to Complete the RDMA Read operation.
            Opcode::ReadResponse => Ok(Event::ReadDone),
            opcode => {
                //= RFC 5040, Section 5.3
                //# When the Send with Invalidate and Send with Solicited Event and Invalidate
                //# Message are Delivered to the Remote Peer's RDMAP layer, the RDMAP layer MUST:
                //= RFC 5040, Section 7.2
                //# The Invalidate STag MUST be valid.
                //= RFC 5041, Section 4.2
                //# At the Data Sink, DDP MUST provide the RsvdULP field to the ULP when the DDP
                //# Message is delivered.
                //= RFC 5041, Section 4.3
                //# At the Data Sink, DDP MUST provide RsvdULP field to the ULP when the ULP Message
                //# is Delivered.
                //= RFC 5041, Section 5.4
                //# At the Data Sink, DDP MUST provide the RsvdULP Field of the DDP Message to the
                //# ULP when the DDP Message is delivered.
                let invalidated = match current.header {
                    TerminatedHeader::Untagged(header) if opcode.invalidates() => {
                        Some(Untagged::parse_target(&header).0)
                    }
                    _ => None,
                };
                if invalidated.is_some_and(|stag| !host.invalidate(stag)) {
                    return Err(TerminateCode::RDMAP_CANNOT_INVALIDATE);
                }
                let message = self
                    .message
                    .take()
                    .ok_or(TerminateCode::DDP_LOCAL_CATASTROPHIC)?;
                self.send_msn = self.send_msn.wrapping_add(1);
                //= RFC 5040, Section 5.3
                //# At the Remote Peer, the Send Message Type MUST be Delivered to the Remote Peer's
                //# ULP in the order they were sent.
                //= RFC 5040, Section 5.5
                //# Send Messages MUST be Delivered to the ULP at the Remote Peer after they are
                //# Delivered to RDMAP by DDP and in the order that they were Delivered to RDMAP.
                //= RFC 5041, Section 5.3
                //# MUST Deliver a DDP Message to the ULP at most once,
                //# MUST Deliver DDP Messages to the ULP in the order they were sent by the Data
                //# Source.
                //= RFC 5041, Section 5.4
                //# At the Data Sink, DDP MUST provide the ULP Message Length to the ULP when an
                //# Untagged DDP Message is Delivered.
                Ok(Event::Received {
                    id: message.id,
                    len: message.filled,
                    buf: message.buf,
                    invalidated,
                })
            }
        }
    }
}

//= RFC 5040, Section 7.2
//# The RDMA OpCode MUST be valid.
//# The RDMA Version MUST be valid.
//= RFC 5041, Section 4.1
//# The value of DV MUST be the same for all the DDP Segments transmitted or received on a DDP
//# Stream.
fn check_control(control: &Control) -> Checked<Opcode> {
    if control.ddp_version != ddp::VERSION {
        return Err(if control.tagged {
            TerminateCode::DDP_TAGGED_VERSION
        } else {
            TerminateCode::DDP_UNTAGGED_VERSION
        });
    }
    if control.rdmap_version != ddp::RDMAP_VERSION {
        return Err(TerminateCode::RDMAP_INVALID_VERSION);
    }
    Opcode::from_bits(control.opcode)
        .filter(|opcode| opcode.is_tagged() == control.tagged)
        .ok_or(TerminateCode::RDMAP_UNEXPECTED_OPCODE)
}

fn crc_matches(fpdu: &[u8]) -> bool {
    fpdu.split_last_chunk::<CRC_FIELD>()
        .is_some_and(|(covered, field)| Crc::of(covered) == *field)
}
