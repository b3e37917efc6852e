//! Event loops that serve a mount, one for each CPU.
//!
//! A worker waits for its own descriptor of /dev/fuse and for its own connection to the server,
//! both with one epoll instance. So the thread that reads a request also sends the call,
//! receives its reply and answers, on one CPU: waking another thread for any of these costs more
//! than the work itself. Calls of one round leave together at its end.
//!
//! Nothing in a round may block: requests of other processes, and replies, wait for it.
//!
//! /dev/fuse is watched with EPOLLEXCLUSIVE, so that a request wakes one of the workers that
//! sleep, and is level-triggered: a worker whose request was read by another one goes on. How many
//! workers watch it depends on the load ([`super::listeners`]); each polls its connection always.
//! Connections are edge-triggered ([`nfsrdma_rdma::CompletionQueue::descriptors`]).
//!
//! If only one worker listens, it looks for events for a while before it sleeps, as long as this
//! finds some most of the time ([`nfsrdma_rdma::Spin`]). Waking a thread on an idle CPU takes longer
//! than all other work for a small call.

use super::listeners::{Listeners, Load};
use super::state::Adapter;
use nfsrdma_channel::{Landing, ReadResult, Reader};
use nfsrdma_nfs3::{Driver, Nfs3};
use nfsrdma_rdma::{Armed, Attempts, BufMut, EventFd, Instant, Spin};
use nfsrdma_rpcrdma::exec;
use rustix::buffer::spare_capacity;
use rustix::event::Timespec;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Requests read in one round, at most.
const MOST_REQUESTS: u32 = 16;

/// For how long a worker looks for events before it sleeps. A server on this machine, or behind a
/// fast network, answers a small call in less time, and a program that was answered makes its next
/// request in less time. To wake a thread on an idle CPU takes up to 50 us in a virtual machine.
const SPIN: Duration = Duration::from_micros(100);

/// What an event is about; numbers from `CONNECTION` on are connections.
const DEVICE: u64 = 0;
const WAKE: u64 = 1;
const CONNECTION: u64 = 2;

/// What the workers of a mount share.
#[derive(Debug)]
pub(super) struct Workers {
    listeners: Listeners,
    event_fds: Vec<Arc<EventFd>>,
    /// The mount is gone, as a worker that listens has found.
    ended: AtomicBool,
    /// No requests are read.
    paused: AtomicBool,
}

impl Workers {
    pub(super) fn new(number: usize) -> io::Result<Arc<Self>> {
        let event_fds = (0..number).map(|_| EventFd::new().map(Arc::new));
        Ok(Arc::new(Workers {
            listeners: Listeners::new(number),
            event_fds: event_fds.collect::<io::Result<_>>()?,
            ended: AtomicBool::new(false),
            paused: AtomicBool::new(false),
        }))
    }

    /// Reads no more requests, which wait in the kernel, or goes on with it. What was read is answered. A worker
    /// that reads now ends its round first.
    pub(super) fn pause(&self, paused: bool) {
        self.paused.store(paused, Ordering::SeqCst);
        self.event_fds.iter().for_each(|event_fd| event_fd.notify());
    }

    fn wake(&self, worker: Option<usize>) {
        if let Some(event_fd) = worker.and_then(|worker| self.event_fds.get(worker)) {
            event_fd.notify();
        }
    }

    /// Lets one more worker listen if something holds up all that do. The caller calls this from
    /// time to time, and keeps `seen` for it between two calls.
    pub(super) fn look_after(&self, seen: &mut Vec<u64>) {
        if self.listeners.is_stuck(seen) {
            self.wake(self.listeners.invite());
        }
    }
}

