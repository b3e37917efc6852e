//! The atomics behind [`Stats`](crate::Stats).

use crate::stats::{ConnectionStats, LATENCY_BUCKETS, ProcedureStats};
use nfsrdma_xdr::nfs3::{ProcedureNumber, Status};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Of one procedure.
#[derive(Debug)]
pub(super) struct ProcedureCounters {
    calls: AtomicU64,
    errors: AtomicU64,
    /// Of these, those with an NFS status, in the order of [`Status::ALL`].
    statuses: Box<[AtomicU64]>,
    pub(super) resends: AtomicU64,
    pub(super) timeouts: AtomicU64,
    pub(super) bytes_sent: AtomicU64,
    bytes_received: AtomicU64,
    nanoseconds: AtomicU64,
    queued: AtomicU64,
    latency: [AtomicU64; LATENCY_BUCKETS],
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Bucket `i` holds what took less than 2^i microseconds.
fn bucket(time: Duration) -> usize {
    let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
    ((64 - micros.leading_zeros()) as usize).min(LATENCY_BUCKETS - 1)
}

impl Default for ProcedureCounters {
    fn default() -> Self {
        ProcedureCounters {
            calls: AtomicU64::default(),
            errors: AtomicU64::default(),
            statuses: Status::ALL.iter().map(|_| AtomicU64::default()).collect(),
            resends: AtomicU64::default(),
            timeouts: AtomicU64::default(),
            bytes_sent: AtomicU64::default(),
            bytes_received: AtomicU64::default(),
            nanoseconds: AtomicU64::default(),
            queued: AtomicU64::default(),
            latency: Default::default(),
        }
    }
}

impl ProcedureCounters {
    /// A call ended after `time`, `queued` of it before it was sent for the last time.
    pub(super) fn ended(&self, failed: bool, received: usize, time: Duration, queued: Duration) {
        self.calls.fetch_add(1, Relaxed);
        if failed {
            self.errors.fetch_add(1, Relaxed);
        }
        self.bytes_received.fetch_add(received as u64, Relaxed);
        self.nanoseconds.fetch_add(nanoseconds(time), Relaxed);
        self.queued.fetch_add(nanoseconds(queued), Relaxed);
        self.latency[bucket(time)].fetch_add(1, Relaxed);
    }

    /// A call that ended with a reply ended with an NFS error.
    pub(super) fn refused(&self, status: Status) {
        self.errors.fetch_add(1, Relaxed);
        if let Some(at) = Status::ALL.iter().position(|known| *known == status) {
            self.statuses[at].fetch_add(1, Relaxed);
        }
    }

    fn snapshot(&self, name: &'static str) -> ProcedureStats {
        let mut latency = [0; LATENCY_BUCKETS];
        for (to, from) in latency.iter_mut().zip(&self.latency) {
            *to = from.load(Relaxed);
        }
        let counted = |(status, count): (&Status, &AtomicU64)| (*status, count.load(Relaxed));
        let mut statuses: Vec<_> = Status::ALL
            .iter()
            .zip(&self.statuses)
            .map(counted)
            .collect();
        statuses.retain(|(_, count)| *count > 0);
        let total = self.nanoseconds.load(Relaxed);
        let queued = self.queued.load(Relaxed);
        ProcedureStats {
            name,
            calls: self.calls.load(Relaxed),
            errors: self.errors.load(Relaxed),
            statuses,
            resends: self.resends.load(Relaxed),
            timeouts: self.timeouts.load(Relaxed),
            bytes_sent: self.bytes_sent.load(Relaxed),
            bytes_received: self.bytes_received.load(Relaxed),
            total_time: Duration::from_nanos(total),
            queue_time: Duration::from_nanos(queued),
            round_trip_time: Duration::from_nanos(total.saturating_sub(queued)),
            latency,
        }
    }
}

/// Of every procedure, and one more for calls of other programs.
#[derive(Debug)]
pub(super) struct Procedures(Vec<ProcedureCounters>);

impl Procedures {
    pub(super) fn new() -> Self {
        Procedures(
            (0..=ProcedureNumber::COUNT)
                .map(|_| ProcedureCounters::default())
                .collect(),
        )
    }

    pub(super) fn get(&self, procedure: usize) -> &ProcedureCounters {
        &self.0[procedure.min(ProcedureNumber::COUNT)]
    }

    pub(super) fn snapshot(&self) -> Vec<ProcedureStats> {
        ProcedureNumber::ALL
            .iter()
            .map(|number| self.get(*number as usize).snapshot(number.label()))
            .collect()
    }
}

macro_rules! link_counters {
    ($($name:ident,)*) => {
        /// Of one connection slot.
        #[derive(Debug, Default)]
        pub(super) struct LinkCounters {
            $(pub(super) $name: AtomicU64,)*
        }

        impl LinkCounters {
            /// The counters; what is a state rather than a count is left at its default.
            pub(super) fn snapshot(&self) -> ConnectionStats {
                ConnectionStats {
                    $($name: self.$name.load(Relaxed),)*
                    ..ConnectionStats::default()
                }
            }
        }
    };
}

link_counters! {
    connects, connect_failures, sends, receives, inline_calls, read_chunks,
    position_zero_chunks, write_chunks, reply_chunks, exposures, exposed_bytes,
    rdma_write_bytes, rdma_read_bytes,
    local_invalidations, remote_invalidations, leases, resends, timeouts, discards,
    rdma_errors, violations,
}

/// Adds one.
pub(super) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_powers_of_two_microseconds() {
        let at = |micros| bucket(Duration::from_micros(micros));
        assert_eq!([0, 1, 2, 3, 4, 1023, 1024].map(at), [0, 1, 2, 2, 3, 10, 11]);
        assert_eq!(bucket(Duration::MAX), LATENCY_BUCKETS - 1);
    }

    #[test]
    fn the_queue_and_the_way_are_told_apart() {
        let counters = ProcedureCounters::default();
        let ms = Duration::from_millis;
        counters.ended(false, 100, ms(5), ms(2));
        counters.ended(true, 0, ms(7), ms(7));
        counters.refused(Status::NoEnt);
        counters.refused(Status::NoEnt);
        let stats = counters.snapshot("READ");
        assert_eq!((stats.calls, stats.errors), (2, 3));
        assert_eq!(stats.statuses, [(Status::NoEnt, 2)]);
        assert_eq!(stats.total_time, ms(12));
        assert_eq!((stats.queue_time, stats.round_trip_time), (ms(9), ms(3)));
    }
}
