//! Requests by io_uring (FUSE_OVER_IO_URING, Linux 6.14): the kernel copies a request into memory
//! of this process and completes an io_uring command. The reply is another command, which also
//! waits for the next request.
//!
//! There is a queue for each possible CPU, for the requests of callers that run there. A queue has
//! entries, each of which holds one request from its arrival to its reply. REGISTER gives an entry
//! to the kernel, with a buffer for headers and one for the payload ([`buffers`], [`layout`]), and
//! completes with a request. COMMIT_AND_FETCH replies to it and gives the entry back. When each
//! queue has an entry, the kernel sends its requests there; requests without a reply (FORGET,
//! INTERRUPT) still come by /dev/fuse, and notifications still go there.
//!
//! A [`Ring`] is the io_uring of one thread, with the queues of some CPUs. The thread also waits
//! for descriptors in this ring (by polls that stay), so that one io_uring_enter(2) submits the
//! replies of a round and waits for whatever comes next. Only this thread submits; replies of other
//! threads come by [`answer`].
//!
//! A request that finds no free entry waits in the kernel until another one of its queue is
//! answered. Requests that wait for long, such as those for a lock that somebody else has, must not
//! take all entries of a queue. So half as many entries as the queue had at first are kept free: if
//! fewer are free, more are registered. A free entry takes hardly any memory, because the kernel
//! uses the entry first that was used last, so the pages of the others are never touched. If all
//! entries are taken nevertheless, [`relief`] frees the requests that wait in the kernel.

mod answer;
mod buffers;
mod cpus;
mod layout;
mod offer;
mod queue;
mod relief;
mod sqe;

pub(crate) use answer::Answer;
pub use offer::{RingRefused, rings};

use crate::device::Device;
use answer::{Call, Commit, Shared};
use buffers::Buffers;
use io_uring::{IoUring, cqueue, opcode, squeue, types};
use layout::HEADERS;
use queue::Queue;
use rustix::io::Errno;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

type Uring = IoUring<squeue::Entry128, cqueue::Entry>;

/// The entries registered at first for the queues of all CPUs, and the bounds for one queue.
const ENTRIES: u16 = 256;
const FEWEST: u16 = 8;
const MOST_AT_FIRST: u16 = 64;
/// The kernel makes at least this many completions at a time, if it has them (20 in Linux 6.18).
const FEW: usize = 16;
/// How long [`Ring`]'s drop waits for entries at the end of a mount.
const LEAVE: Duration = Duration::from_secs(2);

/// Completions of watches have this bit in their user data; those of other commands may have the
/// second one, and are ignored.
const WATCH: u64 = 1 << 63;
const IGNORED: u64 = 1 << 62;

/// A descriptor that became ready.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ready {
    /// The value that was given to [`Ring::watch`].
    pub data: u64,
    /// Events of poll(2).
    pub events: u32,
}

#[derive(Debug)]
struct Entry {
    queue: u16,
    buffers: Arc<Buffers>,
    /// The number of the request that the entry holds; 0 before the first.
    commit_id: u64,
}

#[derive(Debug)]
struct Watch {
    id: u64,
    data: u64,
    fd: RawFd,
    events: u32,
}

/// The queues of some CPUs, and the descriptors for which the thread waits.
pub struct Ring {
    uring: Uring,
    shared: Arc<Shared>,
    device: Option<Arc<Device>>,
    payload: usize,
    usual: u32,
    queues: Vec<Queue>,
    entries: Vec<Entry>,
    watches: Vec<Watch>,
    next_watch: u64,
    /// Entries whose request was not handed over yet.
    arrived: Vec<u32>,
    /// Entries that were given back with a reply in this round.
    given_back: Vec<u32>,
    /// [`Shared::starved`] is not empty.
    told_starved: bool,
    /// The number of completions that the last wait found.
    reaped: usize,
    /// No more entries can be registered.
    full: bool,
    ready: Vec<Ready>,
    commits: Vec<Commit>,
    /// Calls to make at the end of this round, which began after they were left.
    calls: Vec<Call>,
    /// The mount is gone.
    ended: bool,
    /// The kernel refused an entry.
    refused: Option<Errno>,
}

