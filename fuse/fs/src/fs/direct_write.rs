//! O_DIRECT writes, which bypass the cache.
//!
//! What is cached of the range is committed first, and the data is sent FILE_SYNC, in as many
//! WRITEs at once as it takes. With O_APPEND it goes to the kernel's offset, the end that the kernel
//! knows: Linux's client refuses O_DIRECT with O_APPEND altogether.

use super::changing::not_abandoned;
use super::error::{FsError, FsResult};
use super::file::{Begun, FileState};
use super::objects::Objects;
use super::open_file::OpenFile;
use crate::cache::WriteData;
use futures_util::future::join_all;
use nfsrdma_nfs3::{Nfs3, NfsError};
use nfsrdma_rdma::contract::Segs;
use nfsrdma_xdr::nfs3::{Stable, Status};
use std::ops::Range;
use std::sync::Arc;

/// How often a part is written that a restarting server has lost before it was committed.
const MOST_TRIES: u32 = 4;

impl<N: Nfs3> Objects<N> {
    /// An O_DIRECT write: it is on stable storage when this returns, and not cached.
    pub(super) async fn write_direct(
        self: &Arc<Self>,
        file: &Arc<OpenFile>,
        offset: u64,
        given: WriteData<'_>,
    ) -> FsResult<()> {
        let inode = &file.inode;
        let data = self.data(inode);
        let range = offset..offset.saturating_add(given.len() as u64);
        let number = data.until(|inner| inner.begin_direct(&range)).await;
        let _direct = Begun {
            data: &**data,
            number,
        };
        if self.below_the_limit(offset, given)?.len() < given.len() {
            // The kernel would turn a short count into EIO.
            return Err(FsError::TooLarge);
        }
        // Older data is committed, not only written: after a restart of the server it would be
        // written again, over this data.
        if data.with(|inner| inner.pages().is_unsaved(range.clone())) {
            self.write_back_for(&file.cred, inode, true).await?;
        }
        let void = |inner: &mut FileState| inner.invalidate_range(range.clone());
        not_abandoned()?;
        self.not_ended()?;
        data.with(void);
        let wtmax = self.limits().wtmax.max(1) as usize;
        let parts = (0..given.len()).step_by(wtmax);
        let parts = parts.map(|at| {
            let part = at..given.len().min(at.saturating_add(wtmax));
            self.write_part(file, offset, given, part)
        });
        let results = join_all(parts).await;
        // READs may have cached the old data meanwhile.
        data.with(void);
        results.into_iter().collect::<FsResult<()>>()?;
        self.shared.stats.write_bytes.add(given.len() as u64);
        Ok(())
    }

    /// Writes a part of a direct write at `offset`, of at most `wtmax` bytes: by one WRITE, or by
    /// several if the server accepts less at a time.
    async fn write_part(
        self: &Arc<Self>,
        file: &OpenFile,
        offset: u64,
        given: WriteData<'_>,
        part: Range<usize>,
    ) -> FsResult<()> {
        let inode = &file.inode;
        let (mut at, mut tries) = (part.start, 0);
        while at < part.end {
            let n = part.end - at;
            let piece = match given.part(at..part.end) {
                Some(buf) => buf,
                None => {
                    let mut buf = self.alloc(n).await?;
                    buf.copy_from_slice(&given.bytes()[at..part.end]);
                    buf.freeze()
                }
            };
            let piece = Segs::from_iter([piece]);
            let busy = self.shared.busy();
            self.shared.stats.writes_sent.add(1);
            let place = offset + at as u64;
            let call = self.write_call(&file.cred, inode, place, piece, Stable::FileSync);
            match call.await {
                Ok(done) => {
                    if done.count == 0 {
                        return Err(NfsError::misbehaved("WRITE took nothing").into());
                    }
                    if done.committed != Stable::FileSync {
                        // RFC 1813 section 3.3.7 forbids this answer; a COMMIT makes the data
                        // stable, unless the server has restarted and lost it.
                        let commit = self.commit_call(&file.cred, inode).await?;
                        if commit.1 != done.verifier {
                            tries += 1;
                            if tries == MOST_TRIES {
                                return Err(NfsError::Status(Status::Io).into());
                            }
                            continue;
                        }
                    }
                    at += (done.count as usize).min(n);
                }
                Err(error) => {
                    return Err(self.note_error(inode, error));
                }
            }
            drop(busy);
        }
        Ok(())
    }
}
