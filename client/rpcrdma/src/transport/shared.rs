//! What a transport and its connection slots share: the server's address and options, the XIDs, the
//! memory for marshalling, and the log.
//!
//! Messages that a failing server could cause many times a second are logged at most once a minute,
//! with the number of those left out. "Not responding" and "OK" are logged once for each change, in
//! the words of Linux's client.

use super::calls::Calls;
use super::counters::Procedures;
use super::marshal::Marshaller;
use crate::options::{Program, Recovery};
use crate::rpc::{RetryPolicy, Xids};
use crate::sync::Mutex;
use crate::tap::Tap;
use crate::throttle::{Throttle, and_more};
use crate::words::counted;
use nfsrdma_rdma::{Instant, Provider};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// The state that all connection slots of a transport share.
pub(super) struct Shared {
    pub(super) provider: Arc<dyn Provider>,
    pub(super) peer: SocketAddr,
    /// The server's name in the log.
    pub(super) server: String,
    pub(super) program: Program,
    pub(super) marshaller: Marshaller,
    pub(super) calls: Calls,
    pub(super) credits: u32,
    pub(super) inline: u32,
    pub(super) reads_in: u32,
    /// Whether the connections have different ways to the server.
    pub(super) several_paths: bool,
    pub(super) connect_timeout: Duration,
    pub(super) policy: RetryPolicy,
    pub(super) procedures: Procedures,
    pub(super) tap: Arc<Tap>,
    pub(super) xids: Xids,
    /// "Not responding" was logged, and not "OK" since.
    pub(super) unresponsive: AtomicBool,
    /// Calls under way that have waited longer than their major timeout.
    pub(super) late: AtomicU64,
    /// Number of connections that have ended.
    pub(super) lost: AtomicU64,
    pub(super) log: Logs,
}

/// Messages that are logged at most once a minute, with a count of those left out.
#[derive(Debug, Default)]
pub(super) struct Logs {
    ends: Mutex<Throttle<Instant>>,
    losses: Mutex<Throttle<Instant>>,
    returns: Mutex<Throttle<Instant>>,
    failures: Mutex<Throttle<Instant>>,
    discards: Mutex<Throttle<Instant>>,
    memory: Mutex<Throttle<Instant>>,
}

impl Shared {
    /// The name of a procedure, for messages.
    pub(super) fn procedure(&self, number: usize) -> &'static str {
        let name = self.program.procedures.get(number);
        name.copied().unwrap_or("a call")
    }

    /// A call has waited longer than `timeo` and `retrans` allow; `why` there is no connection, if that is so. Logged once,
    /// until [`Shared::answered`].
    pub(super) fn not_responding(&self, why: Option<String>) {
        if !self.unresponsive.swap(true, Relaxed) {
            // As Linux words it (xs_retry_reserve, call_timeout in net/sunrpc/clnt.c).
            let then = match self.policy.recovery {
                Recovery::Hard => "still trying",
                Recovery::Soft | Recovery::SoftErr => "timed out",
            };
            let why = why.map_or_else(String::new, |why| format!(": {why}"));
            tracing::warn!("server {} not responding, {then}{why}", self.server);
        }
    }

    /// A connection ended, other than by a shutdown.
    pub(super) fn connection_lost(&self, why: &str, calls: usize) {
        if calls == 0 {
            // Servers may hang up on an idle client.
            if let Some(more) = self.log.ends.lock().event(Instant::now()) {
                let more = and_more(more);
                tracing::info!("connection to server {} ended: {why}{more}", self.server);
            }
        } else if let Some(more) = self.log.losses.lock().event(Instant::now()) {
            let more = and_more(more);
            tracing::warn!(
                "connection to server {} lost with {} under way, which will be sent again: {why}{more}",
                self.server,
                counted(calls, "call")
            );
        }
    }

    /// There is a connection again, so long after the last one had ended.
    pub(super) fn connected_again(&self, away: Duration) {
        if let Some(more) = self.log.returns.lock().event(Instant::now()) {
            let (seconds, more) = (away.as_secs(), and_more(more));
            tracing::warn!(
                "connected to server {} again, after {seconds} s{more}",
                self.server
            );
        }
    }

    /// A call failed because of the server.
    pub(super) fn call_failed(&self, why: &str) {
        if let Some(more) = self.log.failures.lock().event(Instant::now()) {
            let more = and_more(more);
            tracing::warn!("a call to server {} failed: {why}{more}", self.server);
        }
    }

    /// A reply was discarded; its call waits for its time-out.
    pub(super) fn reply_discarded(&self, why: &str) {
        if let Some(more) = self.log.discards.lock().event(Instant::now()) {
            let more = and_more(more);
            tracing::warn!(
                "a reply of server {} was discarded, its call will be sent again: {why}{more}",
                self.server
            );
        }
    }

    /// A call waits for memory of this machine.
    pub(super) fn memory_short(&self, why: &str) {
        if let Some(more) = self.log.memory.lock().event(Instant::now()) {
            let more = and_more(more);
            tracing::warn!(
                "calls to server {} wait for memory: {why}{more}",
                self.server
            );
        }
    }

    /// Logs how many messages were left out in the minute that is over.
    pub(super) fn check_logs(&self, now: Instant) {
        let logs = [
            (&self.log.ends, "connections ended without calls"),
            (&self.log.losses, "connections lost"),
            (&self.log.failures, "calls failed"),
            (&self.log.discards, "replies discarded"),
        ];
        for (throttle, what) in logs {
            if let Some(more) = throttle.lock().expired(now) {
                tracing::warn!(
                    "server {}: {more} more {what} in the last minute",
                    self.server
                );
            }
        }
        // Each wait is retried several times a second, so their number tells nothing.
        let _ = self.log.memory.lock().expired(now);
    }

    /// A call that was late has ended, with a reply or without.
    pub(super) fn late_ended(&self, by_reply: bool) {
        self.late.fetch_sub(1, Relaxed);
        if by_reply {
            self.answered();
        }
    }

    /// A reply arrived. While a late call still waits, the server answers some calls only.
    pub(super) fn answered(&self) {
        if self.unresponsive.load(Relaxed)
            && self.late.load(Relaxed) == 0
            && self.unresponsive.swap(false, Relaxed)
        {
            tracing::warn!("server {} OK", self.server);
        }
    }
}
