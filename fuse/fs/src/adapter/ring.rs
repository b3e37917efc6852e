//! The event loop of a worker whose requests come by io_uring.
//!
//! Requests of a CPU come to the worker that has its queue, so each worker always listens, and
//! there is nobody to invite. In place of epoll the ring itself waits for the connection: a round
//! submits the replies of the one before and waits for requests and for the connection, all with
//! one system call.
//!
//! What has no reply (FORGET, INTERRUPT) still comes by /dev/fuse, which the first worker reads.

use super::unmount::OwnMount;
use super::worker::{CONNECTION, DEVICE, Found, WAKE, Worker};
use nfsrdma_channel::{ReadResult, Reader, Ready, Ring, Rounds};
use nfsrdma_nfs3::Nfs3;
use nfsrdma_rpcrdma::exec;
use rustix::event::PollFlags;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Reads of the device in one round, at most.
const MOST_READS: u32 = 64;

const IN: u32 = PollFlags::IN.bits() as u32;
const OUT: u32 = PollFlags::OUT.bits() as u32;
const END: u32 =
    PollFlags::RDHUP.bits() as u32 | PollFlags::HUP.bits() as u32 | PollFlags::ERR.bits() as u32;

fn ring(reader: &mut Reader) -> io::Result<&mut Ring> {
    let none = || io::Error::other("the worker has no ring");
    reader.ring().ok_or_else(none)
}

/// Looks after requests that wait in the kernel though entries are free
/// ([`nfsrdma_channel::Rounds::relieve`]).
pub(super) struct Relief {
    rounds: Vec<Rounds>,
    mount: Arc<OwnMount>,
    under_way: Arc<AtomicBool>,
}

impl Relief {
    pub(super) fn new(rounds: Vec<Rounds>, mount: Arc<OwnMount>) -> Self {
        Relief {
            rounds,
            mount,
            under_way: Arc::default(),
        }
    }

    /// To be called from time to time. Relief is a thread of its own: it may have to wait.
    pub(super) fn look_after(&self) {
        let starved: Vec<Rounds> = self
            .rounds
            .iter()
            .filter(|r| r.is_starved())
            .cloned()
            .collect();
        if starved.is_empty() || self.under_way.swap(true, Ordering::SeqCst) {
            return;
        }
        let (mount, under_way) = (self.mount.clone(), self.under_way.clone());
        let relieve = move || {
            if let Some(root) = mount.root() {
                starved
                    .iter()
                    .for_each(|rounds| rounds.relieve(root.as_fd()));
            }
            under_way.store(false, Ordering::SeqCst);
        };
        let thread = std::thread::Builder::new()
            .name("relief".into())
            .spawn(relieve);
        if let Err(error) = thread {
            tracing::warn!("requests may wait: {error}");
            self.under_way.store(false, Ordering::SeqCst);
        }
    }
}

impl<N: Nfs3> Worker<N> {
    /// Serves until the mount is gone.
    pub(super) fn run_on_ring(mut self, mut reader: Reader) -> io::Result<()> {
        let result = self.serve_ring(&mut reader);
        // Nobody else can serve the queues of this worker.
        self.all.ended.store(true, Ordering::SeqCst);
        result
    }

    fn serve_ring(&mut self, reader: &mut Reader) -> io::Result<()> {
        let event_fd = self.event_fd.clone();
        let device = (self.number == 0).then(|| reader.as_fd().try_clone_to_owned());
        let device = device.transpose()?;
        let ring_of_worker = ring(reader)?;
        ring_of_worker.watch(event_fd.as_fd(), WAKE, IN)?;
        if let Some(device) = &device {
            ring_of_worker.watch(device.as_fd(), DEVICE, IN)?;
        }
        ring_of_worker.start()?;
        let mut ready = Vec::with_capacity(8);
        let mut unread = false;
        loop {
            let found = self.wait_on_ring(ring(reader)?, unread, &mut ready)?;
            if found.rung {
                self.accept_on_ring(ring(reader)?)?;
            }
            let served = exec::deferring(|| {
                self.poll_on_ring(ring(reader)?, found.connections)?;
                let result = reader.read_ring(&*self.adapter)?;
                unread = found.request && self.read_device(reader)?;
                Ok::<_, io::Error>(result)
            });
            self.adapter.fs.send_deferred();
            if served? == ReadResult::Ended {
                self.all.ended.store(true, Ordering::SeqCst);
            }
            if self.all.ended.load(Ordering::SeqCst) {
                return Ok(());
            }
        }
    }

    /// Waits until there is something to do. `unread`: the device has more.
    fn wait_on_ring(
        &mut self,
        ring: &mut Ring,
        unread: bool,
        ready: &mut Vec<Ready>,
    ) -> io::Result<Found> {
        let mut found = Found {
            request: unread,
            ..Found::default()
        };
        let until;
        (found.connections, until) = self.arm();
        let timeout = if unread || found.connections != 0 {
            Some(Duration::ZERO)
        } else {
            until.map(|at| at.saturating_duration_since(Instant::now()))
        };
        ready.clear();
        ring.wait(timeout, ready)?;
        for Ready { data, events } in ready.drain(..) {
            match data {
                DEVICE => found.request = true,
                WAKE => found.rung = true,
                other => {
                    let index = (other - CONNECTION) as usize;
                    found.connections |= 1 << index;
                    if events & END != 0
                        && let Some(driver) = self.drivers.get_mut(index)
                    {
                        driver.hung_up();
                    }
                }
            }
        }
        if until.is_some_and(|at| at <= Instant::now()) {
            // Time has come for one of them.
            found.connections = u64::MAX;
        }
        self.drivers.iter_mut().for_each(|driver| driver.disarm());
        Ok(found)
    }

    /// Takes the connections that were lent.
    fn accept_on_ring(&mut self, ring: &mut Ring) -> io::Result<()> {
        for (index, driver) in self.drivers.iter_mut().enumerate() {
            if driver.accept() {
                for descriptor in driver.descriptors() {
                    ring.watch(descriptor, CONNECTION + index as u64, IN | OUT | END)?;
                }
            }
        }
        Ok(())
    }

    /// Takes what the connections in this set have brought.
    fn poll_on_ring(&mut self, ring: &mut Ring, connections: u64) -> io::Result<()> {
        let mut result = Ok(());
        for (index, driver) in self.drivers.iter_mut().enumerate() {
            if connections & 1 << index != 0 {
                driver.poll(|descriptor| {
                    let removed = ring.unwatch(descriptor);
                    if result.is_ok() {
                        result = removed;
                    }
                });
            }
        }
        result
    }

    /// Reads what comes by the device; whether there may be more.
    fn read_device(&mut self, reader: &mut Reader) -> io::Result<bool> {
        for _ in 0..MOST_READS {
            match reader.read(&*self.adapter, &mut self.landing)? {
                ReadResult::Handled => {}
                ReadResult::Empty => return Ok(false),
                ReadResult::Ended => {
                    self.all.ended.store(true, Ordering::SeqCst);
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }
}
