//! How long an NFS call may take, told by its arguments.

use crate::fs::FileSystem;
use nfsrdma_xdr::codec::{Decode, Decoder};
use nfsrdma_xdr::nfs3::{ProcedureNumber, ReadArgs, SetattrArgs, Stable, WriteArgs};

/// Payloads from this size on are worth handing to another thread, in bytes. (Handing over
/// costs 25 to 60 us, about what copying this much takes.)
const BULK: usize = 128 * 1024;

/// How long a call takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Weight {
    /// Less than handing it to another thread.
    Light,
    /// Moves much data, or waits for a disk.
    Heavy,
}

/// Weighs a call by its arguments.
pub(super) fn weigh(fs: &FileSystem, procedure: u32, mut from: Decoder<'_>) -> Weight {
    let Ok(procedure) = ProcedureNumber::try_from(procedure) else {
        return Weight::Light;
    };
    let heavy = match procedure {
        ProcedureNumber::Commit => true,
        ProcedureNumber::Read => {
            // Several threads that copy what is in memory only wait for the same connection,
            // and push each other's data out of the CPU's caches.
            ReadArgs::decode(&mut from)
                .is_ok_and(|args| args.count as usize >= BULK && !fs.is_at_hand(&args))
        }
        ProcedureNumber::Write => WriteArgs::decode(&mut from).is_ok_and(|args| {
            // Where fsync takes less than handing over, nobody waits for it.
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
