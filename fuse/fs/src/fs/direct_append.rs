//! The operations of [`Fs`] around [`super::appends`], which says where O_DIRECT appends go.

use super::Fs;
use super::appends::Turn;
use super::error::FsResult;
use super::file::FileData;
use super::open_file::OpenFile;
use nfsrdma_nfs3::Nfs3;
use std::sync::Arc;

/// An O_DIRECT append that the kernel has asked for. To be kept until it is answered.
#[derive(Debug)]
pub struct ArrivedAppend {
    data: Arc<FileData>,
    asked: u64,
    pid: u32,
    /// The file is not known to reach so far: the request may be of a write(2) that begins
    /// before, and have come first.
    pub is_beyond: bool,
}

impl Drop for ArrivedAppend {
    fn drop(&mut self) {
        self.data
            .with(|inner| inner.appends().left(self.asked, self.pid));
        self.data.changed.notify_waiters();
    }
}

impl<N: Nfs3> Fs<N> {
    /// The thread `pid` appends at the kernel's offset `asked`. `None` if the file is not open.
    pub fn append_arrived(&self, handle: u64, asked: u64, pid: u32) -> Option<ArrivedAppend> {
        let file = self.files.read().get(handle as usize).cloned()?;
        let data = self.data(&file.inode).clone();
        data.with(|inner| inner.appends().arrived(asked, pid));
        let (end, _) = self.known_end(&file.inode);
        Some(ArrivedAppend {
            data,
            asked,
            pid,
            is_beyond: end.is_none_or(|end| asked > end),
        })
    }

    /// Where an O_DIRECT append of `len` bytes at the kernel's offset `asked` is to be written; the
    /// caller calls [`FileState::end_append`].
    pub(super) async fn begin_append(
        self: &Arc<Self>,
        file: &Arc<OpenFile>,
        asked: u64,
        len: u64,
    ) -> FsResult<u64> {
        let data = self.data(&file.inode);
        loop {
            let mut changed = std::pin::pin!(data.changed.notified());
            changed.as_mut().enable();
            let (end, ended) = self.end_of(&file.cred, &file.inode).await?;
            match data.with(|inner| inner.begin_append(asked, len, end, ended)) {
                Turn::At(offset) => {
                    // It may have been the one that others wait for.
                    data.changed.notify_waiters();
                    return Ok(offset);
                }
                Turn::Wait => changed.await,
                Turn::Late => {}
            }
        }
    }
}
