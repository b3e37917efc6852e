//! Reports to the listeners of [`Tap`](crate::tap::Tap) what a connection slot does. While there
//! are no listeners, none of this runs.
//!
//! A call is reported when it is posted and when it completes. A reply is reported together with
//! the data in the chunks of its call, and therefore not before their memory is invalidated: until
//! then the server could still change it. In between the call carries a `Record` of what was sent
//! and received.

use super::call::{Call, Payload, Reply};
use super::link::Link;
use super::marshal::Prepared;
use super::record::Record;
use super::session::Session;
use crate::error::{Error, Result};
use crate::rpc::accepted;
use crate::tap::{Data, Ended, Event, Incoming, Outcome, Outgoing, Sent, Transmission, Wanted};
use nfsrdma_rdma::{Buf, BufMut, Handle, Instant, WorkRequest};
use nfsrdma_xdr::codec::{Decode, Decoder, padding};
use nfsrdma_xdr::rpc;
use nfsrdma_xdr::rpcrdma::{ChunkLists, WriteChunk};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// Largest part of an encoded call that listeners get, in bytes.
const HEAD: usize = 2048;

fn head(call: &Call) -> Box<[u8]> {
    call.head()[..call.head().len().min(HEAD)].into()
}

/// The status of the results. Procedures without results (NULL) have no status.
fn outcome(result: &Result<Reply>) -> Outcome {
    let reply = match result {
        Ok(reply) => reply,
        Err(error @ (Error::Rejected(_) | Error::RdmaError(_) | Error::PeerMisbehaved(_))) => {
            return Outcome::Refused(error.to_string());
        }
        Err(error) => return Outcome::Failed(error.to_string()),
    };
    let mut from = Decoder::new(reply.message());
    match rpc::Reply::decode(&mut from) {
        Ok(header) => match accepted(&header.body) {
            Ok(()) => Outcome::Status(from.u32().unwrap_or(0)),
            Err(Error::Rejected(why)) => Outcome::Refused(why.to_string()),
            Err(Error::AuthError(why)) => Outcome::Refused(why.to_string()),
            Err(error) => Outcome::Refused(error.to_string()),
        },
        Err(error) => Outcome::Refused(format!("no RPC reply: {error}")),
    }
}

fn total(chunk: &WriteChunk) -> usize {
    usize::try_from(chunk.len()).unwrap_or(usize::MAX)
}

impl Link {
    /// The number of the call's procedure; for other programs, the number after the last one.
    fn procedure(&self, call: &Call) -> usize {
        call.procedure.min(self.shared.program.procedures.len())
    }

    /// A call is about to be sent.
    pub(super) fn observe_transmission(
        &self,
        session: &Session,
        prepared: &mut Prepared,
        wanted: Wanted,
    ) {
        let (in_use, granted) = self.credits();
        let WorkRequest::Send { data, .. } = &prepared.send else {
            return;
        };
        let message: usize = data.iter().map(|buf| buf.len()).sum();
        let time = SystemTime::now();
        let mut record = Record::default();
        let call = &mut prepared.call;
        if wanted.calls() {
            let sent = Arc::new(Sent {
                time,
                xid: call.xid,
                pid: call.pid,
                procedure: self.procedure(call),
                head: head(call),
                argument: call.shape.argument,
                transport: Some(Transmission {
                    connection: session.connected.connection,
                    slot: session.connected.slot,
                    transmission: call.transmissions,
                    message,
                    chunks: call.offer.clone(),
                    credits_in_use: in_use,
                    credits_granted: granted,
                }),
            });
            self.tap().sent(&sent);
            record.sent = Some(sent);
        }
        if wanted.messages() {
            record.offer = Some(call.offer.clone());
            self.tap().message(message, |limit| {
                Event::Outgoing(Outgoing {
                    connection: session.connected.connection,
                    time,
                    message: Data::gather(data.iter().map(|buf| &buf[..]), message, limit),
                })
            });
        }
        call.record = Some(Box::new(record));
    }

    /// The reply to a call arrived; it is reported after the call's memory has been returned.
    pub(super) fn observe_reply(call: &mut Call, message: &[u8], invalidated: Option<Handle>) {
        if let Some(record) = &mut call.record
            && record.offer.is_some()
        {
            record.reply = Some((message.into(), invalidated.map(|handle| handle.0)));
        }
    }

