//! The queue of one listener: a bounded number of events that it has not taken yet.

use super::event::Event;
use super::interest::Interest;
use parking_lot::Mutex;
use std::collections::VecDeque;
use tokio::sync::Notify;

/// Largest number of events queued for a listener to calls.
const CALLS: usize = 2048;
/// Largest number of events queued for a listener to messages.
const MESSAGES: usize = 16384;
/// Largest number of bytes queued for any listener.
const BYTES: usize = 32 << 20;
/// Cost of an event in addition to its bytes.
const OVERHEAD: usize = 256;

pub(super) struct Queue {
    pub(super) interest: Interest,
    state: Mutex<State>,
    news: Notify,
}

#[derive(Default)]
struct State {
    /// Events, each with its cost in bytes.
    events: VecDeque<(usize, Event)>,
    bytes: usize,
    /// Events dropped since the last one in the queue.
    lost: u64,
    closed: bool,
}

impl Queue {
    pub(super) fn new(interest: Interest) -> Self {
        Queue {
            interest,
            state: Mutex::default(),
            news: Notify::new(),
        }
    }

    fn room(&self) -> usize {
        match self.interest {
            Interest::Calls(_) => CALLS,
            Interest::Messages { .. } => MESSAGES,
        }
    }

    /// Queues the event that `make` returns. If there is no room, counts it as lost and does not
    /// call `make`. Never waits for the listener.
    pub(super) fn push(&self, bytes: usize, make: impl FnOnce() -> Event) {
        let cost = bytes + OVERHEAD;
        let mut state = self.state.lock();
        // An event larger than the bound is accepted if the queue is empty.
        let fits = state.bytes + cost <= BYTES || state.events.is_empty();
        if state.closed || !fits || state.events.len() >= self.room() {
            state.lost += 1;
            return;
        }
        if state.lost > 0 {
            let lost = std::mem::take(&mut state.lost);
            state.events.push_back((0, Event::Lost(lost)));
        }
        state.bytes += cost;
        state.events.push_back((cost, make()));
        drop(state);
        self.news.notify_one();
    }

    pub(super) fn close(&self) {
        self.state.lock().closed = true;
        self.news.notify_one();
    }

    pub(super) fn try_next(&self) -> Option<Event> {
        let mut state = self.state.lock();
        match state.events.pop_front() {
            Some((cost, event)) => {
                state.bytes -= cost;
                Some(event)
            }
            None => match std::mem::take(&mut state.lost) {
                0 => None,
                lost => Some(Event::Lost(lost)),
            },
        }
    }

    pub(super) async fn next(&self) -> Option<Event> {
        loop {
            if let Some(event) = self.try_next() {
                return Some(event);
            }
            if self.state.lock().closed {
                // Events may have arrived before the queue was closed.
                return self.try_next();
            }
            self.news.notified().await;
        }
    }
}
