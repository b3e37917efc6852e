//! Decodes bytes to fields with tshark's names, by this project's codecs alone.

use crate::nfs;
use crate::same::same;
use crate::vector::{Side, Vector};
use nfsrdma_iwarp::wire::ddp::{self, Control, Tagged, Untagged};
use nfsrdma_iwarp::wire::mpa::{self, Frame, FrameHeader, FrameKind};
use nfsrdma_iwarp::wire::rdmap::{Opcode, ReadRequest};
use nfsrdma_xdr::codec::{self, Decode, Decoder, Encode};
use nfsrdma_xdr::rpc::{Accepted, Call, Reply, ReplyBody};
use nfsrdma_xdr::rpcrdma::{Body, Header, Segment, WriteChunk};

/// Field names and values in the order of the wire.
type Fields = Vec<(String, String)>;

#[derive(Default)]
struct Sheet(Fields);

impl Sheet {
    fn put(&mut self, name: &str, value: impl ToString) {
        self.0.push((name.to_owned(), value.to_string()));
    }

    fn flag(&mut self, name: &str, value: bool) {
        self.put(name, u8::from(value));
    }
}

/// Decodes a frame down to the NFS arguments or results. An error means that a codec refused
/// something or did not encode it to the same bytes again, or that a CRC or length is wrong.
pub fn describe(vector: &Vector) -> Result<Fields, String> {
    let mut sheet = Sheet::default();
    let bytes = &vector.bytes;
    let kind = match vector.from {
        Side::Client => FrameKind::Request,
        Side::Server => FrameKind::Reply,
    };
    if bytes.starts_with(b"MPA ID Re") {
        mpa_frame(&mut sheet, kind, bytes)?;
    } else {
        let ulpdu = fpdu(&mut sheet, bytes, vector.crc)?;
        let message = ddp_segment(&mut sheet, ulpdu)?;
        if let Some(message) = message {
            transport(&mut sheet, message, vector)?;
        }
    }
    Ok(sheet.0)
}

fn mpa_frame(sheet: &mut Sheet, kind: FrameKind, bytes: &[u8]) -> Result<(), String> {
    let (head, body) = bytes
        .split_first_chunk()
        .ok_or("an MPA frame shorter than its header")?;
    let header = FrameHeader::parse(kind, head).map_err(|e| format!("MPA: {e}"))?;
    sheet.flag("iwarp_mpa.marker_flag", header.markers);
    sheet.flag("iwarp_mpa.crc_flag", header.crc);
    sheet.flag("iwarp_mpa.rej_flag", header.reject);
    sheet.put("iwarp_mpa.rev", header.revision);
    sheet.put("iwarp_mpa.pdlength", header.length);
    let private: String = body.iter().map(|b| format!("{b:02x}")).collect();
    sheet.put("iwarp_mpa.privatedata", private);
    let frame = Frame::from_parts(kind, header, body).ok_or("MPA: private data cut short")?;
    same("MPA frame", &frame.to_bytes(), bytes)
}

fn fpdu<'a>(sheet: &mut Sheet, bytes: &'a [u8], crc: bool) -> Result<&'a [u8], String> {
    let length = bytes
        .first_chunk::<{ mpa::LENGTH_FIELD }>()
        .ok_or("an FPDU without length")?;
    let length = usize::from(u16::from_be_bytes(*length));
    sheet.put("iwarp_mpa.ulpdulength", length);
    if bytes.len() != mpa::fpdu_len(length) {
        return Err(format!(
            "an FPDU of {} bytes for a ULPDU of {length}",
            bytes.len()
        ));
    }
    let (covered, field) = bytes.split_at(bytes.len() - mpa::CRC_FIELD);
    if crc {
        same("CRC", &mpa::Crc::of(covered), field)?;
    }
    Ok(&covered[mpa::LENGTH_FIELD..mpa::LENGTH_FIELD + length])
}