impl fmt::Debug for Ring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ring")
            .field("queues", &self.queues)
            .field("watches", &self.watches)
            .finish_non_exhaustive()
    }
}

/// The rounds of a ring, for other threads than that of the ring.
#[derive(Debug, Clone)]
pub struct Rounds(Arc<Shared>);

impl Rounds {
    /// Makes the ring's thread call this when it has handed over all requests that the kernel had
    /// given to the ring before (not those that found no free entry). It is dropped if the ring is
    /// gone.
    pub fn after(&self, call: impl FnOnce() + Send + 'static) {
        self.0.after_round(Box::new(call));
    }
}

/// The number of a ring, and how many rings there are.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Share {
    pub(crate) number: usize,
    pub(crate) of: usize,
}

impl Ring {
    fn new(uring: Uring, shared: Arc<Shared>) -> Self {
        Ring {
            uring,
            shared,
            device: None,
            payload: 0,
            usual: 0,
            queues: Vec::new(),
            entries: Vec::new(),
            watches: Vec::new(),
            next_watch: 0,
            arrived: Vec::new(),
            given_back: Vec::new(),
            told_starved: false,
            reaped: 0,
            full: false,
            ready: Vec::new(),
            commits: Vec::new(),
            calls: Vec::new(),
            ended: false,
            refused: None,
        }
    }

    /// The rounds of this ring, for other threads.
    pub fn rounds(&self) -> Rounds {
        Rounds(self.shared.clone())
    }

    /// Assigns the queues, and the device of the mount. `payload`: the longest payload, in bytes.
    pub(crate) fn assign(
        &mut self,
        device: &Arc<Device>,
        payload: usize,
        share: Share,
    ) -> io::Result<()> {
        let (possible, online) = cpus::possible_and_online()?;
        let usual = (ENTRIES / online.max(1)).clamp(FEWEST, MOST_AT_FIRST);
        self.device = Some(device.clone());
        self.payload = payload;
        self.usual = usual.into();
        let own = (0..possible).skip(share.number).step_by(share.of);
        self.queues = own
            .map(|number| Queue {
                number,
                initial: if number < online { usual.into() } else { 1 },
                entries: 0,
                free: 0,
                starved: false,
            })
            .collect();
        Ok(())
    }

    /// Registers the entries. It must be called by the thread that will use the ring.
    pub fn start(&mut self) -> io::Result<()> {
        self.uring.submitter().register_enable_rings()?;
        // This makes each wait a little cheaper; some kernels and sandboxes refuse it.
        let _ = self.uring.submitter().register_ring_fd();
        self.shared.set_own();
        let shared = self.shared.clone();
        self.watch(shared.event_fd(), IGNORED, libc_events::IN)?;
        self.grow()?;
        self.submit()
    }

    fn push(&mut self, sqe: &squeue::Entry128) -> io::Result<()> {
        if self.uring.submission().is_full() {
            self.submit()?;
        }
        // SAFETY: the SQE refers to a buffer of an entry, which stays mapped as long as the kernel
        // has it (`Buffers`), or to a descriptor.
        unsafe { self.uring.submission().push(sqe) }.map_err(io::Error::other)
    }

