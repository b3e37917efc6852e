//! One connection slot, and sending on it.
//!
//! A slot has a connection and a thread that polls it. When the connection has ended, the thread
//! makes the next one. It connects and polls (`connection`), matches messages with calls
//! (`receive`), and invalidates the registrations of answered calls (`ending`). After a
//! connection's end it takes every call out of the state machine and queues it for the next
//! connection (`retransmit`). So a call is sent at most once on a connection, and nothing of a
//! connection outlives it.
//!
//! Calls are submitted by any thread. If there is a connection and a credit, that thread marshals
//! and posts the call. Otherwise the call is queued, and the polling thread sends it when a reply
//! frees a credit, a connection is up, or memory is free again. If a call cannot be posted, the
//! polling thread gets it, because only that thread receives the completions of its invalidations.

use super::call::Call;
use super::counters::{LinkCounters, count};
use super::marshal::{MarshalError, NotSent, post};
use super::memory::Blocks;
use super::paths::Seen;
use super::polling::{Lending, home};
use super::session::{ConnectError, Established, Session, establish};
use super::shared::Shared;
use crate::error::{Error, LocalError, Result};
use crate::exec;
use crate::options::Path;
use crate::protocol::{InUse, Requester};
use crate::stats::Waits;
use crate::sync::{Condvar, Mutex};
use crate::tap::Tap;
use nfsrdma_rdma::Instant;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::AcqRel, Ordering::Relaxed};
use std::time::Duration;

/// Largest payload of a call whose Send may be deferred, in bytes.
const DEFERRABLE: u64 = 64 << 10;
/// First pause of a call that waits for memory, unless some is freed sooner.
pub(super) const FIRST_WAIT: Duration = Duration::from_millis(5);
/// Outside event loops, a Send is deferred only while more calls than this are under way.
const BUSY: u32 = 4;

pub(super) struct Link {
    pub(super) shared: Arc<Shared>,
    /// Index of this slot among the transport's, from 0.
    pub(super) slot: usize,
    pub(super) path: Path,
    pub(super) counters: LinkCounters,
    /// Payload bytes of calls that have not completed.
    pub(super) load: AtomicU64,
    /// Number of calls that have not completed.
    pub(super) calls: AtomicU64,
    /// Number of calls posted and not yet flushed.
    deferred: AtomicU32,
    pub(super) state: Mutex<State>,
    /// Whether `State::no_memory` may be set.
    pub(super) no_memory: AtomicBool,
    /// Whether nothing should be sent here while other slots live ([`super::paths`]).
    silent: AtomicBool,
    /// Notified at shutdown, to end a pause between connection attempts.
    pub(super) hurry: Condvar,
    /// Where the connection is lent to an event loop, if there is one.
    pub(super) lending: Lending,
}

pub(super) struct State {
    pub(super) session: Option<Arc<Session>>,
    /// The memory of Receives, of the size that the last connection needed.
    receives: Option<Arc<Blocks>>,
    pub(super) machine: Requester<Box<Call>>,
    /// Calls to be sent on this connection, in order; those of earlier connections come first.
    pub(super) waiting: VecDeque<Box<Call>>,
    /// Suspected calls, to be sent alone ([`super::suspect`]).
    pub(super) suspects: VecDeque<Box<Call>>,
    /// Calls that wait for a sequence number ([`super::held`]).
    pub(super) held: VecDeque<Box<Call>>,
    /// The trial of a suspected call that is under way.
    pub(super) trial: Option<Trial>,
    /// Calls whose Reply chunk turned out, after its invalidation, not to hold their reply. They
    /// wait for their time-out, which ends the connection, as if no reply had arrived.
    #[expect(
        clippy::vec_box,
        reason = "a call moves by its box, which is kept for another one"
    )]
    pub(super) unanswered: Vec<Box<Call>>,
    /// Until when calls that found no memory wait; `None` while memory is not short.
    pub(super) no_memory: Option<Instant>,
    /// Calls that could not be sent; the polling thread invalidates their registrations.
    pub(super) failed: Vec<MarshalError>,
    /// Since when, at the latest, a call or an attempt to connect has had no answer.
    pub(super) silent_since: Option<Instant>,
    /// Why the last attempt to connect failed; `None` once one has succeeded.
    pub(super) refusal: Option<String>,
    pub(super) shutdown: bool,
}

