//! Estimates from its arguments how long an NFS call takes.

use crate::fs::FileSystem;
use nfsrdma_xdr::codec::{Decode, Decoder};
use nfsrdma_xdr::nfs3::{ProcedureNumber, ReadArgs, SetattrArgs, Stable, WriteArgs};

/// Payloads of at least this size are worth handing to another thread, in bytes. (Handing over
/// costs 25 to 60 us, about as much as copying this amount.)
const BULK: usize = 128 * 1024;

/// The estimated duration of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Weight {
    /// It takes less time than handing it to another thread.
    Light,
    /// It moves much data, or waits for a disk.
    Heavy,
}

/// Estimates the duration of a call from its arguments. Those of a `sealed` call are behind a length
/// and a sequence number, and data has a MIC.
pub(super) fn weigh(
    fs: &FileSystem,
    procedure: u32,
    sealed: bool,
    mut from: Decoder<'_>,
) -> Weight {
    if sealed && from.take(8).is_err() {
        return Weight::Light;
    }
    let Ok(procedure) = ProcedureNumber::try_from(procedure) else {
        return Weight::Light;
    };
    let heavy = match procedure {
        ProcedureNumber::Commit => true,
        ProcedureNumber::Read => {
            // Several threads that copy cached data would only wait for the same connection, and
            // evict each other's data from the CPU's caches.
            ReadArgs::decode(&mut from)
                .is_ok_and(|args| args.count as usize >= BULK && (sealed || !fs.is_at_hand(&args)))
        }
        ProcedureNumber::Write => WriteArgs::decode(&mut from).is_ok_and(|args| {
            // If fsync takes less time than handing over, it does not count as a wait.
            let waits = args.stable != Stable::Unstable && !fs.syncs.is_quick();
            waits || args.data.len() >= BULK
        }),
        ProcedureNumber::Setattr => {
            SetattrArgs::decode(&mut from).is_ok_and(|args| args.new.size.is_some())
        }
        ProcedureNumber::Readdirplus => true,
        _ => false,
    };
    match heavy {
        true => Weight::Heavy,
        false => Weight::Light,
    }
}
