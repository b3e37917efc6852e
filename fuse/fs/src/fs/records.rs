//! What is kept for the process that goes on with the mount if this one dies ([`nfsrdma_record`]), of files
//! and directories that are opened.

use super::files::Files;
use super::inode::Inode;
use crate::credential::kept;
use nfsrdma_nfs3::{Credential, Nfs3};
use nfsrdma_record::{Open, Record};
use nfsrdma_rpcrdma::abandon::number;

impl<N: Nfs3> Files<N> {
    /// Records that the kernel has a file or directory open. To be called before it is answered.
    pub(super) fn record_open(&self, inode: &Inode, cred: &Credential, flags: i32) -> Record<Open> {
        let (flags, dir) = (flags as u32, inode.is_dir());
        let request = number().unwrap_or(0);
        let open = Open::new(inode.nodeid, request, flags, dir, kept(cred));
        self.records.opens().alloc(open)
    }
}
