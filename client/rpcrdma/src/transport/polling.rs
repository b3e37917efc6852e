//! The polling half of a connection, and how a slot's thread and an event loop hand it over.
//!
//! A `CompletionQueue` has one owner, so exactly one thread polls. [`Lending`] is where the two
//! hand it over: the slot's thread leaves its [`Polling`] there and sleeps; the event loop takes
//! it, and returns it when the connection has ended (with the reason) or when the loop itself ends.
//! The reason for this is in [`super::event_loop`].

use super::call::Call;
use super::outcome::Ending;
use super::session::{Established, Session};
use crate::sync::{Condvar, Mutex, thread_cell};
use nfsrdma_rdma::{Completion, CompletionQueue, Error as RdmaError};
use slab::Slab;
use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

/// The state of a connection that only its polling thread uses.
#[derive(Default)]
pub(super) struct Local {
    pub(super) ending: Slab<Ending>,
    /// Calls to be sent on the next connection.
    #[expect(
        clippy::vec_box,
        reason = "a call moves by its box, which is kept for another one"
    )]
    pub(super) again: Vec<Box<Call>>,
    /// Suspected calls, to be sent alone on the next connection.
    #[expect(
        clippy::vec_box,
        reason = "a call moves by its box, which is kept for another one"
    )]
    pub(super) suspects: Vec<Box<Call>>,
    /// The XID of the last call that found no memory, and how long it waits.
    pub(super) wait: (u32, Duration),
}

thread_cell! {
    /// The slot whose connection this thread polls.
    static HOME: Cell<Option<usize>> = const { Cell::new(None) };
}

/// The slot whose connection the calling thread polls, if that thread is an event loop.
pub(super) fn home() -> Option<usize> {
    HOME.get()
}

/// From now on the calling thread polls connections of `slot`. If it polls several slots, its calls
/// use the first one.
pub(super) fn set_home(slot: usize) {
    HOME.set(home().or(Some(slot)));
}

/// The calling thread no longer polls connections of `slot`.
pub(super) fn clear_home(slot: usize) {
    HOME.set(home().filter(|home| *home != slot));
}

/// The half of a connection that its polling thread owns.
pub(super) struct Polling {
    pub(super) session: Arc<Session>,
    pub(super) completions: Box<dyn CompletionQueue>,
    pub(super) local: Local,
    pub(super) events: Vec<Completion>,
}

impl Polling {
    pub(super) fn new(established: Established) -> Self {
        Polling {
            session: established.session,
            completions: established.completions,
            local: Local::default(),
            events: Vec::new(),
        }
    }
}

/// A function that wakes an event loop.
pub type Waker = Arc<dyn Fn() + Send + Sync>;

#[derive(Default)]
struct Lent {
    /// Wakes the event loop that polls this slot's connections; `None` if there is none.
    loop_waker: Option<Waker>,
    /// A connection on its way to the loop.
    lent: Option<Polling>,
    /// A connection on its way back, and why it ended; without a reason if the loop ended.
    returned: Option<(Polling, Option<RdmaError>)>,
}

/// Where a slot's thread and an event loop hand over connections.
#[derive(Default)]
pub(super) struct Lending {
    state: Mutex<Lent>,
    changed: Condvar,
}

impl Lending {
    /// Lends `polling` to the event loop, if there is one, and waits until it is returned, with the
    /// reason if the connection has ended.
    pub(super) fn lend(&self, polling: Polling) -> (Polling, Option<RdmaError>) {
        if polling.completions.descriptors().is_none() {
            return (polling, None);
        }
        let mut state = self.state.lock();
        let Some(waker) = state.loop_waker.clone() else {
            return (polling, None);
        };
        state.lent = Some(polling);
        drop(state);
        waker();
        let mut state = self.state.lock();
        loop {
            if let Some(back) = state.returned.take() {
                return back;
            }
            if state.loop_waker.is_none()
                && let Some(polling) = state.lent.take()
            {
                return (polling, None);
            }
            self.changed.wait(&mut state);
        }
    }

    /// Registers an event loop, which is lent the slot's connections from now on.
    pub(super) fn attach(&self, waker: Waker) {
        self.state.lock().loop_waker = Some(waker);
    }

    /// For the event loop: takes a connection that was lent.
    pub(super) fn accept(&self) -> Option<Polling> {
        self.state.lock().lent.take()
    }

    /// The event loop ends, after it has given back its connection.
    pub(super) fn detach(&self) {
        self.state.lock().loop_waker = None;
        self.changed.notify_all();
    }

    /// Returns a connection to the slot's thread, with the reason if it has ended.
    pub(super) fn give_back(&self, polling: Polling, ended: Option<RdmaError>) {
        self.state.lock().returned = Some((polling, ended));
        self.changed.notify_all();
    }
}
