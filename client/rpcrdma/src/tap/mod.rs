//! Lets listeners watch what the transport does: calls, and the messages that carry them.
//!
//! Most of the time nobody listens. That costs one relaxed load when a call is sent and one when it
//! ends ([`Tap::wanted`]); everything else happens only while there is a [`Listener`]. Each
//! listener has its own queue, bounded in events and bytes. An event that does not fit is dropped
//! and counted, so a slow listener loses events and never delays a call.

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

/// Where a transport's connections report what happens.
#[derive(Default)]
pub struct Tap {
    /// The interests of all listeners, combined.
    wanted: AtomicU32,
    serial: AtomicU64,
    inner: Mutex<Listeners>,
    /// Called when there is a new connection.
    on_connection: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

#[derive(Default)]
struct Listeners {
    listeners: Vec<Arc<Queue>>,
    /// The connections that are up, for new listeners.
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
    /// The kinds of events to report. This is all that a call costs while there are no listeners.
    pub fn wanted(&self) -> Wanted {
        Wanted(self.wanted.load(Relaxed))
    }

    /// Starts a listener. Its first events are the connections that are up.
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

    /// Ends the reports: each listener gets what is still in its queue, and then `None`.
    pub fn close(&self) {
        let mut inner = self.inner.lock();
        inner.closed = true;
        for queue in inner.listeners.drain(..) {
            queue.close();
        }
        self.set_wanted(&inner);
    }

    /// Returns a number for a new connection, counted from 1.
    pub(crate) fn next_connection(&self) -> u64 {
        self.serial.fetch_add(1, Relaxed) + 1
    }

    /// Sets a function that is called for each connection made from now on. It must not block. Only
    /// the first call of this has an effect.
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

    /// Reports a call that ended, also one that did not use the transport's connections.
    pub fn ended(&self, ended: &Arc<Ended>) {
        for queue in &self.inner.lock().listeners {
            if let Interest::Calls(filter) = &queue.interest
                && filter.ended(ended)
            {
                queue.push(ended.sent.head.len(), || Event::Ended(ended.clone()));
            }
        }
    }

    /// Reports a message to each listener that wants messages. `make` gets the number of bytes that
    /// the listener wants of each part; `size` is the number of bytes of all parts.
    pub(crate) fn message(&self, size: usize, make: impl Fn(usize) -> Event) {
        for queue in &self.inner.lock().listeners {
            if let Interest::Messages { limit } = queue.interest {
                queue.push(size.min(limit.saturating_mul(4)), || make(limit));
            }
        }
    }
}

/// The receiving side of a [`Tap`]. Dropping it ends the listening.
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
    /// The next event, or `None` after the tap was closed.
    pub async fn next(&mut self) -> Option<Event> {
        self.queue.next().await
    }

    /// The next event, if one is queued.
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