    fn submit(&mut self) -> io::Result<()> {
        match self.uring.submit() {
            Ok(_) => Ok(()),
            // There are too many completions, which have to be taken first.
            Err(error) if is(&error, Errno::BUSY) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// From now on, [`Ring::wait`] returns `data` each time one of these events of `fd` occurs.
    pub fn watch(&mut self, fd: BorrowedFd<'_>, data: u64, events: u32) -> io::Result<()> {
        let watch = Watch {
            id: self.next_watch,
            data,
            fd: fd.as_raw_fd(),
            events,
        };
        self.next_watch += 1;
        self.arm(&watch)?;
        self.watches.push(watch);
        Ok(())
    }

    fn arm(&mut self, watch: &Watch) -> io::Result<()> {
        let poll = opcode::PollAdd::new(types::Fd(watch.fd), watch.events).multi(true);
        let sqe = squeue::Entry128::from(poll.build()).user_data(WATCH | watch.id);
        self.push(&sqe)
    }

    /// Stops waiting for `fd`. The kernel keeps no reference to it afterwards.
    pub fn unwatch(&mut self, fd: BorrowedFd<'_>) -> io::Result<()> {
        let raw = fd.as_raw_fd();
        while let Some(at) = self.watches.iter().position(|watch| watch.fd == raw) {
            let watch = self.watches.swap_remove(at);
            let remove = opcode::PollRemove::new(WATCH | watch.id).build();
            self.push(&squeue::Entry128::from(remove).user_data(IGNORED))?;
        }
        // In a wait without a length the kernel also finishes the removed polls.
        self.enter(Some(Duration::ZERO))
    }

    /// Registers entries for the queues that have too few free ones.
    fn grow(&mut self) -> io::Result<()> {
        for at in 0..self.queues.len() {
            let queue = &self.queues[at];
            let (number, missing) = (queue.number, queue.missing(self.usual));
            if missing > 0 && queue.entries > 0 && self.full {
                continue;
            }
            if missing > 0 {
                // All entries may be taken, which completions no longer show once there are more.
                let queue = &mut self.queues[at];
                queue.starved |= queue.entries > 0;
            }
            for _ in 0..missing {
                let buffers = match Buffers::new(self.payload) {
                    Ok(buffers) => Arc::new(buffers),
                    Err(error) if self.queues[at].entries > 0 => {
                        tracing::warn!("no memory for more requests at a time: {error}");
                        self.full = true;
                        break;
                    }
                    Err(error) => return Err(error),
                };
                let queue = &mut self.queues[at];
                queue.entries += 1;
                queue.free += 1;
                buffers.set_in_kernel(true);
                let index = self.entries.len() as u32;
                let sqe = sqe::register(self.device_fd()?, number, buffers.iovecs(), index.into());
                self.entries.push(Entry {
                    queue: number,
                    buffers,
                    commit_id: 0,
                });
                self.push(&sqe)?;
            }
        }
        Ok(())
    }

    fn device_fd(&self) -> io::Result<RawFd> {
        let device = self.device.as_ref();
        let device = device.ok_or_else(|| io::Error::other("the ring has no device"))?;
        Ok(device.as_fd().as_raw_fd())
    }

    fn queue(&mut self, number: u16) -> Option<&mut Queue> {
        self.queues.iter_mut().find(|queue| queue.number == number)
    }

    /// Puts the replies that were given into the submission queue.
    fn commit(&mut self) -> io::Result<()> {
        let mut commits = std::mem::take(&mut self.commits);
        self.shared.take(&mut commits, &mut self.calls);
        for commit in commits.drain(..) {
            let fd = self.device_fd()?;
            let Some(entry) = self.entries.get(commit.entry as usize) else {
                continue;
            };
            // SAFETY: the reply was given, so the entry belongs to this thread again.
            unsafe {
                let mut payload = commit.payload;
                if let Some(kept) = &commit.kept
                    && !entry.buffers.write_payload(&[kept])
                {
                    payload = 0;
                }
                let mut headers: [u8; HEADERS] = entry.buffers.headers();
                layout::put_reply(&mut headers, commit.unique, commit.error, payload);
                entry.buffers.set_headers(&headers);
            }
            entry.buffers.set_in_kernel(true);
            self.given_back.push(commit.entry);
            let number = entry.queue;
            let sqe = sqe::commit_and_fetch(fd, number, entry.commit_id, commit.entry.into());
            self.push(&sqe)?;
            if let Some(queue) = self.queue(number) {
                queue.free += 1;
            }
        }
        // The allocation is used again.
        self.commits = commits;
        Ok(())
    }

    /// Submits the replies that were given, and waits until something happens or `timeout` is over.
    /// Requests are kept for `hand_over`; descriptors that are ready are added to `ready`.
    pub fn wait(&mut self, timeout: Option<Duration>, ready: &mut Vec<Ready>) -> io::Result<()> {
        self.commit()?;
        self.grow()?;
        let at_once = !self.calls.is_empty() || !self.arrived.is_empty() || !self.ready.is_empty();
        let sleeps = !at_once && timeout != Some(Duration::ZERO) && self.shared.sleep();
        let result = self.enter(if sleeps {
            timeout
        } else {
            Some(Duration::ZERO)
        });
        if sleeps {
            self.shared.woken();
        }
        self.look_at_starved();
        ready.append(&mut self.ready);
        result
    }

    /// Updates which queues are starved. A queue is not, if an entry that was given back has got no
    /// request. That is not known while the kernel has more completions than it makes at a time.
    fn look_at_starved(&mut self) {
        let mut given_back = std::mem::take(&mut self.given_back);
        let all = self.reaped < FEW && !self.uring.submission().taskrun();
        if all && self.queues.iter().any(|queue| queue.starved) {
            for index in &given_back {
                let entry = &self.entries[*index as usize];
                if entry.buffers.is_in_kernel()
                    && let number = entry.queue
                    && let Some(queue) = self.queue(number)
                {
                    queue.starved = false;
                }
            }
        }
        let starved = || self.queues.iter().filter(|queue| queue.starved);
        if starved().next().is_some() || self.told_starved {
            self.told_starved = starved().next().is_some();
            *self.shared.starved.lock() = starved().map(|queue| queue.number).collect();
        }
        given_back.clear();
        self.given_back = given_back;
    }

    /// Submits, waits, and handles all completions.
    fn enter(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        let time;
        let mut args = types::SubmitArgs::new();
        if let Some(timeout) = timeout {
            time = types::Timespec::from(timeout);
            args = args.timespec(&time);
        }
        match self.uring.submitter().submit_with_args(1, &args) {
            Ok(_) => {}
            Err(error)
                if [Errno::TIME, Errno::INTR, Errno::BUSY, Errno::AGAIN]
                    .iter()
                    .any(|&errno| is(&error, errno)) => {}
            Err(error) => return Err(error),
        }
        self.reap()
    }

    fn reap(&mut self) -> io::Result<()> {
        self.reaped = 0;
        loop {
            let Some(cqe) = self.uring.completion().next() else {
                return Ok(());
            };
            self.reaped += 1;
            let data = cqe.user_data();
            if data & WATCH != 0 {
                self.watched(data & !WATCH, cqe.result(), cqueue::more(cqe.flags()))?;
            } else if data & IGNORED == 0 {
                self.completed(data as u32, cqe.result());
            }
        }
    }

    fn watched(&mut self, id: u64, result: i32, goes_on: bool) -> io::Result<()> {
        let Some(at) = self.watches.iter().position(|watch| watch.id == id) else {
            return Ok(());
        };
        if result < 0 {
            let watch = self.watches.swap_remove(at);
            if watch.data == IGNORED {
                return Err(io::Error::from_raw_os_error(-result));
            }
            // The poll failed: whoever reads the descriptor gets the error.
            self.ready.push(Ready {
                data: watch.data,
                events: libc_events::ERR,
            });
            return Ok(());
        }
        let watch = &self.watches[at];
        if watch.data != IGNORED {
            self.ready.push(Ready {
                data: watch.data,
                events: result as u32,
            });
        }
        if !goes_on {
            let watch = self.watches.swap_remove(at);
            self.arm(&watch)?;
            self.watches.push(watch);
        }
        Ok(())
    }

    /// The command of an entry has completed, with a request or with an error.
    fn completed(&mut self, index: u32, result: i32) {
        let Some(entry) = self.entries.get(index as usize) else {
            return;
        };
        entry.buffers.set_in_kernel(false);
        let (number, is_new) = (entry.queue, entry.commit_id == 0);
        if let Some(queue) = self.queue(number) {
            queue.free = queue.free.saturating_sub(1);
            queue.starved |= queue.free == 0;
        }
        if result >= 0 {
            self.arrived.push(index);
            return;
        }
        match Errno::from_raw_os_error(-result) {
            Errno::NOTCONN | Errno::CONNABORTED | Errno::NODEV | Errno::CANCELED => {
                self.ended = true;
            }
            // The queue has other entries.
            errno if is_new && self.lose_entry(number) => {
                if !self.full {
                    tracing::warn!("no more requests at a time by io_uring: {errno}");
                }
                self.full = true;
            }
            errno => self.refused = Some(errno),
        }
    }

    /// The kernel refused a new entry. False if it was the only one of its queue.
    fn lose_entry(&mut self, number: u16) -> bool {
        let queue = self.queue(number).filter(|queue| queue.entries > 1);
        queue.is_some_and(|queue| {
            queue.entries -= 1;
            true
        })
    }

    /// Calls `handle` with each request that has arrived, and where its reply goes. False if the
    /// mount is gone.
    pub(crate) fn hand_over(
        &mut self,
        mut handle: impl FnMut(&[u8], Answer) -> io::Result<()>,
    ) -> io::Result<bool> {
        let mut arrived = std::mem::take(&mut self.arrived);
        for index in arrived.drain(..) {
            let entry = &mut self.entries[index as usize];
            // SAFETY: the command of the entry has completed, so the entry belongs to this thread.
            let headers = unsafe { entry.buffers.headers() };
            let found = layout::arrived(&headers);
            entry.commit_id = found.commit_id;
            let answer = Answer {
                ring: self.shared.clone(),
                buffers: entry.buffers.clone(),
                entry: index,
            };
            let Some(first) = found
                .first_argument
                .filter(|_| found.payload <= self.payload)
            else {
                tracing::error!("a request of the kernel has lengths that contradict each other");
                let _ = answer.send(found.unique, -Errno::IO.raw_os_error(), &[]);
                continue;
            };
            let (parts, buffers) = (layout::parts(&headers, first), &entry.buffers);
            // SAFETY: the entry belongs to this thread until the reply is given. The reply does not
            // write to lent buffers, and this thread takes it up only later.
            unsafe { buffers.lend(parts, found.payload, |request| handle(request, answer)) }?;
        }
        self.arrived = arrived;
        if let Some(errno) = self.refused {
            return Err(errno.into());
        }
        Ok(!self.ended)
    }

    /// The thread whose requests are answered without handing them over ([`relief`]); 0 if there is
    /// none.
    pub(crate) fn relief(&self) -> u32 {
        self.shared.relief.load(Ordering::Relaxed)
    }

    /// The end of a round: call it after all requests that have arrived were handed over.
    pub(crate) fn end_round(&mut self) {
        // The kernel may have more completions than it makes at a time.
        if !self.calls.is_empty() && !self.uring.submission().taskrun() {
            self.calls.drain(..).for_each(|call| call());
        }
    }
}

mod libc_events {
    use rustix::event::PollFlags;
    pub(super) const IN: u32 = PollFlags::IN.bits() as u32;
    pub(super) const ERR: u32 = PollFlags::ERR.bits() as u32;
}

fn is(error: &io::Error, errno: Errno) -> bool {
    error.raw_os_error() == Some(errno.raw_os_error())
}

impl Drop for Ring {
    /// Waits for the entries that the kernel gives back at the end of the mount, so that their
    /// memory can be unmapped.
    fn drop(&mut self) {
        self.shared.close();
        let until = Instant::now() + LEAVE;
        let waits = |ring: &Self| {
            ring.ended
                && ring
                    .entries
                    .iter()
                    .any(|entry| entry.buffers.is_in_kernel())
        };
        while waits(self) && Instant::now() < until {
            if self.enter(Some(Duration::from_millis(50))).is_err() {
                break;
            }
        }
    }
}
