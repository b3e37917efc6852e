//! The operations of the mount by which a READ waits for WRITEs; see [`super::waiting_writes`].

use super::file::{FileData, FileState};
use super::objects::Objects;
use nfsrdma_nfs3::Nfs3;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl<N: Nfs3> Objects<N> {
    /// A WRITE to a file has arrived and is not answered at once. Keep the result until it is carried
    /// out.
    pub fn write_waits(&self, handle: u64, range: Range<u64>) -> Option<WaitingWrite> {
        let file = self.files.read().get(handle as usize).cloned()?;
        let data = self.data(&file.inode).clone();
        data.waiting_writes.fetch_add(1, Ordering::Release);
        let number = data.with(|inner| inner.waiting_writes().arrived(range));
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
        let some = |data: &&Arc<FileData>| data.waiting_writes.load(Ordering::Acquire) > 0;
        let data = file.inode.data().filter(some)?;
        let last = data.with(|inner| inner.waiting_writes().until(range, u64::MAX))?;
        let (data, range) = (data.clone(), range.clone());
        Some(async move {
            let handled = |inner: &mut FileState| {
                let write = inner.waiting_writes().until(&range, last);
                write.is_none().then_some(())
            };
            data.until(handled).await;
        })
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
            .with(|inner| inner.waiting_writes().handled(number));
        self.data.waiting_writes.fetch_sub(1, Ordering::Release);
        self.data.changed.notify_waiters();
    }
}
