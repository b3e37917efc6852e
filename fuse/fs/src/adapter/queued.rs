//! Requests that the kernel has queued and no event loop has read yet.
//!
//! The kernel notes a version when it makes a READ, and ignores the end of file in the reply if
//! the inode has got a newer one meanwhile: by a notification, or by the end of file in the reply
//! to another READ. It then goes on with the size it had, and what lies between the two ends
//! reads as zeros. So before a notification, and before a reply with a false end
//! ([`crate::fs::ReadEnd`]), READs that are under way are waited for. READs that an event loop has
//! read are known ([`crate::fs::Fs::is_reading`]). Of those that are still in the kernel's queue,
//! poll(2) tells only that something waits. So first wait until the queue has been seen empty and
//! no event loop holds a request that it has not handed on ([`Queued::taking`]); only then look at
//! the READs that are known, as what was queued before is among them.
//!
//! Requests that come by io_uring are in no such queue: they have been handed over when each
//! worker has ended a round that it began after the question ([`nfsrdma_channel::Rounds`]).
//!
//! A READ that the kernel makes between that and the notification, or the reply, is not seen. It
//! may do so just then: the reply to one READ has a program go on to the next. Therefore a pause
//! after the last READ counts as READs under way.
//!
//! (An error in reply to a READ of read-ahead would not need the pause, as no program is told of
//! it. But nothing in the request says that it is one: its length does not, where the kernel reads
//! folios of several pages for a program.)

use nfsrdma_channel::{Device, Rounds};
use parking_lot::{Condvar, Mutex};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// Between two looks at the queue.
const PAUSE: Duration = Duration::from_millis(1);

/// Whether the kernel has a request that nobody has read.
pub(super) fn has_request(device: &Device) -> bool {
    let mut fds = [PollFd::from_borrowed_fd(device.as_fd(), PollFlags::IN)];
    poll(&mut fds, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
        && fds[0].revents() == PollFlags::IN
}

/// Tells as it is dropped.
struct Over(Option<oneshot::Sender<()>>);

impl Drop for Over {
    fn drop(&mut self) {
        if let Some(over) = self.0.take() {
            // Who asked may have given up.
            let _ = over.send(());
        }
    }
}

/// What is waited for beside the empty queue.
type Condition = Box<dyn Fn() -> bool + Send>;

struct Waiter {
    until: Instant,
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
    /// Of each ring that requests come by.
    rounds: Vec<Rounds>,
    state: Mutex<State>,
    more: Condvar,
    /// Event loops that may have taken a request and not handed it over.
    taking: AtomicUsize,
}

/// While it lives, requests are taken from the queue.
pub(super) struct Taking<'a>(&'a AtomicUsize);

impl Drop for Taking<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// The queue of a mount. A thread looks at it, from the first time that somebody waits: only where
/// others change files.
pub(super) struct Queued {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Queued {
    pub(super) fn new(device: &Arc<Device>, rounds: Vec<Rounds>) -> Arc<Self> {
        let shared = Arc::new(Shared {
            device: device.clone(),
            rounds,
            state: Mutex::default(),
            more: Condvar::new(),
            taking: AtomicUsize::new(0),
        });
        Arc::new(Queued {
            shared,
            thread: Mutex::default(),
        })
    }

    /// An event loop is about to take requests. (Threads that wait in read(2) for each cannot say
    /// so: where these serve a mount, a request that was just taken may be missed.)
    pub(super) fn taking(&self) -> Taking<'_> {
        self.shared.taking.fetch_add(1, Ordering::SeqCst);
        Taking(&self.shared.taking)
    }

    /// Whether the queue is empty at this moment, and all that it held was handed over. Where
    /// requests come by rings, returns when those that had come have been handed over.
    pub(super) async fn is_empty(&self) -> bool {
        match self.rounds_over() {
            Some(over) => {
                // An error is the end of the mount.
                let _ = over.await;
                true
            }
            None => self.shared.is_empty(),
        }
    }

    /// The same for threads that may block. Not for those that hand requests over.
    pub(super) fn is_empty_blocking(&self) -> bool {
        match self.rounds_over() {
            Some(over) => {
                let _ = over.blocking_recv();
                true
            }
            None => self.shared.is_empty(),
        }
    }

    /// Told when all rings have ended a round that begins from now on; `None` if there are none.
    fn rounds_over(&self) -> Option<oneshot::Receiver<()>> {
        if self.shared.rounds.is_empty() {
            return None;
        }
        let (over, told) = oneshot::channel();
        // The last one to be dropped tells.
        let over = Arc::new(Over(Some(over)));
        for rounds in &self.shared.rounds {
            let over = over.clone();
            rounds.after(move || drop(over));
        }
        Some(told)
    }

    /// Returns when the queue was seen empty, and `condition` true after it; or after `most`.
    pub(super) async fn until_empty(
        &self,
        most: Duration,
        condition: impl Fn() -> bool + Send + 'static,
    ) {
        if let Some(over) = self.rounds_over() {
            let _ = over.await;
        }
        if self.shared.is_quiet(&condition) {
            return;
        }
        let (wake, woken) = oneshot::channel();
        {
            let mut state = self.shared.state.lock();
            if state.ended || !self.has_thread() {
                return;
            }
            state.waiters.push(Waiter {
                until: Instant::now() + most,
                condition: Box::new(condition),
                wake,
            });
        }
        self.shared.more.notify_one();
        // An error is the end of the mount.
        let _ = woken.await;
    }

    /// Starts the thread if it is not there. False if the machine has none left: then nothing is
    /// waited for, as if the time were up.
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
    /// In this order: who takes a request says so before.
    fn is_empty(&self) -> bool {
        !has_request(&self.device) && self.taking.load(Ordering::SeqCst) == 0
    }

    /// In this order: see the head of this file.
    fn is_quiet(&self, condition: impl Fn() -> bool) -> bool {
        (!self.rounds.is_empty() || self.is_empty()) && condition()
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
                if Instant::now() >= waiter.until || self.is_quiet(&waiter.condition) {
                    ready.push(waiter.wake);
                } else {
                    waiters.push(waiter);
                }
            }
            // Each goes on here, on this thread. Who gave up does not wait any more.
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
            // A request that waited may be the last to know of this.
            && thread.thread().id() != std::thread::current().id()
        {
            // It ends by itself; a panic there has been reported.
            let _ = thread.join();
        }
    }
}
