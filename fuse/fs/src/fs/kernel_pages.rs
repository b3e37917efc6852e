//! What the kernel has of a file that somebody else has changed, and how it learns of the change.
//!
//! The kernel keeps its pages when it is given other attributes (FUSE_EXPLICIT_INVAL_DATA), so that what
//! a program has written stays cached after the flush. So it is told of a change by somebody else in two
//! steps: **first** a notification makes it drop its pages ([`Behind`]), **then** it is given attributes
//! or an open file that show the change. [`State::kernel_epoch`](super::inode::State::kernel_epoch) is
//! the epoch of what it has. It becomes the new one only when the notification has ended. A reply that is
//! made meanwhile therefore sends a second notification and waits for that.
//!
//! A notification makes the kernel ignore the replies to GETATTRs that it sent earlier. sendfile(2) and
//! mappings use the size that the kernel has and never send a GETATTR. So that they see a file that has
//! grown, its last byte ([`Behind::end`]) is stored in the kernel's pages, which raises the size.

use super::inode::Inode;
use super::inode_flags::Flag;
use super::kernel_cache::KernelCache;
use super::objects::Objects;
use super::open_file::OpenFile;
use super::outdated::size_with;
use futures_util::stream::{self, StreamExt};
use nfsrdma_nfs3::Nfs3;
use nfsrdma_rpcrdma::exec;
use nfsrdma_xdr::nfs3::FileType;
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// GETATTRs in a second for open files of which nobody asks for attributes.
const MOST_CHECKED: usize = 200;
/// How many of them are under way at a time.
const CHECKED_AT_A_TIME: usize = 8;

/// What the kernel has to be told of a file.
#[derive(Debug)]
pub struct Behind {
    inode: Arc<Inode>,
    /// [`State::kernel_epoch`](super::inode::State::kernel_epoch) before, and after.
    kernel_epoch: u64,
    epoch: u64,
    /// The last byte with its offset, if the kernel takes the file for shorter.
    pub end: Option<(u64, u8)>,
}

impl Behind {
    fn new(inode: Arc<Inode>) -> Self {
        let (kernel_epoch, epoch) = {
            let state = inode.state.lock();
            (state.kernel_epoch, state.epoch)
        };
        Behind {
            inode,
            kernel_epoch,
            epoch,
            end: None,
        }
    }

    pub fn nodeid(&self) -> u64 {
        self.inode.nodeid
    }

    /// Whether the kernel may have pages to drop: that waits for their locks.
    pub fn has_pages(&self) -> bool {
        self.inode.flags.has(Flag::KernelPages)
    }

    /// The kernel has dropped the pages, and knows the end.
    pub fn told(self) {
        let mut state = self.inode.state.lock();
        // Otherwise there is more to tell by now.
        if state.kernel_epoch == self.kernel_epoch {
            state.kernel_epoch = self.epoch;
        }
        if let Some((last, _)) = self.end {
            state.kernel_size = last + 1;
        }
    }
}

impl<N: Nfs3> Objects<N> {
    /// Sets how caches of the kernel are invalidated. Only the first call has an effect. It drops the pages
    /// of files that were open in a process which has died.
    pub fn set_kernel_cache(&self, kernel: Box<dyn KernelCache>) {
        let _ = self.kernel.set(kernel);
        for (_, file) in self.files.select(|_| true) {
            self.drop_kernel_data(&file.inode);
        }
    }

    /// The kernel answers read(2) from its pages without a look at how old their attributes are. So the
    /// server is asked for attributes that have expired of open files whose pages the kernel has. To be
    /// called about once a second.
    pub(super) fn check_open_files(self: &Arc<Self>) {
        if !self.keeps_attributes() || self.checking.swap(true, Ordering::AcqRel) {
            return;
        }
        let due = self.unchecked_files(self.next_check.load(Ordering::Relaxed));
        let next = match due.get(MOST_CHECKED) {
            Some((handle, _)) => *handle,
            None => 0,
        };
        self.next_check.store(next, Ordering::Relaxed);
        let fs = self.clone();
        exec::spawn(async move {
            let files = stream::iter(due.into_iter().take(MOST_CHECKED));
            let check = async |(_, file): (u64, Arc<OpenFile>)| {
                // An error is that of the next call.
                let _ = fs.fetch(&file.cred, &file.inode).await;
            };
            files.for_each_concurrent(CHECKED_AT_A_TIME, check).await;
            fs.checking.store(false, Ordering::Release);
        });
    }