    /// A message arrived that answers no call.
    pub(super) fn observe_stray(
        &self,
        session: &Session,
        message: &[u8],
        invalidated: Option<Handle>,
    ) {
        if !self.tap().wanted().messages() {
            return;
        }
        self.tap().message(message.len(), |limit| {
            Event::Incoming(Box::new(Incoming {
                connection: session.connected.connection,
                time: SystemTime::now(),
                message: Data::gather([message], message.len(), limit),
                invalidated: invalidated.map(|handle| handle.0),
                offer: ChunkLists::default(),
                read: None,
                written: None,
                reply: None,
            }))
        });
    }

    /// The memory of an answered call has been returned. `written` is the number of bytes in the
    /// Write chunk, `reply_chunk` its memory and the number of bytes there. Both are `None` where
    /// the reply was not accepted.
    pub(super) fn observe_answer(
        &self,
        session: &Session,
        call: &mut Call,
        answered: bool,
        written: Option<u32>,
        reply_chunk: Option<(&BufMut, usize)>,
    ) {
        let Some(record) = &mut call.record else {
            return;
        };
        let (Some(offer), Some((message, invalidated))) =
            (record.offer.take(), record.reply.take())
        else {
            return;
        };
        let call = &*call;
        let pad = padding(call.wire().argument);
        let argument = call.argument();
        let source: Vec<&[u8]> = match offer.reads.first() {
            None => Vec::new(),
            Some(first) if first.position > 0 => slices(argument).collect(),
            // The Position Zero Read chunk holds the whole call.
            Some(_) => std::iter::once(call.head())
                .chain(slices(argument))
                .chain([&[0; 3][..pad]])
                .collect(),
        };
        let sinks: Vec<&[u8]> = match &call.payload {
            Payload::Sink(bufs) => bufs.iter().map(|buf| &buf[..]).collect(),
            Payload::None | Payload::Source(_) => Vec::new(),
        };
        let readable = source.iter().map(|piece| piece.len()).sum::<usize>();
        let writable = sinks.iter().map(|piece| piece.len()).sum::<usize>();
        let written = (written.unwrap_or(0) as usize)
            .min(writable)
            .min(offer.writes.first().map_or(0, total));
        let replied = reply_chunk.map(|(buf, len)| &buf[..len.min(buf.len())]);
        let size = message.len() + written + readable + replied.map_or(0, <[u8]>::len);
        self.tap().message(size, |limit| {
            let some = |pieces: &[&[u8]], length: usize| {
                (length > 0).then(|| Data::gather(pieces.iter().copied(), length, limit))
            };
            Event::Incoming(Box::new(Incoming {
                connection: session.connected.connection,
                time: SystemTime::now(),
                message: Data::gather([&message[..]], message.len(), limit),
                invalidated,
                offer: offer.clone(),
                read: some(&source, if answered { readable } else { 0 }),
                written: some(&sinks, written),
                reply: replied.and_then(|bytes| some(&[bytes], bytes.len())),
            }))
        });
    }

    /// A call completes.
    pub(super) fn observe_end(&self, call: &mut Call, result: &Result<Reply>) {
        let record = call.record.take();
        let now = Instant::now();
        let sent = record.and_then(|record| record.sent).unwrap_or_else(|| {
            let begun = call.sent.unwrap_or(call.started);
            let age = now.saturating_duration_since(begun);
            let time = SystemTime::now();
            Arc::new(Sent {
                time: time.checked_sub(age).unwrap_or(time),
                xid: call.xid,
                pid: call.pid,
                procedure: self.procedure(call),
                head: head(call),
                argument: call.shape.argument,
                transport: None,
            })
        });
        let since = |from: Instant, to: Instant| to.saturating_duration_since(from);
        let (queued, round_trip) = match call.sent {
            Some(at) => (since(call.started, at), since(at, now)),
            None => (since(call.started, now), Duration::ZERO),
        };
        let placed = |reply: &Reply| reply.placed.unwrap_or(0) as usize;
        self.tap().ended(&Arc::new(Ended {
            time: SystemTime::now(),
            sent,
            outcome: outcome(result),
            queued,
            round_trip,
            received: result
                .as_ref()
                .map_or(0, |reply| reply.message().len() + placed(reply)),
            placed: result.as_ref().map_or(0, placed),
        }));
    }
}

fn slices(bufs: &[Buf]) -> impl Iterator<Item = &[u8]> {
    bufs.iter().map(|buf| &buf[..])
}
