//! The description of NFSv3 that the RPC transport needs, and counters that it cannot have: how
//! often the procedures were answered with each NFS error.

use nfsrdma_rpcrdma::{Program, Stats};
use nfsrdma_xdr::nfs_acl;
use nfsrdma_xdr::nfs3::{PROGRAM, ProcedureNumber, Status, VERSION};
use nfsrdma_xdr::procedure::Procedure;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

const NAMES: [&str; ProcedureNumber::COUNT] = {
    let mut names = [""; ProcedureNumber::COUNT];
    let mut number = 0;
    while number < names.len() {
        names[number] = ProcedureNumber::ALL[number].label();
        number += 1;
    }
    names
};

/// The program of the mount's connections.
pub(crate) const NFS3: Program = Program {
    number: PROGRAM,
    version: VERSION,
    procedures: &NAMES,
    side_procedures: &[nfs_acl::Getacl::NAME, nfs_acl::Setacl::NAME],
};

/// Counters after those of NFS: one for calls of other programs, and two for NFS_ACL's procedures.
pub(crate) const OTHER_COUNTER: usize = ProcedureNumber::COUNT;
pub(crate) const GETACL_COUNTER: usize = OTHER_COUNTER + 1;
pub(crate) const SETACL_COUNTER: usize = OTHER_COUNTER + 2;

/// Replies whose status was an error, by counter and by status in the order of [`Status::ALL`].
#[derive(Debug)]
pub(crate) struct ErrorCounters(Vec<Box<[AtomicU64]>>);

impl Default for ErrorCounters {
    fn default() -> Self {
        let statuses = |_| Status::ALL.iter().map(|_| AtomicU64::default()).collect();
        ErrorCounters((0..=SETACL_COUNTER).map(statuses).collect())
    }
}

impl ErrorCounters {
    pub(crate) fn count(&self, counter: usize, status: Status) {
        let at = Status::ALL.iter().position(|known| *known == status);
        if let (Some(counters), Some(at)) = (self.0.get(counter), at) {
            counters[at].fetch_add(1, Relaxed);
        }
    }

    /// Adds these errors to those that the transport counted.
    pub(crate) fn add_to(&self, stats: &mut Stats) {
        // The transport's counters do not include calls of other programs.
        let counted = self
            .0
            .iter()
            .enumerate()
            .filter(|(at, _)| *at != OTHER_COUNTER);
        for (procedure, (_, counters)) in stats.procedures.iter_mut().zip(counted) {
            for (status, counter) in Status::ALL.iter().zip(counters) {
                let count = counter.load(Relaxed);
                if count > 0 {
                    procedure.errors += count;
                    procedure.statuses.push((status.name(), count));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nfsrdma_rpcrdma::stats::ProcedureStats;

    #[test]
    fn errors_are_counted_by_status() {
        let counters = ErrorCounters::default();
        counters.count(3, Status::NoEnt);
        counters.count(3, Status::NoEnt);
        counters.count(3, Status::Stale);
        counters.count(99, Status::Stale);
        let mut stats = Stats {
            procedures: vec![ProcedureStats::default(); 4],
            ..Stats::default()
        };
        stats.procedures[3].errors = 1;
        counters.add_to(&mut stats);
        assert_eq!(stats.procedures[3].errors, 4);
        assert_eq!(stats.procedures[3].statuses, [("NoEnt", 2), ("Stale", 1)]);
        assert!(stats.procedures[2].statuses.is_empty());
    }
}
