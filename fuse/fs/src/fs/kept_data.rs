//! Data in memory that outlives this process, if its pool lies there.

use crate::cache::{Recorder, WriteBack, place_of};
use crate::credential::kept;
use nfsrdma_nfs3::Cred;
use nfsrdma_rdma::Pool;
use nfsrdma_record::Table;
use std::os::fd::OwnedFd;

/// For the data of a file.
pub(super) fn write_back_of(nodeid: u64, pool: &Pool, records: &Table) -> WriteBack<Cred> {
    match pool.fd() {
        Some(_) => {
            let recorder = Recorder::new(records.extents(), nodeid);
            WriteBack::recorded(recorder, |cred| kept(cred))
        }
        None => WriteBack::default(),
    }
}

/// The pool of a process that has died, with the data in it that the records name, for [`Fs`](super::Fs).
pub fn pool_of(pool: OwnedFd, records: &Table) -> nfsrdma_rdma::Result<Pool> {
    Pool::of_memfd(pool, records.extents().peek(place_of))
}
