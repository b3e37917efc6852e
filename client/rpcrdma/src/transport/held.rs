//! Calls under RPCSEC_GSS on a connection: their sequence numbers, the calls that wait for one, and the
//! replies ([`super::secured`]).
//!
//! A call for which the window has no number is held until a call under the same context is answered.
//! Others pass it: a slow call of one user must not delay those of others.

use super::call::Call;
use super::counters::count;
use super::link::{Link, State};
use super::memory::ReplyBytes;
use super::outcome::Outcome;
use super::session::Session;
use crate::protocol::{Discard, is_reply};
use nfsrdma_rdma::BufMut;
use std::sync::Arc;

impl State {
    /// Takes the first held call for which there is a sequence number now.
    pub(super) fn next_held(&mut self, session: &Session) -> Option<Box<Call>> {
        let mut full = None;
        let next = self.held.iter().position(|call| {
            let context = call.secured.as_ref().map(|secured| secured.context());
            let Some(context) = context.filter(|context| full != Some(Arc::as_ptr(context))) else {
                return call.secured.is_none();
            };
            let has_room = context.has_room(&session.queue_pair);
            full = (!has_room).then_some(Arc::as_ptr(context));
            has_room
        })?;
        self.held.remove(next)
    }
}

impl Link {
    /// Takes a sequence number for a call that has a reservation. If there is none, the call is held,
    /// until a call under the same context is answered.
    #[cold]
    pub(super) fn number(&self, session: &Session, mut call: Box<Call>) -> Option<Box<Call>> {
        // Whoever gives a number back wakes the thread that looks for held calls, under this lock.
        let mut state = self.state.lock();
        if let Some(secured) = &mut call.secured
            && !secured.take_number(&session.queue_pair)
        {
            state.machine.cancel();
            state.held.push_back(call);
            return None;
        }
        Some(call)
    }

    /// The transmission of a call under RPCSEC_GSS is over. Opens its reply, if there is one, and
    /// returns why it is not to be believed.
    #[cold]
    pub(super) fn unsealed(
        &self,
        call: &mut Call,
        outcome: &mut Outcome,
        reply_chunk: &mut Option<BufMut>,
    ) -> Option<Discard> {
        let secured = call.secured.as_mut()?;
        let marshaller = &self.shared.marshaller;
        // The next transmission has others. Long ones go back to the pool.
        let head = std::mem::replace(&mut call.message, marshaller.no_bytes());
        let all = [
            (Some(head), &marshaller.heads),
            (secured.over(), &marshaller.headers),
        ];
        for (buf, short) in all {
            match buf {
                Some(buf) if buf.len() <= short.size() => short.give_shared(buf),
                Some(buf) => marshaller.wrapped.give_shared(buf),
                None => {}
            }
        }
        if let &mut Outcome::InReplyChunk { len, placed } = outcome
            && let Some(buf) = reply_chunk.take_if(|buf| is_reply(buf, call.xid))
        {
            let (start, end) = (0, len.min(buf.len()));
            let bytes = ReplyBytes::Chunk { buf, start, end };
            *outcome = Outcome::Reply { bytes, placed };
        }
        let Outcome::Reply { bytes, .. } = outcome else {
            return None;
        };
        let wrong = secured.open(call.xid, bytes).err()?;
        count(&self.counters.discards);
        Some(wrong)
    }
}
