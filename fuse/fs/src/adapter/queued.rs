//! Requests that the kernel has queued and no event loop has read yet.
//!
//! poll(2) tells only that there are some. So what must come after an earlier request of another kind (an
//! RMDIR after the RELEASE of a file in the directory) waits until the queue is empty and no event loop
//! holds a request that it has not handled ([`Queued::taking`]).
//!
//! A lock that would be refused waits until the RELEASE of the lock in its way would be known. That
//! came to the queue before it, so it has been read, but maybe by another event loop, which has not
//! handled it yet ([`Queued::until_handled`]). (The kernel holds it back while `max_background`
//! requests are under way for which no program waits. Then it is missed.)

use nfsrdma_channel::Device;
use parking_lot::{Condvar, Mutex};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// The pause between two checks of the queue.
const PAUSE: Duration = Duration::from_millis(1);

/// Whether the kernel's queue has a request.
pub(super) fn has_request(device: &Device) -> bool {
    let mut fds = [PollFd::from_borrowed_fd(device.as_fd(), PollFlags::IN)];
    poll(&mut fds, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
        && fds[0].revents() == PollFlags::IN
}

/// The event loops that take requests. The number of each is odd while it may have taken a request
/// and not handled it yet, and changes with each round.
struct Loops(Box<[AtomicU64]>);

impl Loops {
    fn new(number: usize) -> Self {
        Loops((0..number).map(|_| AtomicU64::new(0)).collect())
    }

    /// Those in a round, with the number of the round.
    fn busy(&self) -> Vec<(usize, u64)> {
        let now = self.0.iter().map(|of| of.load(Ordering::SeqCst));
        now.enumerate().filter(|(_, of)| of % 2 == 1).collect()
    }

    fn are_idle(&self) -> bool {
        self.0.iter().all(|of| of.load(Ordering::SeqCst) % 2 == 0)
    }

    /// Whether these rounds are over.
    fn are_over(&self, rounds: &[(usize, u64)]) -> bool {
        rounds
            .iter()
            .all(|&(number, of)| self.0[number].load(Ordering::SeqCst) != of)
    }
}

struct Waiter {
    until: Instant,
    /// The rounds that must be over; `None`: the queue must be empty.
    rounds: Option<Vec<(usize, u64)>>,
    wake: oneshot::Sender<()>,
}

#[derive(Default)]
struct State {
    waiters: Vec<Waiter>,
    ended: bool,
}

struct Shared {
    device: Arc<Device>,
    state: Mutex<State>,
    more: Condvar,
    loops: Loops,
}

/// While this lives, an event loop takes requests from the queue.
pub(super) struct Taking<'a>(&'a AtomicU64);

impl Drop for Taking<'_> {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// The kernel's queue of a mount. A thread checks it, which is started at the first wait, so only
/// if other clients change files, or a lock is refused.
pub(super) struct Queued {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Queued {
    /// `loops` is the number of event loops.
    pub(super) fn new(device: &Arc<Device>, loops: usize) -> Arc<Self> {
        let shared = Arc::new(Shared {
            device: device.clone(),
            state: Mutex::default(),
            more: Condvar::new(),
            loops: Loops::new(loops),
        });
        Arc::new(Queued {
            shared,
            thread: Mutex::default(),
        })
    }

    /// Call before the event loop with this number takes requests. (Threads that wait in read(2) for each request
    /// cannot: if they serve a mount, a request that was just taken may be missed.)
    pub(super) fn taking(&self, number: usize) -> Taking<'_> {
        let round = &self.shared.loops.0[number];
        round.fetch_add(1, Ordering::SeqCst);
        Taking(round)
    }

    /// Whether the queue is empty, and all requests that it held are handled.
    pub(super) fn is_empty(&self) -> bool {
        self.shared.is_empty()
    }

    /// Waits until the queue is empty, but for `most` at most.
    pub(super) async fn until_empty(&self, most: Duration) {
        if !self.shared.is_empty() {
            self.wait(most, None).await;
        }
    }

    /// Waits until all requests that were read before this call are handled, but for `most` at most.
    pub(super) async fn until_handled(&self, most: Duration) {
        let rounds = self.shared.loops.busy();
        if !rounds.is_empty() {
            self.wait(most, Some(rounds)).await;
        }
    }

    /// Has the thread wait until these rounds are over; `None`: until the queue is empty.
    async fn wait(&self, most: Duration, rounds: Option<Vec<(usize, u64)>>) {
        let (wake, woken) = oneshot::channel();
        {
            let mut state = self.shared.state.lock();
            if state.ended || !self.has_thread() {
                return;
            }
            state.waiters.push(Waiter {
                until: Instant::now() + most,
                rounds,
                wake,
            });
        }
        self.shared.more.notify_one();
        // An error means the end of the mount.
        let _ = woken.await;
    }

    /// Starts the thread if it does not run. False if that fails: then there is no waiting, as if
    /// the time were over.
    fn has_thread(&self) -> bool {
        let mut thread = self.thread.lock();
        if thread.is_none() {
            let looking = self.shared.clone();
            *thread = std::thread::Builder::new()
                .name("queued".into())
                .spawn(move || looking.run())
                .ok();
        }
        thread.is_some()
    }
}

impl Shared {
    /// The order matters: a round begins before a request is taken from the queue.
    fn is_empty(&self) -> bool {
        !has_request(&self.device) && self.loops.are_idle()
    }

    fn run(&self) {
        let mut state = self.state.lock();
        while !state.ended {
            if state.waiters.is_empty() {
                self.more.wait(&mut state);
                continue;
            }
            self.more.wait_for(&mut state, PAUSE);
            let mut waiters = std::mem::take(&mut state.waiters);
            drop(state);
            let mut ready = Vec::new();
            for waiter in std::mem::take(&mut waiters) {
                let ready_now = match &waiter.rounds {
                    Some(rounds) => self.loops.are_over(rounds),
                    None => self.is_empty(),
                };
                if ready_now || Instant::now() >= waiter.until {
                    ready.push(waiter.wake);
                } else {
                    waiters.push(waiter);
                }
            }
            // Each waiter goes on here, on this thread. Some may have given up.
            for wake in ready {
                let _ = wake.send(());
            }
            state = self.state.lock();
            state.waiters.append(&mut waiters);
        }
    }
}

impl Drop for Queued {
    fn drop(&mut self) {
        let waiters = {
            let mut state = self.shared.state.lock();
            state.ended = true;
            std::mem::take(&mut state.waiters)
        };
        self.shared.more.notify_all();
        drop(waiters);
        if let Some(thread) = self.thread.get_mut().take()
            // A waiter that goes on, on that thread, may drop the last reference to this.
            && thread.thread().id() != std::thread::current().id()
        {
            // A panic of the thread has been reported already.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn later_rounds_are_not_waited_for() {
        let loops = Loops::new(3);
        let begin = |number: usize| {
            loops.0[number].fetch_add(1, Ordering::SeqCst);
            Taking(&loops.0[number])
        };
        assert!(loops.are_idle() && loops.busy().is_empty());
        let (one, two) = (begin(0), begin(2));
        let busy = loops.busy();
        assert_eq!(busy, [(0, 1), (2, 1)]);
        drop(one);
        let again = begin(0);
        assert!(!loops.are_over(&busy) && !loops.are_idle());
        drop(two);
        assert!(loops.are_over(&busy), "the first loop is in its next round");
        assert_eq!(loops.busy(), [(0, 3)]);
        drop(again);
        assert!(loops.are_idle());
    }
}
