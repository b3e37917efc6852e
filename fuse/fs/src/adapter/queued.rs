//! Requests that the kernel has queued and no event loop has read yet.
//!
//! The kernel notes the version of the inode when it makes a READ, and ignores the end of file in
//! the reply if the inode has got a newer version meanwhile: by a notification, or by the end of
//! file in the reply to another READ. It then goes on with the old size, and the bytes between the
//! two ends read as zeros. So READs under way are awaited before a notification, and before a reply
//! with a false end ([`crate::fs::ReadEnd`]). READs that an event loop has read are known
//! ([`crate::fs::Fs::is_reading`]). Of READs that are still in the kernel's queue, poll(2) tells
//! only that there are requests. So this module first waits until the queue is empty and no event
//! loop holds a request that it has not handled ([`Queued::taking`]); then all READs that were
//! queued before are among the known ones.
//!
//! A READ that the kernel makes after the check, and before the notification or reply, is missed.
//! This is most likely just after the reply to a READ, when the program makes the next one.
//! Therefore READs count as under way for a short time after the last one.
//!
//! A lock that would be refused waits until the RELEASE of the lock in its way would be known. That
//! came to the queue before it, so it has been read, but maybe by another event loop, which has not
//! handled it yet ([`Queued::until_handled`]). (The kernel holds it back while `max_background`
//! requests are under way for which no program waits. Then it is missed.)
//!
//! (An error in reply to a READ of read-ahead would not need this time, as no program gets it. But
//! nothing in a request shows that it is read-ahead: its length does not, because the kernel also
//! reads folios of several pages for a program.)

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

/// A condition that must be true in addition to the empty queue.
type Condition = Box<dyn Fn() -> bool + Send>;

struct Waiter {
    until: Instant,
    /// Whether the queue must be empty.
    empty: bool,
    condition: Condition,
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
    loops: Arc<Loops>,
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
            loops: Arc::new(Loops::new(loops)),
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

    /// Waits until the queue is empty and then `condition` is true, but for `most` at most.
    pub(super) async fn until_empty(
        &self,
        most: Duration,
        condition: impl Fn() -> bool + Send + 'static,
    ) {
        if self.shared.is_quiet(&condition) {
            return;
        }
        self.wait(most, true, Box::new(condition)).await;
    }

    /// Waits until all requests that were read before this call are handled, but for `most` at most.
    pub(super) async fn until_handled(&self, most: Duration) {
        let (loops, rounds) = (self.shared.loops.clone(), self.shared.loops.busy());
        if rounds.is_empty() {
            return;
        }
        let over = move || loops.are_over(&rounds);
        self.wait(most, false, Box::new(over)).await;
    }

    /// Has the thread wait until the queue is empty (`empty`) and `condition` is true.
    async fn wait(&self, most: Duration, empty: bool, condition: Condition) {
        let (wake, woken) = oneshot::channel();
        {
            let mut state = self.shared.state.lock();
            if state.ended || !self.has_thread() {
                return;
            }
            state.waiters.push(Waiter {
                until: Instant::now() + most,
                empty,
                condition,
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

    /// The order matters: see the head of this file.
    fn is_quiet(&self, condition: impl Fn() -> bool) -> bool {
        self.is_empty() && condition()
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
                let ready_now = match waiter.empty {
                    true => self.is_quiet(&waiter.condition),
                    false => (waiter.condition)(),
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
