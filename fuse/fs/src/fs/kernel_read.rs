//! READs of the kernel that are not answered yet, and what their replies make it believe of the end
//! of the file.
//!
//! A short reply to a READ makes the kernel reduce the file's size (fuse_short_read), unless the
//! inode has got a newer version since the READ was made: by another short reply, by attributes, or
//! by a notification. The kernel then ignores the end in the reply, and the rest of the page reads
//! as zeros. That does no harm if the other short reply has brought the same end. But if somebody
//! else has truncated the file, a READ may begin behind the new end, and the kernel takes the
//! offset of that READ as the size ([`ReadEnd::Behind`]). It then ignores the right end in the
//! reply to a READ that it had made before.
//!
//! Both READs may come from one read(2), which makes several: those of the read-ahead in the
//! background, and one by one those of pages that it finds in the cache without data. So a READ
//! behind the end may be answered after the READ of the end is made and before that is answered.
//! Therefore replies of the kind [`ReadEnd::Behind`] are held back ([`KernelRead::first`]).

use super::Fs;
use super::clock::{Clock, nanos};
use super::error::FsResult;
use super::file::{FileData, FileState};
use super::inode::Inode;
use super::outdated::size_with;
use nfsrdma_nfs3::Nfs3;
use nfsrdma_rdma::Buf;
use nfsrdma_rdma::contract::Segs;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// For so long after the answer to a READ, its reader may be about to make the next one.
const GOES_ON: Duration = Duration::from_millis(100);

/// What the kernel concludes from the reply to a READ about the end of the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadEnd {
    /// Nothing, or where the file ends.
    Right,
    /// That the file ends where the READ begins, which is, or may be, behind the end of the file.
    Behind,
}

/// A READ of the kernel that is not answered.
#[derive(Debug)]
pub struct KernelRead {
    inode: Arc<Inode>,
    data: Arc<FileData>,
    clock: Clock,
    id: u64,
    offset: u64,
}

impl Drop for KernelRead {
    fn drop(&mut self) {
        let now = self.clock.now();
        self.data.with(|inner| inner.end_kernel_read(self.id, now));
        self.data.changed.notify_waiters();
    }
}

impl KernelRead {
    /// What the kernel will conclude if it is answered with `found`.
    pub fn end(&self, found: &FsResult<Segs<Buf>>) -> ReadEnd {
        let nothing = found
            .as_ref()
            .is_ok_and(|found| found.iter().all(|buf| buf.is_empty()));
        let ends_here = || {
            let size = self.data.with(|inner| size_with(inner, &self.inode));
            self.offset == 0 || size == Some(self.offset)
        };
        match nothing && !ends_here() {
            true => ReadEnd::Behind,
            false => ReadEnd::Right,
        }
    }

    /// Waits until all READs of the kernel at lower offsets are answered.
    pub async fn first(&self) {
        let first =
            |inner: &mut FileState| (!inner.is_kernel_reading_before(self.offset)).then_some(());
        self.data.until(first).await;
    }

    /// A check whether all READs at lower offsets are answered, for long enough that no reader is
    /// about to make another one.
    pub fn is_first(&self) -> impl Fn() -> bool + Send + use<> {
        let (data, clock, offset) = (self.data.clone(), self.clock.clone(), self.offset);
        move || {
            let since = clock.now().saturating_sub(nanos(GOES_ON));
            data.with(|inner| {
                !inner.is_kernel_reading_before(offset) && !inner.has_kernel_read_since(since)
            })
        }
    }
}

impl<N: Nfs3> Fs<N> {
    /// Registers a READ of the kernel. Keep it until the reply is sent. `None` if the file is not
    /// open.
    pub fn kernel_read(&self, handle: u64, offset: u64) -> Option<KernelRead> {
        let file = self.files.read().get(handle as usize).cloned()?;
        let data = self.data(&file.inode).clone();
        let now = self.now();
        let id = data.with(|inner| inner.begin_kernel_read(offset, now));
        Some(KernelRead {
            inode: file.inode.clone(),
            data,
            clock: self.clock.clone(),
            id,
            offset,
        })
    }

    /// Waits until the READs of a file that the kernel has sent so far are answered.
    pub async fn kernel_reads_answered(&self, nodeid: u64) {
        if let Some(inode) = self.table.get(nodeid) {
            reads_so_far(&inode).await;
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

    /// Whether READs of the kernel or into the cache are under way for a file.
    pub fn is_reading(&self, nodeid: u64) -> bool {
        self.reads_are(nodeid, |inner| inner.is_being_read())
    }

    /// Whether a notification might now make the kernel ignore the end of the file in the reply to
    /// a READ. That is so if a READ is under way; or if the file is open (not counting `opens` that
    /// are under way) and a READ was answered so recently that its reader may have made the next
    /// one.
    pub fn may_miss_end(&self, nodeid: u64, opens: u32) -> bool {
        let since = self.now().saturating_sub(nanos(GOES_ON / 10));
        let inode = self.table.get(nodeid);
        let open = inode.is_some_and(|inode| inode.opens.load(Ordering::Relaxed) > opens);
        self.reads_are(nodeid, |inner| {
            inner.is_being_read() || open && inner.has_kernel_read_since(since)
        })
    }

    /// The result of `ask` for the state of a file; false if nothing of it was ever cached.
    fn reads_are(&self, nodeid: u64, ask: impl FnOnce(&mut FileState) -> bool) -> bool {
        let inode = self.table.get(nodeid);
        let data = inode.as_ref().and_then(|inode| inode.data());
        data.is_some_and(|data| data.with(ask))
    }

    /// Call before [`Fs::opened`]. If somebody else has changed the file, the open makes the
    /// kernel drop its attributes, and the kernel would then ignore the end of the file in replies
    /// to READs that it has made before. So this waits until those are answered, however long the
    /// server takes, and then for `queued`, which waits for READs that the kernel has made and no
    /// thread of this program has read.
    pub(super) async fn reads_before_open(&self, inode: &Inode, queued: impl Future<Output = ()>) {
        if inode.kernel_is_misled() {
            reads_so_far(inode).await;
            queued.await;
        }
    }
}

/// Waits until the READs of a file that the kernel has sent so far are answered.
async fn reads_so_far(inode: &Inode) {
    if let Some(data) = inode.data() {
        let last = data.with(|inner| inner.last_read());
        data.until(|inner| (!inner.is_kernel_reading_until(last)).then_some(()))
            .await;
    }
}
