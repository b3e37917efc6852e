//! The operations of [`Fs`] that make the kernel drop stale pages; [`super::stale_pages`] explains
//! why there are any.

use super::Fs;
use super::clock::Nanos;
use super::file::{FileData, FileState};
use super::inode::Inode;
use super::inode_flags::Flag;
use super::open_file::OpenFile;
use nfsrdma_nfs3::Nfs3;
use std::ops::Range;
use std::sync::Arc;

impl<N: Nfs3> Fs<N> {
    /// The kernel is being made to drop the pages of a file.
    pub fn pages_dropped(&self, nodeid: u64) {
        if let Some(inode) = self.table.get(nodeid) {
            self.pages_dropped_of(&inode);
        }
    }

    pub(super) fn pages_dropped_of(&self, inode: &Inode) {
        if let Some(data) = inode.data() {
            data.dropped.now(self.now());
        }
    }

    /// The kernel is about to read into its pages, for the thread `pid`.
    pub fn kernel_reads(&self, handle: u64, range: &Range<u64>, pid: u32) {
        // Each READ comes here: the file is not cloned, and its flag is written once.
        if let Some(file) = self.files.read().get(handle as usize)
            && !file.inode.flags.has(Flag::KernelRead)
        {
            file.inode.flags.set(Flag::KernelRead);
        }
        if let Some((file, since)) = self.dropped_lately(handle)
            && let Some(data) = file.inode.data()
        {
            data.with(|inner| inner.stale_pages().read(since, range, pid));
        }
    }

    /// Whether the kernel may have pages of a file: it has read some.
    pub fn may_have_pages(&self, handle: u64) -> bool {
        self.file(handle)
            .is_ok_and(|file| file.inode.flags.has(Flag::KernelRead))
    }

    /// A WRITE to a file has arrived and is not answered at once. Keep the result until
    /// [`Fs::kernel_wrote`] was called.
    pub fn write_waits(&self, handle: u64, range: Range<u64>) -> Option<WaitingWrite> {
        let file = self.files.read().get(handle as usize).cloned()?;
        let data = self.data(&file.inode).clone();
        data.dropped.begin_wait(self.now());
        let number = data.with(|inner| inner.stale_pages().write_arrived(range));
        Some(WaitingWrite { data, number })
    }

    /// If WRITEs wait that have data for `range`, which the kernel is about to read: waits until they
    /// are carried out.
    pub fn writes_before_read(
        &self,
        handle: u64,
        range: &Range<u64>,
    ) -> Option<impl Future<Output = ()> + Send + use<N>> {
        let file = self.files.read().get(handle as usize).cloned()?;
        let data = file
            .inode
            .data()
            .filter(|data| data.dropped.has_waiting())?;
        let last = data.with(|inner| inner.stale_pages().last_write(range))?;
        let (data, range) = (data.clone(), range.clone());
        Some(async move {
            let handled = |inner: &mut FileState| {
                let write = inner.stale_pages().write_until(&range, last);
                write.is_none().then_some(())
            };
            data.until(handled).await;
        })
    }

    /// A WRITE of the thread `pid` was handled. Makes the kernel drop the pages of `range` if they
    /// may have been read without the data of this WRITE.
    pub fn kernel_wrote(&self, handle: u64, range: &Range<u64>, pid: u32) {
        if let Some((file, since)) = self.dropped_lately(handle)
            && let Some(data) = file.inode.data()
            && data.with(|inner| inner.stale_pages().written(since, range, pid))
        {
            self.drop_stale_pages(&file.inode);
        }
    }

    /// The open file, and when the kernel dropped its pages, if that is not long ago.
    fn dropped_lately(&self, handle: u64) -> Option<(Arc<OpenFile>, Nanos)> {
        let files = self.files.read();
        let file = files.get(handle as usize)?;
        let since = file.inode.data()?.dropped.lately(&self.clock)?;
        Some((file.clone(), since))
    }

    /// Makes the kernel drop the pages that [`Fs::kernel_wrote`] found.
    fn drop_stale_pages(&self, inode: &Inode) {
        match self.change_context.kernel.get() {
            Some(kernel) => kernel.drop_pages(inode.nodeid),
            None => drop(self.stale_pages(inode.nodeid)),
        }
    }

    /// The range of a file that the kernel has to drop. Keep it until the kernel has.
    pub fn stale_pages(&self, nodeid: u64) -> Option<StaleRange> {
        let inode = self.table.get(nodeid)?;
        let data = inode.data()?;
        let range = data.with(|inner| inner.stale_pages().begin_drop())?;
        Some(StaleRange {
            data: data.clone(),
            range,
        })
    }

    /// Waits until the kernel has dropped the stale pages of a file. False if there were none.
    pub(super) async fn until_pages_dropped(&self, inode: &Inode) -> bool {
        let Some(data) = inode.data() else {
            return false;
        };
        if !data.with(|inner| inner.stale_pages().is_waiting()) {
            return false;
        }
        // Once more: the kernel may have forgotten the inode at the first notification.
        self.drop_stale_pages(inode);
        data.until(|inner| (!inner.stale_pages().is_waiting()).then_some(()))
            .await;
        true
    }
}

/// A WRITE that has arrived and waits.
#[derive(Debug)]
pub struct WaitingWrite {
    data: Arc<FileData>,
    number: u64,
}

impl Drop for WaitingWrite {
    fn drop(&mut self) {
        let number = self.number;
        self.data
            .with(|inner| inner.stale_pages().write_handled(number));
        self.data.dropped.end_wait();
        self.data.changed.notify_waiters();
    }
}

/// A range that the kernel is being notified to drop.
#[derive(Debug)]
pub struct StaleRange {
    data: Arc<FileData>,
    range: Range<u64>,
}

impl StaleRange {
    pub fn offset(&self) -> u64 {
        self.range.start
    }

    /// In bytes; not 0.
    pub fn length(&self) -> u64 {
        self.range.end - self.range.start
    }
}

impl Drop for StaleRange {
    fn drop(&mut self) {
        self.data.with(|inner| inner.stale_pages().dropped());
        self.data.changed.notify_waiters();
    }
}
