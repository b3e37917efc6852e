//! Calls that are sent again: when their connection ended, when they have timed out, and when there
//! was no memory to send them.
//!
//! A call is never retransmitted on the connection it was sent on: RDMA delivers reliably, so that
//! would not help. A call that times out ends the connection instead (`check_time`). `lost` then
//! invalidates the registrations of all calls in flight and queues the calls for the next
//! connection, in their original order and with the same XIDs; those of `soft` mounts that have
//! used up their retries fail. If the server ends several connections in a row over a call, the
//! call is sent alone, and finally fails (`suspect`). A call that found no memory on this machine
//! was never sent; it waits on the same connection, with growing pauses.

use super::call::Call;
use super::counters::count;
use super::link::{FIRST_WAIT, Link, Trial};
use super::outcome::{Ending, Outcome};
use super::polling::Local;
use super::session::Session;
use super::suspect::{STRIKES, Verdict};
use crate::error::{Error, LocalError, ProtocolError};
use crate::exec;
use crate::rpc::{Expiry, Retry};
use crate::sync::thread;
use crate::tap::Disconnected;
use nfsrdma_rdma::{CompletionQueue, Error as RdmaError, Instant, Wait};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, SystemTime};

/// Longest pause of a call that waits for memory.
const LONGEST_WAIT: Duration = Duration::from_secs(1);

/// Time limit for the invalidations of a lost connection.
const LATE: Duration = Duration::from_secs(10);

impl Link {
    /// The connection ended: invalidates every registration and queues the calls for the next
    /// connection. Returns whether a reply had arrived on this one.
    pub(super) fn lost(
        &self,
        session: &Session,
        completions: &mut dyn CompletionQueue,
        local: &mut Local,
        why: &RdmaError,
    ) -> bool {
        let is_local = matches!(why, RdmaError::Local { .. } | RdmaError::Misuse(_));
        session.queue_pair.disconnect();
        let now = Instant::now();
        // From here on nobody starts to send on this connection; wait for those that have.
        let (proven, trial) = {
            let mut state = self.state.lock();
            state.session = None;
            while state.machine.sending() > 0 {
                drop(state);
                thread::sleep(Duration::from_micros(100));
                state = self.state.lock();
            }
            (state.machine.is_proven(), state.trial.take())
        };
        let (in_flight, unanswered, shutdown) = {
            let mut state = self.state.lock();
            let unanswered = std::mem::take(&mut state.unanswered);
            (state.machine.lost(), unanswered, state.shutdown)
        };
        let calls = in_flight.len() + unanswered.len();
        let ended_here = session.ended_here.get();
        let why = ended_here.map_or_else(|| why.to_string(), |why| (*why).to_owned());
        if !shutdown {
            self.shared.connection_lost(&why, calls);
        }
        self.shared.tap.disconnected(&Arc::new(Disconnected {
            connection: session.connected.connection,
            slot: self.slot,
            time: SystemTime::now(),
            why: why.clone(),
            calls,
        }));
        exec::batch(|| {
            let by_peer = ended_here.is_none() && !shutdown && !is_local;
            let alone = in_flight.len();
            for mut call in in_flight {
                let outcome = if call.given_up {
                    Outcome::Fail(Error::TimedOut)
                } else if call.slot.is_abandoned() {
                    Outcome::Fail(Error::Cancelled)
                } else {
                    match self.judge(&mut call, trial, by_peer, alone, now) {
                        Verdict::Trusted => Outcome::SendAgain,
                        Verdict::Suspected => Outcome::SendAlone,
                        Verdict::Convicted => Outcome::Fail(self.convicted(&call, &why)),
                    }
                };
                self.invalidate_chunks(session, local, call, outcome);
            }
            for call in unanswered {
                if call.given_up {
                    self.complete(call, Err(Error::TimedOut));
                } else {
                    local.again.push(call);
                }
            }
            self.end_failed(session, local);
            // Further polls complete the invalidations that were posted.
            let mut events = Vec::new();
            let mut pause = Duration::from_micros(100);
            loop {
                let _ = completions.poll(&mut events, Wait::No);
                for completion in events.drain(..) {
                    self.completed(session, local, completion);
                }
                if local.ending.is_empty() || now.elapsed() >= LATE {
                    break;
                }
                thread::sleep(pause);
                pause = (pause * 2).min(Duration::from_millis(50));
            }
            for ending in std::mem::take(&mut local.ending) {
                self.memory_kept(local, ending.1);
            }
        });
        let mut again = std::mem::take(&mut local.again);
        again.append(&mut self.state.lock().unanswered);
        again.sort_unstable_by_key(|call| call.sequence);
        let mut state = self.state.lock();
        for call in again.into_iter().rev() {
            state.waiting.push_front(call);
        }
        state.suspects.extend(local.suspects.drain(..));
        state.no_memory = None;
        proven
    }

