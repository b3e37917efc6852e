//! READs of the kernel that are not answered yet, and their order.

use super::Fs;
use super::clock::nanos;
use super::error::FsResult;
use super::file::{FileData, FileState};
use super::inode::Inode;
use nfsrdma_nfs3::Nfs3;
use nfsrdma_rdma::Buf;
use nfsrdma_rdma::contract::Segs;
use std::sync::Arc;
use std::time::Duration;

/// A READ of the kernel's that is not answered.
///
/// A short reply to a READ says where the file ends: the kernel takes over the smaller size, and
/// then ignores what other READs say that were sent before (fuse_read_update_size compares
/// versions). It sends several at a time. If somebody else has cut the file, and the READ behind
/// the new end is answered first, the file seems to end where that READ begins, with zeros
/// before it. So a short reply waits for READs of what is before, and for their replies.
#[derive(Debug)]
pub struct KernelRead {
    inode: Arc<Inode>,
    data: Arc<FileData>,
    id: u64,
    offset: u64,
}

impl Drop for KernelRead {
    fn drop(&mut self) {
        self.data.with(|inner| inner.end_kernel_read(self.id));
        self.data.changed.notify_waiters();
    }
}

impl KernelRead {
    /// Whether these `found` bytes are less than asked for, and the kernel does not know yet why.
    pub fn tells_end(&self, found: &FsResult<Segs<Buf>>, len: u32) -> bool {
        let found = match found {
            Ok(found) => found.iter().map(|buf| buf.len() as u64).sum(),
            Err(_) => 0,
        };
        found < u64::from(len) && !self.inode.state.lock().knows_end()
    }

    /// Returns when READs of what is before have been answered.
    pub async fn first(&self) {
        let first =
            |inner: &mut FileState| (!inner.is_kernel_reading_before(self.offset)).then_some(());
        self.data.until(first).await;
    }

    /// Whether they have.
    pub fn is_first(&self) -> impl Fn() -> bool + Send + use<> {
        let (data, offset) = (self.data.clone(), self.offset);
        move || !data.with(|inner| inner.is_kernel_reading_before(offset))
    }
}

impl<N: Nfs3> Fs<N> {
    /// To be kept until the reply to READ is sent. `None` if the file is not open.
    pub fn kernel_read(&self, handle: u64, offset: u64) -> Option<KernelRead> {
        let file = self.files.read().get(handle as usize).cloned()?;
        let data = self.data(&file.inode).clone();
        let now = self.now();
        let id = data.with(|inner| inner.begin_kernel_read(offset, now));
        Some(KernelRead {
            inode: file.inode.clone(),
            data,
            id,
            offset,
        })
    }

    /// Returns when the READs of a file that the kernel has sent so far are answered.
    pub async fn kernel_reads_answered(&self, nodeid: u64) {
        if let Some(inode) = self.table.get(nodeid) {
            reads_so_far(&inode).await;
        }
    }

    /// Whether READs of a file that the kernel has sent are not answered.
    pub fn is_kernel_reading(&self, nodeid: u64) -> bool {
        self.reads_are(nodeid, |inner| inner.is_kernel_reading())
    }

    /// Whether one of them has waited for longer than `time`.
    pub fn is_kernel_reading_for(&self, nodeid: u64, time: Duration) -> bool {
        let since = self.now().saturating_sub(nanos(time));
        self.reads_are(nodeid, |inner| inner.is_kernel_reading_since(since))
    }

    /// Whether READs of the file are under way, from the kernel's request to its reply.
    pub fn is_reading(&self, nodeid: u64) -> bool {
        self.reads_are(nodeid, |inner| {
            inner.has_reads() || inner.is_kernel_reading()
        })
    }

    /// What `ask` says of the READs of a file; false where nothing of it was ever read.
    fn reads_are(&self, nodeid: u64, ask: impl FnOnce(&mut FileState) -> bool) -> bool {
        let inode = self.table.get(nodeid);
        let data = inode.as_ref().and_then(|inode| inode.data());
        data.is_some_and(|data| data.with(ask))
    }

    /// An open is about to make the kernel drop the attributes of a file that somebody else has
    /// changed: it would then ignore the end of the file in replies to READs that it has sent
    /// before. Returns when these are answered.
    pub(super) async fn reads_before_open(&self, inode: &Inode) {
        let misled = {
            let state = inode.state.lock();
            state.told_epoch != 0 && !state.knows_end()
        };
        if misled {
            reads_so_far(inode).await;
        }
    }
}

/// Returns when the READs of a file that the kernel has sent so far are answered.
async fn reads_so_far(inode: &Inode) {
    if let Some(data) = inode.data() {
        let last = data.with(|inner| inner.last_read());
        data.until(|inner| (!inner.is_kernel_reading_until(last)).then_some(()))
            .await;
    }
}
