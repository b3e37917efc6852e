//! Requests that the kernel has queued and no event loop has read yet.
//!
//! The kernel notes a version when it makes a READ, and ignores the end of file in the reply if
//! the inode has got a newer one meanwhile: by a notification, or by the end of file in the reply
//! to another READ. It then goes on with the size it had, and what lies between the two ends
//! reads as zeros. Whatever brings a newer version must therefore wait for READs that are under
//! way. Those that were read are known ([`crate::fs::Fs::is_reading`]); of those that wait in the
//! queue, for as long as it takes a busy machine to run an event loop, poll(2) tells only that
//! something waits. So the queue is seen empty first, then the READs are looked at: what was
//! queued before has been read by then.
//!
//! Requests that come by io_uring are in no such queue: they have been handed over when each
//! worker has ended a round that it began after the question ([`nfsrdma_channel::Rounds`]).
//!
//! A READ that the kernel makes between that and the notification, or the reply, is not seen. It
//! may do so just then: the reply to one READ has a program go on to the next.

use nfsrdma_channel::{Device, Rounds};
use parking_lot::{Condvar, Mutex};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::sync::oneshot;

/// Between two looks at the queue.
const PAUSE: Duration = Duration::from_millis(1);
/// Looks, at most: on a mount that is never idle the queue may never be seen empty.
const MOST_LOOKS: u32 = 200;

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
    looks: u32,
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
}

/// The queue of a mount, with a thread that looks at it while somebody waits.
pub(super) struct Queued {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Queued {
    pub(super) fn start(device: &Arc<Device>, rounds: Vec<Rounds>) -> io::Result<Arc<Self>> {
        let shared = Arc::new(Shared {
            device: device.clone(),
            rounds,
            state: Mutex::default(),
            more: Condvar::new(),
        });
        let looking = shared.clone();
        let thread = std::thread::Builder::new()
            .name("queued".into())
            .spawn(move || looking.run())?;
        Ok(Arc::new(Queued {
            shared,
            thread: Some(thread),
        }))
    }

    /// Whether the queue is empty at this moment. Where requests come by rings, returns when
    /// those that had come have been handed over.
    pub(super) async fn is_empty(&self) -> bool {
        match self.rounds_over() {
            Some(over) => {
                // An error is the end of the mount.
                let _ = over.await;
                true
            }
            None => !has_request(&self.shared.device),
        }
    }

    /// The same for threads that may block. Not for those that hand requests over.
    pub(super) fn is_empty_blocking(&self) -> bool {
        match self.rounds_over() {
            Some(over) => {
                let _ = over.blocking_recv();
                true
            }
            None => !has_request(&self.shared.device),
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

    /// Returns when the queue was seen empty, and `condition` true after it; or after some tenths
    /// of a second.
    pub(super) async fn until_empty(&self, condition: impl Fn() -> bool + Send + 'static) {
        if let Some(over) = self.rounds_over() {
            let _ = over.await;
        }
        if self.shared.is_quiet(&condition) {
            return;
        }
        let (wake, woken) = oneshot::channel();
        {
            let mut state = self.shared.state.lock();
            if state.ended {
                return;
            }
            state.waiters.push(Waiter {
                looks: 0,
                condition: Box::new(condition),
                wake,
            });
        }
        self.shared.more.notify_one();
        // An error is the end of the mount.
        let _ = woken.await;
    }
}

impl Shared {
    /// In this order: see the head of this file.
    fn is_quiet(&self, condition: impl Fn() -> bool) -> bool {
        (!self.rounds.is_empty() || !has_request(&self.device)) && condition()
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
            for mut waiter in std::mem::take(&mut waiters) {
                waiter.looks += 1;
                if waiter.looks >= MOST_LOOKS || self.is_quiet(&waiter.condition) {
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
        if let Some(thread) = self.thread.take()
            // A request that waited may be the last to know of this.
            && thread.thread().id() != std::thread::current().id()
        {
            // It ends by itself; a panic there has been reported.
            let _ = thread.join();
        }
    }
}
