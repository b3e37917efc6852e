//! NFSv3 as the RPC transport has to know it, and what it cannot know: how often a procedure
//! was answered with an NFS error.

use nfsrdma_rpcrdma::{Program, Stats};
use nfsrdma_xdr::nfs_acl;
use nfsrdma_xdr::nfs3::{PROGRAM, ProcedureNumber, VERSION};
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

/// The program of the transport's connections.
pub(crate) const NFS3: Program = Program {
    number: PROGRAM,
    version: VERSION,
    procedures: &NAMES,
    side_procedures: &[nfs_acl::Getacl::NAME, nfs_acl::Setacl::NAME],
};

/// Counters after those of NFS: of calls of other programs together, and of NFS_ACL's procedures.
pub(crate) const OTHER_COUNTER: usize = ProcedureNumber::COUNT;
pub(crate) const GETACL_COUNTER: usize = OTHER_COUNTER + 1;
pub(crate) const SETACL_COUNTER: usize = OTHER_COUNTER + 2;

/// Replies whose status was an error, by counter.
#[derive(Debug, Default)]
pub(crate) struct ErrorCounters([AtomicU64; SETACL_COUNTER + 1]);

impl ErrorCounters {
    pub(crate) fn count(&self, counter: usize) {
        if let Some(counter) = self.0.get(counter) {
            counter.fetch_add(1, Relaxed);
        }
    }

    /// Adds these errors to those that the transport counted.
    pub(crate) fn add_to(&self, stats: &mut Stats) {
        // The transport does not tell of the other programs' calls.
        let told = self
            .0
            .iter()
            .enumerate()
            .filter(|(at, _)| *at != OTHER_COUNTER);
        for (procedure, (_, counter)) in stats.procedures.iter_mut().zip(told) {
            procedure.errors += counter.load(Relaxed);
        }
    }
}
