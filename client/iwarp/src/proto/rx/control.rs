//! RDMA Read Requests and Terminates, which consist of one small segment.
//!
//! They are decoded when the whole FPDU has arrived; nothing is placed. Queue number, message
//! sequence number and length are checked, and the number of Read Requests under way is compared
//! with the IRD. A Read Request of zero length needs no valid STag; for any other, the range is
//! checked against the table of STags (RFC 5040 sections 5.2.1 and 7.2).

use super::{Current, Event, Host, MAX_CONTROL, Receiver, Step};
use crate::proto::stag::Access;
use crate::proto::terminate::Fault;
use crate::wire::ddp;
use crate::wire::mpa::{LENGTH_FIELD, fpdu_len};
use crate::wire::rdmap::{Opcode, READ_REQUEST, ReadRequest, Terminate, TerminateCode};

impl<R: Clone> Receiver<R> {
    /// Handles an RDMA Read Request or a Terminate when its whole segment has arrived.
    pub(super) fn control_message<H: Host<Region = R>>(
        &mut self,
        host: &H,
        current: &Current,
        queue: u32,
        msn: u32,
        offset: u32,
        bytes: &[u8],
    ) -> Result<(usize, Step<R>), Fault> {
        let checked = || {
            //= RFC 5040, Section 5.4
            //# One Terminate Message MUST consume one Untagged Buffer.
            //# On a single RDMAP Stream, the RDMAP layer MUST guarantee placement of a single
            //# Terminate Message.
            //# A Terminate Message MUST be Delivered to the Remote Peer's RDMAP layer.
            let expected = match current.opcode {
                Opcode::ReadRequest => (ddp::QN_READ_REQUEST, self.read_msn),
                _ => (ddp::QN_TERMINATE, 1),
            };
            if queue > ddp::QN_TERMINATE {
                return Err(TerminateCode::DDP_INVALID_QN);
            }
            if queue != expected.0 {
                return Err(TerminateCode::RDMAP_UNEXPECTED_OPCODE);
            }
            if msn != expected.1 {
                return Err(TerminateCode::DDP_MSN_RANGE);
            }
            if offset != 0 {
                return Err(TerminateCode::DDP_INVALID_MO);
            }
            let payload = current.ulpdu - ddp::UNTAGGED_HEADER;
            let request = current.opcode == Opcode::ReadRequest;
            if current.ulpdu > MAX_CONTROL || (request && payload > READ_REQUEST) {
                return Err(TerminateCode::DDP_TOO_LONG);
            }
            if !current.last || (request && payload < READ_REQUEST) {
                return Err(TerminateCode::RDMAP_CATASTROPHIC_STREAM);
            }
            Ok(())
        };
        checked().map_err(|code| self.fault(code))?;
        let whole = fpdu_len(current.ulpdu);
        //= RFC 5040, Section 5.5
        //# RDMA Read Request Messages, including zero-length RDMA Read Requests, MUST NOT start
        //# processing at the Remote Peer until they have been Delivered to RDMAP by DDP.
        //# RDMA Read Response Message processing at the Remote Peer (reading the specified Tagged
        //# Buffer) MUST be started only after the RDMA Read Request Message has been Delivered by
        //# the DDP layer (thus, all previous RDMA Messages have been properly submitted for ordered
        //# Placement).
        if bytes.len() < whole {
            return Ok((0, Step::Need(whole)));
        }
        let body = &bytes[LENGTH_FIELD + ddp::UNTAGGED_HEADER..LENGTH_FIELD + current.ulpdu];
        let event = if current.opcode == Opcode::Terminate {
            Event::Terminated(Terminate::parse(body).unwrap_or(Terminate {
                code: TerminateCode::RDMAP_OPERATION_UNSPECIFIED,
                segment: None,
                read_request: None,
            }))
        } else {
            let raw: &[u8; READ_REQUEST] = body
                .first_chunk()
                .ok_or_else(|| self.fault(TerminateCode::RDMAP_CATASTROPHIC_STREAM))?;
            self.read_request(host, raw)?
        };
        self.current = None;
        self.fpdus += 1;
        Ok((whole, Step::Event(event)))
    }

    //= RFC 5040, Section 5.2.1
    //# The Remote Peer's RDMAP layer MUST process an RDMA Read Request Message.
    //# A valid RDMA Read Request Message MUST NOT be delivered to the Data Sink's ULP (i.e., it is
    //# processed by the RDMAP layer).
    //# If the Data Source receives a valid RDMA Read Request Message, it MUST respond with a valid
    //# RDMA Read Response Message.
    fn read_request<H: Host<Region = R>>(
        &mut self,
        host: &H,
        raw: &[u8; READ_REQUEST],
    ) -> Result<Event<R>, Fault> {
        // A request is outstanding until the peer has received the whole response.
        //= RFC 5040, Section 6.1
        //# For inbound RDMA Read Requests, the RDMAP layer MUST NOT exceed the maximum number of
        //# outstanding, inbound RDMA Read Requests that were negotiated between the ULP and the
        //# Local Peer's RDMAP layer.
        if host.responses_due() >= self.reads_in {
            return Err(self.fault(TerminateCode::DDP_NO_BUFFER));
        }
        //= RFC 5040, Section 5.2.1
        //# One RDMA Read Request Message MUST consume one Untagged Buffer.
        self.read_msn = self.read_msn.wrapping_add(1);
        let request = ReadRequest::parse(raw);
        //= RFC 5040, Section 5.2.1
        //# MUST NOT validate the Data Source STag and Data Source Tagged Offset contained in the
        //# RDMA Read Request Header, and
        let source = if request.length == 0 {
            None
        } else {
            //= RFC 5040, Section 5.2.1
            //# If the Data Source receives a non-zero-length RDMA Read Message Size, the Data
            //# Source RDMAP MUST validate the Data Source STag and Data Source Tagged Offset
            //# contained in the RDMA Read Request Header.
            //= RFC 5040, Section 7.2
            //# The Data Source STag MUST be valid.
            //# The Data Source Tagged Offset MUST fall in the range of legal offsets associated
            //# with the Data Source STag.
            //# The sum of the Data Source Tagged Offset and the RDMA Read Message Size MUST fall in
            //# the range of legal offsets associated with the Data Source STag.
            //# The sum of the Data Source Tagged Offset and the RDMA Read Message Size MUST NOT
            //# cause the Data Source Tagged Offset to wrap.
            let source = host.tagged(
                request.source_stag,
                Access::Read,
                request.source_offset,
                u64::from(request.length),
            );
            Some(source.map_err(|denied| Fault {
                read_request: Some(*raw),
                ..self.fault(denied.read_request())
            })?)
        };
        Ok(Event::ReadRequest(request, source))
    }
}
