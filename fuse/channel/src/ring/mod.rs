//! Requests by io_uring (FUSE_OVER_IO_URING, Linux 6.14): the kernel puts a request into memory
//! of this process and completes an io_uring command, and the reply and the wait for the next
//! request are one command again.
//!
//! There is a queue for each possible CPU, for the requests of callers that run there, and a
//! queue has entries, each of which holds one request from its arrival to its reply. REGISTER
//! gives an entry to the kernel, with a buffer for headers and one for the payload ([`buffers`],
//! [`layout`]). Its completion is a request. COMMIT_AND_FETCH replies to it and gives the entry
//! back. When each queue has an entry the kernel sends its requests there; what has no reply
//! (FORGET, INTERRUPT) still comes by /dev/fuse, and notifications still go there.
//!
//! A [`Ring`] is the io_uring of one thread, with the queues of some CPUs. In the same ring the
//! thread waits for descriptors (polls that stay), so that one io_uring_enter(2) submits the
//! replies of a round and waits for whatever comes next. Only this thread submits; replies of
//! other threads come by [`answer`].
//!
//! A request that finds no free entry waits in the kernel until another one of its queue is
//! answered. Requests that wait for long, such as those for a lock that somebody else has,
//! must not take all entries of a queue. So a number of entries, half of what the queue had at first,
//! is kept free: when fewer are free, more are registered. An entry that is free takes hardly any memory: the kernel
//! uses the entry first that was used last, and pages of the others are never touched. If all
//! entries are taken nevertheless, [`relief`] gets the requests out that wait in the kernel.

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

/// Entries registered at first for the queues of all CPUs, and the bounds of what one gets.
const ENTRIES: u16 = 256;
const FEWEST: u16 = 8;
const MOST_AT_FIRST: u16 = 64;
/// The kernel makes at least so many completions at a time, if it has them (20 in Linux 6.18).
const FEW: usize = 16;
/// How long entries are waited for at the end of a mount.
const LEAVE: Duration = Duration::from_secs(2);

/// Completions of watches have this bit in their user data, and none has the other.
const WATCH: u64 = 1 << 63;
const IGNORED: u64 = 1 << 62;

/// A descriptor that became ready.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ready {
    /// As it was given to [`Ring::watch`].
    pub data: u64,
    /// Those of poll(2).
    pub events: u32,
}

#[derive(Debug)]
struct Entry {
    queue: u16,
    buffers: Arc<Buffers>,
    /// Names the request that it holds.
    commit_id: u64,
}

#[derive(Debug)]
struct Watch {
    id: u64,
    data: u64,
    fd: RawFd,
    events: u32,
}

/// The requests of some CPUs, and the descriptors one thread waits for.
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
    /// Entries whose request has not been handed over.
    arrived: Vec<u32>,
    /// Entries that were given back with a reply in this round.
    given_back: Vec<u32>,
    /// Other threads have been told of queues that are starved.
    told_starved: bool,
    /// Completions that the last wait found.
    reaped: usize,
    /// No more entries can be registered.
    full: bool,
    ready: Vec<Ready>,
    commits: Vec<Commit>,
    /// To be called at the end of a round that began after they were left.
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

/// Learns of a ring's rounds; for other threads than the ring's.
#[derive(Debug, Clone)]
pub struct Rounds(Arc<Shared>);

impl Rounds {
    /// Has the ring's thread call this when it has handed over all requests that the kernel had
    /// given to the ring before. (Those that found no entry free are not among them.) It is
    /// dropped if the ring is gone.
    pub fn after(&self, call: impl FnOnce() + Send + 'static) {
        self.0.after_round(Box::new(call));
    }
}

