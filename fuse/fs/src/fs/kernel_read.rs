//! READs of the kernel that are not answered yet. Each holds the locks of its pages until it is, so a
//! notification that drops these pages waits for it, and what waits for such a notification may wait for
//! the READs first.

use super::clock::nanos;
use super::file::{FileData, FileState};
use super::objects::Objects;
use nfsrdma_nfs3::Nfs3;
use std::sync::Arc;
use std::time::Duration;

/// A READ of the kernel that is not answered.
#[derive(Debug)]
pub struct KernelRead {
    data: Arc<FileData>,
    id: u64,
}

impl Drop for KernelRead {
    fn drop(&mut self) {
        self.data.with(|inner| inner.end_kernel_read(self.id));
        self.data.changed.notify_waiters();
    }
}

impl<N: Nfs3> Objects<N> {
    /// Registers a READ of the kernel. Keep it until the reply is sent. `None` if the file is not
    /// open.
    pub fn kernel_read(&self, handle: u64) -> Option<KernelRead> {
        let file = self.files.read().get(handle as usize).cloned()?;
        let data = self.data(&file.inode).clone();
        let now = self.now();
        let id = data.with(|inner| inner.begin_kernel_read(now));
        Some(KernelRead { data, id })
    }

    /// Waits until the READs of a file that the kernel has sent so far are answered.
    pub async fn kernel_reads_answered(&self, nodeid: u64) {
        let inode = self.table.get(nodeid);
        if let Some(data) = inode.as_ref().and_then(|inode| inode.data()) {
            let last = data.with(|inner| inner.last_read());
            data.until(|inner| (!inner.is_kernel_reading_until(last)).then_some(()))
                .await;
        }
    }

    /// Whether READs of a file that the kernel has sent are not answered.
    pub fn is_kernel_reading(&self, nodeid: u64) -> bool {
        self.reads_are(nodeid, |inner| inner.is_kernel_reading())
    }

    /// Whether a READ that the kernel has sent has waited for longer than `time`.
    pub fn is_kernel_reading_for(&self, nodeid: u64, time: Duration) -> bool {
        let since = self.now().saturating_sub(nanos(time));
        self.reads_are(nodeid, |inner| inner.is_kernel_reading_since(since))
    }

    /// The result of `ask` for the state of a file; false if nothing of it was ever cached.
    fn reads_are(&self, nodeid: u64, ask: impl FnOnce(&mut FileState) -> bool) -> bool {
        let inode = self.table.get(nodeid);
        let data = inode.as_ref().and_then(|inode| inode.data());
        data.is_some_and(|data| data.with(ask))
    }
}
