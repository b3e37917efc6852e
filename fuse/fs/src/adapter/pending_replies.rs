//! Replies that wait, each for whoever takes it first; no FUSE in it, so that the order of
//! threads can be tried out (`tests/models`).

use crate::sync::{Condvar, Mutex, MutexGuard};
use slab::Slab;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A reply that can be given without a result.
pub trait Refuse {
    /// Answers that the operation was interrupted.
    fn refuse(self);
}

/// How often callers are looked at.
#[derive(Debug, Clone, Copy)]
pub struct Pace {
    /// A request waits so long before its caller is looked at.
    pub patience: Duration,
    /// Pause between two looks.
    pub period: Duration,
    /// The same two, for a while after a caller was let go.
    pub haste: Duration,
    /// How long that is.
    pub alert: Duration,
}

/// How an operation gets to know of signals to its caller.
pub struct OnSignal {
    /// Of every signal, and not only when the caller is let go.
    pub any: bool,
    /// Whether the caller is let go. Must not come back to the table.
    pub call: Box<dyn Fn(bool) + Send + Sync>,
}

impl OnSignal {
    fn signal(this: &Option<Self>) {
        if let Some(of) = this
            && of.any
        {
            (of.call)(false);
        }
    }
}

struct Waiter<A> {
    /// `None` once answered for a caller that was killed.
    reply: Option<A>,
    on_signal: Option<OnSignal>,
    /// The caller's thread; 0 if it is none this PID namespace has, or the kernel.
    pid: u32,
    /// The request's number.
    unique: u64,
    since: Instant,
    signal: Signal,
}

/// Whether the kernel has said that the caller got a signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Signal {
    No,
    /// It has, and nobody has looked at the caller since.
    New(Instant),
    /// It had, and when the caller was looked at the signal was none to die of, or could not
    /// be seen.
    Seen(Instant),
}

impl Signal {
    fn since(self) -> Option<Instant> {
        match self {
            Signal::No => None,
            Signal::New(at) | Signal::Seen(at) => Some(at),
        }
    }
}

/// A caller to be looked at.
#[derive(Debug, Clone, Copy)]
pub struct Look {
    pub pid: u32,
    /// How long its request has waited.
    pub age: Duration,
    /// How long ago the kernel said that it got a signal.
    pub signalled: Option<Duration>,
}

/// Interrupts kept for requests that are not in the table.
const EARLY: usize = 256;

struct State<A> {
    waiters: Slab<Waiter<A>>,
    /// Requests that were interrupted while they were not in the table. The thread that read
    /// such a request may be about to put it in; or it is answered already, and its number
    /// never comes again.
    early: VecDeque<u64>,
    /// A signal is new.
    urgent: bool,
    /// The thread looks at the table from time to time; else it sleeps until it is woken.
    awake: bool,
    stopped: bool,
}

/// See the module.
pub struct Table<A> {
    state: Mutex<State<A>>,
    wake: Condvar,
}

impl<A> std::fmt::Debug for Table<A> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Table").finish_non_exhaustive()
    }
}

impl<A> Default for Table<A> {
    fn default() -> Self {
        Table {
            state: Mutex::new(State {
                waiters: Slab::new(),
                early: VecDeque::new(),
                urgent: false,
                awake: false,
                stopped: false,
            }),
            wake: Condvar::new(),
        }
    }
}

/// A reply in the table. Dropped, it drops the reply.
#[derive(Debug)]
pub struct Held<A> {
    /// `None` once taken.
    table: Option<Arc<Table<A>>>,
    key: usize,
}

impl<A> Held<A> {
    /// The reply, unless the caller was killed and has its answer.
    pub fn take(mut self) -> Option<A> {
        let table = self.table.take()?;
        let waiter = table.state.lock().waiters.try_remove(self.key);
        waiter?.reply
    }
}

impl<A> Drop for Held<A> {
    fn drop(&mut self) {
        if let Some(table) = self.table.take() {
            let waiter = table.state.lock().waiters.try_remove(self.key);
            // Outside the lock: an unanswered reply answers as it is dropped.
            drop(waiter);
        }
    }
}

impl<A: Refuse> Table<A> {
    /// Puts the reply to the request `unique` of the thread `pid` into the table.
    pub fn hold(self: &Arc<Self>, pid: u32, unique: u64, reply: A) -> Held<A> {
        self.hold_with(pid, unique, reply, None)
    }

