//! The stream of `trace`: one JSON object on each line. Also formats such a line for people.

use super::arguments::{Arguments, describe};
use super::context::Context;
use crate::output::is_obeyed;
use nfsrdma_rdma::nanoseconds;
use nfsrdma_rpcrdma::tap::{Ended, Event, Outcome, Sent};
use nfsrdma_rpcrdma::words::counted;
use nfsrdma_xdr::codec::{Decode, Decoder};
use nfsrdma_xdr::nfs3::Status;
use nfsrdma_xdr::nlm4;
use nfsrdma_xdr::procedure::Procedure;
use nfsrdma_xdr::rpc;
use nfsrdma_xdr::rpcrdma::{ChunkLists, WriteChunk};
use serde::{Deserialize, Serialize};
use std::fmt::Write;
use std::time::SystemTime;

/// One line. Times are in nanoseconds; `time_ns` counts from 1970 (UTC).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "lowercase")]
pub(super) enum Line {
    /// A connection was made. At the beginning of a trace, it is up already.
    Connected {
        time_ns: u64,
        connection: u64,
        slot: usize,
        transport: String,
        local: String,
        peer: String,
    },
    Disconnected {
        time_ns: u64,
        connection: u64,
        slot: usize,
        why: String,
        /// The number of calls on it that had no answer.
        calls: usize,
    },
    /// A call is being sent.
    Sent(Call),
    /// A call has ended.
    Call(Call),
    /// This number of events was dropped, because the listener was slow.
    Lost { events: u64 },
    /// The mount ended.
    End,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(super) struct Call {
    /// When it was sent.
    pub(super) time_ns: u64,
    pub(super) xid: u32,
    pub(super) procedure: String,
    /// The process whose operation began the call. Absent if there is none, as for write-back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) pid: Option<u32>,
    /// The uid of the call's credential.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) uid: Option<u32>,
    pub(super) arguments: Arguments,
    /// Absent if the call was never sent, or was sent before the trace began.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) transport: Option<Transport>,
    /// Absent until the call has ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) reply: Option<Reply>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(super) struct Transport {
    pub(super) connection: u64,
    pub(super) slot: usize,
    /// 1 for the first transmission; 2 and more for retransmissions.
    #[serde(alias = "sending")]
    pub(super) transmission: u32,
    /// The length of the message, without the data in chunks.
    pub(super) bytes: usize,
    pub(super) chunks: Vec<Chunk>,
    pub(super) credits_in_use: u32,
    pub(super) credits_granted: u32,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(super) struct Chunk {
    /// `read`, `position-zero`, `write` or `reply`.
    pub(super) kind: String,
    pub(super) segments: usize,
    pub(super) bytes: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(super) struct Reply {
    /// `OK`, the name of an NFS status (`NOENT`), or the reason why there is none.
    pub(super) status: String,
    pub(super) error: bool,
    /// The time from the beginning of the call to its last transmission, and from there to its end.
    pub(super) queue_ns: u64,
    pub(super) round_trip_ns: u64,
    /// The length of the reply, including the data of the Write chunk.
    pub(super) bytes: usize,
    pub(super) written_bytes: usize,
}

fn since_epoch(time: SystemTime) -> u64 {
    time.duration_since(SystemTime::UNIX_EPOCH)
        .map_or(0, nanoseconds)
}

fn chunks(lists: &ChunkLists) -> Vec<Chunk> {
    let chunk = |kind: &str, segments: usize, bytes: u64| Chunk {
        kind: kind.to_owned(),
        segments,
        bytes,
    };
    let of = |kind: &str, list: &WriteChunk| chunk(kind, list.segments.len(), list.len());
    let mut found = Vec::new();
    if let Some(first) = lists.reads.first() {
        let kind = match first.position {
            0 => "position-zero",
            _ => "read",
        };
        let bytes = lists.reads.iter().map(|s| u64::from(s.target.length));
        found.push(chunk(kind, lists.reads.len(), bytes.sum()));
    }
    found.extend(lists.writes.iter().map(|list| of("write", list)));
    found.extend(lists.reply.iter().map(|list| of("reply", list)));
    found
}

fn call(sent: &Sent, context: &mut Context) -> Call {
    let described = describe(&sent.head, &mut |handle| context.path(handle));
    Call {
        time_ns: since_epoch(sent.time),
        xid: sent.xid,
        procedure: described.procedure,
        pid: (sent.pid != 0).then(|| context.process(sent.pid)),
        uid: described.uid,
        arguments: described.arguments,
        transport: sent.transport.as_ref().map(|transport| Transport {
            connection: transport.connection,
            slot: transport.slot,
            transmission: transport.transmission,
            bytes: transport.message,
            chunks: chunks(&transport.chunks),
            credits_in_use: transport.credits_in_use,
            credits_granted: transport.credits_granted,
        }),
        reply: None,
    }
}

/// The name of a status of NLM, if the call is one of NLM.
fn lock_status(head: &[u8], number: u32) -> Option<String> {
    let call = rpc::Call::parse(&mut Decoder::new(head)).ok()?;
    let status = nlm4::Status::from_xdr(&number.to_be_bytes()).ok()?;
    (call.program == nlm4::PROGRAM && call.procedure != nlm4::Null::NUMBER)
        .then(|| format!("{status:?}").to_ascii_uppercase())
}

fn status(outcome: &Outcome, head: &[u8]) -> String {
    if let Outcome::Status(number) = outcome
        && let Some(name) = lock_status(head, *number)
    {
        return name;
    }
    match outcome {
        Outcome::Status(0) => "OK".to_owned(),
        Outcome::Status(number) => Status::ALL
            .iter()
            .find(|status| **status as u32 == *number)
            .map_or_else(
                || format!("status {number}"),
                |status| format!("{status:?}").to_ascii_uppercase(),
            ),
        Outcome::Refused(why) => format!("refused: {why}"),
        Outcome::Failed(why) => format!("failed: {why}"),
    }
}

fn reply(ended: &Ended) -> Reply {
    Reply {
        status: status(&ended.outcome, &ended.sent.head),
        error: ended.outcome.is_error(),
        queue_ns: nanoseconds(ended.queued),
        round_trip_ns: nanoseconds(ended.round_trip),
        bytes: ended.received,
        written_bytes: ended.placed,
    }
}

fn line(event: &Event, context: &mut Context) -> Option<Line> {
    Some(match event {
        Event::Connected(connected) => Line::Connected {
            time_ns: since_epoch(connected.time),
            connection: connected.connection,
            slot: connected.slot,
            transport: connected.provider.to_owned(),
            local: connected.local.to_string(),
            peer: connected.peer.to_string(),
        },
        Event::Disconnected(gone) => Line::Disconnected {
            time_ns: since_epoch(gone.time),
            connection: gone.connection,
            slot: gone.slot,
            why: gone.why.clone(),
            calls: gone.calls,
        },
        Event::Sent(sent) => Line::Sent(call(sent, context)),
        Event::Ended(ended) => Line::Call(Call {
            reply: Some(reply(ended)),
            ..call(&ended.sent, context)
        }),
        Event::Lost(events) => Line::Lost { events: *events },
        Event::Outgoing(_) | Event::Incoming(_) => return None,
    })
}

fn write(line: &Line, to: &mut Vec<u8>) {
    // This could only fail for a map with keys other than strings, or by an I/O error.
    if serde_json::to_writer(&mut *to, line).is_ok() {
        to.push(b'\n');
    }
}

/// Appends the line for an event.
pub(super) fn encode(event: &Event, context: &mut Context, to: &mut Vec<u8>) {
    if let Some(line) = line(event, context) {
        write(&line, to);
    }
}

/// The last line.
pub(super) fn end() -> Vec<u8> {
    let mut bytes = Vec::new();
    write(&Line::End, &mut bytes);
    bytes
}

fn clock(time_ns: u64) -> String {
    let (seconds, rest) = (time_ns / 1_000_000_000, time_ns % 1_000_000_000);
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    format!("{hour:02}:{minute:02}:{second:02}.{:06}", rest / 1000)
}

fn show_call(call: &Call, to: &mut String) -> std::fmt::Result {
    write!(to, "{} ", clock(call.time_ns))?;
    match &call.transport {
        Some(transport) => write!(to, "#{} ", transport.connection)?,
        None => to.push_str("#- "),
    }
    write!(to, "{:08x} {}", call.xid, printable(&call.procedure))?;
    let arguments = &call.arguments;
    type Text = Option<String>;
    let object = |to: &mut String, handle: &Text, path: &Text, name: &Text| {
        if let Some(handle) = handle {
            write!(to, " {}", printable(handle))?;
        }
        if let Some(path) = path {
            write!(to, " {}", printable(path))?;
        }
        if let Some(name) = name {
            write!(to, " \"{}\"", printable(name))?;
        }
        Ok(())
    };
    object(to, &arguments.handle, &arguments.path, &arguments.name)?;
    if arguments.to_handle.is_some() {
        to.push_str(" to");
        object(
            to,
            &arguments.to_handle,
            &arguments.to_path,
            &arguments.to_name,
        )?;
    }
    if let Some(offset) = arguments.offset {
        write!(to, " at {offset}")?;
    }
    if let Some(count) = arguments.count {
        write!(to, " count {count}")?;
    }
    if let Some(length) = arguments.length {
        write!(to, " length {length}")?;
    }
    if let Some(exclusive) = arguments.exclusive {
        to.push_str(if exclusive { " exclusive" } else { " shared" });
    }
    if let Some(svid) = arguments.svid {
        write!(to, " svid {svid}")?;
    }
    match (call.pid, call.uid) {
        (Some(pid), Some(uid)) => write!(to, ", pid {pid} uid {uid}")?,
        (None, Some(uid)) => write!(to, ", uid {uid}")?,
        (Some(pid), None) => write!(to, ", pid {pid}")?,
        (None, None) => {}
    }
    if let Some(transport) = &call.transport {
        write!(to, ", {}", counted(transport.bytes, "byte"))?;
        for Chunk {
            kind,
            segments,
            bytes,
        } in &transport.chunks
        {
            write!(to, " + {} {bytes}/{segments}", printable(kind))?;
        }
        let (used, granted) = (transport.credits_in_use, transport.credits_granted);
        write!(to, ", credits {used}/{granted}")?;
        if transport.transmission > 1 {
            write!(to, ", transmission {}", transport.transmission)?;
        }
    }
    if let Some(reply) = &call.reply {
        let bytes = counted(reply.bytes, "byte");
        write!(to, ": {}, {bytes}", printable(&reply.status))?;
        write!(to, " in {} us", reply.round_trip_ns / 1000)?;
        if reply.queue_ns >= 1_000_000 {
            write!(to, " (queued {} us)", reply.queue_ns / 1000)?;
        }
    }
    Ok(())
}

/// Formats a line for people.
pub(super) fn show(line: &Line) -> String {
    let mut text = String::new();
    let shown = match line {
        Line::Connected {
            time_ns,
            connection,
            transport,
            local,
            peer,
            ..
        } => write!(
            text,
            "{} #{connection} connected to {} from {}, {}",
            clock(*time_ns),
            printable(peer),
            printable(local),
            printable(transport)
        ),
        Line::Disconnected {
            time_ns,
            connection,
            why,
            calls,
            ..
        } => write!(
            text,
            "{} #{connection} lost with {}: {}",
            clock(*time_ns),
            counted(*calls, "call"),
            printable(why)
        ),
        Line::Sent(call) => show_call(call, &mut text),
        Line::Call(call) => show_call(call, &mut text),
        Line::Lost { events } => write!(
            text,
            "-- {} lost: this listener is too slow",
            counted(*events, "event")
        ),
        Line::End => write!(text, "-- the mount ended"),
    };
    // Writing to a String does not fail.
    let _ = shown;
    text
}

/// Escapes the characters of `name` that a terminal would obey.
fn printable(name: &str) -> String {
    let mut shown = String::with_capacity(name.len() + 2);
    for c in name.chars() {
        match c {
            '"' | '\\' => shown.extend(['\\', c]),
            c if is_obeyed(c) => {
                // Writing to a String does not fail.
                let _ = write!(shown, "{}", c.escape_default());
            }
            c => shown.push(c),
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_write_to_the_terminal() {
        assert_eq!(printable("a\u{1b}[2J\n\"é"), "a\\u{1b}[2J\\n\\\"é");
    }
}
