//! READs of the kernel that are not answered yet, and what their replies say of the end of the
//! file.
//!
//! A short reply to a READ makes the kernel take over the smaller size (fuse_short_read), unless
//! the inode has got a newer version since the READ was made: by such a reply, by attributes, or by
//! a notification. Then the end in the reply is ignored, and what follows it in the page reads as
//! zeros. Where the reply brings the end that the file has, it does no harm to others: what they
//! would say is known then. But if somebody else has cut the file, a READ may begin behind the new
//! end, and the kernel takes the offset of that READ for the size ([`ReadEnd::Behind`]). If it has
//! made a READ of the end before that, it ignores what is right.
//!
//! One read(2) makes several READs: those of its read-ahead in the background, and one by one those
//! of pages that it finds in the cache without data. So the READ behind the end may be made before
//! the READ of the end, and its reply come between the two moments in which the latter is made and
//! answered.

use super::Fs;
use super::clock::{Clock, nanos};
use super::error::FsResult;
use super::file::{FileData, FileState};
use super::inode::Inode;
use super::read::size_with;
use nfsrdma_nfs3::Nfs3;
use nfsrdma_rdma::Buf;
use nfsrdma_rdma::contract::Segs;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// After a READ was answered its reader may be about to make the next one, for so long.
const GOES_ON: Duration = Duration::from_millis(100);

/// What the reply to a READ makes the kernel believe of the end of the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadEnd {
    /// Nothing, or where the file ends.
    Right,
    /// That the file ends where the READ begins, which is behind its end, or may be.
    Behind,
}

/// A READ of the kernel's that is not answered.
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
    /// What the kernel takes from `found`.
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

    /// Returns when READs of what is before have been answered.
    pub async fn first(&self) {
        let first =
            |inner: &mut FileState| (!inner.is_kernel_reading_before(self.offset)).then_some(());
        self.data.until(first).await;
    }

    /// Whether they have, for long enough that their readers do not go on with others.
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
    /// To be kept until the reply to READ is sent. `None` if the file is not open.
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
        self.reads_are(nodeid, |inner| inner.is_being_read())
    }

    /// Whether a notification might now make the kernel ignore the end of the file in the reply to
    /// a READ: one is under way; or the file is open, beside `opens` that are under way, and one
    /// was answered so lately that its reader may have made the next.
    pub fn may_miss_end(&self, nodeid: u64, opens: u32) -> bool {
        let since = self.now().saturating_sub(nanos(GOES_ON / 10));
        let inode = self.table.get(nodeid);
        let open = inode.is_some_and(|inode| inode.opens.load(Ordering::Relaxed) > opens);
        self.reads_are(nodeid, |inner| {
            inner.is_being_read() || open && inner.has_kernel_read_since(since)
        })
    }

    /// What `ask` says of the READs of a file; false where nothing of it was ever read.
    fn reads_are(&self, nodeid: u64, ask: impl FnOnce(&mut FileState) -> bool) -> bool {
        let inode = self.table.get(nodeid);
        let data = inode.as_ref().and_then(|inode| inode.data());
        data.is_some_and(|data| data.with(ask))
    }

    /// An open is about to make the kernel drop the attributes of a file that somebody else has
    /// changed: it would then ignore the end of the file in replies to READs that it has made
    /// before. Returns when these are answered, however long the server takes, and then when
    /// `queued` is done: that waits for those which the kernel has made and nobody has read.
    ///
    /// All this happens before the attributes of this open count as given to the kernel.
    pub(super) async fn reads_before_open(&self, inode: &Inode, queued: impl Future<Output = ()>) {
        let misled = {
            let state = inode.state.lock();
            state.told_epoch != 0 && state.told_epoch != state.epoch
        };
        if misled {
            reads_so_far(inode).await;
            queued.await;
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