/// The state of a suspected call's trial ([`super::trial`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Trial {
    Draining,
    Probing,
    Alone { xid: u32, since: Instant },
}

/// What may be sent at this moment.
pub(super) enum Admission {
    /// Any call.
    Anybody,
    /// No call.
    Nobody,
    /// A NULL; a credit is reserved for it.
    Probe,
    /// This suspected call; a credit is reserved for it.
    Suspect(Box<Call>),
}

impl Link {
    pub(super) fn new(shared: Arc<Shared>, slot: usize, path: Path) -> Arc<Self> {
        Arc::new(Link {
            slot,
            path,
            silent: AtomicBool::new(false),
            counters: LinkCounters::default(),
            load: AtomicU64::new(0),
            calls: AtomicU64::new(0),
            deferred: AtomicU32::new(0),
            state: Mutex::new(State {
                session: None,
                receives: None,
                machine: Requester::new(shared.credits),
                waiting: VecDeque::new(),
                suspects: VecDeque::new(),
                held: VecDeque::new(),
                trial: None,
                unanswered: Vec::new(),
                no_memory: None,
                failed: Vec::new(),
                silent_since: None,
                refusal: None,
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
        let established = establish(&self.shared, self.slot, self.path, |size, number| {
            self.receives(size, number)
        })?;
        count(&self.counters.connects);
        Ok(established)
    }

    /// The buffers for Receives. They are kept across connections, so that a new connection needs
    /// no memory from a pool that the page cache may have emptied meanwhile.
    fn receives(&self, size: usize, number: usize) -> Arc<Blocks> {
        let mut state = self.state.lock();
        match &state.receives {
            Some(receives) if receives.size() == size => receives.clone(),
            _ => {
                let receives = Blocks::new(self.shared.marshaller.pool.clone(), size, number + 8);
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
    pub(super) fn submit(&self, call: Box<Call>, now: Instant) {
        self.begun(&call);
        let mut state = self.state.lock();
        if state.shutdown {
            drop(state);
            return self.complete(call, Err(Error::Cancelled));
        }
        let session = match &state.session {
            Some(session)
                if state.waiting.is_empty()
                    && state.trial.is_none()
                    && state.no_memory.is_none() =>
            {
                session.clone()
            }
            _ => {
                let mut call = call;
                if state.session.is_none() {
                    call.retry.unconnected();
                }
                state.waiting.push_back(call);
                if state.no_memory.is_some()
                    && let Some(session) = state.session.clone()
                {
                    drop(state);
                    self.pump(&session);
                }
                return;
            }
        };
        if !state.machine.reserve() {
            return state.waiting.push_back(call);
        }
        let credits = state.machine.requested();
        drop(state);
        self.launch(&session, call, credits, now);
    }

    /// Counts a call, until [`Link::ended`].
    fn begun(&self, call: &Call) {
        self.load.fetch_add(call.payload_len(), Relaxed);
        self.calls.fetch_add(1, Relaxed);
    }

    /// A call with this many bytes of payload has completed, or is another slot's by now.
    pub(super) fn ended(&self, payload: u64) {
        self.load.fetch_sub(payload, Relaxed);
        self.calls.fetch_sub(1, Relaxed);
    }

    /// Marshals and posts a call that has a reservation, on any thread.
    fn launch(&self, session: &Session, mut call: Box<Call>, credits: u32, now: Instant) {
        if call.secured.is_some() {
            match self.number(session, call) {
                Some(numbered) => call = numbered,
                None => return,
            }
        }
        call.transmissions += 1;
        call.sent = Some(now);
        call.retry.sent(&self.shared.policy, now);
        if call.transmissions > 1 {
            count(&self.counters.retransmits);
            count(&self.shared.procedures.get(call.procedure).retransmits);
        }
        let xid = call.xid;
        let small = call.payload_len() <= DEFERRABLE;
        let queue_pair = &*session.queue_pair;
        let prepared = self.shared.marshaller.prepare(
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
            self.observe_transmission(session, &mut prepared, wanted);
        }
        let secured = prepared.call.secured.as_ref();
        let numbered = secured.and_then(|secured| secured.to_post());
        // The call must be in the table before its reply can arrive.
        let (in_use, busy) = {
            let mut state = self.state.lock();
            let posted = state.machine.launch(xid, prepared.call);
            (posted.err(), state.machine.used() > BUSY)
        };
        if let Some(InUse(call)) = in_use {
            let why = NotSent::Error(LocalError::XidInUse);
            return self.could_not_send(session, MarshalError { call, why });
        }
        count(&self.counters.sends);
        // An event loop flushes it at the end of its round. On other threads it is deferred only if
        // other calls are under way: the thread that receives their replies flushes it.
        let defer = small && exec::is_deferring() && (busy || home().is_some());
        if let Err(error) = post(queue_pair, prepared.send, defer) {
            // In one step: `lost` must find it either in the table or among the failed. If `lost` has
            // found it already, it may be under way on the next connection, with the same XID.
            let mut state = self.state.lock();
            let current = state.session.as_deref();
            let is_later = current.is_some_and(|current| !std::ptr::eq(current, session));
            if !is_later && let Some(call) = state.machine.withdraw(xid) {
                let why = error.into();
                state.failed.push(MarshalError { call, why });
            }
            drop(state);
            queue_pair.wake();
            return;
        }
        if let Some((context, number)) = numbered {
            context.posted(number, &session.queue_pair);
        }
        if defer {
            // Last: a flush before this sends the call, or leaves it to the next flush.
            self.deferred.fetch_add(1, AcqRel);
        }
    }

    /// Hands a reserved call that could not be sent to the polling thread.
    fn could_not_send(&self, session: &Session, failed: MarshalError) {
        let mut state = self.state.lock();
        state.machine.cancel();
        if matches!(failed.why, NotSent::NoMemory(_)) {
            // The next call would not find memory either.
            state.no_memory = Some(Instant::now() + FIRST_WAIT);
            self.no_memory.store(true, Relaxed);
        }
        state.failed.push(failed);
        drop(state);
        session.queue_pair.wake();
    }

    /// Calls that are posted and not yet flushed.
    pub(super) fn deferred(&self) -> u32 {
        self.deferred.load(Relaxed)
    }

    /// Flushes the deferred calls: they are sent now.
    pub(super) fn kick(&self) {
        if self.deferred() > 0
            && let Some(session) = self.session()
        {
            self.flush_on(&session);
        }
    }

    pub(super) fn flush_on(&self, session: &Session) {
        if self.deferred.swap(0, AcqRel) > 0 {
            session.queue_pair.kick();
        }
    }

    /// Sends waiting calls for which there are credits.
    pub(super) fn pump(&self, session: &Session) {
        loop {
            let mut state = self.state.lock();
            // Another connection may be in use by now, and this one must not take its credits.
            let current = state.session.as_deref();
            if !current.is_some_and(|current| std::ptr::eq(current, session)) {
                return;
            }
            let credits = state.machine.requested();
            if state.has_nothing_to_send() {
                return;
            }
            let now = exec::now();
            match state.admission(now) {
                Admission::Anybody => {}
                Admission::Nobody => return,
                Admission::Probe => {
                    drop(state);
                    let probe = self.probe();
                    self.begun(&probe);
                    self.launch(session, probe, credits, now);
                    continue;
                }
                Admission::Suspect(call) => {
                    drop(state);
                    self.launch(session, call, credits, now);
                    continue;
                }
            }
            if (state.waiting.is_empty() && state.held.is_empty()) || !state.machine.reserve() {
                return;
            }
            let next = state.next_held(session).or_else(|| state.next_waiting());
            let Some(call) = next else {
                state.machine.cancel();
                return;
            };
            drop(state);
            if call.given_up || call.slot.is_abandoned() {
                self.state.lock().machine.cancel();
                self.complete(call, Err(Error::TimedOut));
                continue;
            }
            self.launch(session, call, credits, now);
        }
    }

    /// Shuts the slot down: every call fails with [`Error::Cancelled`].
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
            self.complete(call, Err(Error::Cancelled));
        }
    }

    /// The counters, and the state of the slot at this moment.
    pub(super) fn snapshot(&self) -> crate::stats::ConnectionStats {
        let mut stats = self.counters.snapshot();
        let state = self.state.lock();
        stats.connected = state.session.is_some();
        stats.credits = state.machine.granted();
        stats.in_flight = u64::from(state.machine.used());
        stats.waiting = (state.waiting.len() + state.suspects.len() + state.held.len()) as u64;
        let session = state.session.clone();
        drop(state);
        stats.credits_wanted = self.shared.credits;
        stats.path = Some(self.path);
        stats.silent = self.silent.load(Relaxed);
        if let Some(session) = session {
            stats.local = Some(session.queue_pair.local_addr());
            stats.peer = Some(session.queue_pair.peer_addr());
            stats.link = session.queue_pair.capabilities().description.clone();
            stats.inline_call = session.thresholds.call as u64;
            stats.inline_reply = session.thresholds.reply as u64;
        }
        stats
    }

    /// The calls that have waited long and that somebody waits for.
    pub(super) fn waits(&self, now: Instant) -> Waits {
        let mut state = self.state.lock();
        let state = &mut *state;
        let sent = state.machine.calls().map(|call| &*call);
        let others = [&state.waiting, &state.suspects, &state.held];
        let others = others.into_iter().flatten();
        let all = sent.chain(others).chain(&state.unanswered);
        let waited = all.filter(|call| !call.slot.is_abandoned());
        Waits::of(waited.map(|call| now.saturating_duration_since(call.started)))
    }

    /// Whether a call would be sent at once.
    pub(super) fn has_room(&self) -> bool {
        let state = self.state.lock();
        state.session.is_some()
            && state.waiting.is_empty()
            && state.machine.has_credit()
            && !self.silent.load(Relaxed)
    }

    /// For [`super::paths`].
    pub(super) fn seen(&self) -> Seen {
        let counters = &self.counters;
        Seen {
            heard: counters.receives.load(Relaxed) + counters.connects.load(Relaxed),
            silent_since: self.state.lock().silent_since,
        }
    }

    /// Whether its path is silent, from now on.
    pub(super) fn path_is_silent(&self, silent: bool) {
        self.silent.store(silent, Relaxed);
    }

    /// Whether every call has completed, so that none can give memory back.
    pub(super) fn is_idle(&self) -> bool {
        self.calls.load(Relaxed) == 0
    }

    /// Whether there is no connection, or none on which the server can be heard, and the number of
    /// queued calls.
    pub(super) fn backlog(&self) -> (bool, usize) {
        let state = self.state.lock();
        let down = state.session.is_none() || self.silent.load(Relaxed);
        (down, state.waiting.len())
    }

    /// Of those that are connected, the slot with the shortest queue.
    pub(super) fn least_busy<'a>(
        slots: impl IntoIterator<Item = &'a Arc<Link>>,
    ) -> Option<&'a Arc<Link>> {
        let backlogs = slots.into_iter().map(|slot| (slot.backlog(), slot));
        let up = backlogs.filter(|((down, _), _)| !down);
        up.min_by_key(|(backlog, _)| *backlog).map(|(_, slot)| slot)
    }

    pub(super) fn tap(&self) -> &Tap {
        &self.shared.tap
    }

    /// Credits in use, and credits granted.
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
    /// Whether there is no call for [`State::admission`] to decide about.
    fn has_nothing_to_send(&self) -> bool {
        self.waiting.is_empty()
            && self.suspects.is_empty()
            && self.held.is_empty()
            && self.trial.is_none()
    }

    /// What may be sent now. While memory is short, no suspected call is sent alone. After a call
    /// found no memory, nothing is sent until that call is back in the queue.
    fn admission(&mut self, now: Instant) -> Admission {
        match self.no_memory {
            None => self.turn(now),
            Some(_) if self.trial.is_none() && self.failed.is_empty() => Admission::Anybody,
            Some(_) => Admission::Nobody,
        }
    }

    /// Takes the next call to send. While memory is short, calls that found none are passed over:
    /// READs behind them may hold the memory that they need, as their sinks.
    fn next_waiting(&mut self) -> Option<Box<Call>> {
        let next = match self.no_memory {
            None => 0,
            Some(_) => self.waiting.iter().position(|call| !call.starved)?,
        };
        let mut call = self.waiting.remove(next)?;
        call.starved = false;
        Some(call)
    }

    /// Takes all calls that are not in flight.
    pub(super) fn take_unsent(&mut self) -> VecDeque<Box<Call>> {
        let mut calls = std::mem::take(&mut self.waiting);
        calls.extend(std::mem::take(&mut self.suspects));
        calls.extend(std::mem::take(&mut self.held));
        calls
    }
}
