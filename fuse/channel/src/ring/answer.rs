//! Passes replies to the thread of the ring, because only this thread may submit them.
//!
//! A reply may be given on any thread. That thread copies the bytes into the entry's payload buffer
//! and leaves a [`Commit`] for the ring's thread. Nearly all replies are given on the ring's thread
//! itself, which submits the commit with the system call of its next wait. Otherwise the ring's
//! thread is woken if it sleeps.

use super::buffers::Buffers;
use parking_lot::Mutex;
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use std::cell::Cell;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// A reply for the ring's thread to submit.
pub(super) struct Commit {
    pub(super) entry: u32,
    pub(super) unique: u64,
    pub(super) error: i32,
    pub(super) payload: u32,
    /// The payload, if it could not be written into the entry's buffer.
    pub(super) kept: Option<Box<[u8]>>,
}

/// A function to call at the end of a round.
pub(super) type Call = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct Inbox {
    commits: Vec<Commit>,
    calls: Vec<Call>,
    /// The ring is gone, so nothing is taken from here any more.
    closed: bool,
}

/// The part of a ring that other threads use.
pub(super) struct Shared {
    inbox: Mutex<Inbox>,
    asleep: AtomicBool,
    /// The eventfd(2) by which the ring's thread is woken.
    event_fd: OwnedFd,
    /// The queues, by CPU, in which requests may wait although entries are free.
    pub(super) starved: Mutex<Vec<u16>>,
    /// The thread that makes requests to free waiting ones ([`super::relief`]); 0 if there is none.
    pub(super) relief: AtomicU32,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").finish_non_exhaustive()
    }
}

thread_local! {
    /// The ring of the current thread, if it has one.
    static OWN: Cell<*const Shared> = const { Cell::new(std::ptr::null()) };
}

impl Shared {
    pub(super) fn new() -> io::Result<Arc<Self>> {
        Ok(Arc::new(Shared {
            inbox: Mutex::default(),
            asleep: AtomicBool::new(false),
            event_fd: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            starved: Mutex::default(),
            relief: AtomicU32::new(0),
        }))
    }

    /// Makes the calling thread that of the ring.
    pub(super) fn set_own(self: &Arc<Self>) {
        OWN.set(Arc::as_ptr(self));
    }

    pub(super) fn event_fd(&self) -> BorrowedFd<'_> {
        self.event_fd.as_fd()
    }

    fn wake(self: &Arc<Self>) {
        if OWN.get() != Arc::as_ptr(self) && self.asleep.swap(false, Ordering::SeqCst) {
            // This fails only if the counter is full, and then the thread is woken already.
            let _ = rustix::io::write(&self.event_fd, &1u64.to_ne_bytes());
        }
    }

    fn commit(self: &Arc<Self>, commit: Commit) -> Result<(), Errno> {
        {
            let mut inbox = self.inbox.lock();
            if inbox.closed {
                return Err(Errno::NODEV);
            }
            inbox.commits.push(commit);
        }
        self.wake();
        Ok(())
    }

    /// Makes the ring's thread call this at the end of its next full round. It is dropped if the
    /// ring is gone.
    pub(super) fn after_round(self: &Arc<Self>, call: Call) {
        {
            let mut inbox = self.inbox.lock();
            if inbox.closed {
                return;
            }
            inbox.calls.push(call);
        }
        self.wake();
    }

    /// Moves the commits and calls to the ends of these lists.
    pub(super) fn take(&self, commits: &mut Vec<Commit>, calls: &mut Vec<Call>) {
        let mut inbox = self.inbox.lock();
        commits.append(&mut inbox.commits);
        calls.append(&mut inbox.calls);
    }

    /// The ring's thread is about to sleep. False if there is something for it to take.
    pub(super) fn sleep(&self) -> bool {
        self.asleep.store(true, Ordering::SeqCst);
        let inbox = self.inbox.lock();
        let idle = inbox.commits.is_empty() && inbox.calls.is_empty();
        drop(inbox);
        if !idle {
            self.asleep.store(false, Ordering::SeqCst);
        }
        idle
    }

    /// The ring's thread has stopped sleeping.
    pub(super) fn woken(&self) {
        self.asleep.store(false, Ordering::SeqCst);
    }

    /// The ring is gone.
    pub(super) fn close(&self) {
        let mut inbox = self.inbox.lock();
        inbox.closed = true;
        let taken = (
            std::mem::take(&mut inbox.commits),
            std::mem::take(&mut inbox.calls),
        );
        drop(inbox);
        // Outside the lock, because a call that is dropped may wake another thread.
        drop(taken);
    }
}

/// The entry to which the reply to one request goes. Its payload buffer belongs to the reply until
/// that is sent.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(super) ring: Arc<Shared>,
    pub(super) buffers: Arc<Buffers>,
    pub(super) entry: u32,
}

impl Answer {
    /// Sends the reply. If this fails with EINVAL, another reply may be sent.
    pub(crate) fn send(&self, unique: u64, error: i32, body: &[&[u8]]) -> Result<(), Errno> {
        let len: usize = body.iter().map(|slice| slice.len()).sum();
        if len > self.buffers.payload() {
            return Err(Errno::INVAL);
        }
        let kept = if self.buffers.is_lent() {
            Some(body.concat().into_boxed_slice())
        } else {
            // SAFETY: the entry belongs to this reply, the only one for the request, until the
            // commit below; the request is not in use any more.
            unsafe { self.buffers.write_payload(body) };
            None
        };
        self.ring.commit(Commit {
            entry: self.entry,
            unique,
            error,
            payload: len as u32,
            kept,
        })
    }
}
