//! Completions: which call a received message answers, and how the call continues.
//!
//! A new Receive is posted before the message in the old one is examined, so that the server never
//! finds fewer Receives than credits. If the pool has no buffer for that, the message is copied and
//! the same buffer is posted again. The `Requester` then finds the call by the XID and checks the
//! chunk lengths. Before the call completes, its registrations are invalidated in every case
//! (`ending`). A message that cannot be used is discarded (RFC 8166 section 4.5); its call, if
//! there is one, stays in flight until it times out. If the next transmission gets a reply that is
//! discarded for the same reason, the call fails.

use super::call::Call;
use super::counters::count;
use super::link::Link;
use super::memory::ReplyBytes;
use super::outcome::Outcome;
use super::polling::Local;
use super::session::Session;
use crate::error::{Error, ProtocolError};
use crate::protocol::{Discard, Event, ReplyBody};
use nfsrdma_rdma::{BufMut, Completion, Handle, Memory, WorkId};
use std::sync::atomic::Ordering::Relaxed;

impl Link {
    pub(super) fn completed(&self, session: &Session, local: &mut Local, completion: Completion) {
        match completion {
            Completion::Received {
                buf,
                len,
                invalidated,
                ..
            } => {
                count(&self.counters.receives);
                if invalidated.is_some() {
                    count(&self.counters.remote_invalidations);
                }
                self.received(session, local, buf, len, invalidated);
            }
            Completion::Invalidated { id, memory } => {
                self.returned(session, local, id, Some(memory));
            }
            Completion::Flushed { id, memory } => match memory {
                Some(Memory::Sink(bufs)) if id == WorkId(0) => {
                    for buf in bufs {
                        session.receives.give(buf);
                    }
                }
                memory => self.returned(session, local, id, memory),
            },
            Completion::Sent { .. } | Completion::Written { .. } | Completion::Read { .. } => {}
        }
    }

    fn received(
        &self,
        session: &Session,
        local: &mut Local,
        buf: BufMut,
        len: usize,
        invalidated: Option<Handle>,
    ) {
        // Replace the Receive before the credit is free again. If there is no buffer, copy the
        // message and post its own.
        let len = len.min(buf.len());
        let (buf, copy, post) = match session.receives.take() {
            Some(fresh) => (Some(buf), None, fresh),
            None => (None, Some(Box::<[u8]>::from(&buf[..len])), buf),
        };
        let message = match (&buf, &copy) {
            (Some(buf), _) => &buf[..len],
            (None, Some(copy)) => copy,
            (None, None) => &[],
        };
        let posted = session.queue_pair.post_receive(WorkId(0), post).is_ok();
        let event = {
            let mut state = self.state.lock();
            if posted {
                state.machine.receive_posted();
            }
            state.machine.received(message)
        };
        let give = |buf: Option<BufMut>| buf.into_iter().for_each(|b| session.receives.give(b));
        match event {
            Event::Reply {
                mut call,
                body,
                placed,
            } => {
                self.shared.answered();
                Self::observe_reply(&mut call, message, invalidated);
                let written = match body {
                    ReplyBody::ReplyChunk { len } => len as u64,
                    ReplyBody::Inline { .. } => 0,
                } + u64::from(placed.unwrap_or(0));
                if written > 0 {
                    self.counters.rdma_write_bytes.fetch_add(written, Relaxed);
                }
                let outcome = match body {
                    ReplyBody::ReplyChunk { len } => {
                        give(buf);
                        Outcome::InReplyChunk { len, placed }
                    }
                    ReplyBody::Inline { start } => {
                        let bytes = match copy {
                            Some(bytes) => ReplyBytes::Copy { bytes, start },
                            None => ReplyBytes::Receive {
                                buf,
                                start,
                                end: len,
                                home: session.receives.clone(),
                            },
                        };
                        Outcome::Reply { bytes, placed }
                    }
                };
                self.invalidate_chunks(session, local, call, outcome);
            }
            Event::Failed { mut call, failure } => {
                Self::observe_reply(&mut call, message, invalidated);
                give(buf);
                self.shared.answered();
                self.shared.call_failed(&failure.to_string());
                count(&self.counters.rdma_errors);
                let error = Error::RdmaError(failure);
                self.invalidate_chunks(session, local, call, Outcome::Fail(error));
            }
            Event::Discarded { why, xid } => {
                self.observe_stray(session, message, invalidated);
                give(buf);
                tracing::debug!(server = %self.shared.server, %why, "message discarded");
                count(&self.counters.discards);
                if matches!(why, Discard::Chunks(_)) {
                    count(&self.counters.violations);
                }
                let Some(xid) = xid else { return };
                let mut state = self.state.lock();
                let error = match state.machine.call(xid) {
                    Some(call) => self.discarded(call, why),
                    None => return,
                };
                if let Some(error) = error
                    && let Some(call) = state.machine.withdraw(xid)
                {
                    drop(state);
                    self.invalidate_chunks(session, local, call, Outcome::Fail(error));
                }
            }
        }
    }

    /// A reply to `call` was discarded. Logs it. Returns the error with which the call ends, if its
    /// transmission before had the same fate.
    pub(super) fn discarded(&self, call: &mut Call, why: Discard) -> Option<Error> {
        if !call.is_discarded_again(why) {
            self.shared.reply_discarded(&why.to_string());
            return None;
        }
        let procedure = self.shared.procedure(call.procedure);
        let error = ProtocolError::Discarded { procedure, why };
        self.shared.call_failed(&error.to_string());
        Some(Error::PeerMisbehaved(error))
    }
}