    /// One open file of each that is to be checked, with its handle: those from `first` on, then the rest.
    fn unchecked_files(&self, first: u64) -> Vec<(u64, Arc<OpenFile>)> {
        let kept = |file: &OpenFile| file.can_read() && file.inode.flags.has(Flag::KernelPages);
        let mut files = self.files.select(kept);
        let late = files.partition_point(|(handle, _)| *handle < first);
        files.rotate_left(late);
        let (now, mut seen) = (self.now(), HashSet::new());
        files.retain(|(_, file)| {
            let inode = &file.inode;
            let is_due = !inode.is_dirty() && {
                let state = inode.state.lock();
                state.fresh(now).is_none() && !state.is_changing()
            };
            is_due && seen.insert(inode.nodeid)
        });
        files
    }

    /// The kernel is about to read into its pages.
    pub fn kernel_reads(&self, handle: u64) {
        let without = |file: &Arc<OpenFile>| {
            let has_none = !file.inode.flags.has(Flag::KernelPages);
            has_none.then(|| file.clone())
        };
        if let Some(file) = self.files.look(handle, without).flatten() {
            file.inode.gets_pages();
        }
    }

    /// Whether the kernel may have pages of a file.
    pub fn may_have_pages(&self, handle: u64) -> bool {
        self.file(handle)
            .is_ok_and(|file| file.inode.flags.has(Flag::KernelPages))
    }

    /// What the kernel is to be told though it asks for nothing. The end of the file is left to an open.
    pub fn old_pages(&self, nodeid: u64) -> Option<Behind> {
        let inode = self.table.get(nodeid)?;
        inode.has_old_pages().then(|| Behind::new(inode))
    }

    /// Whether the kernel must be told something before it is given attributes of the object.
    pub fn is_behind(&self, nodeid: u64) -> bool {
        let inode = self.table.get(nodeid);
        inode.is_some_and(|inode| inode.has_old_pages())
    }

    /// What it must be told.
    pub async fn behind_attributes(self: &Arc<Self>, nodeid: u64) -> Option<Behind> {
        let inode = self.table.get(nodeid)?;
        match inode.has_old_pages() {
            true => Some(self.to_tell(&inode, None).await),
            false => None,
        }
    }

    /// What it must be told before the program that has opened the file goes on.
    pub async fn behind_open(self: &Arc<Self>, handle: u64) -> Option<Behind> {
        let file = self.file(handle).ok()?;
        let behind = file.inode.state.lock().kernel_is_behind();
        let told = self.to_tell(&file.inode, Some(&file)).await;
        (behind || told.end.is_some()).then_some(told)
    }

    /// The same where all pages are dropped, whatever is known: a lock was granted.
    pub async fn behind_lock(self: &Arc<Self>, handle: u64) -> Option<Behind> {
        let file = self.file(handle).ok()?;
        Some(self.to_tell(&file.inode, Some(&file)).await)
    }

    async fn to_tell(self: &Arc<Self>, inode: &Arc<Inode>, by: Option<&Arc<OpenFile>>) -> Behind {
        // First, since the file may change again meanwhile.
        let mut behind = Behind::new(inode.clone());
        behind.end = self.end_unknown_to_kernel(inode, by).await;
        behind
    }

    /// The last byte of a file, with its offset, if the kernel takes it for shorter. `None` also if no
    /// open file can read it: whoever may only write does not look for the end.
    async fn end_unknown_to_kernel(
        self: &Arc<Self>,
        inode: &Arc<Inode>,
        by: Option<&Arc<OpenFile>>,
    ) -> Option<(u64, u8)> {
        if inode.kind != FileType::Regular {
            return None;
        }
        let size = match inode.data() {
            Some(data) => data.with(|inner| size_with(inner, inode))?,
            None => inode.last_known()?.size,
        };
        if inode.state.lock().kernel_size >= size {
            return None;
        }
        let file = match by.filter(|file| file.can_read()) {
            Some(file) => file.clone(),
            None => self.any_open_file(inode)?,
        };
        let last = size - 1;
        // Boxed, because it is rare, and its state is large.
        let read = Box::pin(self.read_direct(&file, last, 1));
        let read = read.await.ok()?;
        let byte = *read.iter().flat_map(|seg| seg.as_ref()).next()?;
        Some((last, byte))
    }
}
