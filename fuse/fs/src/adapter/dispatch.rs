//! Calls the operation of the file system for each FUSE request.
//!
//! Requests that memory can answer are answered on the thread that read them. The others become
//! futures that start on this thread and answer on the thread that receives the server's reply.

use super::locking::set_lock;
use super::state::Adapter;
use crate::cache::WriteData;
use crate::fs::NewMode;
use nfsrdma_channel::{Handler, Header, Operation, Reply, Request, WriteIn};
use nfsrdma_nfs3::Nfs3;
use nfsrdma_rdma::BufMut;
use nfsrdma_rpcrdma::tap::caller;
use std::sync::atomic::Ordering;

impl<N: Nfs3> Handler for Adapter<N> {
    type Buffer = BufMut;

    fn handle(&self, request: &Request<'_>, reply: Reply) {
        self.requests.fetch_add(1, Ordering::Relaxed);
        caller::with(request.header.pid(), || self.dispatch(request, reply));
    }

    fn buffer(&self, len: usize) -> Option<BufMut> {
        self.fs.write_buffer(len)
    }

    fn write(&self, header: &Header, to: &WriteIn, data: BufMut, reply: Reply) {
        self.requests.fetch_add(1, Ordering::Relaxed);
        let data = data.freeze();
        let data = WriteData::from(&data);
        caller::with(header.pid(), || self.write(header, to, data, reply));
    }

    fn forget(&self, node: u64, count: u64) {
        self.requests.fetch_add(1, Ordering::Relaxed);
        self.fs.forget(node, count);
    }

    fn interrupt(&self, unique: u64) {
        self.waiting.interrupt(unique);
    }
}

impl<N: Nfs3> Adapter<N> {
    fn dispatch(&self, request: &Request<'_>, reply: Reply) {
        let (header, node) = (&request.header, request.header.nodeid);
        match request.operation {
            Operation::Lookup { name } => self.lookup(header, node, name, reply),
            Operation::Getattr { handle } => self.getattr(header, node, handle, reply),
            Operation::Setattr { to } => self.setattr(header, node, &to, reply),
            Operation::Readlink => self.readlink(header, node, reply),
            Operation::Symlink { name, target } => self.symlink(header, node, name, target, reply),
            Operation::Mknod {
                name,
                mode,
                rdev,
                umask,
            } => {
                let mode = NewMode { bits: mode, umask };
                self.mknod(header, node, name, mode, rdev, reply);
            }
            Operation::Mkdir { name, mode, umask } => {
                let mode = NewMode { bits: mode, umask };
                self.mkdir(header, node, name, mode, reply);
            }
            Operation::Unlink { name } => self.remove(header, node, name, false, reply),
            Operation::Rmdir { name } => self.remove(header, node, name, true, reply),
            Operation::Rename {
                name,
                new_parent,
                new_name,
                flags,
            } => self.rename(header, (node, name), (new_parent, new_name), flags, reply),
            Operation::Link { node: of, name } => self.link(header, of, node, name, reply),
            Operation::Open { flags } => self.open(header, node, flags, reply),
            Operation::Read {
                handle,
                offset,
                size,
                flags,
            } => self.read(header, handle, offset, size, flags, reply),
            Operation::Write { to, data } => self.write(header, &to, data.into(), reply),
            Operation::Flush { handle, lock_owner } => {
                self.flush(header, handle, lock_owner, reply)
            }
            Operation::Release {
                handle,
                flock_owner,
            } => self.release(header, handle, flock_owner, reply),
            Operation::Fsync { handle } => self.fsync(header, handle, reply),
            Operation::Opendir { .. } => self.opendir(header, node, reply),
            Operation::Readdir {
                handle,
                offset,
                size,
            } => self.readdir(header, handle, offset, size, reply),
            Operation::Readdirplus {
                handle,
                offset,
                size,
            } => self.readdirplus(header, handle, offset, size, reply),
            Operation::Releasedir { handle } => self.releasedir(handle, reply),
            Operation::Statfs => self.statfs(header, node, reply),
            Operation::Access { mask } => self.access(header, node, mask, reply),
            Operation::Create {
                name,
                mode,
                umask,
                flags,
            } => {
                let mode = NewMode { bits: mode, umask };
                self.create(header, node, name, mode, flags, reply);
            }
            _ => self.dispatch_optional(header, node, &request.operation, reply),
        }
    }

    /// Operations that not every mount has.
    fn dispatch_optional(
        &self,
        header: &Header,
        node: u64,
        operation: &Operation<'_>,
        reply: Reply,
    ) {
        match *operation {
            Operation::Getlk { of } => self.getlk(header, set_lock(&of, false), reply),
            Operation::Setlk { of, wait } => self.setlk(header, node, set_lock(&of, wait), reply),
            // On a mount without ACLs, ENOSYS below makes the kernel not ask again.
            Operation::Getxattr { name, size } if self.fs.has_acl() => {
                self.getxattr(header, node, name, size, reply);
            }
            Operation::Listxattr { size } if self.fs.has_acl() => {
                self.listxattr(header, node, size, reply);
            }
            Operation::Setxattr { name, value, flags } if self.fs.has_acl() => {
                self.setxattr(header, node, name, value, flags, reply);
            }
            Operation::Removexattr { name } if self.fs.has_acl() => {
                self.removexattr(header, node, name, reply);
            }
            ref other => reply.error(refusal(other)),
        }
    }
}

/// The error for what NFSv3 does not have. ENOSYS makes the kernel answer it itself from then on: with
/// EOPNOTSUPP, or in its own way (copy_file_range by copying, lseek by the size, fsync of a directory with
/// success: NFS servers put changes of directories on stable storage before they answer). But Linux
/// before 6.3 returns ENOSYS from ioctl(2), for which programs do not look.
fn refusal(operation: &Operation<'_>) -> i32 {
    match operation {
        Operation::Ioctl => libc::ENOTTY,
        _ => libc::ENOSYS,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ioctl_is_refused_as_by_files_that_have_none() {
        assert_eq!(refusal(&Operation::Ioctl), libc::ENOTTY);
        assert_eq!(refusal(&Operation::Unknown), libc::ENOSYS);
    }
}
