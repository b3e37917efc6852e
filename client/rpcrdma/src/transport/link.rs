//! One connection slot: a connection, the thread that polls it, and the next connection.
//!
//! The thread of the slot connects, polls, and when the connection ends takes every call out
//! of the state machine, ends its leases, and queues it for the next one. So a call is sent
//! at most once on a connection, and nothing of a connection outlives it.

use super::call::{Call, Reply};
use super::counters::{LinkCounters, count};
use super::ending::{Ending, Outcome, REPLY_CHUNK, SINK, SOURCE};
use super::event_loop::{Lending, Polling, home};
use super::launch::{Launched, NotSent, Unprepared, post};
use super::memory::{Blocks, ReplyBytes};
use super::retransmit::FIRST_WAIT;
use super::session::{ConnectError, Established, Session, establish};
use super::shared::Shared;
use super::trial::{Trial, Turn};
use crate::error::{Error, LocalError, Result};
use crate::exec;
use crate::protocol::{Discard, Event, ReplyBody, Requester, is_reply};
use crate::sync::{Condvar, Mutex};
use crate::tap::Tap;
use nfsrdma_rdma::{BufMut, Completion, Handle, Invalidation, Memory, Wait, WorkId};
use slab::Slab;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::AcqRel, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// First and longest pause between attempts to connect.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// Payload of a call that may wait to be sent with others, at most.
const DEFERRABLE: u64 = 64 << 10;
/// A call waits only while more than this many are under way.
const BUSY: u32 = 4;

pub(super) struct Link {
    pub(super) shared: Arc<Shared>,
    /// Which of the client's, from 0.
    pub(super) slot: usize,
    pub(super) counters: LinkCounters,
    /// Payload bytes of calls that are not over.
    pub(super) load: AtomicU64,
    /// Calls posted whose sending was put off.
    deferred: AtomicU32,
    pub(super) state: Mutex<State>,
    /// Whether `State::no_memory` may be set.
    pub(super) no_memory: AtomicBool,
    /// Ends a pause between attempts.
    hurry: Condvar,
    /// To the event loop that polls in place of the slot's thread, if there is one.
    pub(super) lending: Lending,
}

pub(super) struct State {
    pub(super) session: Option<Arc<Session>>,
    /// The memory of Receives, of the last connection's size.
    receives: Option<Arc<Blocks>>,
    pub(super) machine: Requester<Launched>,
    /// Not sent on this connection: in order, those sent before in front.
    pub(super) waiting: VecDeque<Call>,
    /// To be sent alone.
    pub(super) suspects: VecDeque<Call>,
    /// One of them has its turn.
    pub(super) trial: Option<Trial>,
    /// Calls whose reply came and was no reply, when the memory for it had been taken back.
    /// They wait for their time-out, which ends the connection, as if nothing had come.
    pub(super) unanswered: Vec<Call>,
    /// Nothing is sent before then: the last call found no memory.
    pub(super) no_memory: Option<Instant>,
    /// Calls some thread could not send; the slot's thread ends their leases.
    failed: Vec<Unprepared>,
    pub(super) shutdown: bool,
}

/// What only the slot's thread knows.
#[derive(Default)]
pub(super) struct Local {
    pub(super) ending: Slab<Ending>,
    /// To be sent on the next connection.
    pub(super) again: Vec<Call>,
    /// To be sent alone there.
    pub(super) suspects: Vec<Call>,
    /// The last call that found no memory, and how long it waits.
    pub(super) wait: (u32, Duration),
}

impl Link {
    pub(super) fn new(shared: Arc<Shared>, slot: usize) -> Arc<Self> {
        Arc::new(Link {
            slot,
            counters: LinkCounters::default(),
            load: AtomicU64::new(0),
            deferred: AtomicU32::new(0),
            state: Mutex::new(State {
                session: None,
                receives: None,
                machine: Requester::new(shared.credits),
                waiting: VecDeque::new(),
                suspects: VecDeque::new(),
                trial: None,
                unanswered: Vec::new(),
                no_memory: None,
                failed: Vec::new(),
                shutdown: false,
            }),
            no_memory: AtomicBool::new(false),
            hurry: Condvar::new(),
            lending: Lending::default(),
            shared,
        })
    }

    /// Connects; blocks.
    pub(super) fn establish(&self) -> Result<Established, ConnectError> {
        let established = establish(&self.shared, self.slot, |size, number| {
            self.receives(size, number)
        })?;
        count(&self.counters.connects);
        Ok(established)
    }

