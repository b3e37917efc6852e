//! Replies on their way to the thread of the ring, which alone may submit them.
//!
//! A reply may be given on any thread. It copies its bytes into the entry's payload buffer right
//! there, and leaves a [`Commit`] for the ring's thread. If it is given on that thread, as nearly
//! all are, that is all: the commit is submitted when the thread waits next, with the same system
//! call. Otherwise the thread is woken if it sleeps.

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

/// What is to be called at the end of a round.
pub(super) type Call = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct Inbox {
    commits: Vec<Commit>,
    calls: Vec<Call>,
    /// The ring is gone: nobody takes anything from here any more.
    closed: bool,
}

/// The part of a ring that other threads use.
pub(super) struct Shared {
    inbox: Mutex<Inbox>,
    asleep: AtomicBool,
    /// An eventfd(2) that the ring's thread waits for.
    event_fd: OwnedFd,
    /// Queues in which requests may wait though entries are free, by the numbers of their CPUs.
    pub(super) starved: Mutex<Vec<u16>>,
    /// The thread that makes requests only to have them answered; 0 if there is none.
    pub(super) relief: AtomicU32,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").finish_non_exhaustive()
    }
}

thread_local! {
    /// The ring of this thread.
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

    /// From now on the calling thread is the ring's.
    pub(super) fn set_own(self: &Arc<Self>) {
        OWN.set(Arc::as_ptr(self));
    }

    pub(super) fn event_fd(&self) -> BorrowedFd<'_> {
        self.event_fd.as_fd()
    }

    fn wake(self: &Arc<Self>) {
        if OWN.get() != Arc::as_ptr(self) && self.asleep.swap(false, Ordering::SeqCst) {
            // It fails only when the counter is full, and then it is rung.
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

    /// Has the ring's thread call this at the end of its next whole round; it is dropped if there
    /// is none.
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

    /// Takes what has been left here, behind what is in these already.
    pub(super) fn take(&self, commits: &mut Vec<Commit>, calls: &mut Vec<Call>) {
        let mut inbox = self.inbox.lock();
        commits.append(&mut inbox.commits);
        calls.append(&mut inbox.calls);
    }

    /// The ring's thread is about to sleep; `false` if there is something for it to take.
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

    /// It goes on.
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
        // A call that is dropped may wake somebody.
        drop(taken);
    }
}

/// Where the reply to one request goes. The entry's payload buffer is the reply's until it is
/// sent.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(super) ring: Arc<Shared>,
    pub(super) buffers: Arc<Buffers>,
    pub(super) entry: u32,
}

impl Answer {
    /// Gives the reply. If it fails by EINVAL, another one may be given.
    pub(crate) fn send(&self, unique: u64, error: i32, body: &[&[u8]]) -> Result<(), Errno> {
        let len: usize = body.iter().map(|slice| slice.len()).sum();
        if len > self.buffers.payload() {
            return Err(Errno::INVAL);
        }
        let kept = if self.buffers.is_lent() {
            Some(body.concat().into_boxed_slice())
        } else {
            // SAFETY: the entry is this reply's, of which there is one for each request, until
            // the commit below; the request is not in use any more.
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
