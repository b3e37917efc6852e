//! The end of a call. Its registrations are invalidated first; only when all of its memory has been
//! returned is the call completed, failed or queued again ([`Outcome`]). So no caller sees bytes
//! that the server may still change. (`memory_kept` in `retransmit` handles a provider that does
//! not return the memory of a lost connection in time.)

use super::call::{Call, Reply};
use super::counters::count;
use super::link::Link;
use super::marshal::{MarshalError, NotSent};
use super::memory::ReplyBytes;
use super::outcome::{Ending, Outcome, REPLY_CHUNK, SINK, SOURCE};
use super::polling::Local;
use super::session::Session;
use crate::error::{Error, Result};
use crate::exec;
use crate::protocol::{Discard, is_reply};
use nfsrdma_rdma::{BufMut, Invalidation, Memory, WorkId};
use std::sync::atomic::Ordering::Relaxed;

impl Link {
    /// Invalidates the registrations of a call, then carries out `outcome`. ("Invalidation [...] of
    /// memory regions should be complete before message integrity checking is done", RFC 8166
    /// section 8.1.3.)
    pub(super) fn invalidate_chunks(
        &self,
        session: &Session,
        local: &mut Local,
        mut call: Box<Call>,
        outcome: Outcome,
    ) {
        if call.registrations.are_none() {
            return self.on_invalidated(session, local, call, outcome, None);
        }
        let entry = local.ending.vacant_entry();
        let key = entry.key() as u64;
        let registrations = std::mem::take(&mut call.registrations);
        let mut ending = Ending {
            call,
            outcome,
            reply_chunk: None,
            outstanding: 0,
        };
        let all = [
            (SOURCE, registrations.source),
            (SINK, registrations.sink),
            (REPLY_CHUNK, registrations.reply),
        ];
        for (which, exposure) in all {
            let Some(exposure) = exposure else { continue };
            count(&self.counters.local_invalidations);
            self.counters.open_registrations.fetch_sub(1, Relaxed);
            if which == SOURCE
                && matches!(
                    ending.outcome,
                    Outcome::Reply { .. } | Outcome::InReplyChunk { .. }
                )
            {
                let bytes = exposure
                    .segments()
                    .iter()
                    .map(|s| u64::from(s.length))
                    .sum();
                self.counters.rdma_read_bytes.fetch_add(bytes, Relaxed);
            }
            // Offset by one, because `WorkId(0)` stands for Receives.
            let id = WorkId((key + 1) * 4 + which);
            match session.queue_pair.invalidate(id, exposure) {
                Invalidation::Done(memory) => ending.take(which, Some(memory)),
                Invalidation::Posted => ending.outstanding += 1,
            }
        }
        if ending.outstanding == 0 {
            self.on_invalidated(
                session,
                local,
                ending.call,
                ending.outcome,
                ending.reply_chunk,
            );
        } else {
            entry.insert(ending);
        }
    }

    /// A posted invalidation completed and returned its memory.
    pub(super) fn returned(
        &self,
        session: &Session,
        local: &mut Local,
        id: WorkId,
        memory: Option<Memory>,
    ) {
        let Some(key) = (id.0 / 4).checked_sub(1) else {
            return;
        };
        let key = key as usize;
        let Some(ending) = local.ending.get_mut(key) else {
            return;
        };
        ending.take(id.0 % 4, memory);
        ending.outstanding -= 1;
        if ending.outstanding == 0 {
            let ending = local.ending.remove(key);
            self.on_invalidated(
                session,
                local,
                ending.call,
                ending.outcome,
                ending.reply_chunk,
            );
        }
    }

