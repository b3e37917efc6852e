//! Data that programs write through shared mappings.
//!
//! The kernel sends the pages of a mapping at any time, with the handle of any open file through
//! which the inode was mapped for writing: the handle of a WRITE with FUSE_WRITE_CACHE is a guess
//! (fuse(4), `fuse_write_in`), and it is not known who wrote the bytes. If the kernel guessed an
//! open file whose opener may no longer write, the server would refuse the data of another program,
//! and the msync(2) or fsync(2) of that program would report nothing.
//!
//! So the data is written with the credential of any open file whose opener may write now. Open files that have lost a
//! lock do not count; if there is no other, the data is refused.

use super::error::FsResult;
use super::inode::Inode;
use super::objects::Objects;
use super::open_file::OpenFile;
use super::write::Origin;
use crate::cache::WriteData;
use nfsrdma_nfs3::{Cred, Nfs3};
use std::sync::Arc;

impl<N: Nfs3> Objects<N> {
    /// A WRITE of mapped pages; `handle` is the kernel's guess. msync(2) and fsync(2) report errors.
    pub async fn write_mapped<'a>(
        self: &Arc<Self>,
        handle: u64,
        offset: u64,
        data: impl Into<WriteData<'a>>,
    ) -> FsResult<u32> {
        let data = data.into();
        let guessed = self.file(handle)?;
        let writing = self.open_for_writing(&guessed.inode);
        let lost =
            |(number, file): &&(u64, Arc<OpenFile>)| self.check_locks(file, *number).is_err();
        let keeps = writing.iter().filter(|file| !lost(file));
        let able: Vec<_> = keeps.map(|(_, file)| file.clone()).collect();
        let guess = match self.check_locks(&guessed, handle) {
            Ok(()) => &guessed,
            // The data may be of another open file that has lost no lock.
            Err(error) => able.first().ok_or(error)?,
        };
        let writer = self.one_who_may_write(guess, &able).await;
        let len = self
            .write_by(&writer, offset, data, Origin::Mapping)
            .await?;
        if writer.is_sync() || self.config.sync {
            self.write_back(&writer.inode, true).await;
        }
        Ok(len)
    }

    /// The first open file whose opener the server lets write now; the guessed one if there is
    /// none.
    async fn one_who_may_write(
        &self,
        guessed: &Arc<OpenFile>,
        all: &[Arc<OpenFile>],
    ) -> Arc<OpenFile> {
        let mut asked: Vec<&Cred> = Vec::new();
        if all.iter().all(|file| file.cred == guessed.cred) {
            return guessed.clone();
        }
        for file in std::iter::once(guessed).chain(all) {
            if asked.contains(&&file.cred) {
                continue;
            }
            asked.push(&file.cred);
            if self.is_writable_by(&file.cred, &file.inode).await {
                return file.clone();
            }
        }
        guessed.clone()
    }

    /// Whether the server lets `cred` write. The owner may, whatever the mode (RFC 1813 section
    /// 4.4).
    async fn is_writable_by(&self, cred: &Cred, inode: &Arc<Inode>) -> bool {
        let owner = inode.state.lock().attributes().map(|known| known.uid);
        if owner == Some(cred.uid) {
            return true;
        }
        match self.access_cached(cred, inode.nodeid, libc::W_OK) {
            Some(judged) => judged.is_ok(),
            None => self.access(cred, inode.nodeid, libc::W_OK).await.is_ok(),
        }
    }
}
