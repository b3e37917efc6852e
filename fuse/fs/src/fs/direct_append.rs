//! The operations of the mount around [`super::appends`], which decides where O_DIRECT appends go.

use super::appends::Turn;
use super::error::FsResult;
use super::file::FileData;
use super::objects::Objects;
use super::open_file::OpenFile;
use nfsrdma_nfs3::Nfs3;
use std::sync::Arc;

/// An O_DIRECT append that the kernel has requested. Keep it until the request is answered.
#[derive(Debug)]
pub struct ArrivedAppend {
    data: Arc<FileData>,
    asked: u64,
    pid: u32,
    /// The kernel's offset lies behind the end of the file, or the end is not known: the request
    /// may belong to a write(2) whose first request has not arrived yet.
    pub is_beyond: bool,
}

impl Drop for ArrivedAppend {
    fn drop(&mut self) {
        self.data
            .with(|inner| inner.appends().left(self.asked, self.pid));
        self.data.changed.notify_waiters();
    }
}

impl<N: Nfs3> Objects<N> {
    /// Registers an append by the thread `pid` at the kernel's offset `asked`. `None` if the file
    /// is not open.
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

    /// Returns where an O_DIRECT append of `len` bytes at the kernel's offset `asked` is to be
    /// written, as soon as it may begin. The caller must call [`FileState::end_append`] when the
    /// write has ended.
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
                    // Others may wait for this request to begin.
                    data.changed.notify_waiters();
                    return Ok(offset);
                }
                Turn::Wait => changed.await,
                Turn::Late => {}
            }
        }
    }
}
