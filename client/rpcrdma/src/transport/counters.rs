//! The counters behind [`Stats`](crate::Stats): relaxed atomics, for each procedure and each
//! connection slot.
//!
//! They are updated and read without a lock, so the values of a snapshot may stem from slightly
//! different moments. Latencies are counted in buckets of powers of two microseconds.

use crate::options::Program;
use crate::stats::{ConnectionStats, LATENCY_BUCKETS, ProcedureStats};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// The counters of one procedure.
#[derive(Debug, Default)]
pub(super) struct ProcedureCounters {
    calls: AtomicU64,
    errors: AtomicU64,
    pub(super) retransmits: AtomicU64,
    pub(super) timeouts: AtomicU64,
    pub(super) bytes_sent: AtomicU64,
    bytes_received: AtomicU64,
    nanoseconds: AtomicU64,
    queued: AtomicU64,
    latency: [AtomicU64; LATENCY_BUCKETS],
}

/// Bucket `i` holds durations of less than 2^i microseconds.
fn bucket(nanoseconds: u64) -> usize {
    let micros = nanoseconds / 1000;
    ((64 - micros.leading_zeros()) as usize).min(LATENCY_BUCKETS - 1)
}

impl ProcedureCounters {
    /// Counts a call that ended after `time`, `queued` of it before its last transmission, in nanoseconds.
    pub(super) fn ended(&self, failed: bool, received: usize, time: u64, queued: u64) {
        self.calls.fetch_add(1, Relaxed);
        if failed {
            self.errors.fetch_add(1, Relaxed);
        }
        self.bytes_received.fetch_add(received as u64, Relaxed);
        self.nanoseconds.fetch_add(time, Relaxed);
        self.queued.fetch_add(queued, Relaxed);
        self.latency[bucket(time)].fetch_add(1, Relaxed);
    }

    fn snapshot(&self, name: &'static str) -> ProcedureStats {
        let mut latency = [0; LATENCY_BUCKETS];
        for (to, from) in latency.iter_mut().zip(&self.latency) {
            *to = from.load(Relaxed);
        }
        let total = self.nanoseconds.load(Relaxed);
        let queued = self.queued.load(Relaxed);
        ProcedureStats {
            name,
            calls: self.calls.load(Relaxed),
            errors: self.errors.load(Relaxed),
            statuses: Vec::new(),
            retransmits: self.retransmits.load(Relaxed),
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

/// The counters of all procedures of a program, and of its side procedures.
#[derive(Debug)]
pub(super) struct Procedures {
    program: Program,
    counters: Vec<ProcedureCounters>,
    /// The counters of calls of other programs.
    other: ProcedureCounters,
}

/// The names of the procedures that are counted, in the order of their counters.
fn names(program: &Program) -> impl Iterator<Item = &'static str> {
    let all = program.procedures.iter().chain(program.side_procedures);
    all.copied()
}

impl Procedures {
    pub(super) fn new(program: &Program) -> Self {
        Procedures {
            program: *program,
            counters: names(program)
                .map(|_| ProcedureCounters::default())
                .collect(),
            other: ProcedureCounters::default(),
        }
    }

    pub(super) fn get(&self, procedure: usize) -> &ProcedureCounters {
        let own = self.program.procedures.len();
        let at = match procedure {
            number if number < own => number,
            number if number == own => return &self.other,
            number => number - 1,
        };
        self.counters.get(at).unwrap_or(&self.other)
    }

    pub(super) fn snapshot(&self) -> Vec<ProcedureStats> {
        let each = names(&self.program).zip(&self.counters);
        each.map(|(name, counters)| counters.snapshot(name))
            .collect()
    }
}

macro_rules! link_counters {
    ($($name:ident,)*) => {
        /// The counters of one connection slot.
        #[derive(Debug, Default)]
        pub(super) struct LinkCounters {
            $(pub(super) $name: AtomicU64,)*
        }

        impl LinkCounters {
            /// The counters; the other fields, which are states, are left at their defaults.
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
    local_invalidations, remote_invalidations, open_registrations, retransmits, timeouts, discards,
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
        let at = |micros: u64| bucket(micros * 1000);
        assert_eq!([0, 1, 2, 3, 4, 1023, 1024].map(at), [0, 1, 2, 2, 3, 10, 11]);
        assert_eq!(bucket(u64::MAX), LATENCY_BUCKETS - 1);
    }

    #[test]
    fn the_queue_and_the_way_are_told_apart() {
        let counters = ProcedureCounters::default();
        let ms = Duration::from_millis;
        counters.ended(false, 100, 5_000_000, 2_000_000);
        counters.ended(true, 0, 7_000_000, 7_000_000);
        let stats = counters.snapshot("READ");
        assert_eq!((stats.calls, stats.errors), (2, 1));
        assert_eq!(stats.total_time, ms(12));
        assert_eq!((stats.queue_time, stats.round_trip_time), (ms(9), ms(3)));
    }
}