    /// All registrations of a call are invalidated, and their memory has been returned.
    fn on_invalidated(
        &self,
        session: &Session,
        local: &mut Local,
        mut call: Box<Call>,
        mut outcome: Outcome,
        mut reply_chunk: Option<BufMut>,
    ) {
        if call.record.is_some() {
            let (answered, written, reply) = match &outcome {
                Outcome::Reply { placed, .. } => (true, *placed, None),
                Outcome::InReplyChunk { len, placed } => {
                    (true, *placed, reply_chunk.as_ref().map(|buf| (buf, *len)))
                }
                Outcome::Fail(_) | Outcome::SendAgain | Outcome::SendAlone | Outcome::Wait => {
                    (false, None, None)
                }
            };
            self.observe_answer(session, &mut call, answered, written, reply);
        }
        if let Some(header) = call.header.take() {
            self.shared.marshaller.headers.give_shared(header);
        }
        if call.secured.is_some()
            && let Some(why) = self.unsealed(&mut call, &mut outcome, &mut reply_chunk)
        {
            return self.unbelieved(call, why);
        }
        let (bytes, placed) = match outcome {
            Outcome::Reply { bytes, placed } => (bytes, placed),
            Outcome::InReplyChunk { len, placed } => match reply_chunk {
                Some(buf) if is_reply(&buf[..len.min(buf.len())], call.xid) => {
                    let (start, end) = (0, len.min(buf.len()));
                    (ReplyBytes::Chunk { buf, start, end }, placed)
                }
                Some(_) => {
                    count(&self.counters.discards);
                    count(&self.counters.violations);
                    return self.unbelieved(call, Discard::NotAReply);
                }
                None => {
                    // The reply is lost, but not the call.
                    call.record = None;
                    return self.state.lock().unanswered.push(call);
                }
            },
            Outcome::Fail(error) => return self.complete(call, Err(error)),
            Outcome::SendAgain => {
                call.record = None;
                return local.again.push(call);
            }
            Outcome::SendAlone => {
                call.record = None;
                return local.suspects.push(call);
            }
            Outcome::Wait => return self.wait_for_memory(local, call),
        };
        let reply = Reply {
            xid: call.xid,
            bytes,
            placed,
            payload: std::mem::take(&mut call.payload),
            started: call.started,
            retransmitted: call.transmissions > 1,
        };
        self.complete(call, Ok(reply));
    }

    /// A reply is discarded like one with a bad header (RFC 8166 section 4.5); its call waits.
    fn unbelieved(&self, mut call: Box<Call>, why: Discard) {
        if let Some(error) = self.discarded(&mut call, why) {
            return self.complete(call, Err(error));
        }
        call.record = None;
        self.state.lock().unanswered.push(call);
    }

    /// Completes a call: counts it and wakes its caller.
    pub(super) fn complete(&self, mut call: Box<Call>, result: Result<Reply>) {
        if call.record.is_some() || self.shared.tap.wanted().calls() {
            self.observe_end(&mut call, &result);
        }
        let payload = call.payload_len();
        let received = result.as_ref().map_or(0, |reply| {
            reply.message().len() + reply.placed.unwrap_or(0) as usize
        });
        let time = exec::now().nanos_since(call.started);
        let queued = match call.sent {
            Some(sent) => sent.nanos_since(call.started),
            None => time,
        };
        let counters = self.shared.procedures.get(call.procedure);
        counters.ended(result.is_err(), received, time, queued);
        self.shared.marshaller.heads.give_shared(std::mem::replace(
            &mut call.message,
            self.shared.marshaller.no_bytes(),
        ));
        self.ended(payload);
        if call.retry.is_late() {
            let by_reply = matches!(result, Ok(_) | Err(Error::RdmaError(_)));
            self.shared.late_ended(by_reply);
        }
        call.slot.complete(result);
        self.shared.calls.end(call);
    }

    /// Invalidates the registrations of calls that could not be sent.
    pub(super) fn end_failed(&self, session: &Session, local: &mut Local) {
        let failed = {
            let mut state = self.state.lock();
            if state.failed.is_empty() {
                return;
            }
            std::mem::take(&mut state.failed)
        };
        // Calls that wait are put at the front of the queue, so the first one comes last.
        for MarshalError { mut call, why } in failed.into_iter().rev() {
            let transmissions = &mut call.transmissions;
            *transmissions = transmissions.saturating_sub(1);
            let outcome = match why {
                NotSent::Error(error) => Outcome::Fail(error.into()),
                NotSent::NoConnection => Outcome::SendAgain,
                NotSent::NoMemory(why) => {
                    self.shared.memory_short(&why);
                    Outcome::Wait
                }
            };
            self.invalidate_chunks(session, local, call, outcome);
        }
    }
}
