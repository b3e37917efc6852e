//! The events one listener has not taken yet.

use super::event::Event;
use super::interest::Interest;
use parking_lot::Mutex;
use std::collections::VecDeque;
use tokio::sync::Notify;

/// Events kept for a listener to calls, at most.
const CALLS: usize = 2048;
/// Events kept for a listener to messages, at most.
const MESSAGES: usize = 16384;
/// Bytes kept for any listener, at most.
const BYTES: usize = 32 << 20;
/// What an event takes beside its bytes.
const OVERHEAD: usize = 256;

pub(super) struct Queue {
    pub(super) interest: Interest,
    state: Mutex<State>,
    news: Notify,
}

#[derive(Default)]
struct State {
    /// With what each of them counts for.
    events: VecDeque<(usize, Event)>,
    bytes: usize,
    /// Dropped since the last event that is in the queue.
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

    /// Adds what `make` makes, or counts it as lost, without making it, if there is no room
    /// for it. Never waits for the listener.
    pub(super) fn push(&self, bytes: usize, make: impl FnOnce() -> Event) {
        let cost = bytes + OVERHEAD;
        let mut state = self.state.lock();
        // One that exceeds the bound by itself is let in alone.
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
                // What came between the two.
                return self.try_next();
            }
            self.news.notified().await;
        }
    }
}
