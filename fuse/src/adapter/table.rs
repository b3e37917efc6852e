//! Replies that wait, each for whoever takes it first; no `fuser` in it, so that the order
//! of threads can be tried out (`tests/models`).

use crate::sync::{Condvar, Mutex, MutexGuard};
use slab::Slab;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A reply that can be given without a result.
pub(super) trait Refuse {
    /// Answers that the operation was interrupted.
    fn refuse(self);
}

/// How often callers are looked at.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pace {
    /// A request waits so long before its caller is looked at.
    pub(super) patience: Duration,
    /// Pause between two looks.
    pub(super) period: Duration,
    /// The same two, for a while after a caller was let go.
    pub(super) haste: Duration,
    /// How long that is.
    pub(super) alert: Duration,
}

#[derive(Debug)]
struct Waiter<A> {
    /// `None` once answered for a caller that was killed.
    reply: Option<A>,
    /// The caller's thread; 0 if it is none this PID namespace has, or the kernel.
    pid: u32,
    since: Instant,
}

#[derive(Debug)]
struct State<A> {
    waiters: Slab<Waiter<A>>,
    /// The thread looks at the table from time to time; else it sleeps until told.
    awake: bool,
    stopped: bool,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Table<A> {
    state: Mutex<State<A>>,
    wake: Condvar,
}

impl<A> Default for Table<A> {
    fn default() -> Self {
        Table {
            state: Mutex::new(State {
                waiters: Slab::new(),
                awake: false,
                stopped: false,
            }),
            wake: Condvar::new(),
        }
    }
}

/// A reply in the table. Dropped, it drops the reply.
#[derive(Debug)]
pub(super) struct Held<A> {
    /// `None` once taken.
    table: Option<Arc<Table<A>>>,
    key: usize,
}

impl<A> Held<A> {
    /// The reply, unless the caller was killed and has its answer.
    pub(super) fn take(mut self) -> Option<A> {
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
    /// Puts a reply into the table.
    pub(super) fn hold(self: &Arc<Self>, pid: u32, reply: A) -> Held<A> {
        let waiter = Waiter {
            reply: Some(reply),
            pid,
            since: Instant::now(),
        };
        let mut state = self.state.lock();
        let key = state.waiters.insert(waiter);
        if !std::mem::replace(&mut state.awake, true) {
            self.wake.notify_one();
        }
        drop(state);
        Held {
            table: Some(self.clone()),
            key,
        }
    }

    /// Ends [`Table::run`].
    pub(super) fn stop(&self) {
        self.state.lock().stopped = true;
        self.wake.notify_all();
    }

    /// Refuses the replies of callers that `let_go` says are dying, given the time they have
    /// waited; until [`Table::stop`].
    pub(super) fn run(&self, pace: &Pace, let_go: impl Fn(u32, Duration) -> bool) {
        let mut alert: Option<Instant> = None;
        let mut old: Vec<(usize, u32, Instant)> = Vec::new();
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
            self.wake.wait_for(&mut state, period);
            let now = Instant::now();
            alert = alert.filter(|&end| now < end);
            old.clear();
            old.extend(
                state
                    .waiters
                    .iter()
                    .filter(|(_, w)| w.reply.is_some() && w.pid != 0)
                    .filter(|(_, w)| now.duration_since(w.since) >= patience)
                    .map(|(key, w)| (key, w.pid, w.since)),
            );
            if old.is_empty() {
                continue;
            }
            // Looking takes its time: not under the lock.
            MutexGuard::unlocked(&mut state, || {
                old.retain(|&(_, pid, since)| let_go(pid, now.duration_since(since)));
            });
            for &(key, pid, since) in &old {
                // The key may belong to another request by now.
                let waiter = state.waiters.get_mut(key);
                let Some(reply) = waiter
                    .filter(|w| w.pid == pid && w.since == since)
                    .and_then(|w| w.reply.take())
                else {
                    continue;
                };
                MutexGuard::unlocked(&mut state, || reply.refuse());
                tracing::debug!(pid, "a request's caller is killed: EINTR");
                alert = Some(now + pace.alert);
            }
        }
    }
}
