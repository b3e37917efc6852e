//! Connections that an event loop polls.
//!
//! A connection slot has a thread ([`Link::run`]) that connects, polls, and cleans up after a
//! connection's end; all of that may block. An event loop that also reads the file system's
//! requests can do the polling in its place: then the thread that sends a call receives its
//! reply, and neither is handed from CPU to CPU. So the slot's thread lends the polling half of
//! each connection ([`Polling`]) to the loop's [`Driver`], and waits until the connection has
//! ended, or the loop gives it back. A provider without descriptors is not lent.
//!
//! Calls made on the loop's thread go by its own connection ([`super::polling::home`]).

use super::link::Link;
use super::polling::{Polling, Waker, clear_home, set_home};
use crate::exec;
use nfsrdma_rdma::{Armed, Error as RdmaError, Wait};
use std::fmt;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

impl Link {
    /// Takes what has happened on a connection and goes on with the calls concerned.
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

/// One connection slot as an event loop polls it.
pub struct Driver {
    link: Arc<Link>,
    polling: Option<Polling>,
    /// The peer is gone: the connection's end is to be read.
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

    /// From now on the calling thread polls this slot's connections: each is lent soon after it
    /// is up, when `waker` is called. Several slots may have one loop; calls go by the first
    /// one's.
    pub fn attach(&mut self, waker: Waker) {
        let slot = self.link.slot;
        set_home(slot);
        self.link.lending.attach(waker);
        // Its thread sees the loop when it looks next.
        if let Some(session) = self.link.session() {
            session.queue_pair.wake();
        }
    }

    /// Takes a connection that was lent; whether there is a new one, whose descriptors are to be
    /// waited for, edge-triggered.
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

    /// To be called before waiting for the descriptors: whether there is something to do at
    /// once, or until when to wait at most.
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
            Armed::Idle(at) => Armed::Idle([at, memory].into_iter().flatten().min()),
        }
    }

    /// To be called after waiting.
    pub fn disarm(&mut self) {
        if let Some(polling) = &mut self.polling {
            polling.completions.disarm();
        }
    }

    /// Whether a call on this connection waits for its reply.
    pub fn awaits_reply(&self) -> bool {
        self.polling.is_some() && self.link.state.lock().machine.used() > 0
    }

    /// The peer has closed the connection, or it broke.
    pub fn hung_up(&mut self) {
        self.hung_up = true;
    }

    /// Takes what has happened, without waiting, and goes on with the calls concerned, on this
    /// thread. If the connection has ended, `forget` is given each of its descriptors, which may
    /// be closed afterwards.
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

    /// Sends calls whose sending was put off, by whichever connection.
    pub fn kick(&self) {
        self.link.kick();
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        let lending = &self.link.lending;
        // Before the connection is back: its thread must not lend it again.
        lending.detach();
        if let Some(mut polling) = self.polling.take() {
            polling.completions.disarm();
            lending.give_back(polling, None);
        }
        clear_home(self.link.slot);
    }
}