/// Fills `events` with those that have happened or happen within `timeout`; `None` waits for ever.
fn wait_for_events(
    epoll: &OwnedFd,
    events: &mut Vec<epoll::Event>,
    timeout: Option<Duration>,
) -> io::Result<()> {
    // Kernels before 5.11 count whole milliseconds, so they are rounded up.
    let timeout = timeout.map(|left| Timespec {
        tv_sec: left.as_secs().min(3600) as i64,
        tv_nsec: i64::from(left.subsec_nanos().div_ceil(1_000_000)) * 1_000_000,
    });
    events.clear();
    match epoll::wait(epoll, spare_capacity(events), timeout.as_ref()) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// One event loop.
pub(super) struct Worker<N: Nfs3> {
    number: usize,
    all: Arc<Workers>,
    adapter: Arc<Adapter<N>>,
    drivers: Vec<Driver>,
    epoll: OwnedFd,
    /// Rung when a connection is lent to this worker, and when the worker is invited to listen.
    event_fd: Arc<EventFd>,
    listening: bool,
    load: Load,
    /// Spinning while a call is under way, which pays if the server is near, and while none is,
    /// which pays if a program makes its requests one after the other.
    spin_for_reply: Spin,
    spin_for_request: Spin,
    /// Looking for another request after one was read.
    more: Attempts,
    landing: Landing<BufMut>,
}

/// What a wait found.
#[derive(Debug, Default)]
struct Found {
    request: bool,
    rung: bool,
    /// One bit for each connection; there are few.
    connections: u64,
}

impl<N: Nfs3> Worker<N> {
    /// The worker with this number, which polls these connections.
    pub(super) fn new(
        all: &Arc<Workers>,
        number: usize,
        adapter: Arc<Adapter<N>>,
        drivers: Vec<Driver>,
    ) -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let event_fd = all.event_fds[number].clone();
        let edge = EventFlags::IN | EventFlags::ET;
        epoll::add(&epoll, &event_fd, EventData::new_u64(WAKE), edge)?;
        Ok(Worker {
            number,
            all: all.clone(),
            adapter,
            drivers,
            epoll,
            event_fd,
            listening: false,
            load: Load::new(Instant::now()),
            spin_for_reply: Spin::holding_cpu(SPIN),
            spin_for_request: Spin::holding_cpu(SPIN),
            more: Attempts::default(),
            landing: Landing::default(),
        })
    }

    /// Serves until the mount is gone.
    pub(super) fn run(mut self, mut reader: Reader) -> io::Result<()> {
        if self.adapter.fs.outlives_process() {
            reader.expect_successor();
        }
        for driver in &mut self.drivers {
            let event_fd = self.event_fd.clone();
            driver.attach(Arc::new(move || event_fd.notify()));
        }
        let mut events = Vec::with_capacity(8);
        self.read_again(&mut reader)?;
        loop {
            self.listen(&mut reader)?;
            let waited = Instant::now();
            self.all.listeners.waits(self.number);
            let (found, now) = self.wait(&mut events, waited)?;
            self.all.listeners.works(self.number);
            self.consider(waited, now);
            if found.rung {
                self.accept()?;
            }
            let ended = exec::deferring(now, || {
                self.poll(found.connections);
                match found.request {
                    true => self.read(&mut reader),
                    false => Ok(false),
                }
            });
            self.adapter.fs.send_deferred();
            if ended? {
                self.all.ended.store(true, Ordering::SeqCst);
            }
            if self.all.ended.load(Ordering::SeqCst) {
                return Ok(());
            }
        }
    }

    /// Begins to watch the device, or ceases to, as the listeners want it.
    fn listen(&mut self, reader: &mut Reader) -> io::Result<()> {
        let paused = self.all.paused.load(Ordering::SeqCst);
        let listens = !paused && self.all.listeners.listens(self.number);
        if listens == self.listening {
            return Ok(());
        }
        self.listening = listens;
        if listens {
            let flags = EventFlags::IN | EventFlags::EXCLUSIVE;
            epoll::add(&self.epoll, &reader, EventData::new_u64(DEVICE), flags)?;
        } else {
            epoll::delete(&self.epoll, &reader)?;
        }
        Ok(())
    }

    /// Invites another worker, or stops listening, as the load of the last rounds demands.
    fn consider(&mut self, waited: Instant, now: Instant) {
        if let Some(awake) = self.load.round(waited, now) {
            let invited = self.all.listeners.was_awake(self.number, awake);
            self.all.wake(invited);
        }
    }

    /// The connections that have something to do at once, and until when to wait at most.
    fn arm(&mut self) -> (u64, Option<Instant>) {
        let (mut connections, mut until) = (0, None);
        for (index, driver) in self.drivers.iter_mut().enumerate() {
            match driver.arm() {
                Armed::Ready => connections |= 1 << index,
                Armed::Idle(at) => until = Instant::first(until, at),
            }
        }
        (connections, until)
    }

    /// Waits until there is something to do. The time is `now`; returns that of the end, too.
    fn wait(
        &mut self,
        events: &mut Vec<epoll::Event>,
        mut now: Instant,
    ) -> io::Result<(Found, Instant)> {
        let mut found = Found::default();
        let until;
        (found.connections, until) = self.arm();
        if found.connections != 0 {
            wait_for_events(&self.epoll, events, Some(Duration::ZERO))?;
        } else if !self.spin(events, until, &mut now)? {
            let left = until.map(|at| at.saturating_duration_since(now));
            wait_for_events(&self.epoll, events, left)?;
            now = Instant::now();
        }
        for event in &*events {
            let (data, flags) = (event.data, event.flags);
            match data.u64() {
                DEVICE => found.request = true,
                WAKE => found.rung = true,
                other => {
                    let index = (other - CONNECTION) as usize;
                    found.connections |= 1 << index;
                    let end = EventFlags::RDHUP | EventFlags::HUP | EventFlags::ERR;
                    if flags.intersects(end)
                        && let Some(driver) = self.drivers.get_mut(index)
                    {
                        driver.hung_up();
                    }
                }
            }
        }
        if until.is_some_and(|at| at <= now) {
            // Time has come for one of them.
            found.connections = u64::MAX;
        }
        self.drivers.iter_mut().for_each(Driver::disarm);
        Ok((found, now))
    }

    /// Looks for events again and again before sleeping, where that pays. Returns whether there
    /// are some. The time is `now`, which goes on.
    fn spin(
        &mut self,
        events: &mut Vec<epoll::Event>,
        until: Option<Instant>,
        now: &mut Instant,
    ) -> io::Result<bool> {
        // If several workers listen, a request wakes another one while this one spins.
        if !self.all.listeners.alone(self.number) {
            return Ok(false);
        }
        let spin = match self.drivers.iter().any(Driver::awaits_reply) {
            true => &mut self.spin_for_reply,
            false => &mut self.spin_for_request,
        };
        spin.begin(*now);
        while until.is_none_or(|at| *now < at) && spin.again(*now) {
            wait_for_events(&self.epoll, events, Some(Duration::ZERO))?;
            *now = Instant::now();
            if !events.is_empty() {
                spin.found(|| *now);
                return Ok(true);
            }
            std::hint::spin_loop();
        }
        Ok(false)
    }

    /// Takes the connections that were lent.
    fn accept(&mut self) -> io::Result<()> {
        for (index, driver) in self.drivers.iter_mut().enumerate() {
            if driver.accept() {
                let data = EventData::new_u64(CONNECTION + index as u64);
                let edge = EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET;
                for descriptor in driver.descriptors() {
                    epoll::add(&self.epoll, descriptor, data, edge)?;
                }
            }
        }
        Ok(())
    }

    /// Takes what the connections in this set have brought.
    fn poll(&mut self, connections: u64) {
        let epoll = self.epoll.as_fd();
        for (index, driver) in self.drivers.iter_mut().enumerate() {
            if connections & 1 << index != 0 {
                driver.poll(|descriptor| {
                    // It was added, and is still open.
                    let _ = epoll::delete(epoll, descriptor);
                });
            }
        }
    }

    /// Takes what another process has read and not answered.
    fn read_again(&self, reader: &mut Reader) -> io::Result<()> {
        let _taking = self.adapter.queued.taking(self.number);
        exec::deferring(Instant::now(), || reader.again(&*self.adapter))?;
        self.adapter.fs.send_deferred();
        Ok(())
    }

    /// Reads requests, and answers those that memory can answer. Whether the mount is gone.
    pub(super) fn read(&mut self, reader: &mut Reader) -> io::Result<bool> {
        let _taking = self.adapter.queued.taking(self.number);
        let mut left = MOST_REQUESTS;
        loop {
            match reader.read(&*self.adapter, &mut self.landing)? {
                ReadResult::Handled => {}
                ReadResult::Empty => {
                    if left < MOST_REQUESTS {
                        self.more.made(left < MOST_REQUESTS - 1);
                    }
                    return Ok(false);
                }
                ReadResult::Ended => return Ok(true),
            }
            left -= 1;
            if left == MOST_REQUESTS - 1 && !self.more.is_due() {
                return Ok(false);
            }
            if left == 0 {
                self.more.made(true);
                return Ok(false);
            }
        }
    }
}

impl<N: Nfs3> Drop for Worker<N> {
    /// Others learn of the mount's end, or have to do without this worker, which failed.
    fn drop(&mut self) {
        if !self.all.ended.load(Ordering::SeqCst) {
            self.all.listeners.all_listen();
        }
        self.all
            .event_fds
            .iter()
            .for_each(|event_fd| event_fd.notify());
    }
}
