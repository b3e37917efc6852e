//! Data in memory that outlives this process, if its pool lies there.

use super::inode::Inode;
use crate::cache::{Recorder, WriteBack, place_of};
use nfsrdma_rdma::Pool;
use nfsrdma_record::Table;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// For the data of a file. What there is no record of has the mark of a file that is not safe.
pub(super) fn write_back_of(inode: &Arc<Inode>, pool: &Pool, records: &Table) -> WriteBack {
    match pool.fd() {
        Some(_) => {
            let of = Arc::downgrade(inode);
            let mark = move || {
                if let Some(inode) = of.upgrade() {
                    inode.unsafe_.store(1, Ordering::Relaxed);
                }
            };
            let recorder = Recorder::new(records.extents(), inode.nodeid, mark);
            WriteBack::recorded(recorder)
        }
        None => WriteBack::default(),
    }
}

/// Whether records name data in a pool.
pub fn has_data(records: &Table) -> bool {
    !records.extents().peek(|_| ()).is_empty()
}

/// The pool of a process that has died, with the data in it that the records name, for [`Fs`](super::Fs).
pub fn pool_of(pool: OwnedFd, records: &Table) -> nfsrdma_rdma::Result<Pool> {
    Pool::of_memfd(pool, records.extents().peek(place_of))
}
