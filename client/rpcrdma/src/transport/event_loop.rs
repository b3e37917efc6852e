//! Connections that an event loop polls.
//!
//! A connection slot has a thread ([`Link::run`]) that connects, polls, and cleans up after a
//! connection's end; all of that may block. An event loop that also reads the file system's
//! requests can poll in its place: then the thread that sends a call also receives its reply, and
//! neither is handed from CPU to CPU. So the slot's thread lends the polling half of each
//! connection ([`Polling`]) to the loop's [`Driver`], and waits until the connection has ended or
//! the loop gives it back. Connections of a provider without descriptors are not lent.
//!
//! Calls made on the loop's thread use the loop's own connection ([`super::polling::home`]).

use super::link::Link;
use super::polling::{Polling, Waker, clear_home, set_home};
use crate::exec;
use nfsrdma_rdma::{Armed, Error as RdmaError, Instant, Wait};
use std::fmt;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

impl Link {
    /// Polls a connection and continues the calls that its completions belong to.
    pub(super) fn poll(
        &self,
        polling: &mut Polling,
        wait: Wait,
    ) -> std::result::Result<(), RdmaError> {
        let Polling {
            session,
            completions,
            local,
            events,
        } = polling;
        let result = completions.poll(events, wait);
        if self.no_memory.load(Relaxed) {
            self.memory_may_be_back(!events.is_empty(), local);
        }
        exec::batch(|| {
            for completion in events.drain(..) {
                self.completed(session, local, completion);
            }
            self.end_failed(session, local);
            self.pump(session);
        });
        self.flush_on(session);
        result
    }
}

/// A connection slot that an event loop polls.
pub struct Driver {
    link: Arc<Link>,
    polling: Option<Polling>,
    /// Whether the peer is gone, so that the connection's end has to be read.
    hung_up: bool,
}

impl fmt::Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Driver")
            .field("slot", &self.link.slot)
            .field("connected", &self.polling.is_some())
            .finish()
    }
}

impl Driver {
    pub(super) fn new(link: Arc<Link>) -> Self {
        Driver {
            link,
            polling: None,
            hung_up: false,
        }
    }

    /// From now on the calling thread polls this slot's connections. Each is lent soon after it is
    /// made; `waker` is called then. Several slots may share one loop; its calls use the first one.
    pub fn attach(&mut self, waker: Waker) {
        let slot = self.link.slot;
        set_home(slot);
        self.link.lending.attach(waker);
        // Wake the slot's thread, which sees the loop when it polls next.
        if let Some(session) = self.link.session() {
            session.queue_pair.wake();
        }
    }

    /// Takes a connection that was lent. Returns whether there is a new one; the caller then has to
    /// wait for its descriptors, edge-triggered.
    pub fn accept(&mut self) -> bool {
        if self.polling.is_some() {
            return false;
        }
        self.polling = self.link.lending.accept();
        self.hung_up = false;
        self.polling.is_some()
    }

    /// The descriptors to wait for.
    pub fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let polling = self.polling.as_ref();
        let all = polling.and_then(|polling| polling.completions.descriptors());
        all.into_iter().flatten()
    }

    /// To be called before waiting for the descriptors. Tells whether there is work to do at once,
    /// or until when to wait at most.
    pub fn arm(&mut self) -> Armed {
        let Some(polling) = &mut self.polling else {
            return Armed::Idle(None);
        };
        if self.hung_up {
            return Armed::Ready;
        }
        let memory = match self.link.no_memory.load(Relaxed) {
            true => self.link.state.lock().no_memory,
            false => None,
        };
        if memory.is_some_and(|at| at <= Instant::now()) {
            return Armed::Ready;
        }
        match polling.completions.arm() {
            Armed::Ready => Armed::Ready,
            Armed::Idle(at) => Armed::Idle(Instant::first(at, memory)),
        }
    }

    /// To be called after waiting for the descriptors.
    pub fn disarm(&mut self) {
        if let Some(polling) = &mut self.polling {
            polling.completions.disarm();
        }
    }

    /// Whether a call on this connection waits for its reply at this moment.
    pub fn awaits_reply(&self) -> bool {
        self.polling.is_some() && self.link.state.lock().machine.used() > 0
    }

    /// Tells the driver that the peer has closed the connection, or that it broke.
    pub fn hung_up(&mut self) {
        self.hung_up = true;
    }

    /// Handles the completions that there are, without waiting, and continues their calls on this
    /// thread. If the connection has ended, `forget` is called with each of its descriptors, which
    /// may be closed afterwards.
    pub fn poll(&mut self, forget: impl FnMut(BorrowedFd<'_>)) {
        let Some(polling) = &mut self.polling else {
            return;
        };
        let Err(error) = self.link.poll(polling, Wait::No) else {
            return;
        };
        self.descriptors().for_each(forget);
        if let Some(polling) = self.polling.take() {
            self.link.lending.give_back(polling, Some(error));
        }
    }

    /// Flushes the deferred calls of the slot's connection, even if the slot's thread polls it.
    pub fn kick(&self) {
        self.link.kick();
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        let lending = &self.link.lending;
        // Before the connection is given back, so that its thread does not lend it again.
        lending.detach();
        if let Some(mut polling) = self.polling.take() {
            polling.completions.disarm();
            lending.give_back(polling, None);
        }
        clear_home(self.link.slot);
    }
}
