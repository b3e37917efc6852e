//! A table of replies that are not given yet. Each is taken by whoever comes first: the operation
//! that has a result, or the task that answers for a killed caller. It knows nothing of FUSE, so
//! that model checking can run it (`tests/models`).

use crate::locks::Interrupt;
use crate::sync::Mutex;
use futures_util::future::select;
use nfsrdma_rdma::Instant;
use nfsrdma_rpcrdma::abandon::Caller;
use nfsrdma_rpcrdma::exec;
use slab::Slab;
use std::collections::VecDeque;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;
use tokio::task::yield_now;

/// A reply that can be given without a result.
pub trait Refuse {
    /// Answers that the operation was interrupted.
    fn refuse(self);
}

/// How often callers are checked.
#[derive(Debug, Clone, Copy)]
pub struct Pace {
    /// The pause between two checks, and how long a request waits before its caller is checked.
    pub period: Duration,
    /// The most callers without a new signal that one check looks at: to look costs system calls, and thousands may
    /// wait for a server that does not answer. The next check goes on with the others.
    pub most: usize,
}

/// How an operation is notified of signals to its caller.
#[derive(Debug)]
pub enum OnSignal {
    /// It goes on without the caller that is let go.
    Leave(Caller),
    /// It ends when the caller is let go.
    Kill(Arc<Interrupt>),
    /// It ends at any signal.
    Any(Arc<Interrupt>),
}

impl OnSignal {
    fn signal(&self) {
        if let OnSignal::Any(interrupt) = self {
            interrupt.fire();
        }
    }

    fn let_go(&self) {
        match self {
            OnSignal::Leave(caller) => caller.leave(),
            OnSignal::Kill(interrupt) | OnSignal::Any(interrupt) => interrupt.kill(),
        }
    }
}

struct Waiter<A> {
    /// `None` once the caller was let go, and so was answered.
    reply: Option<A>,
    on_signal: Option<OnSignal>,
    /// The caller's thread; 0 if it is outside this PID namespace, or is the kernel.
    pid: u32,
    unique: u64,
    since: Instant,
    signal: Signal,
}

/// Whether the kernel has reported a signal to the caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Signal {
    No,
    /// It has, and the caller was not checked since.
    New(Instant),
    /// It has, and the check of the caller found no fatal signal, or could not see the caller.
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

/// A caller to be checked.
#[derive(Debug, Clone, Copy)]
pub struct Look {
    pub pid: u32,
    /// How long the request has waited.
    pub age: Duration,
    /// How long ago the kernel reported a signal to the caller.
    pub signalled: Option<Duration>,
}

/// How many callers are looked at before other tasks have their turn.
const LOOKS: usize = 16;

/// The most interrupts that are kept for requests that are not in the table.
const EARLY: usize = 256;

struct State<A> {
    waiters: Slab<Waiter<A>>,
    /// Requests that were interrupted while they were not in the table: a thread may be about to
    /// put the request in, or it is answered already.
    early: VecDeque<u64>,
    /// There is a [`Signal::New`].
    urgent: bool,
    /// [`Table::run`] checks the table periodically; otherwise it sleeps until it is woken.
    awake: bool,
}

/// The table of replies that are not given yet; see the head of this module.
pub struct Table<A> {
    state: Mutex<State<A>>,
    wake: Notify,
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
            }),
            wake: Notify::new(),
        }
    }
}

/// A reply in the table. Dropping this drops the reply.
#[derive(Debug)]
pub struct Held<A> {
    /// `None` once the reply was taken.
    table: Option<Arc<Table<A>>>,
    key: usize,
}

impl<A> Held<A> {
    /// The reply, unless the caller was killed and is answered already.
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
            // Outside the lock, because a reply that is not given answers when it is dropped.
            drop(waiter);
        }
    }
}

impl<A: Refuse> Table<A> {
    /// Puts the reply to the request `unique` of the thread `pid` into the table.
    pub fn hold(self: &Arc<Self>, pid: u32, unique: u64, reply: A) -> Held<A> {
        self.hold_with(pid, unique, reply, None)
    }