/// The number of this ring, and of how many it is one.
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

    /// For other threads to learn of this ring's rounds.
    pub fn rounds(&self) -> Rounds {
        Rounds(self.shared.clone())
    }

    /// Gives it its queues, and the device of the mount. `payload`: the longest, in bytes.
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

    /// To be called by the thread that will use it: registers the entries.
    pub fn start(&mut self) -> io::Result<()> {
        self.uring.submitter().register_enable_rings()?;
        // Each wait is a little cheaper then; some kernels and sandboxes refuse.
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
        // SAFETY: what the SQE refers to is a buffer of an entry, which stays mapped as long as
        // the kernel has it (`Buffers`), or a descriptor.
        unsafe { self.uring.submission().push(sqe) }.map_err(io::Error::other)
    }

    fn submit(&mut self) -> io::Result<()> {
        match self.uring.submit() {
            Ok(_) => Ok(()),
            // Completions first: there are too many.
            Err(error) if is(&error, Errno::BUSY) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Waits for these events of `fd` from now on; each time they occur [`Ring::wait`] returns
    /// `data`.
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

    /// Ceases to wait for `fd`, of which nothing in the kernel is held afterwards.
    pub fn unwatch(&mut self, fd: BorrowedFd<'_>) -> io::Result<()> {
        let raw = fd.as_raw_fd();
        while let Some(at) = self.watches.iter().position(|watch| watch.fd == raw) {
            let watch = self.watches.swap_remove(at);
            let remove = opcode::PollRemove::new(WATCH | watch.id).build();
            self.push(&squeue::Entry128::from(remove).user_data(IGNORED))?;
        }
        // With a wait of no length the kernel also finishes what it has removed.
        self.enter(Some(Duration::ZERO))
    }

    /// Registers entries where too few are free.
    fn grow(&mut self) -> io::Result<()> {
        for at in 0..self.queues.len() {
            let queue = &self.queues[at];
            let (number, missing) = (queue.number, queue.missing(self.usual));
            if missing > 0 && queue.entries > 0 && self.full {
                continue;
            }
            if missing > 0 {
                // Those that were there may all be taken, which their completions will tell, or
                // would have told before there were more.
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

    /// Puts the replies that have been given into the submission queue.
    fn commit(&mut self) -> io::Result<()> {
        let mut commits = std::mem::take(&mut self.commits);
        self.shared.take(&mut commits, &mut self.calls);
        for commit in commits.drain(..) {
            let fd = self.device_fd()?;
            let Some(entry) = self.entries.get(commit.entry as usize) else {
                continue;
            };
            // SAFETY: the reply has been given, and the entry belongs to this thread again.
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
        // Its space is used again.
        self.commits = commits;
        Ok(())
    }

    /// Submits the replies that have been given, and waits until something has happened or
    /// `timeout` is over. Requests are kept for [`Ring::hand_over`]; descriptors that are ready
    /// are added to `ready`.
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

    /// An entry that was given back and has no request now found none waiting. That is not known
    /// while the kernel has more completions than it makes at a time.
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

    /// Submits, waits, and takes all completions.
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
            // It cannot be waited for: whoever reads it learns why.
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

    /// The command of an entry has completed: with a request, or because it ends.
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
            // Others are there.
            errno if is_new && self.lose_entry(number) => {
                if !self.full {
                    tracing::warn!("no more requests at a time by io_uring: {errno}");
                }
                self.full = true;
            }
            errno => self.refused = Some(errno),
        }
    }

    /// The kernel did not take a new entry; `false` if it was the last one of its queue.
    fn lose_entry(&mut self, number: u16) -> bool {
        let queue = self.queue(number).filter(|queue| queue.entries > 1);
        queue.is_some_and(|queue| {
            queue.entries -= 1;
            true
        })
    }

    /// Gives each request that has arrived, and where its reply goes, to `handle`. `false` if the
    /// mount is gone.
    pub(crate) fn hand_over(
        &mut self,
        mut handle: impl FnMut(&[u8], Answer) -> io::Result<()>,
    ) -> io::Result<bool> {
        let mut arrived = std::mem::take(&mut self.arrived);
        for index in arrived.drain(..) {
            let entry = &mut self.entries[index as usize];
            // SAFETY: the command of the entry has completed: it belongs to this thread.
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
            // SAFETY: it does so until the reply is given, which leaves lent buffers alone and
            // is taken up by this thread, later.
            unsafe { buffers.lend(parts, found.payload, |request| handle(request, answer)) }?;
        }
        self.arrived = arrived;
        if let Some(errno) = self.refused {
            return Err(errno.into());
        }
        Ok(!self.ended)
    }

    /// The thread whose requests are only to be answered, and not handed over; 0 if there is none.
    pub(crate) fn relief(&self) -> u32 {
        self.shared.relief.load(Ordering::Relaxed)
    }

    /// To be called after all that has arrived was handed over: the end of a round.
    pub(crate) fn end_round(&mut self) {
        // The kernel may have more than it completes at a time.
        if !self.calls.is_empty() && !self.uring.submission().taskrun() {
            self.calls.drain(..).for_each(|call| call());
        }
    }
}

/// The events of poll(2) that are used here.
mod libc_events {
    use rustix::event::PollFlags;
    pub(super) const IN: u32 = PollFlags::IN.bits() as u32;
    pub(super) const ERR: u32 = PollFlags::ERR.bits() as u32;
}

fn is(error: &io::Error, errno: Errno) -> bool {
    error.raw_os_error() == Some(errno.raw_os_error())
}

impl Drop for Ring {
    /// Waits for the entries that the kernel gives back at the end of the mount, whose memory can
    /// then be unmapped.
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