    /// Where Receives come from. They stay with the slot, so that connecting again needs
    /// nothing of a pool the page cache may have emptied meanwhile.
    fn receives(&self, size: usize, number: usize) -> Arc<Blocks> {
        let mut state = self.state.lock();
        match &state.receives {
            Some(receives) if receives.size() == size => receives.clone(),
            _ => {
                let receives = Blocks::new(self.shared.kit.pool.clone(), size, number + 8);
                state.receives = Some(receives.clone());
                receives
            }
        }
    }

    /// The connection in use.
    pub(super) fn session(&self) -> Option<Arc<Session>> {
        self.state.lock().session.clone()
    }

    /// Sends a call now, or as soon as there is a connection and a credit.
    pub(super) fn submit(&self, call: Call) {
        self.load.fetch_add(call_load(&call), Relaxed);
        let mut state = self.state.lock();
        if state.shutdown {
            drop(state);
            return self.over(call, Err(Error::Cancelled));
        }
        let session = match &state.session {
            Some(session)
                if state.waiting.is_empty()
                    && state.trial.is_none()
                    && state.no_memory.is_none() =>
            {
                session.clone()
            }
            _ => return state.waiting.push_back(call),
        };
        if !state.machine.reserve() {
            return state.waiting.push_back(call);
        }
        let credits = state.machine.requested();
        drop(state);
        self.launch(&session, call, credits);
    }

    /// Sends a call that has a reservation. May run on any thread.
    fn launch(&self, session: &Session, mut call: Call, credits: u32) {
        call.sendings += 1;
        call.sent = Some(Instant::now());
        if call.sendings > 1 {
            count(&self.counters.resends);
            count(&self.shared.procedures.get(call.procedure).resends);
        }
        let xid = call.xid;
        let small = call_load(&call) <= DEFERRABLE;
        let queue_pair = &*session.queue_pair;
        let prepared = self.shared.kit.prepare(
            call,
            queue_pair,
            &session.thresholds,
            credits,
            &self.counters,
        );
        let mut prepared = match prepared {
            Ok(prepared) => prepared,
            Err(failed) => return self.could_not_send(session, failed),
        };
        let wanted = self.shared.tap.wanted();
        if !wanted.is_nothing() {
            self.observe_sending(session, &mut prepared, wanted);
        }
        // The call is in the table before the reply can come.
        let (in_use, busy) = {
            let mut state = self.state.lock();
            let launched = state.machine.launch(xid, prepared.offer, prepared.launched);
            (launched.err(), state.machine.used() > BUSY)
        };
        if let Some(crate::protocol::InUse(launched)) = in_use {
            let why = NotSent::Error(LocalError::XidInUse);
            let failed = Box::new(Unprepared { launched, why });
            return self.could_not_send(session, failed);
        }
        count(&self.counters.sends);
        // An event loop sends it at the end of its round. Elsewhere, if other calls are under
        // way: at the latest the thread that takes their replies sends it.
        let defer = small && exec::is_deferring() && (busy || home().is_some());
        if let Err(error) = post(queue_pair, prepared.send, defer) {
            // In one step: `lost` must see it in the table or among the failed.
            let mut state = self.state.lock();
            if let Some(launched) = state.machine.withdraw(xid) {
                let why = error.into();
                state.failed.push(Unprepared { launched, why });
            }
            drop(state);
            queue_pair.wake();
        } else if defer {
            // After posting: whoever flushes between the two sends it, or leaves the count.
            self.deferred.fetch_add(1, AcqRel);
        }
    }

    /// Hands a reserved call that could not be sent to the slot's thread.
    fn could_not_send(&self, session: &Session, failed: Box<Unprepared>) {
        let mut state = self.state.lock();
        state.machine.cancel();
        if matches!(failed.why, NotSent::NoMemory(_)) {
            // The next call would not find any either.
            state.no_memory = Some(Instant::now() + FIRST_WAIT);
            self.no_memory.store(true, Relaxed);
        }
        state.failed.push(*failed);
        drop(state);
        session.queue_pair.wake();
    }

