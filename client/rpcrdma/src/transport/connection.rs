//! The life of a connection slot, on its thread: it connects, serves the connection until it ends,
//! queues the calls for the next connection, and begins again.
//!
//! Whatever may block is done on this thread and not on an event loop: connecting, and the clean-up
//! after a connection's end. The pauses between attempts to connect grow up to ten seconds until a
//! connection has brought a reply, but less where it is this machine that has no network. While the
//! connection is up, an event loop may borrow the polling ([`super::event_loop`]). Each connection
//! starts with a new state machine (`Requester`), so that no credit or XID of an earlier one counts in
//! it.

use super::counters::count;
use super::link::Link;
use super::polling::{Local, Polling};
use super::session::{ConnectError, Established};
use crate::error::Error;
use crate::exec;
use crate::protocol::Requester;
use nfsrdma_rdma::{Error as RdmaError, Instant, Wait};
use std::io::ErrorKind;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// First and longest pause between attempts to connect.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
/// The longest pause while this machine has no way to the server, as after a sleep: to look again costs nobody else anything.
const NO_WAY_PAUSE: Duration = Duration::from_millis(500);
/// If there was no connection for longer, the log tells of the next one.
const OUTAGE: Duration = Duration::from_secs(1);

impl Link {
    /// Runs the slot until shutdown. `first` is a connection that is already made and installed,
    /// `slots` are all of the transport.
    pub(super) fn run(self: &Arc<Self>, first: Option<Established>, slots: &[Arc<Link>]) {
        let mut next = first;
        let mut pause = FIRST_PAUSE;
        loop {
            let established = match next.take() {
                Some(established) => established,
                None => match self.connect_again(&mut pause, slots) {
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
            // With one path, others may only have been quicker after a restart of the server. With
            // several this one may be dead, and to connect again may take long.
            if !proven || self.shared.several_paths {
                self.pass_on(slots);
            }
        }
        let waiting = self.state.lock().take_unsent();
        exec::batch(|| {
            for call in waiting {
                self.complete(call, Err(Error::Cancelled));
            }
        });
    }

    /// Tries to connect until it succeeds; `None` at shutdown.
    fn connect_again(&self, pause: &mut Duration, slots: &[Arc<Link>]) -> Option<Established> {
        let mut told = false;
        let lost = Instant::now();
        loop {
            if self.pause(*pause) {
                return None;
            }
            *pause = (*pause * 2).min(LONGEST_PAUSE);
            let began = Instant::now();
            match self.establish() {
                Ok(established) => {
                    // An attempt that failed since the last tick says nothing any more.
                    {
                        let mut state = self.state.lock();
                        (state.silent_since, state.refusal) = (None, None);
                    }
                    let away = Instant::now().saturating_duration_since(lost);
                    if told {
                        tracing::warn!(
                            "connection {} to server {} at {} is made again",
                            self.slot,
                            self.shared.server,
                            self.path.peer
                        );
                    } else if away >= OUTAGE && self.is_alone(slots) {
                        self.shared.connected_again(away);
                    } else {
                        tracing::debug!(server = %self.shared.server, "connected again");
                    }
                    return Some(established);
                }
                Err(error) => {
                    // A refusal is an answer.
                    let silent = !matches!(error, ConnectError::Provider(RdmaError::Refused(_)));
                    let mut state = self.state.lock();
                    state.acquit();
                    if silent {
                        state.silent_since = Some(began);
                    }
                    state.refusal = Some(error.to_string());
                    drop(state);
                    count(&self.counters.connect_failures);
                    if has_no_way(&error) {
                        *pause = (*pause).min(NO_WAY_PAUSE);
                    }
                    tracing::debug!(server = %self.shared.server, %error, "cannot connect");
                    // Others may only have been quicker after a restart of the server.
                    let lasts = *pause == LONGEST_PAUSE || (self.shared.several_paths && silent);
                    if self.pass_on(slots) && lasts && !told {
                        told = true;
                        tracing::warn!(
                            "connection {} to server {} at {} cannot be made, its calls go by the others: {error}",
                            self.slot,
                            self.shared.server,
                            self.path.peer
                        );
                    }
                }
            }
        }
    }

    /// All slots but this one.
    fn others<'a>(&self, slots: &'a [Arc<Link>]) -> impl Iterator<Item = &'a Arc<Link>> {
        let own = self.slot;
        slots.iter().filter(move |slot| slot.slot != own)
    }

    /// Whether no other slot is connected.
    fn is_alone(&self, slots: &[Arc<Link>]) -> bool {
        Link::least_busy(self.others(slots)).is_none()
    }

    /// Passes the calls on if there is no connection, or none on which the server can be heard.
    pub(super) fn leave_if_down(&self, slots: &[Arc<Link>]) {
        let (down, waiting) = self.backlog();
        if down && waiting > 0 {
            self.pass_on(slots);
        }
    }

    /// Passes the calls that wait here on to the slot with the shortest queue of those that are
    /// connected, by another path if one is; returns whether there is a slot. A suspected call stays:
    /// it would be sent alone there, and others would wait.
    ///
    /// A call keeps its XID (RFC 5531 section 9), so that the server may recognise a retransmission. It
    /// may look for it by the client's address and port, as Linux's does. These differ on another
    /// path; but the port also differs on each new connection of the same path. So what is done for
    /// calls that must not run twice is the same as there: see `retransmitted.rs` of the NFS client.
    fn pass_on(&self, slots: &[Arc<Link>]) -> bool {
        let others = || self.others(slots);
        let elsewhere = others().filter(|slot| slot.path != self.path);
        let Some(other) = Link::least_busy(elsewhere).or_else(|| Link::least_busy(others())) else {
            return false;
        };
        let calls = {
            let mut state = self.state.lock();
            match state.shutdown {
                true => return false,
                false => {
                    let mut calls = std::mem::take(&mut state.held);
                    calls.append(&mut state.waiting);
                    calls
                }
            }
        };
        exec::batch(|| {
            for mut call in calls {
                call.starved = false;
                let payload = call.payload_len();
                // It counts there before it no longer does here, so that the transport is not idle.
                other.submit(call, Instant::now());
                self.ended(payload);
            }
        });
        true
    }

    /// Waits; returns true at shutdown.
    fn pause(&self, time: Duration) -> bool {
        let until = Instant::now() + time;
        let mut state = self.state.lock();
        while !state.shutdown {
            let left = until - Instant::now();
            if self.hurry.wait_for(&mut state, left).timed_out() {
                break;
            }
        }
        state.shutdown
    }

    /// Makes a connection the one that calls are sent on. The slot's thread polls it afterwards.
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

    /// Serves an installed connection until it ends. Returns whether a reply has arrived on it.
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

    /// Ends a wait for memory if its time is over, or if completions may have freed memory.
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
}

/// Whether this machine has no network, or no route or address for the server: nothing was sent to it.
fn has_no_way(error: &ConnectError) -> bool {
    let ConnectError::Provider(RdmaError::Local { error, .. }) = error else {
        return false;
    };
    matches!(
        error.kind(),
        ErrorKind::NetworkUnreachable
            | ErrorKind::HostUnreachable
            | ErrorKind::NetworkDown
            | ErrorKind::AddrNotAvailable
    )
}