    /// As [`Table::hold`], for an operation that is notified of signals.
    pub fn hold_with(
        self: &Arc<Self>,
        pid: u32,
        unique: u64,
        reply: A,
        on_signal: Option<OnSignal>,
    ) -> Held<A> {
        let since = exec::now();
        let mut state = self.state.lock();
        let early = state.early.iter().position(|&early| early == unique);
        let signal = match early {
            Some(at) => {
                state.early.remove(at);
                state.urgent = true;
                on_signal.iter().for_each(OnSignal::signal);
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

    /// The caller of the request `unique` got a signal of any kind: it is checked now.
    pub fn interrupt(&self, unique: u64) {
        let mut state = self.state.lock();
        let mut waiters = state.waiters.iter_mut();
        match waiters.find(|(_, waiter)| waiter.unique == unique) {
            Some((_, waiter)) => {
                waiter.signal = Signal::New(Instant::now());
                waiter.on_signal.iter().for_each(OnSignal::signal);
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

    /// Refuses the replies of callers for which `let_go` returns true, and does not end. A caller is
    /// checked when the kernel reports a signal, and periodically when its request is older than
    /// `pace.period`, because the kernel reports only the first signal, and none for a process that
    /// exits. `pause` sleeps.
    pub async fn run<P: Future<Output = ()>>(
        &self,
        pace: &Pace,
        pause: impl Fn(Duration) -> P,
        let_go: impl Fn(&Look) -> bool,
    ) {
        let mut due: Vec<(usize, u64, Look)> = Vec::new();
        // Where the next check begins to look at those without a new signal.
        let mut from = 0;
        loop {
            if self.rests() {
                self.wake.notified().await;
            }
            let urgent = self.state.lock().urgent;
            if !urgent {
                select(pin!(self.wake.notified()), pin!(pause(pace.period))).await;
            }
            {
                let mut state = self.state.lock();
                state.urgent = false;
                from = collect(&mut state.waiters, from, pace, Instant::now(), &mut due);
            }
            for (number, (key, unique, look)) in due.drain(..).enumerate() {
                if number % LOOKS == LOOKS - 1 {
                    yield_now().await;
                }
                // It takes time, so it is not done under the lock.
                if let_go(&look) && self.refuse(key, unique) {
                    tracing::debug!(pid = look.pid, "a request's caller is killed: EINTR");
                }
            }
        }
    }

    /// Whether nobody waits. Then the next one wakes [`Table::run`].
    fn rests(&self) -> bool {
        let mut state = self.state.lock();
        state.awake = !state.waiters.is_empty();
        !state.awake
    }

    /// Answers for the caller of the request `unique`, unless it is answered already. The key may
    /// belong to another request by now.
    fn refuse(&self, key: usize, unique: u64) -> bool {
        let reply = {
            let mut state = self.state.lock();
            let waiter = state.waiters.get_mut(key);
            waiter
                .filter(|waiter| waiter.unique == unique)
                .and_then(|waiter| {
                    waiter.on_signal.iter().for_each(OnSignal::let_go);
                    waiter.reply.take()
                })
        };
        let found = reply.is_some();
        reply.into_iter().for_each(Refuse::refuse);
        found
    }
}

/// Puts those whose callers are to be checked at `now` into `due`: all with a new signal, and in turn
/// at most `pace.most` of the others that have waited for `pace.period`, beginning with the key `from`.
/// Returns the key for the next check.
fn collect<A>(
    waiters: &mut Slab<Waiter<A>>,
    from: usize,
    pace: &Pace,
    now: Instant,
    due: &mut Vec<(usize, u64, Look)>,
) -> usize {
    // Those before `from` come last, and are looked at if there is room left.
    let mut before = Vec::new();
    let (mut old, mut next) = (0, 0);
    for (key, waiter) in waiters {
        let age = now.saturating_duration_since(waiter.since);
        let signal = waiter.signal;
        let since = signal.since();
        let signalled = since.map(|at| now.saturating_duration_since(at));
        let is_new = matches!(signal, Signal::New(_));
        // A caller that is not visible here need not be checked unless it got a signal.
        let is_old = age >= pace.period && (waiter.pid != 0 || signalled.is_some());
        if waiter.reply.is_none() || !(is_old || is_new) {
            continue;
        }
        waiter.signal = since.map_or(Signal::No, Signal::Seen);
        let look = Look {
            pid: waiter.pid,
            age,
            signalled,
        };
        let found = (key, waiter.unique, look);
        if is_new {
            due.push(found);
        } else if key < from {
            before.push(found);
        } else if old < pace.most {
            old += 1;
            next = key + 1;
            due.push(found);
        }
    }
    for found in before.into_iter().take(pace.most - old) {
        next = found.0 + 1;
        due.push(found);
    }
    next
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Refuse for () {
        fn refuse(self) {}
    }

    const PACE: Pace = Pace {
        period: Duration::ZERO,
        most: 10,
    };

    #[test]
    fn of_very_many_callers_some_are_checked_at_a_time_and_each_in_its_turn() {
        let table: Arc<Table<()>> = Arc::default();
        let held: Vec<_> = (1..=35)
            .map(|number| table.hold(number, u64::from(number), ()))
            .collect();
        let mut state = table.state.lock();
        let mut checks = Vec::new();
        let mut from = 0;
        for _ in 0..7 {
            let mut due = Vec::new();
            from = collect(&mut state.waiters, from, &PACE, Instant::now(), &mut due);
            checks.push(due.iter().map(|(_, _, look)| look.pid).collect::<Vec<_>>());
        }
        assert!(checks.iter().all(|check| check.len() == 10));
        let mut pids: Vec<_> = checks.concat();
        pids.sort_unstable();
        let twice: Vec<u32> = (1..=35).flat_map(|pid| [pid, pid]).collect();
        assert_eq!(pids, twice, "each is checked as often as the others");
        drop(state);
        drop(held);
    }

    #[test]
    fn a_signal_is_looked_at_however_many_wait() {
        let table: Arc<Table<()>> = Arc::default();
        let held: Vec<_> = (1..=100)
            .map(|number| table.hold(number, u64::from(number), ()))
            .collect();
        (61..=100).for_each(|unique| table.interrupt(unique));
        let mut due = Vec::new();
        let mut state = table.state.lock();
        collect(&mut state.waiters, 0, &PACE, Instant::now(), &mut due);
        drop(state);
        let pids: Vec<_> = due.iter().map(|(_, _, look)| look.pid).collect();
        let expected: Vec<u32> = (1..=10).chain(61..=100).collect();
        assert_eq!(pids, expected);
        drop(held);
    }
}