    /// The life of the slot: `first` is a connection made and installed already.
    pub(super) fn run(self: &Arc<Self>, first: Option<Established>) {
        let mut next = first;
        let mut pause = FIRST_PAUSE;
        loop {
            let established = match next.take() {
                Some(established) => established,
                None => match self.connect_again(&mut pause) {
                    Some(established) => {
                        self.install(&established);
                        established
                    }
                    None => break,
                },
            };
            let proven = self.serve(established);
            count(&self.shared.lost);
            if proven {
                pause = FIRST_PAUSE;
            }
        }
        let waiting = self.state.lock().take_unsent();
        exec::batch(|| {
            for call in waiting {
                self.over(call, Err(Error::Cancelled));
            }
        });
    }

    /// Connects until it works; `None` at shutdown.
    fn connect_again(&self, pause: &mut Duration) -> Option<Established> {
        loop {
            if self.pause(*pause) {
                return None;
            }
            *pause = (*pause * 2).min(LONGEST_PAUSE);
            match self.establish() {
                Ok(established) => {
                    tracing::debug!(server = %self.shared.server, "connected again");
                    return Some(established);
                }
                Err(error) => {
                    self.state.lock().acquit();
                    count(&self.counters.connect_failures);
                    tracing::debug!(server = %self.shared.server, %error, "cannot connect");
                }
            }
        }
    }

    /// Waits; true at shutdown.
    fn pause(&self, time: Duration) -> bool {
        let until = Instant::now() + time;
        let mut state = self.state.lock();
        while !state.shutdown {
            if self.hurry.wait_until(&mut state, until).timed_out() {
                break;
            }
        }
        state.shutdown
    }

    /// Lets calls go out on a connection. Its own thread is to follow.
    pub(super) fn install(&self, established: &Established) {
        let session = &established.session;
        self.shared.tap.connected(session.connected.clone());
        let mut state = self.state.lock();
        state.machine = Requester::new(self.shared.credits);
        for _ in 0..established.receives_posted {
            state.machine.receive_posted();
        }
        state.session = Some(session.clone());
        state.trial = None;
        if state.shutdown {
            session.queue_pair.disconnect();
        }
    }

    /// Uses an installed connection until it ends. Whether a reply came on it.
    fn serve(&self, established: Established) -> bool {
        let mut polling = Polling::new(established);
        exec::batch(|| self.pump(&polling.session));
        let why = loop {
            let (back, ended) = self.lending.lend(polling);
            polling = back;
            if let Some(error) = ended {
                break error;
            }
            let until = match self.no_memory.load(Relaxed) {
                true => self.state.lock().no_memory,
                false => None,
            };
            let wait = until.map_or(Wait::Forever, Wait::Until);
            if let Err(error) = self.poll(&mut polling, wait) {
                break error;
            }
        };
        let Polling {
            session,
            mut completions,
            mut local,
            ..
        } = polling;
        self.lost(&session, &mut *completions, &mut local, &why)
    }

    /// Ends a wait for memory: it is over, or some may have come back with the completions.
    pub(super) fn memory_may_be_back(&self, returned: bool, local: &mut Local) {
        let mut state = self.state.lock();
        if returned {
            local.wait.1 = Duration::ZERO;
        }
        if returned || state.no_memory.is_none_or(|until| Instant::now() >= until) {
            state.no_memory = None;
            self.no_memory.store(false, Relaxed);
        }
    }

    /// Calls whose sending was put off.
    pub(super) fn deferred(&self) -> u32 {
        self.deferred.load(Relaxed)
    }

    /// Sends them.
    pub(super) fn flush(&self) {
        if self.deferred() > 0
            && let Some(session) = self.session()
        {
            self.flush_on(&session);
        }
    }

    pub(super) fn flush_on(&self, session: &Session) {
        if self.deferred.swap(0, AcqRel) > 0 {
            session.queue_pair.flush();
        }
    }

