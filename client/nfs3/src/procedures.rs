//! NFSv3 as the RPC transport has to know it, and what it cannot know: how often a procedure
//! was answered with an NFS error.

use nfsrdma_rpcrdma::{Program, Stats};
use nfsrdma_xdr::nfs3::{PROGRAM, ProcedureNumber, VERSION};
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
};

/// Replies whose status was an error, by procedure.
#[derive(Debug, Default)]
pub(crate) struct ErrorCounters([AtomicU64; ProcedureNumber::COUNT]);

impl ErrorCounters {
    pub(crate) fn count(&self, procedure: u32) {
        if let Some(counter) = self.0.get(procedure as usize) {
            counter.fetch_add(1, Relaxed);
        }
    }

    /// Adds these errors to those that the transport counted.
    pub(crate) fn add_to(&self, stats: &mut Stats) {
        for (procedure, counter) in stats.procedures.iter_mut().zip(&self.0) {
            procedure.errors += counter.load(Relaxed);
        }
    }
}
