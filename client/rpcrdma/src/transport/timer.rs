//! The transport's clock: a thread that checks time-outs at a fixed period, and wakes sleepers.
//!
//! [`Sleep`] is a future, so a caller that pauses before a retry blocks no thread. Each `Sleep` has at
//! most one entry, however often its task is polled: a task may have several of them, and be polled
//! each time one of them is over. When the transport is shut down, all sleepers wake at once.

use crate::sync::{Condvar, Mutex};
use nfsrdma_rdma::Instant;
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// When a sleeper wakes, and its number.
type Key = (Instant, u64);

#[derive(Default)]
struct State {
    sleepers: BTreeMap<Key, Waker>,
    count: u64,
    stopped: bool,
}

#[derive(Default)]
pub(super) struct Timer {
    state: Mutex<State>,
    changed: Condvar,
}

impl Timer {
    /// Runs until [`Timer::stop`]: calls `tick` every `period`, and wakes sleepers.
    pub(super) fn run(&self, period: Duration, mut tick: impl FnMut(Instant)) {
        let mut next_tick = Instant::now() + period;
        let mut due = Vec::new();
        loop {
            {
                let mut state = self.state.lock();
                if state.stopped {
                    return;
                }
                let now = Instant::now();
                while let Some(first) = state.sleepers.first_entry()
                    && first.key().0 <= now
                {
                    due.push(first.remove());
                }
                if due.is_empty() && now < next_tick {
                    let until = match state.sleepers.first_key_value() {
                        Some((first, _)) => first.0.min(next_tick),
                        None => next_tick,
                    };
                    self.changed.wait_for(&mut state, until - now);
                    continue;
                }
            }
            due.drain(..).for_each(Waker::wake);
            let now = Instant::now();
            if now >= next_tick {
                tick(now);
                next_tick = now + period;
            }
        }
    }

    /// Ends the thread and wakes all sleepers.
    pub(super) fn stop(&self) {
        let sleepers = {
            let mut state = self.state.lock();
            state.stopped = true;
            std::mem::take(&mut state.sleepers)
        };
        self.changed.notify_all();
        sleepers.into_values().for_each(Waker::wake);
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.state.lock().stopped
    }

    /// A future that ends after `time`, or when the timer is stopped if that is earlier.
    pub(super) fn sleep(self: &Arc<Self>, time: Duration) -> Sleep {
        Sleep {
            timer: self.clone(),
            until: Instant::now() + time,
            number: None,
        }
    }
}

/// Ends when its time is over, or when the transport is shut down.
pub struct Sleep {
    timer: Arc<Timer>,
    until: Instant,
    /// The number of its entry, once it has been polled.
    number: Option<u64>,
}

impl std::fmt::Debug for Sleep {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sleep").field("until", &self.until).finish()
    }
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        let mut state = this.timer.state.lock();
        if state.stopped || Instant::now() >= this.until {
            return Poll::Ready(());
        }
        let number = *this.number.get_or_insert_with(|| {
            state.count += 1;
            state.count
        });
        let key = (this.until, number);
        match state.sleepers.get_mut(&key) {
            Some(waker) if waker.will_wake(context.waker()) => {}
            Some(waker) => {
                let before = std::mem::replace(waker, context.waker().clone());
                drop(state);
                // It may be the last of its task, whose end must not come under the lock.
                drop(before);
            }
            None => {
                state.sleepers.insert(key, context.waker().clone());
                let is_first = state.sleepers.first_key_value().map(|first| *first.0) == Some(key);
                drop(state);
                if is_first {
                    this.timer.changed.notify_all();
                }
            }
        }
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(number) = self.number {
            let waker = self
                .timer
                .state
                .lock()
                .sleepers
                .remove(&(self.until, number));
            // It may be the last of its task, whose end must not come under the lock.
            drop(waker);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exec;

    #[test]
    fn sleepers_wake_and_stopping_wakes_the_rest() {
        let timer = Arc::new(Timer::default());
        std::thread::scope(|scope| {
            scope.spawn(|| timer.run(Duration::from_millis(1), |_| ()));
            exec::block_on(timer.sleep(Duration::from_millis(3)));
            let late = timer.sleep(Duration::from_secs(3600));
            scope.spawn(|| exec::block_on(late));
            timer.stop();
        });
    }

    #[test]
    fn a_sleeper_that_is_polled_often_has_one_entry_and_none_when_it_is_dropped() {
        let timer = Arc::new(Timer::default());
        let mut sleeps: Vec<_> = (1..=8)
            .map(|n| Box::pin(timer.sleep(Duration::from_secs(3600 + n))))
            .collect();
        let mut context = Context::from_waker(Waker::noop());
        for _ in 0..1000 {
            for sleep in &mut sleeps {
                assert!(sleep.as_mut().poll(&mut context).is_pending());
            }
        }
        assert_eq!(timer.state.lock().sleepers.len(), 8);
        drop(sleeps);
        assert_eq!(timer.state.lock().sleepers.len(), 0);
    }
}
