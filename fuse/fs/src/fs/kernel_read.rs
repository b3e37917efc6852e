//! READs and WRITEs of the kernel that are not answered yet.
//!
//! Each READ holds the locks of its pages until it is answered, so a notification that drops these pages
//! waits for it, and what waits for such a notification may wait for the READs first. A READ waits for the
//! WRITEs that came before it and have data for its range ([`Doing::KernelWrite`]).

use super::file::{Begun, FileData, FileState};
use super::objects::Objects;
use super::under_way::Doing;
use nfsrdma_nfs3::Nfs3;
use std::ops::Range;
use std::sync::Arc;

fn is_write(doing: Doing) -> bool {
    doing == Doing::KernelWrite
}

fn is_read(doing: Doing) -> bool {
    doing == Doing::KernelRead
}

/// A READ of the kernel that is not answered.
#[derive(Debug)]
pub struct KernelRead {
    request: Begun<Arc<FileData>>,
    range: Range<u64>,
}

impl KernelRead {
    /// Waits until the WRITEs are carried out that came before this READ and have data for its range.
    pub async fn after_writes(&self) {
        let Begun { data, number } = &self.request;
        let writes = |inner: &mut FileState| {
            let under_way = inner.under_way();
            under_way.any_until(*number, &self.range, is_write)
        };
        data.until(|inner| (!writes(inner)).then_some(())).await;
    }
}

impl<N: Nfs3> Objects<N> {
    /// Registers a READ of the kernel. Keep it until the reply is sent. `None` if the file is not
    /// open.
    pub fn kernel_read(&self, handle: u64, range: Range<u64>) -> Option<KernelRead> {
        let file = self.files.get(handle)?;
        let data = self.data(&file.inode).clone();
        let begin =
            |inner: &mut FileState| inner.under_way().begin(Doing::KernelRead, range.clone());
        let number = data.with(begin);
        Some(KernelRead {
            request: Begun { data, number },
            range,
        })
    }

    /// Registers a WRITE of the kernel that cannot be carried out at once. Keep it until it is.
    pub fn kernel_write(&self, handle: u64, range: Range<u64>) -> Option<Begun<Arc<FileData>>> {
        let file = self.files.get(handle)?;
        let data = self.data(&file.inode).clone();
        let number = data.with(|inner| inner.under_way().begin(Doing::KernelWrite, range));
        Some(Begun { data, number })
    }

    /// Waits until the READs of a file that the kernel has sent so far are answered.
    pub async fn kernel_reads_answered(&self, nodeid: u64) {
        let inode = self.table.get(nodeid);
        if let Some(data) = inode.as_ref().and_then(|inode| inode.data()) {
            let last = data.with(|inner| inner.under_way().last());
            let all = 0..u64::MAX;
            let reads = |inner: &mut FileState| inner.under_way().any_until(last, &all, is_read);
            data.until(|inner| (!reads(inner)).then_some(())).await;
        }
    }

    /// Whether READs of a file that the kernel has sent are not answered.
    pub fn is_kernel_reading(&self, nodeid: u64) -> bool {
        let inode = self.table.get(nodeid);
        let data = inode.as_ref().and_then(|inode| inode.data());
        data.is_some_and(|data| data.with(|inner| inner.under_way().any(is_read)))
    }
}
