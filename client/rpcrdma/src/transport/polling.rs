//! The polling half of a connection, and how a slot's thread and an event loop hand it over.
//!
//! A `CompletionQueue` has one owner, so exactly one thread polls. [`Lending`] is the place of the
//! exchange: the slot's thread leaves its [`Polling`] there and sleeps, the event loop takes it and
//! returns it, with the reason, when the connection has ended or the loop itself ends.
//!
//! See [`super::event_loop`].

use super::call::Call;
use super::outcome::Ending;
use super::session::{Established, Session};
use crate::sync::{Condvar, Mutex, thread_cell};
use nfsrdma_rdma::{Completion, CompletionQueue, Error as RdmaError};
use slab::Slab;
use std::cell::RefCell;
use std::sync::Arc;
use std::time::Duration;

/// What only the thread that polls the connection uses.
#[derive(Default)]
pub(super) struct Local {
    pub(super) ending: Slab<Ending>,
    /// To be sent on the next connection.
    pub(super) again: Vec<Call>,
    /// To be sent alone on the next connection.
    pub(super) suspects: Vec<Call>,
    /// The last call that found no memory, and how long it waits.
    pub(super) wait: (u32, Duration),
}

thread_cell! {
    /// The slot whose connection this thread polls.
    static HOME: RefCell<Option<usize>> = const { RefCell::new(None) };
}

/// The slot whose connection the calling thread polls, if it is an event loop.
pub(super) fn home() -> Option<usize> {
    HOME.with_borrow_mut(|home| *home)
}

/// From now on the calling thread polls connections of `slot`. Calls go by the first such slot.
pub(super) fn set_home(slot: usize) {
    HOME.with_borrow_mut(|home| {
        home.get_or_insert(slot);
    });
}

/// The calling thread polls connections of `slot` no longer.
pub(super) fn clear_home(slot: usize) {
    HOME.with_borrow_mut(|home| {
        if *home == Some(slot) {
            *home = None;
        }
    });
}

/// The polling half of a connection in use.
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

/// Wakes an event loop.
pub type Waker = Arc<dyn Fn() + Send + Sync>;

#[derive(Default)]
struct Lent {
    /// Of the event loop that polls this slot's connections.
    loop_waker: Option<Waker>,
    /// On its way to the loop.
    lent: Option<Polling>,
    /// On its way back: why its connection ended, or that the loop did.
    returned: Option<(Polling, Option<RdmaError>)>,
}

/// Where a slot's thread and an event loop hand a connection over.
#[derive(Default)]
pub(super) struct Lending {
    state: Mutex<Lent>,
    changed: Condvar,
}

impl Lending {
    /// Lends `polling` to the event loop, if there is one, and waits until it is back. Why the
    /// connection ended, if it did.
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

    /// An event loop is there from now on.
    pub(super) fn attach(&self, waker: Waker) {
        self.state.lock().loop_waker = Some(waker);
    }

    /// The event loop's part: the connection on its way to it.
    pub(super) fn accept(&self) -> Option<Polling> {
        self.state.lock().lent.take()
    }

    /// The event loop ends; it has given back what it had.
    pub(super) fn detach(&self) {
        self.state.lock().loop_waker = None;
        self.changed.notify_all();
    }

    /// `ended`: why the connection ended, if it did.
    pub(super) fn give_back(&self, polling: Polling, ended: Option<RdmaError>) {
        self.state.lock().returned = Some((polling, ended));
        self.changed.notify_all();
    }
}
