//! Requests that wait for the server, and callers that are killed meanwhile.
//!
//! A process whose request sits here cannot die before it is answered, not even of SIGKILL,
//! and `fuser` does not hand out FUSE_INTERRUPT. So the reply of a waiting request lies in a
//! table, for whoever comes first: the operation with its result, or a thread that looks
//! after requests older than [`PATIENCE`] and answers EINTR for a caller that is being
//! killed. The operation itself goes on: what it changes at the server is done or not done
//! whole, and what was written is still written back.

use super::replies::{AnyReply, Holdable};
use super::signals::{Caller, caller};
use fuser::{Errno, Request};
use parking_lot::{Condvar, Mutex};
use slab::Slab;
use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// A request waits so long before its caller is looked at.
const PATIENCE: Duration = Duration::from_millis(500);
/// Pause between two looks.
const PERIOD: Duration = Duration::from_millis(250);
/// The same two, for a while after a caller was let go: dying, it closes its files, which are
/// further requests.
const HASTE: Duration = Duration::from_millis(50);
/// How long that is.
const ALERT: Duration = Duration::from_secs(3);
/// A process that ends of itself waits so long for what it wrote: no signal reaches it any
/// more that could be seen here.
const EXIT_PATIENCE: Duration = Duration::from_secs(30);

#[derive(Debug)]
struct Waiter {
    /// `None` once answered for a caller that was killed.
    reply: Option<AnyReply>,
    /// The caller's thread; 0 if it is none this PID namespace has, or the kernel.
    pid: u32,
    since: Instant,
}

#[derive(Debug, Default)]
struct Table {
    waiters: Slab<Waiter>,
    /// The thread looks at the table from time to time; else it sleeps until told.
    awake: bool,
    stopped: bool,
}

/// Requests that wait.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    table: Mutex<Table>,
    wake: Condvar,
}

/// A reply in the table. Dropped without an answer, it answers EIO, as `fuser` does.
#[derive(Debug)]
pub(super) struct Held<R> {
    /// `None` once taken.
    waiting: Option<Arc<Waiting>>,
    key: usize,
    kind: std::marker::PhantomData<fn() -> R>,
}

impl<R: Holdable> Held<R> {
    /// The reply, unless the caller was killed and has its answer.
    pub(super) fn take(mut self) -> Option<R> {
        let waiting = self.waiting.take()?;
        let waiter = waiting.table.lock().waiters.try_remove(self.key);
        R::unhold(waiter?.reply?)
    }
}

impl<R> Drop for Held<R> {
    fn drop(&mut self) {
        if let Some(waiting) = self.waiting.take() {
            let waiter = waiting.table.lock().waiters.try_remove(self.key);
            // Outside the lock: an unanswered reply answers as it is dropped.
            drop(waiter);
        }
    }
}

impl Waiting {
    /// Puts the reply of `request` into the table.
    pub(super) fn hold<R: Holdable>(self: &Arc<Self>, request: &Request, reply: R) -> Held<R> {
        let waiter = Waiter {
            reply: Some(reply.hold()),
            pid: request.pid(),
            since: Instant::now(),
        };
        let mut table = self.table.lock();
        let key = table.waiters.insert(waiter);
        if !std::mem::replace(&mut table.awake, true) {
            self.wake.notify_one();
        }
        drop(table);
        Held {
            waiting: Some(self.clone()),
            key,
            kind: std::marker::PhantomData,
        }
    }

    /// Starts the thread that looks after callers.
    pub(super) fn watch(self: &Arc<Self>) -> io::Result<JoinHandle<()>> {
        let waiting = self.clone();
        std::thread::Builder::new()
            .name("interrupts".into())
            .spawn(move || waiting.run())
    }

    /// Ends that thread.
    pub(super) fn stop(&self) {
        self.table.lock().stopped = true;
        self.wake.notify_all();
    }

    fn run(&self) {
        let mut alert: Option<Instant> = None;
        let mut old: Vec<(usize, u32, Instant)> = Vec::new();
        let mut table = self.table.lock();
        while !table.stopped {
            if table.waiters.is_empty() && alert.is_none() {
                table.awake = false;
                self.wake.wait(&mut table);
                if table.stopped {
                    break;
                }
            }
            let (period, patience) = match alert {
                Some(_) => (HASTE, HASTE),
                None => (PERIOD, PATIENCE),
            };
            self.wake.wait_for(&mut table, period);
            let now = Instant::now();
            alert = alert.filter(|&end| now < end);
            old.clear();
            old.extend(
                table
                    .waiters
                    .iter()
                    .filter(|(_, w)| w.reply.is_some() && w.pid != 0)
                    .filter(|(_, w)| now.duration_since(w.since) >= patience)
                    .map(|(key, w)| (key, w.pid, w.since)),
            );
            if old.is_empty() {
                continue;
            }
            // Reading /proc takes its time: not under the lock.
            parking_lot::MutexGuard::unlocked(&mut table, || {
                old.retain(|&(_, pid, since)| let_go(&caller(pid), now.duration_since(since)));
            });
            for &(key, pid, since) in &old {
                // The key may belong to another request by now.
                let waiter = table.waiters.get_mut(key);
                let Some(reply) = waiter
                    .filter(|w| w.pid == pid && w.since == since)
                    .and_then(|w| w.reply.take())
                else {
                    continue;
                };
                parking_lot::MutexGuard::unlocked(&mut table, || reply.refuse(Errno::EINTR));
                tracing::debug!(pid, "a request's caller is killed: EINTR");
                alert = Some(now + ALERT);
            }
        }
    }
}

/// Whether a caller in this state is let go, its request having waited for `age`.
fn let_go(caller: &Caller, age: Duration) -> bool {
    match caller {
        Caller::Killed => true,
        Caller::Exiting => age >= EXIT_PATIENCE,
        Caller::Alive | Caller::Gone => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_let_go() {
        let long = Duration::from_secs(3600);
        assert!(let_go(&Caller::Killed, PATIENCE));
        assert!(!let_go(&Caller::Alive, long));
        assert!(!let_go(&Caller::Gone, long));
        assert!(!let_go(&Caller::Exiting, PATIENCE));
        assert!(let_go(&Caller::Exiting, EXIT_PATIENCE));
    }
}
