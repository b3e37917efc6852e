//! The server as the other rooms of the file system see it: the connection, the pool of buffers, the
//! settings, the clock, and what all calls share. It knows no object.
//!
//! Calls that this machine could not send for lack of memory are made again on a `hard` mount
//! ([`Server::again`]).

use super::clock::{Clock, Nanos, nanos};
use super::config::FsConfig;
use super::error::{FsError, FsResult};
use super::file::Shared;
use super::inode::Times;
use crate::sync::Mutex;
use crate::sync::atomic::AtomicBool;
use nfsrdma_nfs3::{Driver, Limits, Nfs3, NfsError};
use nfsrdma_rdma::{BufMut, Pool};
use nfsrdma_rpcrdma::throttle::Throttle;
use nfsrdma_xdr::nfs3::FileType;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// The pause between two attempts to send a call for which this machine had no memory: nfs(5) has a hard
/// mount try for ever.
const RETRY_PAUSE: Duration = Duration::from_millis(200);
/// Attempts while the mount is being shut down, when memory may never come back.
const RETRIES_AT_END: u32 = 50;
/// Attempts to get memory, [`RETRY_PAUSE`] apart, at which no call is under way.
const IDLE_LOOKS: u32 = 11;
/// The same where nobody waits for memory for long.
const QUICK_LOOKS: u32 = 2;

#[derive(Debug)]
pub struct Server<N> {
    pub(super) nfs: Arc<N>,
    pub(super) pool: Pool,
    pub(super) config: FsConfig,
    clock: Clock,
    pub(super) shared: Arc<Shared>,
    /// Calls that this machine could not send.
    unsent: Mutex<Throttle<Duration>>,
    /// The mount is being shut down.
    closing: AtomicBool,
    /// The kernel sends no more requests ([`Server::end_of_requests`]).
    ended: AtomicBool,
}

impl<N: Nfs3> Server<N> {
    pub(super) fn new(
        nfs: Arc<N>,
        pool: Pool,
        config: FsConfig,
        clock: Clock,
        shared: Arc<Shared>,
    ) -> Self {
        Server {
            nfs,
            pool,
            config,
            clock,
            shared,
            unsent: Mutex::default(),
            closing: AtomicBool::new(false),
            ended: AtomicBool::new(false),
        }
    }

    /// The connections, to be polled by event loops.
    pub fn drivers(&self) -> Vec<Driver> {
        self.nfs.drivers()
    }

    /// Sends the calls that wait to be sent together ([`nfsrdma_rpcrdma::exec::deferring`]).
    pub fn send_deferred(&self) {
        self.nfs.kick();
    }

    pub(super) fn now(&self) -> Nanos {
        self.clock.now()
    }

    /// Whether attributes of files are valid for any time.
    pub fn keeps_attributes(&self) -> bool {
        !self.config.times.acregmax.is_zero()
    }

    /// The longest name at the server, in bytes.
    pub fn name_max(&self) -> u32 {
        self.config.name_max
    }

    pub(super) fn limits(&self) -> Limits {
        self.nfs.limits()
    }

    pub(super) fn times(&self, kind: FileType) -> Times {
        let times = self.config.times;
        let (min, max) = match kind {
            FileType::Directory => (times.acdirmin, times.acdirmax),
            _ => (times.acregmin, times.acregmax),
        };
        Times {
            min: nanos(min),
            max: nanos(max.max(min)),
        }
    }

    /// A buffer for the data of a WRITE; `None` if little of the pool is left.
    pub fn write_buffer(&self, len: usize) -> Option<BufMut> {
        match self.is_short_of_buffers() {
            true => None,
            false => self.pool.alloc(len),
        }
    }

    /// Whether less than a sixteenth of the buffer pool is left.
    pub fn is_short_of_buffers(&self) -> bool {
        self.pool.free_bytes() < self.pool.capacity() / 16
    }

    /// Whether there are calls, or data to be written or committed, that will give memory back.
    pub(super) fn is_busy(&self) -> bool {
        let shared = &self.shared;
        [&shared.busy, &shared.dirty, &shared.uncommitted]
            .iter()
            .any(|count| count.load(Ordering::Relaxed) > 0)
    }

    /// Fails at the end of the mount: no more data is accepted, because the locks are released.
    pub(super) fn not_ended(&self) -> FsResult<()> {
        match self.ended.load(Ordering::Relaxed) {
            true => Err(FsError::Ended),
            false => Ok(()),
        }
    }

    pub(super) fn at_end(&self) -> bool {
        self.closing.load(Ordering::Relaxed) || self.ended.load(Ordering::Relaxed)
    }

    /// Whether a call that ended with `error` is to be sent again; returns after a pause if so.
    ///
    /// An empty buffer pool and a failed registration are temporary failures of this machine, and
    /// so is the loss of the call's buffers with a connection: a `hard` mount repeats the call.
    /// Data that was not answered stays dirty meanwhile.
    pub(super) async fn again(&self, error: &NfsError, tries: &mut u32) -> bool {
        let passing = match error {
            NfsError::Local(_) => true,
            // At the end of the mount its connections end for good.
            NfsError::Interrupted => !self.at_end(),
            _ => false,
        };
        if !passing || !self.config.hard || (self.at_end() && *tries >= RETRIES_AT_END) {
            return false;
        }
        if *tries == 0 {
            let now = Duration::from_nanos(self.now());
            if let Some(more) = self.unsent.lock().event(now) {
                tracing::warn!(%error, more, "a call could not be sent: it is tried again");
            }
        }
        *tries = tries.saturating_add(1);
        self.shared.budget.reclaim(1 << 20);
        self.pause().await;
        true
    }

    /// Waits before an attempt to get memory again: until it is notified that some was `freed`, or for a
    /// while, because not all calls notify anybody. At the first of `looks` it does not wait: the caller has
    /// just dropped clean data. False if no call was under way at [`IDLE_LOOKS`] attempts in a row, with
    /// `hard`: all memory is held by operations that wait here for more, and one of them has to fail.
    pub(super) async fn memory_may_come_back(
        &self,
        freed: impl Future<Output = ()>,
        looks: &mut u32,
    ) -> bool {
        let (first, hard) = (*looks == 0, self.config.hard && !self.at_end());
        *looks = match self.is_busy() || hard && !self.nfs.is_idle() {
            true => 1,
            false => *looks + 1,
        };
        if *looks > if hard { IDLE_LOOKS } else { QUICK_LOOKS } {
            return false;
        }
        if !first {
            tokio::select! {
                // Only those that are [`RETRY_PAUSE`] apart count.
                () = freed => *looks = (*looks - 1).max(1),
                () = self.pause() => {}
            }
        }
        true
    }

    /// Waits for [`RETRY_PAUSE`].
    pub(super) async fn pause(&self) {
        self.nfs.sleep(RETRY_PAUSE).await;
    }

    /// The kernel will send no more requests. Data that still waits for room in the cache is not
    /// accepted any more: its write(2) has failed with the end of the mount, and the last flush
    /// could write only a part of it.
    pub fn end_of_requests(&self) {
        self.ended.store(true, Ordering::Relaxed);
    }

    /// The mount is being shut down.
    pub(super) fn close(&self) {
        self.closing.store(true, Ordering::Relaxed);
    }
}