    /// Sends waiting calls for which there are credits.
    pub(super) fn pump(&self, session: &Session) {
        loop {
            let mut state = self.state.lock();
            if state.session.is_none() || state.no_memory.is_some() {
                return;
            }
            let credits = state.machine.requested();
            match state.turn(Instant::now()) {
                Turn::Anybody => {}
                Turn::Nobody => return,
                Turn::Probe => {
                    drop(state);
                    let probe = self.probe();
                    self.load.fetch_add(call_load(&probe), Relaxed);
                    self.launch(session, probe, credits);
                    continue;
                }
                Turn::Suspect(call) => {
                    drop(state);
                    self.launch(session, *call, credits);
                    continue;
                }
            }
            if state.waiting.is_empty() || !state.machine.reserve() {
                return;
            }
            let Some(call) = state.waiting.pop_front() else {
                state.machine.cancel();
                return;
            };
            drop(state);
            if call.given_up || call.slot.is_abandoned() {
                self.state.lock().machine.cancel();
                self.over(call, Err(Error::TimedOut));
                continue;
            }
            self.launch(session, call, credits);
        }
    }

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
        // "A Receive posted for each call before it is sent": another one takes this one's
        // place before the credit is free again; if there is none, this one itself.
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
                Self::observe_reply(&mut call.call, message, invalidated);
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
                self.end(session, local, call, outcome);
            }
            Event::Failed { mut call, failure } => {
                Self::observe_reply(&mut call.call, message, invalidated);
                give(buf);
                self.shared.answered();
                self.shared.call_failed(&failure.to_string());
                count(&self.counters.rdma_errors);
                let error = Error::RdmaError(failure);
                self.end(session, local, call, Outcome::Fail(error));
            }
            Event::Discarded(why) => {
                self.observe_stray(session, message, invalidated);
                give(buf);
                count(&self.counters.discards);
                tracing::debug!(server = %self.shared.server, ?why, "message discarded");
                if let Discard::Chunks(violation) = why {
                    count(&self.counters.violations);
                    self.shared.reply_discarded(&violation.to_string());
                }
            }
        }
    }

    /// Ends the leases of a call, then does `outcome`. ("Invalidation [...] of memory regions
    /// should be complete before message integrity checking is done", section 8.1.3.)
    pub(super) fn end(
        &self,
        session: &Session,
        local: &mut Local,
        launched: Launched,
        outcome: Outcome,
    ) {
        let entry = local.ending.vacant_entry();
        let key = entry.key() as u64;
        let mut ending = Ending {
            launched,
            outcome,
            reply_chunk: None,
            outstanding: 0,
        };
        let leases = std::mem::take(&mut ending.launched.leases);
        let all = [
            (SOURCE, leases.source),
            (SINK, leases.sink),
            (REPLY_CHUNK, leases.reply),
        ];
        for (which, exposure) in all {
            let Some(exposure) = exposure else { continue };
            count(&self.counters.local_invalidations);
            self.counters.leases.fetch_sub(1, Relaxed);
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
            // 0 names Receives.
            let id = WorkId((key + 1) * 4 + which);
            match session.queue_pair.invalidate(id, exposure) {
                Invalidation::Done(memory) => ending.take(which, Some(memory)),
                Invalidation::Posted => ending.outstanding += 1,
            }
        }
        if ending.outstanding == 0 {
            self.settle(session, local, ending);
        } else {
            entry.insert(ending);
        }
    }

    /// Memory came back from an invalidation that was posted.
    fn returned(&self, session: &Session, local: &mut Local, id: WorkId, memory: Option<Memory>) {
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
            self.settle(session, local, ending);
        }
    }

    /// All leases of a call are over.
    fn settle(&self, session: &Session, local: &mut Local, ending: Ending) {
        let Ending {
            mut launched,
            outcome,
            reply_chunk,
            ..
        } = ending;
        if launched.call.record.is_some() {
            let (answered, written, reply) = match &outcome {
                Outcome::Reply { placed, .. } => (true, *placed, None),
                Outcome::InReplyChunk { len, placed } => {
                    (true, *placed, reply_chunk.as_ref().map(|buf| (buf, *len)))
                }
                Outcome::Fail(_) | Outcome::SendAgain | Outcome::SendAlone | Outcome::Wait => {
                    (false, None, None)
                }
            };
            self.observe_answer(session, &mut launched, answered, written, reply);
        }
        let Launched {
            mut call, header, ..
        } = launched;
        if let Some(header) = header {
            self.shared.kit.headers.give_shared(header);
        }
        let (bytes, placed) = match outcome {
            Outcome::Reply { bytes, placed } => (bytes, placed),
            Outcome::InReplyChunk { len, placed } => match reply_chunk {
                Some(buf) if is_reply(&buf[..len.min(buf.len())], call.xid) => {
                    (ReplyBytes::Chunk { buf, len }, placed)
                }
                Some(_) => {
                    // RFC 8166 section 4.5, as for a bad header: discarded, and the call is
                    // still without an answer.
                    count(&self.counters.discards);
                    count(&self.counters.violations);
                    let why = "what is in the Reply chunk is not the reply to its call";
                    self.shared.reply_discarded(why);
                    call.record = None;
                    return self.state.lock().unanswered.push(call);
                }
                None => {
                    // The server's answer is lost, not the call.
                    call.record = None;
                    return self.state.lock().unanswered.push(call);
                }
            },
            Outcome::Fail(error) => return self.over(call, Err(error)),
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
            resent: call.sendings > 1,
        };
        self.over(call, Ok(reply));
    }

    /// A call is over: tells the caller.
    pub(super) fn over(&self, mut call: Call, result: Result<Reply>) {
        if call.record.is_some() || self.shared.tap.wanted().calls() {
            self.observe_end(&mut call, &result);
        }
        self.load.fetch_sub(call_load(&call), Relaxed);
        let received = result.as_ref().map_or(0, |reply| {
            reply.message().len() + reply.placed.unwrap_or(0) as usize
        });
        let time = call.started.elapsed();
        let queued = match call.sent {
            Some(sent) => sent.saturating_duration_since(call.started),
            None => time,
        };
        let counters = self.shared.procedures.get(call.procedure);
        counters.ended(result.is_err(), received, time, queued);
        self.shared.kit.heads.give_shared(call.head);
        call.slot.complete(result);
    }

    /// Ends the leases of calls that could not be sent.
    pub(super) fn end_failed(&self, session: &Session, local: &mut Local) {
        let failed = {
            let mut state = self.state.lock();
            if state.failed.is_empty() {
                return;
            }
            std::mem::take(&mut state.failed)
        };
        // The first to wait is put in front last.
        for Unprepared { launched, why } in failed.into_iter().rev() {
            let outcome = match why {
                NotSent::Error(error) => Outcome::Fail(error.into()),
                NotSent::NoConnection => Outcome::SendAgain,
                NotSent::NoMemory(why) => {
                    self.shared.memory_short(&why);
                    Outcome::Wait
                }
            };
            self.end(session, local, launched, outcome);
        }
    }

    /// Ends the slot: every call gets `Interrupted`.
    pub(super) fn shut_down(&self) {
        let (session, waiting) = {
            let mut state = self.state.lock();
            state.shutdown = true;
            (state.session.clone(), state.take_unsent())
        };
        self.hurry.notify_all();
        if let Some(session) = session {
            session.queue_pair.disconnect();
        }
        for call in waiting {
            self.over(call, Err(Error::Cancelled));
        }
    }

    /// The counters, and the state at this moment.
    pub(super) fn snapshot(&self) -> crate::stats::ConnectionStats {
        let mut stats = self.counters.snapshot();
        let state = self.state.lock();
        stats.connected = state.session.is_some();
        stats.credits = state.machine.granted();
        stats.in_flight = u64::from(state.machine.used());
        stats.waiting = (state.waiting.len() + state.suspects.len()) as u64;
        let session = state.session.clone();
        drop(state);
        stats.credits_wanted = self.shared.credits;
        if let Some(session) = session {
            stats.local = Some(session.queue_pair.local_addr());
            stats.peer = Some(session.queue_pair.peer_addr());
            stats.link = session.queue_pair.capabilities().description.clone();
            stats.inline_call = session.thresholds.call as u64;
            stats.inline_reply = session.thresholds.reply as u64;
        }
        stats
    }

    /// Whether a call can be sent at once.
    pub(super) fn has_room(&self) -> bool {
        let state = self.state.lock();
        state.session.is_some() && state.waiting.is_empty() && state.machine.has_credit()
    }

    /// Whether there is no connection, and calls that wait for it or for a credit.
    pub(super) fn backlog(&self) -> (bool, usize) {
        let state = self.state.lock();
        (state.session.is_none(), state.waiting.len())
    }

    pub(super) fn tap(&self) -> &Tap {
        &self.shared.tap
    }

    /// Credits in use, and granted.
    pub(super) fn credits(&self) -> (u32, u32) {
        let state = self.state.lock();
        (state.machine.used(), state.machine.granted())
    }

    /// Credits the server grants.
    pub(super) fn granted(&self) -> u32 {
        self.state.lock().machine.granted()
    }
}

impl State {
    /// The calls that are on no connection.
    fn take_unsent(&mut self) -> VecDeque<Call> {
        let mut calls = std::mem::take(&mut self.waiting);
        calls.extend(std::mem::take(&mut self.suspects));
        calls
    }
}

fn call_load(call: &Call) -> u64 {
    (call.shape.argument + call.shape.max_ddp_result) as u64
}
