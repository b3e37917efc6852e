//! READs of the kernel that are not answered yet, and their order.

use super::Fs;
use super::error::FsResult;
use super::file::{FileData, Inner};
use super::inode::Inode;
use nfsrdma_nfs3::Nfs3;
use nfsrdma_rdma::Buf;
use nfsrdma_rdma::contract::Segs;
use std::sync::Arc;

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
            |inner: &mut Inner| (!inner.is_kernel_reading_before(self.offset)).then_some(());
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
        let id = data.with(|inner| inner.begin_kernel_read(offset));
        Some(KernelRead {
            inode: file.inode.clone(),
            data,
            id,
            offset,
        })
    }

    /// An open is about to make the kernel drop the attributes of a file that somebody else has
    /// changed: it would then ignore the end of the file in replies to READs that it has sent
    /// before. Returns when these are answered.
    pub(super) async fn reads_before_open(&self, inode: &Inode) {
        let misled = {
            let state = inode.state.lock();
            state.told_epoch != 0 && !state.knows_end()
        };
        if misled && let Some(data) = inode.data() {
            let last = data.with(|inner| inner.last_read());
            data.until(|inner| (!inner.is_kernel_reading_until(last)).then_some(()))
                .await;
        }
    }
}