/// Decodes the DDP and RDMAP headers. Returns the message of a Send that is complete in this
/// segment.
fn ddp_segment<'a>(sheet: &mut Sheet, ulpdu: &'a [u8]) -> Result<Option<&'a [u8]>, String> {
    let control = ulpdu
        .first_chunk()
        .ok_or("a segment without control field")?;
    let control = Control::parse(*control);
    let opcode = Opcode::from_bits(control.opcode).ok_or("a reserved opcode")?;
    if opcode.is_tagged() != control.tagged {
        return Err(format!("{opcode:?} with tagged={}", control.tagged));
    }
    sheet.flag("iwarp_ddp.tagged_flag", control.tagged);
    sheet.flag("iwarp_ddp.last_flag", control.last);
    sheet.put("iwarp_ddp.dv", control.ddp_version);
    if control.tagged {
        let head = ulpdu
            .first_chunk::<{ ddp::TAGGED_HEADER }>()
            .ok_or("a tagged segment without header")?;
        let (stag, offset) = Tagged::parse_target(head);
        sheet.put("iwarp_ddp.stag", stag);
        sheet.put("iwarp_ddp.tagged_offset", offset);
        sheet.put("iwarp_rdma.version", control.rdmap_version);
        sheet.put("iwarp_rdma.opcode", control.opcode);
        let again = Tagged {
            last: control.last,
            opcode,
            stag,
            offset,
        };
        same("tagged header", &again.emit(), head)?;
        return Ok(None);
    }
    let (head, payload) = ulpdu
        .split_first_chunk::<{ ddp::UNTAGGED_HEADER }>()
        .ok_or("an untagged segment without header")?;
    let (invalidate, queue, msn, offset) = Untagged::parse_target(head);
    sheet.put("iwarp_ddp.qn", queue);
    sheet.put("iwarp_ddp.msn", msn);
    sheet.put("iwarp_ddp.mo", offset);
    sheet.put("iwarp_rdma.version", control.rdmap_version);
    sheet.put("iwarp_rdma.opcode", control.opcode);
    if opcode.invalidates() {
        sheet.put("iwarp_rdma.inval_stag", invalidate);
    }
    let again = Untagged {
        last: control.last,
        opcode,
        invalidate,
        queue,
        msn,
        offset,
    };
    same("untagged header", &again.emit(), head)?;
    match opcode {
        Opcode::ReadRequest => {
            let head = payload
                .try_into()
                .map_err(|_| "a Read Request of a wrong size")?;
            let request = ReadRequest::parse(head);
            sheet.put("iwarp_rdma.sinkstag", request.sink_stag);
            sheet.put("iwarp_rdma.sinkto", request.sink_offset);
            sheet.put("iwarp_rdma.rdmardsz", request.length);
            sheet.put("iwarp_rdma.srcstag", request.source_stag);
            sheet.put("iwarp_rdma.srcto", request.source_offset);
            same("Read Request", &request.emit(), payload)?;
            Ok(None)
        }
        Opcode::Terminate => Ok(None),
        _ => Ok((control.last && offset == 0).then_some(payload)),
    }
}

/// The transport header and what follows it.
fn transport(sheet: &mut Sheet, message: &[u8], vector: &Vector) -> Result<(), String> {
    let (header, length) = Header::parse(message).map_err(|e| format!("transport header: {e}"))?;
    let (head, rpc) = message.split_at(length);
    sheet.put("rpcordma.xid", header.xid);
    sheet.put("rpcordma.version", header.version);
    sheet.put("rpcordma.flow_control", header.credits);
    let (kind, chunks) = match &header.body {
        Body::Msg(chunks) => (0, Some(chunks)),
        Body::NoMsg(chunks) => (1, Some(chunks)),
        Body::MsgP { chunks, .. } => (2, Some(chunks)),
        Body::Done => (3, None),
        Body::Error(_) => (4, None),
    };
    sheet.put("rpcordma.msg_type", kind);
    if let Some(chunks) = chunks {
        sheet.put("rpcordma.reads_count", chunks.reads.len());
        for read in &chunks.reads {
            sheet.put("rpcordma.position", read.position);
            segment(sheet, &read.target);
        }
        sheet.put("rpcordma.writes_count", chunks.writes.len());
        chunks.writes.iter().for_each(|chunk| list(sheet, chunk));
        sheet.put("rpcordma.reply_count", u8::from(chunks.reply.is_some()));
        chunks.reply.iter().for_each(|chunk| list(sheet, chunk));
    }
    same("transport header", &header.to_xdr(), head)?;
    match (&header.body, vector.from) {
        (Body::Msg(_), Side::Client) => call(sheet, &header, rpc),
        (Body::Msg(_), Side::Server) => reply(sheet, &header, rpc, vector.procedure),
        _ if rpc.is_empty() => Ok(()),
        _ => Err(format!(
            "{} bytes after a header without message",
            rpc.len()
        )),
    }
}

