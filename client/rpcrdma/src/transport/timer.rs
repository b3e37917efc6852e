//! The transport's clock: a thread that checks time-outs at a fixed period, and wakes sleepers.
//!
//! [`Sleep`] is a future, so a caller that pauses before a retry blocks no thread. Sleepers are
//! kept in a heap, ordered by the time at which they wake; when the transport is shut down, all of
//! them wake at once.

use crate::sync::{Condvar, Mutex};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

/// A sleeper: when it wakes, its number, and its waker. Ordered by time, then number.
struct Sleeper(Instant, u64, Waker);

impl PartialEq for Sleeper {
    fn eq(&self, other: &Self) -> bool {
        (self.0, self.1) == (other.0, other.1)
    }
}
impl Eq for Sleeper {}
impl PartialOrd for Sleeper {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Sleeper {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.0, self.1).cmp(&(other.0, other.1))
    }
}

#[derive(Default)]
struct State {
    sleepers: BinaryHeap<Reverse<Sleeper>>,
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
                while let Some(Reverse(first)) = state.sleepers.peek()
                    && first.0 <= now
                {
                    due.extend(state.sleepers.pop().map(|Reverse(s)| s.2));
                }
                if due.is_empty() && now < next_tick {
                    let until = match state.sleepers.peek() {
                        Some(Reverse(first)) => first.0.min(next_tick),
                        None => next_tick,
                    };
                    self.changed.wait_until(&mut state, until);
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
        for Reverse(Sleeper(_, _, waker)) in sleepers {
            waker.wake();
        }
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.state.lock().stopped
    }

    /// A future that ends after `time`, or when the timer is stopped if that is earlier.
    pub(super) fn sleep(self: &Arc<Self>, time: Duration) -> Sleep {
        Sleep {
            timer: self.clone(),
            until: Instant::now() + time,
        }
    }
}

/// Ends when its time is over, or when the transport is shut down.
pub struct Sleep {
    timer: Arc<Timer>,
    until: Instant,
}

impl std::fmt::Debug for Sleep {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sleep").field("until", &self.until).finish()
    }
}

impl Future for Sleep {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let mut state = self.timer.state.lock();
        if state.stopped || Instant::now() >= self.until {
            return Poll::Ready(());
        }
        state.count += 1;
        let sleeper = Sleeper(self.until, state.count, context.waker().clone());
        state.sleepers.push(Reverse(sleeper));
        drop(state);
        self.timer.changed.notify_all();
        Poll::Pending
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
}
