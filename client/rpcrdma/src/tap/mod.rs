//! Lets others watch what the engine does: calls, and the messages they become.
//!
//! Mostly nobody watches. That costs one relaxed load when a call is sent and one when it is
//! over ([`Tap::wanted`]); everything else happens only while there is a [`Listener`]. Each has
//! a queue of its own, bounded in events and bytes: what does not fit is counted and dropped,
//! so a slow listener loses events and never delays a call.

pub mod caller;
mod event;
mod interest;
mod queue;

pub use event::{
    Connected, Data, Disconnected, Ended, Event, Incoming, Outcome, Outgoing, Sent, Transmission,
};

pub use interest::{Filter, Interest, Wanted};

use parking_lot::Mutex;
use queue::Queue;
use std::fmt;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

/// Where the engine's connections tell what happens.
#[derive(Default)]
pub struct Tap {
    /// What the listeners want together.
    wanted: AtomicU32,
    serial: AtomicU64,
    inner: Mutex<Listeners>,
    /// Called when there is a new connection.
    on_connection: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

#[derive(Default)]
struct Listeners {
    listeners: Vec<Arc<Queue>>,
    /// The connections that are up, for those who begin to listen.
    connections: Vec<Arc<Connected>>,
    closed: bool,
}

impl fmt::Debug for Tap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tap")
            .field("wanted", &self.wanted())
            .finish_non_exhaustive()
    }
}

impl Tap {
    /// What has to be reported. All that a call costs while there are no listeners.
    pub fn wanted(&self) -> Wanted {
        Wanted(self.wanted.load(Relaxed))
    }

    /// Begins to listen: first come the connections that are up.
    pub fn listen(self: &Arc<Self>, interest: Interest) -> Listener {
        let queue = Arc::new(Queue::new(interest));
        let mut inner = self.inner.lock();
        for connected in &inner.connections {
            queue.push(connected.cost(), || Event::Connected(connected.clone()));
        }
        if inner.closed {
            queue.close();
        } else {
            inner.listeners.push(queue.clone());
        }
        self.set_wanted(&inner);
        drop(inner);
        Listener {
            tap: self.clone(),
            queue,
        }
    }

    fn set_wanted(&self, inner: &Listeners) {
        let bits = inner.listeners.iter().map(|queue| queue.interest.bit());
        self.wanted
            .store(bits.fold(0, |all, bit| all | bit), Relaxed);
    }

    /// Nothing more will happen: listeners get what is queued, and then the end.
    pub fn close(&self) {
        let mut inner = self.inner.lock();
        inner.closed = true;
        for queue in inner.listeners.drain(..) {
            queue.close();
        }
        self.set_wanted(&inner);
    }

    /// A number for a new connection, from 1.
    pub(crate) fn next_connection(&self) -> u64 {
        self.serial.fetch_add(1, Relaxed) + 1
    }

    /// Has `call` called when a connection has been made, from now on; it must not block. Once.
    pub fn on_connection(&self, call: impl Fn() + Send + Sync + 'static) {
        let _ = self.on_connection.set(Box::new(call));
    }

    pub(crate) fn connected(&self, connected: Arc<Connected>) {
        if let Some(call) = self.on_connection.get() {
            call();
        }
        let mut inner = self.inner.lock();
        for queue in &inner.listeners {
            queue.push(connected.cost(), || Event::Connected(connected.clone()));
        }
        inner.connections.push(connected);
    }

    pub(crate) fn disconnected(&self, disconnected: &Arc<Disconnected>) {
        let mut inner = self.inner.lock();
        let gone = disconnected.connection;
        inner.connections.retain(|other| other.connection != gone);
        for queue in &inner.listeners {
            queue.push(disconnected.why.len(), || {
                Event::Disconnected(disconnected.clone())
            });
        }
    }

    pub(crate) fn sent(&self, sent: &Arc<Sent>) {
        for queue in &self.inner.lock().listeners {
            if let Interest::Calls(filter) = &queue.interest
                && filter.sent(sent)
            {
                queue.push(sent.head.len(), || Event::Sent(sent.clone()));
            }
        }
    }

    /// A call is over; also one that a side program made past the connections.
    pub fn ended(&self, ended: &Arc<Ended>) {
        for queue in &self.inner.lock().listeners {
            if let Interest::Calls(filter) = &queue.interest
                && filter.ended(ended)
            {
                queue.push(ended.sent.head.len(), || Event::Ended(ended.clone()));
            }
        }
    }

    /// A message or more for each listener to messages: `make` gets the bytes it wants of
    /// each. `size`: bytes of the whole.
    pub(crate) fn message(&self, size: usize, make: impl Fn(usize) -> Event) {
        for queue in &self.inner.lock().listeners {
            if let Interest::Messages { limit } = queue.interest {
                queue.push(size.min(limit.saturating_mul(4)), || make(limit));
            }
        }
    }
}

/// The receiving side. Dropping it ends the listening.
pub struct Listener {
    tap: Arc<Tap>,
    queue: Arc<Queue>,
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Listener")
            .field("interest", &self.queue.interest)
            .finish_non_exhaustive()
    }
}

impl Listener {
    /// The next event; `None` when nothing more will happen.
    pub async fn next(&mut self) -> Option<Event> {
        self.queue.next().await
    }

    /// The next event if there is one already.
    pub fn try_next(&mut self) -> Option<Event> {
        self.queue.try_next()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let mut inner = self.tap.inner.lock();
        inner
            .listeners
            .retain(|queue| !Arc::ptr_eq(queue, &self.queue));
        self.tap.set_wanted(&inner);
    }
}

#[cfg(test)]
mod tests;