fn list(sheet: &mut Sheet, chunk: &WriteChunk) {
    sheet.put("rpcordma.segment_count", chunk.segments.len());
    chunk.segments.iter().for_each(|s| segment(sheet, s));
}

fn segment(sheet: &mut Sheet, segment: &Segment) {
    sheet.put("rpcordma.rdma_handle", segment.handle);
    sheet.put("rpcordma.rdma_length", segment.length);
    sheet.put("rpcordma.rdma_offset", segment.offset);
}

fn call(sheet: &mut Sheet, header: &Header, rpc: &[u8]) -> Result<(), String> {
    let mut from = Decoder::new(rpc);
    let call = Call::parse(&mut from).map_err(|e| format!("RPC call: {e:?}"))?;
    if call.xid != header.xid {
        return Err("the XID of header and call differ".to_owned());
    }
    sheet.put("rpc.xid", call.xid);
    sheet.put("rpc.msgtyp", 0);
    sheet.put("rpc.version", 2);
    sheet.put("rpc.program", call.program);
    sheet.put("rpc.programversion", call.version);
    sheet.put("rpc.procedure", call.procedure);
    same("RPC call", &call.to_xdr(), &rpc[..from.position()])?;
    if call.program != nfsrdma_xdr::nfs3::PROGRAM {
        return Ok(());
    }
    let reads = header
        .chunks()
        .map(|c| c.reads.as_slice())
        .unwrap_or_default();
    let placed = match reads.first() {
        None => None,
        Some(first) => {
            // The position counts from the start of the RPC message, and the length word of the
            // reduced item precedes it (RFC 8166 section 3.4.5).
            let position = first.position as usize;
            let word = position
                .checked_sub(4)
                .and_then(|at| rpc.get(at..position))
                .and_then(|word| word.first_chunk())
                .ok_or("a Read chunk beyond the message")?;
            let length = u32::from_be_bytes(*word);
            let chunk: u64 = reads.iter().map(|r| u64::from(r.target.length)).sum();
            let padded = codec::roundup(length as usize) as u64;
            if chunk != u64::from(length) && chunk != padded {
                return Err(format!(
                    "a Read chunk of {chunk} bytes for an item of {length}"
                ));
            }
            Some(length)
        }
    };
    nfs::arguments(call.procedure, &rpc[from.position()..], placed)
}

fn reply(
    sheet: &mut Sheet,
    header: &Header,
    rpc: &[u8],
    procedure: Option<u32>,
) -> Result<(), String> {
    let mut from = Decoder::new(rpc);
    let reply = Reply::decode(&mut from).map_err(|e| format!("RPC reply: {e:?}"))?;
    if reply.xid != header.xid {
        return Err("the XID of header and reply differ".to_owned());
    }
    sheet.put("rpc.xid", reply.xid);
    sheet.put("rpc.msgtyp", 1);
    match &reply.body {
        ReplyBody::Accepted(_, status) => {
            sheet.put("rpc.replystat", 0);
            let status = match status {
                Accepted::Success => 0,
                Accepted::ProgUnavail => 1,
                Accepted::ProgMismatch { .. } => 2,
                Accepted::ProcUnavail => 3,
                Accepted::GarbageArgs => 4,
                Accepted::SystemErr => 5,
            };
            sheet.put("rpc.state_accept", status);
        }
        ReplyBody::Denied(_) => sheet.put("rpc.replystat", 1),
    }
    same("RPC reply", &reply.to_xdr(), &rpc[..from.position()])?;
    let Some(procedure) = procedure.filter(|_| reply.is_success()) else {
        return Ok(());
    };
    let placed = header
        .chunks()
        .and_then(|chunks| chunks.writes.first())
        .map(|chunk| chunk.len() as u32);
    nfs::results(procedure, &rpc[from.position()..], placed)
}