    /// The connection is gone, and the provider has not returned a call's memory. What the call
    /// sends is only read, so it can be sent again while the provider keeps a reference. But a sink
    /// is owned by the provider, and the server may still write into it: the call fails, and the
    /// caller has to make it again with other memory.
    fn memory_kept(&self, local: &mut Local, ending: Ending) {
        let mut call = ending.call;
        call.record = None;
        if let Some(secured) = &mut call.secured {
            secured.over();
        }
        match ending.outcome {
            Outcome::Fail(error) => self.complete(call, Err(error)),
            _ if call.shape.max_ddp_result > 0 && call.payload.is_empty() => {
                self.complete(call, Err(LocalError::MemoryKept.into()));
            }
            Outcome::SendAlone => local.suspects.push(call),
            _ => local.again.push(call),
        }
    }

    /// The error of a call over which the server ended the connections. Logs it.
    fn convicted(&self, call: &Call, why: &str) -> Error {
        let procedure = self.shared.procedure(call.procedure);
        let error = ProtocolError::Disconnects {
            times: STRIKES,
            procedure,
            last: why.to_owned(),
        };
        tracing::error!(server = %self.shared.server, "{procedure} fails: the server misbehaved: {error}");
        Error::PeerMisbehaved(error)
    }

    /// Finds calls that have timed out; if one was sent on the connection, ends the connection.
    pub(super) fn check_time(&self, now: Instant) {
        self.kick();
        let policy = &self.shared.policy;
        let mut disconnect = false;
        let mut silent = false;
        let mut over = Vec::new();
        let check = |retry: &mut Retry| {
            let was_late = retry.is_late();
            let expiry = retry.check(policy, now);
            if retry.is_late() && !was_late {
                self.shared.late.fetch_add(1, Relaxed);
            }
            expiry
        };
        let (session, why) = {
            let mut state = self.state.lock();
            let state = &mut *state;
            for call in state.machine.calls() {
                let expiry = check(&mut call.retry);
                if expiry == Expiry::NotYet {
                    continue;
                }
                count(&self.counters.timeouts);
                count(&self.shared.procedures.get(call.procedure).timeouts);
                disconnect = true;
                silent |= expiry != Expiry::Retry;
                call.given_up |= expiry == Expiry::GiveUp;
            }
            for call in &mut state.unanswered {
                let expiry = check(&mut call.retry);
                if expiry != Expiry::NotYet {
                    count(&self.counters.timeouts);
                    disconnect = true;
                    silent |= expiry != Expiry::Retry;
                    call.given_up |= expiry == Expiry::GiveUp;
                }
            }
            for queue in [&mut state.waiting, &mut state.suspects, &mut state.held] {
                for mut call in std::mem::take(queue) {
                    let expiry = check(&mut call.retry);
                    silent |= matches!(expiry, Expiry::NotResponding | Expiry::GiveUp);
                    if expiry == Expiry::GiveUp || call.slot.is_abandoned() {
                        over.push(call);
                    } else {
                        queue.push_back(call);
                    }
                }
            }
            if disconnect {
                // The call was sent that long ago, or longer.
                state.silent_since = now.checked_sub(policy.timeo);
            }
            if state.trial.is_some() || !state.suspects.is_empty() {
                // The next trial may be due.
                if let Some(session) = &state.session {
                    session.queue_pair.wake();
                }
            }
            let refusal = state.refusal.as_ref();
            let why = refusal.filter(|_| silent && state.session.is_none());
            (state.session.clone(), why.cloned())
        };
        if silent {
            self.shared.not_responding(why);
        }
        // A call is never retransmitted on the same connection: the next one gets the calls.
        if let (true, Some(session)) = (disconnect, session) {
            session.end_here("a call had no reply in time");
        }
        exec::batch(|| {
            for call in over {
                self.complete(call, Err(Error::TimedOut));
            }
        });
    }

    /// Puts a call that found no memory back at the front of the queue. Until memory is free again,
    /// calls that bring the memory they need are sent before it; among them may be READs, which
    /// hold the memory that it waits for.
    pub(super) fn wait_for_memory(&self, local: &mut Local, mut call: Box<Call>) {
        call.record = None;
        call.starved = true;
        if call.unregistered.is_none() && call.secured.is_none() {
            // The buffer of its head may be all that another call needs.
            call.unregistered = Some(call.message[..].into());
            let message = std::mem::replace(&mut call.message, self.shared.marshaller.no_bytes());
            self.shared.marshaller.heads.give_shared(message);
        }
        let wait = match local.wait {
            (xid, wait) if xid == call.xid => (wait * 2).clamp(FIRST_WAIT, LONGEST_WAIT),
            _ => FIRST_WAIT,
        };
        local.wait = (call.xid, wait);
        let mut state = self.state.lock();
        state.no_memory = Some(Instant::now() + wait);
        self.no_memory.store(true, Relaxed);
        if call.slot.is_abandoned() {
            drop(state);
            return self.complete(call, Err(Error::Cancelled));
        }
        if matches!(state.trial, Some(Trial::Alone { xid, .. }) if xid == call.xid) {
            state.trial = None;
            state.suspects.push_front(call);
        } else {
            state.waiting.push_front(call);
        }
    }
}