    /// The same for an operation that can end before its time.
    pub fn hold_with(
        self: &Arc<Self>,
        pid: u32,
        unique: u64,
        reply: A,
        on_signal: Option<OnSignal>,
    ) -> Held<A> {
        let since = Instant::now();
        let mut state = self.state.lock();
        let early = state.early.iter().position(|&early| early == unique);
        let signal = match early {
            Some(at) => {
                state.early.remove(at);
                state.urgent = true;
                OnSignal::signal(&on_signal);
                Signal::New(since)
            }
            None => Signal::No,
        };
        let key = state.waiters.insert(Waiter {
            reply: Some(reply),
            on_signal,
            pid,
            unique,
            since,
            signal,
        });
        if !std::mem::replace(&mut state.awake, true) || early.is_some() {
            self.wake.notify_one();
        }
        drop(state);
        Held {
            table: Some(self.clone()),
            key,
        }
    }

    /// The caller of the request `unique` got a signal, of whatever kind: it is looked at now.
    pub fn interrupt(&self, unique: u64) {
        let mut state = self.state.lock();
        let mut waiters = state.waiters.iter_mut();
        match waiters.find(|(_, waiter)| waiter.unique == unique) {
            Some((_, waiter)) => {
                waiter.signal = Signal::New(Instant::now());
                OnSignal::signal(&waiter.on_signal);
                state.urgent = true;
                self.wake.notify_one();
            }
            None => {
                if state.early.len() == EARLY {
                    state.early.pop_front();
                }
                state.early.push_back(unique);
            }
        }
    }

    /// Ends [`Table::run`].
    pub fn stop(&self) {
        self.state.lock().stopped = true;
        self.wake.notify_all();
    }

    /// Refuses the replies of callers that `let_go` says are dying, until [`Table::stop`]. A
    /// caller is looked at when the kernel says that it got a signal, and from time to time
    /// when its request, or the last signal, is older than `pace.patience`: the kernel tells
    /// the first signal only, and none for a process that exits.
    pub fn run(&self, pace: &Pace, let_go: impl Fn(&Look) -> bool) {
        let mut alert: Option<Instant> = None;
        let mut due: Vec<(usize, u64, Look)> = Vec::new();
        let mut state = self.state.lock();
        while !state.stopped {
            if state.waiters.is_empty() && alert.is_none() {
                state.awake = false;
                self.wake.wait(&mut state);
                if state.stopped {
                    break;
                }
            }
            let (period, patience) = match alert {
                Some(_) => (pace.haste, pace.haste),
                None => (pace.period, pace.patience),
            };
            if !state.urgent {
                self.wake.wait_for(&mut state, period);
            }
            state.urgent = false;
            let now = Instant::now();
            alert = alert.filter(|&end| now < end);
            due.clear();
            for (key, waiter) in &mut state.waiters {
                let age = now.saturating_duration_since(waiter.since);
                let signal = waiter.signal;
                let since = signal.since();
                let signalled = since.map(|at| now.saturating_duration_since(at));
                // Without a signal there is nothing to see of a caller that cannot be seen.
                let old = age >= patience && (waiter.pid != 0 || signalled.is_some());
                if waiter.reply.is_none() || !(old || matches!(signal, Signal::New(_))) {
                    continue;
                }
                waiter.signal = since.map_or(Signal::No, Signal::Seen);
                let look = Look {
                    pid: waiter.pid,
                    age,
                    signalled,
                };
                due.push((key, waiter.unique, look));
            }
            if due.is_empty() {
                continue;
            }
            // Looking takes its time: not under the lock.
            MutexGuard::unlocked(&mut state, || {
                due.retain(|(_, _, look)| let_go(look));
            });
            for &(key, unique, look) in &due {
                // The key may belong to another request by now.
                let waiter = state.waiters.get_mut(key);
                let Some(reply) =
                    waiter
                        .filter(|waiter| waiter.unique == unique)
                        .and_then(|waiter| {
                            waiter.on_signal.iter().for_each(|of| (of.call)(true));
                            waiter.reply.take()
                        })
                else {
                    continue;
                };
                MutexGuard::unlocked(&mut state, || reply.refuse());
                tracing::debug!(pid = look.pid, "a request's caller is killed: EINTR");
                alert = Some(now + pace.alert);
            }
        }
    }
}
